// at::Tensor: a handle to a Python tensor with its metadata cached. Everything it cannot answer itself runs in Python.
#pragma once
#include <memory>
#include <tuple>
#include <utility>

#include "kernelward/scalar_types.h"

namespace at {
using namespace c10;
class Tensor;
using TensorList = c10::ArrayRef<Tensor>;
}  // namespace at

namespace kw {
class Arg;
const Arg& absent();
extern const Host* host;  // set once by Python before the first call

// Counted by hand and defined out of line (host.cpp): what every candidate would instantiate is compiled once.
struct TensorImpl {
  Value meta;
  long references;
};
TensorImpl* make_impl(const Value& v);
void drop_impl(TensorImpl* impl);
[[noreturn]] void undefined_tensor();
[[noreturn]] void wrong_scalar_type(c10::ScalarType wanted, c10::ScalarType found);
[[noreturn]] void wrong_dimension(int64_t i, int64_t n);
}  // namespace kw

// Operators reached as methods, with the arguments of their ATen schema.
#define KW_TENSOR_METHODS(X)                                                                                      \
  X(abs) X(acos) X(add) X(addbmm) X(addcdiv) X(addcmul) X(addmm) X(addmv) X(all) X(amax) X(amin) X(any) X(argmax)  \
  X(argmin) X(argsort) X(asin) X(atan) X(baddbmm) X(bernoulli) X(bitwise_and) X(bitwise_not) X(bitwise_or) X(bmm)  \
  X(broadcast_to) X(ceil) X(clamp) X(clamp_max) X(clamp_min) X(clip) X(conj) X(cos) X(cosh) X(count_nonzero)       \
  X(cumprod) X(cumsum) X(diag) X(diagonal) X(div) X(dot) X(eq) X(erf) X(exp) X(expand) X(expand_as) X(expm1)       \
  X(fill) X(flatten) X(flip) X(floor) X(floor_divide) X(gather) X(ge) X(gt) X(index_add) X(index_select) X(isfinite) \
  X(isinf) X(isnan) X(le) X(lerp) X(log) X(log10) X(log1p) X(log2) X(log_softmax) X(logical_and) X(logical_not)    \
  X(logical_or) X(logsumexp) X(lt) X(masked_fill) X(masked_select) X(matmul) X(maximum) X(mean) X(minimum) X(mm)   \
  X(movedim) X(mul) X(multiply) X(mv) X(narrow) X(ne) X(neg) X(nonzero) X(norm) X(outer) X(permute) X(pow) X(prod) \
  X(reciprocal) X(relu) X(remainder) X(repeat) X(repeat_interleave) X(reshape) X(reshape_as) X(roll) X(round)      \
  X(rsqrt) X(rsub) X(scatter) X(scatter_add) X(select) X(sigmoid) X(sign) X(sin) X(sinh) X(slice) X(softmax)       \
  X(sqrt) X(square) X(squeeze) X(std) X(sub) X(subtract) X(sum) X(t) X(take) X(tan) X(tanh) X(tile) X(transpose)   \
  X(tril) X(triu) X(true_divide) X(trunc) X(unflatten) X(unfold) X(unsqueeze) X(var) X(view) X(view_as) X(where)   \
  X(as_strided) X(swapaxes) X(new_empty) X(new_zeros) X(new_full) X(new_ones) X(alias) X(type_as) X(index_copy)

#define KW_TENSOR_INPLACE(X)                                                                                       \
  X(abs_) X(add_) X(addcdiv_) X(addcmul_) X(addmm_) X(clamp_) X(clamp_max_) X(clamp_min_) X(copy_) X(div_) X(exp_) \
  X(fill_) X(floor_) X(index_add_) X(index_copy_) X(index_fill_) X(log_) X(masked_fill_) X(mul_) X(neg_) X(normal_) \
  X(pow_) X(random_) X(reciprocal_) X(relu_) X(resize_) X(rsqrt_) X(scatter_) X(scatter_add_) X(set_) X(sigmoid_)  \
  X(sqrt_) X(squeeze_) X(sub_) X(tanh_) X(transpose_) X(uniform_) X(unsqueeze_) X(zero_) X(baddbmm_) X(tril_) X(triu_)

