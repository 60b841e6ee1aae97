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
  Arg() = default;
  Arg(const at::Tensor& t) : kind_(t.defined() ? kTensor : kNone), tensor_(t) {}
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>> Arg(T v) {
    if constexpr (std::is_same_v<T, bool>) { kind_ = kBool; integer_ = v; }
    else if constexpr (std::is_floating_point_v<T>) { kind_ = kDouble; real_ = double(v); }
    else { kind_ = kInt; integer_ = int64_t(v); }
  }
  Arg(at::Reduction::Reduction r) : Arg(int(r)) {}
  Arg(c10::Half v) : Arg(float(v)) {}
  Arg(c10::BFloat16 v) : Arg(float(v)) {}
  Arg(const c10::Scalar& s) : Arg() {
    if (s.isFloatingPoint()) *this = Arg(s.toDouble());
    else if (s.isBoolean()) *this = Arg(s.toBool());
    else *this = Arg(s.toLong());
  }
  Arg(const char* s) : kind_(kString), text_(s) {}
  Arg(const std::string& s) : kind_(kString), text_(s) {}
  Arg(std::initializer_list<int64_t> list) : kind_(kInts), ints_(list) {}
  Arg(const std::vector<int64_t>& list) : kind_(kInts), ints_(list) {}
  Arg(const std::vector<int>& list) : kind_(kInts), ints_(list.begin(), list.end()) {}
  Arg(const c10::IntArrayRef& list) : kind_(kInts), ints_(list.vec()) {}
  Arg(std::initializer_list<at::Tensor> list) : kind_(kList) { for (auto& t : list) items_.emplace_back(t); }
  Arg(const std::vector<at::Tensor>& list) : kind_(kList) { for (auto& t : list) items_.emplace_back(t); }
  Arg(const at::TensorList& list) : kind_(kList) { for (auto& t : list) items_.emplace_back(t); }
  Arg(c10::ScalarType t) : kind_(kDtype), integer_(int(t)) {}
  Arg(const c10::TensorOptions& o) : kind_(kOptions), integer_(o.type), where_(o.where) {}
  Arg(const c10::Device& d) : kind_(kDevice), integer_(d.index()), where_(d.is_cuda()) {}
  Arg(c10::DeviceType d) : Arg(c10::Device(d)) {}
  Arg(c10::MemoryFormat f) : kind_(kFormat), integer_(int(f)) {}
  Arg(c10::Layout) : kind_(kNone) {}
  Arg(std::nullopt_t) : kind_(kNone) {}
  Arg(at::indexing::None_t) : kind_(kNone) {}
  Arg(at::indexing::Ellipsis_t) : kind_(kEllipsis) {}
  Arg(const at::indexing::Slice& s) : kind_(kSlice), ints_{s.start.value_or(0), s.stop.value_or(0), s.step.value_or(1)},
      integer_((s.start ? 0 : 1) | (s.stop ? 0 : 2) | (s.step ? 0 : 4)) {}
  template <class T> Arg(const std::optional<T>& v) { if (v) *this = Arg(*v); else kind_ = kNone; }
  static Arg list(std::initializer_list<Arg> items) {
    Arg a;
    a.kind_ = kList;
    a.items_ = items;
    return a;
  }
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

