// Operators of torch, run by Python: arguments are collected in order and resolved there by the ATen schema.
#pragma once
#include "kernelward/tensor.h"

namespace at { namespace indexing {
struct None_t {};
struct Ellipsis_t {};
constexpr None_t None{};
constexpr Ellipsis_t Ellipsis{};
struct Slice {
  std::optional<int64_t> start, stop, step;
  Slice() = default;
  Slice(std::optional<int64_t> a, std::optional<int64_t> b = std::nullopt, std::optional<int64_t> c = std::nullopt)
      : start(a), stop(b), step(c) {}
  Slice(None_t, std::optional<int64_t> b, std::optional<int64_t> c = std::nullopt) : stop(b), step(c) {}
  Slice(std::optional<int64_t> a, None_t, std::optional<int64_t> c = std::nullopt) : start(a), step(c) {}
  Slice(None_t, None_t, std::optional<int64_t> c = std::nullopt) : step(c) {}
};
} }  // namespace at::indexing
namespace at { namespace Reduction { enum Reduction { None, Mean, Sum, END }; } }

namespace kw {

// One argument of an operator: whatever torch's C++ signatures accept, brace lists included.
class Arg {
 public:
  Arg();
  Arg(const at::Tensor& t);
  Arg(const Arg& o);
  Arg& operator=(const Arg& o);
  ~Arg();
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>> Arg(T v) : Arg() {
    if constexpr (std::is_same_v<T, bool>) { kind_ = kBool; integer_ = v; }
    else if constexpr (std::is_floating_point_v<T>) { kind_ = kDouble; real_ = double(v); }
    else { kind_ = kInt; integer_ = int64_t(v); }
  }
  Arg(at::Reduction::Reduction r) : Arg(int(r)) {}
  Arg(c10::Half v) : Arg(float(v)) {}
  Arg(c10::BFloat16 v) : Arg(float(v)) {}
  Arg(const c10::Scalar& s);
  Arg(const char* s);
  Arg(const std::string& s);
  Arg(std::initializer_list<int64_t> list);
  Arg(const std::vector<int64_t>& list);
  Arg(const std::vector<int>& list);
  Arg(const c10::IntArrayRef& list);
  Arg(std::initializer_list<at::Tensor> list);
  Arg(const std::vector<at::Tensor>& list);
  Arg(const at::TensorList& list);
  Arg(c10::ScalarType t);
  Arg(const c10::TensorOptions& o);
  Arg(const c10::Device& d);
  Arg(c10::DeviceType d);
  Arg(c10::MemoryFormat f);
  Arg(c10::Layout);
  Arg(std::nullopt_t);
  Arg(at::indexing::None_t);
  Arg(at::indexing::Ellipsis_t);
  Arg(const at::indexing::Slice& s);
  template <class T> Arg(const std::optional<T>& v) : Arg() { if (v) *this = Arg(*v); else kind_ = kNone; }
  static Arg list(std::initializer_list<Arg> items);
  bool given() const { return kind_ >= 0; }
  void fill(Value& v) const;

 private:
  int kind_ = -1;  // -1: not given
  at::Tensor tensor_;
  std::string text_;
  std::vector<int64_t> ints_;
  std::vector<Arg> items_;
  mutable std::vector<Value> values_;
  int64_t integer_ = 0;
  double real_ = 0;
  int where_ = -1;
};

using Args = std::initializer_list<const Arg*>;
at::Tensor call(const char* name, Args args);
std::vector<at::Tensor> call_list(const char* name, Args args);
void call_inplace(const char* name, Args args);
c10::Scalar call_scalar(const char* name, Args args);
inline std::tuple<at::Tensor, at::Tensor> call_pair(const char* name, Args args) {
  auto r = call_list(name, args);
  return {r.at(0), r.at(1)};
}
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> call_triple(const char* name, Args args) {
  auto r = call_list(name, args);
  return {r.at(0), r.at(1), r.at(2)};
}

}  // namespace kw