namespace at {

template <class T> struct DefaultPtrTraits { using PtrType = T*; };
template <class T> struct RestrictPtrTraits { using PtrType = T* __restrict__; };

// TensorAccessor and PackedTensorAccessor: sizes and strides are held by value, so it may be a kernel's argument.
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t> class PackedTensorAccessor {
 public:
  using PtrType = T*;
  PackedTensorAccessor(T* data, const int64_t* sizes, const int64_t* strides) : data_(data) {
    for (size_t i = 0; i < N; i++) { sizes_[i] = I(sizes[i]); strides_[i] = I(strides[i]); }
  }
  PackedTensorAccessor(T* data, const I* sizes, const I* strides, int) : data_(data) {
    for (size_t i = 0; i < N; i++) { sizes_[i] = sizes[i]; strides_[i] = strides[i]; }
  }
  decltype(auto) operator[](I i) const {
    if constexpr (N == 1) return (data_[i * strides_[0]]);
    else return PackedTensorAccessor<T, N - 1, Traits, I>(data_ + i * strides_[0], sizes_ + 1, strides_ + 1, 0);
  }
  T* data() const { return data_; }
  I size(size_t i) const { return sizes_[i]; }
  I stride(size_t i) const { return strides_[i]; }

 private:
  T* data_;
  I sizes_[N], strides_[N];
};
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = PackedTensorAccessor<T, N, Traits, int32_t>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = PackedTensorAccessor<T, N, Traits, int64_t>;
template <class T, size_t N> using TensorAccessor = PackedTensorAccessor<T, N>;

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(const kw::Value& v) : impl_(kw::make_impl(v)) {}
  Tensor(const Tensor& o) : impl_(o.impl_) { if (impl_) impl_->references++; }
  Tensor(Tensor&& o) noexcept : impl_(o.impl_) { o.impl_ = nullptr; }
  Tensor& operator=(const Tensor& o) & { Tensor copy(o); std::swap(impl_, copy.impl_); return *this; }
  Tensor& operator=(Tensor&& o) & noexcept { std::swap(impl_, o.impl_); return *this; }
  // `x[0] = y` writes into x, as torch has it.
  Tensor& operator=(const Tensor& o) &&;
  Tensor& operator=(Tensor&& o) &&;
  Tensor& operator=(const Scalar& v) &&;
  ~Tensor() { if (impl_) kw::drop_impl(impl_); }

  bool defined() const { return impl_ != nullptr; }
  explicit operator bool() const { return defined(); }
  const kw::Value& meta() const {
    if (!impl_) kw::undefined_tensor();
    return impl_->meta;
  }
  int64_t dim() const { return meta().ndim; }
  int64_t ndimension() const { return dim(); }
  int64_t size(int64_t i) const { return meta().sizes[wrap(i)]; }
  int64_t stride(int64_t i) const { return meta().strides[wrap(i)]; }
  IntArrayRef sizes() const;
  IntArrayRef strides() const;
  int64_t numel() const;
  bool is_same(const Tensor& o) const { return impl_ == o.impl_ || (impl_ && o.impl_ && meta().data == o.meta().data); }
  size_t element_size() const { return elementSize(scalar_type()); }
  size_t itemsize() const { return element_size(); }
  size_t nbytes() const { return size_t(numel()) * element_size(); }

  void* data_ptr() const { return defined() ? meta().data : nullptr; }
  const void* const_data_ptr() const { return data_ptr(); }
  void* mutable_data_ptr() const { return data_ptr(); }
  template <class T> T* data_ptr() const {
    constexpr ScalarType want = CppTypeToScalarType<std::remove_const_t<T>>::value;
    static_assert(want != ScalarType::Undefined, "data_ptr<T>: torch has no scalar type for T");
    if (scalar_type() != want) kw::wrong_scalar_type(want, scalar_type());
    return static_cast<T*>(meta().data);
  }
  template <class T> const T* const_data_ptr() const { return data_ptr<T>(); }
  template <class T> T* mutable_data_ptr() const { return data_ptr<T>(); }
  template <class T> T* data() const { return data_ptr<T>(); }
  Tensor data() const { return *this; }
  int64_t storage_offset() const;

  bool is_cuda() const { return meta().flags & 1; }
  bool is_cpu() const { return !is_cuda(); }
  bool requires_grad() const { return meta().flags & 2; }
  bool is_sparse() const { return false; }
  bool is_floating_point() const { return isFloatingType(scalar_type()); }
  bool is_complex() const { return false; }
  Device device() const { return Device(is_cuda() ? DeviceType::CUDA : DeviceType::CPU, int(meta().integer)); }
  int64_t get_device() const { return is_cuda() ? meta().integer : -1; }
  Layout layout() const { return Layout::Strided; }
  ScalarType scalar_type() const { return ScalarType(meta().dtype); }
  ScalarType dtype() const { return scalar_type(); }
  ScalarType type() const { return scalar_type(); }
  TensorOptions options() const;
  bool is_contiguous(MemoryFormat format = MemoryFormat::Contiguous) const;
  bool is_non_overlapping_and_dense() const { return is_contiguous(); }