#define KW_DEFINE(NAME)                                                                                              \
  inline Tensor Tensor::NAME(const kw::Arg& a, const kw::Arg& b, const kw::Arg& c, const kw::Arg& d) const {         \
    kw::Arg self(*this);                                                                                             \
    return kw::call("." #NAME, {&self, &a, &b, &c, &d});                                                             \
  }
KW_TENSOR_METHODS(KW_DEFINE)
#undef KW_DEFINE
#define KW_DEFINE(NAME)                                                                                              \
  inline Tensor& Tensor::NAME(const kw::Arg& a, const kw::Arg& b, const kw::Arg& c, const kw::Arg& d) const {        \
    kw::Arg self(*this);                                                                                             \
    Tensor r = kw::call("." #NAME, {&self, &a, &b, &c, &d});                                                         \
    kw::Value& mine = impl_->meta;                                                                                   \
    int64_t handle = mine.handle;                                                                                    \
    mine = r.meta();                                                                                                 \
    mine.handle = handle;                                                                                            \
    return const_cast<Tensor&>(*this);                                                                               \
  }
KW_TENSOR_INPLACE(KW_DEFINE)
#undef KW_DEFINE

inline Tensor Tensor::contiguous(MemoryFormat format) const {
  if (is_contiguous(format)) return *this;
  kw::Arg self(*this), f(format);
  return kw::call(".contiguous", {&self, &f});
}
inline Tensor Tensor::clone() const { kw::Arg self(*this); return kw::call(".clone", {&self}); }
inline Tensor Tensor::cuda() const { kw::Arg self(*this), d(kCUDA); return is_cuda() ? *this : kw::call(".to", {&self, &d}); }
inline Tensor Tensor::cpu() const { kw::Arg self(*this), d(kCPU); return is_cpu() ? *this : kw::call(".to", {&self, &d}); }
inline Tensor Tensor::to(const kw::Arg& a, const kw::Arg& b, const kw::Arg& c, const kw::Arg& d) const {
  kw::Arg self(*this);
  return kw::call(".to", {&self, &a, &b, &c, &d});
}
inline Tensor Tensor::to(ScalarType t) const { kw::Arg self(*this), a(t); return t == scalar_type() ? *this : kw::call(".to", {&self, &a}); }
inline Tensor Tensor::reshape1(std::initializer_list<int64_t> sizes) const { return reshape(kw::Arg(sizes)); }
inline Scalar Tensor::item() const { kw::Arg self(*this); return kw::call_scalar(".item", {&self}); }
inline int64_t Tensor::storage_offset() const { kw::Arg self(*this); return kw::call_scalar(".storage_offset", {&self}).toLong(); }
#define KW_PAIR_METHOD(NAME)                                                          \
  inline std::tuple<Tensor, Tensor> Tensor::NAME(int64_t dim, bool flag) const {      \
    kw::Arg self(*this), a(dim), b(flag);                                             \
    return kw::call_pair("." #NAME, {&self, &a, &b});                                 \
  }
KW_PAIR_METHOD(max) KW_PAIR_METHOD(min) KW_PAIR_METHOD(sort)
#undef KW_PAIR_METHOD
inline std::tuple<Tensor, Tensor> Tensor::topk(int64_t k, int64_t dim, bool largest, bool sorted) const {
  kw::Arg self(*this), a(k), b(dim), c(largest), d(sorted);
  return kw::call_pair(".topk", {&self, &a, &b, &c, &d});
}
inline Tensor Tensor::max() const { kw::Arg self(*this); return kw::call(".max", {&self}); }
inline Tensor Tensor::min() const { kw::Arg self(*this); return kw::call(".min", {&self}); }
inline Tensor Tensor::max(const Tensor& o) const { kw::Arg self(*this), a(o); return kw::call(".maximum", {&self, &a}); }
inline Tensor Tensor::min(const Tensor& o) const { kw::Arg self(*this), a(o); return kw::call(".minimum", {&self, &a}); }
inline std::vector<Tensor> Tensor::split(int64_t size, int64_t dim) const {
  kw::Arg self(*this), a(size), b(dim);
  return kw::call_list(".split", {&self, &a, &b});
}
inline std::vector<Tensor> Tensor::chunk(int64_t chunks, int64_t dim) const {
  kw::Arg self(*this), a(chunks), b(dim);
  return kw::call_list(".chunk", {&self, &a, &b});
}
inline std::vector<Tensor> Tensor::unbind(int64_t dim) const {
  kw::Arg self(*this), a(dim);
  return kw::call_list(".unbind", {&self, &a});
}
inline Tensor Tensor::index(const kw::Arg& where) const { kw::Arg self(*this); return kw::call("__getitem__", {&self, &where}); }
inline Tensor Tensor::index(std::initializer_list<kw::Arg> where) const {
  kw::Arg self(*this), list = kw::Arg::list(where);
  return kw::call("__getitem__", {&self, &list});
}
inline Tensor& Tensor::index_put_(std::initializer_list<kw::Arg> where, const kw::Arg& value) {
  kw::Arg self(*this), list = kw::Arg::list(where);
  kw::call_inplace("__setitem__", {&self, &list, &value});
  return *this;
}
inline Tensor Tensor::operator[](int64_t i) const { return select(0, i); }
inline Tensor Tensor::operator[](const Tensor& i) const { return index(kw::Arg(i)); }
inline Tensor Tensor::operator-() const { return neg(); }
inline Tensor& Tensor::operator+=(const kw::Arg& o) { return add_(o); }
inline Tensor& Tensor::operator-=(const kw::Arg& o) { return sub_(o); }
inline Tensor& Tensor::operator*=(const kw::Arg& o) { return mul_(o); }
inline Tensor& Tensor::operator/=(const kw::Arg& o) { return div_(o); }

#define KW_OPERATOR(SIGN, NAME, SCALAR_LEFT)                                                                    \
  inline Tensor operator SIGN(const Tensor& a, const Tensor& b) { return a.NAME(b); }                           \
  inline Tensor operator SIGN(const Tensor& a, const Scalar& b) { return a.NAME(b); }                           \
  inline Tensor operator SIGN(const Scalar& a, const Tensor& b) { SCALAR_LEFT; }
KW_OPERATOR(+, add, return b.add(a))
KW_OPERATOR(*, mul, return b.mul(a))
KW_OPERATOR(-, sub, return b.neg().add(a))
KW_OPERATOR(/, div, return b.reciprocal().mul(a))
KW_OPERATOR(<, lt, return b.gt(a))
KW_OPERATOR(>, gt, return b.lt(a))
KW_OPERATOR(<=, le, return b.ge(a))
KW_OPERATOR(>=, ge, return b.le(a))
KW_OPERATOR(==, eq, return b.eq(a))
KW_OPERATOR(!=, ne, return b.ne(a))
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

#define KW_DEFINE(NAME)                                                                                              \
  inline Tensor NAME(const kw::Arg& a, const kw::Arg& b = kw::absent(), const kw::Arg& c = kw::absent(),             \
                     const kw::Arg& d = kw::absent(), const kw::Arg& e = kw::absent(),                               \
                     const kw::Arg& f = kw::absent(), const kw::Arg& g = kw::absent(),                               \
                     const kw::Arg& h = kw::absent(), const kw::Arg& i = kw::absent()) {                             \
    return kw::call(#NAME, {&a, &b, &c, &d, &e, &f, &g, &h, &i});                                                    \
  }
KW_FUNCTIONS(KW_DEFINE)
#undef KW_DEFINE
#undef KW_FUNCTIONS

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
