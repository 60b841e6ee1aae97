// Tensor's methods and torch's functions: each hands its arguments to Python under its ATen name.
#include "kernelward/torch.h"

namespace at {

IntArrayRef Tensor::sizes() const { return IntArrayRef(meta().sizes, size_t(dim())); }
IntArrayRef Tensor::strides() const { return IntArrayRef(meta().strides, size_t(dim())); }
int64_t Tensor::numel() const {
  int64_t n = 1;
  for (int i = 0; i < meta().ndim; i++) n *= meta().sizes[i];
  return n;
}
TensorOptions Tensor::options() const { return TensorOptions(scalar_type()).device(device()); }
bool Tensor::is_contiguous(MemoryFormat format) const {
  static const int order4[] = {1, 3, 2, 0}, order5[] = {1, 4, 3, 2, 0};
  int64_t expected = 1;
  int n = meta().ndim;
  bool last = (format == MemoryFormat::ChannelsLast && n == 4) || (format == MemoryFormat::ChannelsLast3d && n == 5);
  if (!last && format != MemoryFormat::Contiguous && format != MemoryFormat::Preserve) return false;
  for (int k = 0; k < n; k++) {
    int i = !last ? n - 1 - k : n == 4 ? order4[k] : order5[k];
    if (meta().sizes[i] == 0) return true;
    if (meta().sizes[i] != 1 && meta().strides[i] != expected) return false;
    expected *= meta().sizes[i];
  }
  return true;
}

#define KW_DEFINE(NAME)                                                                                              \
  Tensor Tensor::NAME(const kw::Arg& a, const kw::Arg& b, const kw::Arg& c, const kw::Arg& d) const {         \
    kw::Arg self(*this);                                                                                             \
    return kw::call("." #NAME, {&self, &a, &b, &c, &d});                                                             \
  }
KW_TENSOR_METHODS(KW_DEFINE)
#undef KW_DEFINE
#define KW_DEFINE(NAME)                                                                                              \
  Tensor& Tensor::NAME(const kw::Arg& a, const kw::Arg& b, const kw::Arg& c, const kw::Arg& d) const {        \
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

Tensor& Tensor::operator=(const Tensor& o) && { return copy_(o); }
Tensor& Tensor::operator=(Tensor&& o) && { return copy_(o); }
Tensor& Tensor::operator=(const Scalar& v) && { return fill_(v); }

Tensor Tensor::contiguous(MemoryFormat format) const {
  if (is_contiguous(format)) return *this;
  kw::Arg self(*this), f(format);
  return kw::call(".contiguous", {&self, &f});
}
Tensor Tensor::clone() const { kw::Arg self(*this); return kw::call(".clone", {&self}); }
Tensor Tensor::cuda() const { kw::Arg self(*this), d(kCUDA); return is_cuda() ? *this : kw::call(".to", {&self, &d}); }
Tensor Tensor::cpu() const { kw::Arg self(*this), d(kCPU); return is_cpu() ? *this : kw::call(".to", {&self, &d}); }
Tensor Tensor::to(const kw::Arg& a, const kw::Arg& b, const kw::Arg& c, const kw::Arg& d) const {
  kw::Arg self(*this);
  return kw::call(".to", {&self, &a, &b, &c, &d});
}
Tensor Tensor::to(ScalarType t) const { kw::Arg self(*this), a(t); return t == scalar_type() ? *this : kw::call(".to", {&self, &a}); }
Scalar Tensor::item() const { kw::Arg self(*this); return kw::call_scalar(".item", {&self}); }
int64_t Tensor::storage_offset() const { kw::Arg self(*this); return kw::call_scalar(".storage_offset", {&self}).toLong(); }
#define KW_PAIR_METHOD(NAME)                                                          \
  std::tuple<Tensor, Tensor> Tensor::NAME(int64_t dim, bool flag) const {      \
    kw::Arg self(*this), a(dim), b(flag);                                             \
    return kw::call_pair("." #NAME, {&self, &a, &b});                                 \
  }
KW_PAIR_METHOD(max) KW_PAIR_METHOD(min) KW_PAIR_METHOD(sort)
#undef KW_PAIR_METHOD
std::tuple<Tensor, Tensor> Tensor::topk(int64_t k, int64_t dim, bool largest, bool sorted) const {
  kw::Arg self(*this), a(k), b(dim), c(largest), d(sorted);
  return kw::call_pair(".topk", {&self, &a, &b, &c, &d});
}
Tensor Tensor::max() const { kw::Arg self(*this); return kw::call(".max", {&self}); }
Tensor Tensor::min() const { kw::Arg self(*this); return kw::call(".min", {&self}); }
Tensor Tensor::max(const Tensor& o) const { kw::Arg self(*this), a(o); return kw::call(".maximum", {&self, &a}); }
Tensor Tensor::min(const Tensor& o) const { kw::Arg self(*this), a(o); return kw::call(".minimum", {&self, &a}); }
std::vector<Tensor> Tensor::split(int64_t size, int64_t dim) const {
  kw::Arg self(*this), a(size), b(dim);
  return kw::call_list(".split", {&self, &a, &b});
}
std::vector<Tensor> Tensor::chunk(int64_t chunks, int64_t dim) const {
  kw::Arg self(*this), a(chunks), b(dim);
  return kw::call_list(".chunk", {&self, &a, &b});
}
std::vector<Tensor> Tensor::unbind(int64_t dim) const {
  kw::Arg self(*this), a(dim);
  return kw::call_list(".unbind", {&self, &a});
}
Tensor Tensor::index(const kw::Arg& where) const { kw::Arg self(*this); return kw::call("__getitem__", {&self, &where}); }
Tensor Tensor::index(std::initializer_list<kw::Arg> where) const {
  kw::Arg self(*this), list = kw::Arg::list(where);
  return kw::call("__getitem__", {&self, &list});
}
Tensor& Tensor::index_put_(std::initializer_list<kw::Arg> where, const kw::Arg& value) {
  kw::Arg self(*this), list = kw::Arg::list(where);
  kw::call_inplace("__setitem__", {&self, &list, &value});
  return *this;
}
Tensor Tensor::operator[](int64_t i) const { return select(0, i); }
Tensor Tensor::operator[](const Tensor& i) const { return index(kw::Arg(i)); }
Tensor Tensor::operator-() const { return neg(); }
Tensor& Tensor::operator+=(const kw::Arg& o) { return add_(o); }
Tensor& Tensor::operator-=(const kw::Arg& o) { return sub_(o); }
Tensor& Tensor::operator*=(const kw::Arg& o) { return mul_(o); }
Tensor& Tensor::operator/=(const kw::Arg& o) { return div_(o); }

#define KW_DEFINE(NAME)                                                                                              \
  Tensor NAME(const kw::Arg& a, const kw::Arg& b, const kw::Arg& c, const kw::Arg& d, const kw::Arg& e,              \
              const kw::Arg& f, const kw::Arg& g, const kw::Arg& h, const kw::Arg& i) {                              \
    return kw::call(#NAME, {&a, &b, &c, &d, &e, &f, &g, &h, &i});                                                    \
  }
KW_FUNCTIONS(KW_DEFINE)
#undef KW_DEFINE

#define KW_OPERATOR(SIGN, NAME, SCALAR_LEFT)                                                \
  Tensor operator SIGN(const Tensor& a, const Tensor& b) { return a.NAME(b); }              \
  Tensor operator SIGN(const Tensor& a, const Scalar& b) { return a.NAME(b); }              \
  Tensor operator SIGN(const Scalar& a, const Tensor& b) { SCALAR_LEFT; }
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

}  // namespace at