namespace at {

#define KW_OPERATOR(SIGN)                                                                    \
  Tensor operator SIGN(const Tensor& a, const Tensor& b);                                                       \
  Tensor operator SIGN(const Tensor& a, const Scalar& b);                                                       \
  Tensor operator SIGN(const Scalar& a, const Tensor& b);
KW_OPERATOR(+) KW_OPERATOR(-) KW_OPERATOR(*) KW_OPERATOR(/) KW_OPERATOR(<) KW_OPERATOR(>) KW_OPERATOR(<=) KW_OPERATOR(>=) KW_OPERATOR(==) KW_OPERATOR(!=)
#undef KW_OPERATOR

#define KW_FUNCTIONS(X)                                                                                             \
  X(abs) X(acos) X(adaptive_avg_pool1d) X(adaptive_avg_pool2d) X(adaptive_avg_pool3d) X(add) X(addcdiv) X(addcmul)   \
  X(addmm) X(addmv) X(all) X(alpha_dropout) X(amax) X(amin) X(any) X(arange) X(argmax) X(argmin) X(argsort) X(asin)  \
  X(atan) X(avg_pool1d) X(avg_pool2d) X(avg_pool3d) X(baddbmm) X(batch_norm) X(binary_cross_entropy) X(bmm) X(cat)    \
  X(cdist) X(ceil) X(celu) X(clamp) X(clamp_max) X(clamp_min) X(clone) X(concat) X(constant_pad_nd) X(conv1d)       \
  X(conv2d) X(conv3d) X(conv_transpose1d) X(conv_transpose2d) X(conv_transpose3d) X(convolution) X(cos)             \
  X(cosine_similarity) X(cross_entropy_loss) X(cudnn_convolution) X(cumprod) X(cumsum) X(diag) X(div) X(dot)        \
  X(dropout) X(einsum) X(elu) X(embedding) X(empty) X(empty_like) X(empty_strided) X(eq) X(erf) X(exp) X(expm1)      \
  X(eye) X(flatten) X(flip) X(floor) X(full) X(full_like) X(gather) X(ge) X(gelu) X(glu) X(group_norm) X(gt)         \
  X(hardshrink) X(hardsigmoid) X(hardswish) X(hardtanh) X(hinge_embedding_loss) X(huber_loss) X(index_select)       \
  X(instance_norm) X(isnan) X(kl_div) X(l1_loss) X(layer_norm) X(le) X(leaky_relu) X(lerp) X(linear) X(linspace)     \
  X(log) X(log1p) X(log2) X(log_sigmoid) X(log_softmax) X(logsumexp) X(lt) X(masked_fill) X(matmul) X(max_pool1d)    \
  X(max_pool2d) X(max_pool3d) X(maximum) X(mean) X(minimum) X(mish) X(mm) X(movedim) X(mse_loss) X(mul) X(mv)        \
  X(narrow) X(ne) X(neg) X(nll_loss) X(norm) X(normal) X(ones) X(ones_like) X(outer) X(pad) X(permute) X(pow)        \
  X(prelu) X(prod) X(rand) X(rand_like) X(randint) X(randn) X(randn_like) X(reciprocal) X(relu) X(relu_)            \
  X(repeat_interleave) X(reshape) X(roll) X(round) X(rsqrt) X(scaled_dot_product_attention) X(scatter) X(select)     \
  X(selu) X(sigmoid) X(sign) X(silu) X(sin) X(slice) X(smooth_l1_loss) X(softmax) X(softplus) X(softshrink) X(sqrt)  \
  X(square) X(squeeze) X(stack) X(std) X(sub) X(sum) X(t) X(tan) X(tanh) X(tensordot) X(transpose) X(tril) X(triu)   \
  X(trunc) X(unsqueeze) X(upsample_bilinear2d) X(upsample_nearest2d) X(var) X(vstack) X(where) X(zeros) X(zeros_like) \
  X(hstack) X(bernoulli) X(native_dropout) X(swapaxes) X(logical_not) X(isfinite) X(bitwise_and) X(multinomial)

#define KW_DECLARE(NAME)                                                                                             \
  Tensor NAME(const kw::Arg& a, const kw::Arg& b = kw::absent(), const kw::Arg& c = kw::absent(),                    \
              const kw::Arg& d = kw::absent(), const kw::Arg& e = kw::absent(), const kw::Arg& f = kw::absent(),     \
              const kw::Arg& g = kw::absent(), const kw::Arg& h = kw::absent(), const kw::Arg& i = kw::absent());
KW_FUNCTIONS(KW_DECLARE)
#undef KW_DECLARE
inline Tensor max(const Tensor& x) { return x.max(); }
inline Tensor min(const Tensor& x) { return x.min(); }
inline Tensor max(const Tensor& x, const Tensor& y) { return x.max(y); }
inline Tensor min(const Tensor& x, const Tensor& y) { return x.min(y); }
inline std::tuple<Tensor, Tensor> max(const Tensor& x, int64_t dim, bool keep = false) { return x.max(dim, keep); }
inline std::tuple<Tensor, Tensor> min(const Tensor& x, int64_t dim, bool keep = false) { return x.min(dim, keep); }
inline std::tuple<Tensor, Tensor> sort(const Tensor& x, int64_t dim = -1, bool down = false) { return x.sort(dim, down); }
inline std::tuple<Tensor, Tensor> topk(const Tensor& x, int64_t k, int64_t dim = -1, bool largest = true, bool sorted = true) {
  return x.topk(k, dim, largest, sorted);
}
inline std::tuple<Tensor, Tensor> var_mean(const kw::Arg& x, const kw::Arg& a = kw::absent(), const kw::Arg& b = kw::absent(),
                                           const kw::Arg& c = kw::absent()) {
  return kw::call_pair("var_mean", {&x, &a, &b, &c});
}
inline std::tuple<Tensor, Tensor, Tensor> native_layer_norm(const kw::Arg& x, const kw::Arg& a, const kw::Arg& b,
                                                            const kw::Arg& c, const kw::Arg& d) {
  return kw::call_triple("native_layer_norm", {&x, &a, &b, &c, &d});
}
inline std::vector<Tensor> split(const Tensor& x, int64_t size, int64_t dim = 0) { return x.split(size, dim); }
inline std::vector<Tensor> chunk(const Tensor& x, int64_t n, int64_t dim = 0) { return x.chunk(n, dim); }
inline std::vector<Tensor> unbind(const Tensor& x, int64_t dim = 0) { return x.unbind(dim); }
inline Tensor scalar_tensor(const Scalar& v, const TensorOptions& o = {}) {
  kw::Arg a(v), b(o);
  return kw::call("scalar_tensor", {&a, &b});
}
inline bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8) {
  kw::Arg x(a), y(b), r(rtol), t(atol);
  return kw::call_scalar("allclose", {&x, &y, &r, &t}).toBool();
}
template <class T> Tensor tensor(const std::vector<T>& values, const TensorOptions& o = CppTypeToScalarType<T>::value) {
  Tensor r = empty(c10::IntArrayRef{int64_t(values.size())}, TensorOptions(CppTypeToScalarType<T>::value).device(kCPU));
  for (size_t i = 0; i < values.size(); i++) static_cast<T*>(r.data_ptr())[i] = values[i];
  return r.to(o);
}
template <class T> Tensor tensor(std::initializer_list<T> values, const TensorOptions& o = CppTypeToScalarType<T>::value) {
  return tensor(std::vector<T>(values), o);
}
template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
Tensor tensor(T value, const TensorOptions& o = CppTypeToScalarType<T>::value) {
  return scalar_tensor(Scalar(value), o);
}
Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides, const TensorOptions& o = {});
inline Tensor from_blob(void* data, IntArrayRef sizes, const TensorOptions& o = {}) {
  std::vector<int64_t> strides(sizes.size());
  int64_t n = 1;
  for (size_t i = sizes.size(); i-- > 0;) { strides[i] = n; n *= sizes[i]; }
  return from_blob(data, sizes, strides, o);
}
inline std::ostream& operator<<(std::ostream& out, const Tensor& t) {
  return t.defined() ? out << "[tensor of sizes " << t.sizes() << ", " << t.scalar_type() << "]" : out << "[undefined tensor]";
}

}  // namespace at