  Tensor contiguous(MemoryFormat format = MemoryFormat::Contiguous) const;
  Tensor clone() const;
  Tensor clone(MemoryFormat) const { return clone(); }
  Tensor clone(std::optional<MemoryFormat>) const { return clone(); }
  Tensor detach() const { return *this; }
  Tensor cuda() const;
  Tensor cpu() const;
  Tensor toType(ScalarType t) const { return to(t); }
  Tensor to(const kw::Arg& a, const kw::Arg& b = kw::absent(), const kw::Arg& c = kw::absent(),
            const kw::Arg& d = kw::absent()) const;
  Tensor type(ScalarType t) const { return to(t); }
  Tensor to(ScalarType t) const;
  Tensor& requires_grad_(bool = true) { return *this; }
  Tensor grad() const { return {}; }
  template <class T> T item() const { return item().to<T>(); }
  Scalar item() const;

  std::tuple<Tensor, Tensor> max(int64_t dim, bool keepdim = false) const;
  std::tuple<Tensor, Tensor> min(int64_t dim, bool keepdim = false) const;
  std::tuple<Tensor, Tensor> sort(int64_t dim = -1, bool descending = false) const;
  std::tuple<Tensor, Tensor> topk(int64_t k, int64_t dim = -1, bool largest = true, bool sorted = true) const;
  Tensor max() const;
  Tensor min() const;
  Tensor max(const Tensor& other) const;
  Tensor min(const Tensor& other) const;
  std::vector<Tensor> split(int64_t size, int64_t dim = 0) const;
  std::vector<Tensor> chunk(int64_t chunks, int64_t dim = 0) const;
  std::vector<Tensor> unbind(int64_t dim = 0) const;
  Tensor index(const kw::Arg& where) const;
  Tensor index(std::initializer_list<kw::Arg> where) const;
  Tensor& index_put_(std::initializer_list<kw::Arg> where, const kw::Arg& value);

#define KW_DECLARE(NAME)                                                                                             \
  Tensor NAME(const kw::Arg& a = kw::absent(), const kw::Arg& b = kw::absent(), const kw::Arg& c = kw::absent(),     \
              const kw::Arg& d = kw::absent()) const;
  KW_TENSOR_METHODS(KW_DECLARE)
#undef KW_DECLARE
#define KW_DECLARE(NAME)                                                                                             \
  Tensor& NAME(const kw::Arg& a = kw::absent(), const kw::Arg& b = kw::absent(), const kw::Arg& c = kw::absent(),    \
               const kw::Arg& d = kw::absent()) const;
  KW_TENSOR_INPLACE(KW_DECLARE)
#undef KW_DECLARE

  template <class T, size_t N> TensorAccessor<T, N> accessor() const { return packed<TensorAccessor<T, N>, T, N>(); }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor<T, N, Traits, int32_t> packed_accessor32() const {
    return packed<PackedTensorAccessor<T, N, Traits, int32_t>, T, N>();
  }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor<T, N, Traits, int64_t> packed_accessor64() const {
    return packed<PackedTensorAccessor<T, N, Traits, int64_t>, T, N>();
  }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
  PackedTensorAccessor<T, N, Traits, I> packed_accessor() const {
    return packed<PackedTensorAccessor<T, N, Traits, I>, T, N>();
  }

  Tensor operator[](int64_t i) const;
  Tensor operator[](const Tensor& i) const;
  Tensor operator-() const;
  Tensor& operator+=(const kw::Arg& o);
  Tensor& operator-=(const kw::Arg& o);
  Tensor& operator*=(const kw::Arg& o);
  Tensor& operator/=(const kw::Arg& o);

 private:
  int64_t wrap(int64_t i) const {
    int64_t n = dim(), k = i < 0 ? i + n : i;
    if (k < 0 || k >= n) kw::wrong_dimension(i, n);
    return k;
  }
  template <class R, class T, size_t N> R packed() const {
    if (size_t(dim()) != N)
      throw c10::Error(c10::str("TensorAccessor expected ", N, " dims but tensor has ", dim()));
    return R(data_ptr<T>(), meta().sizes, meta().strides);
  }
  kw::TensorImpl* impl_ = nullptr;
};

}  // namespace at
