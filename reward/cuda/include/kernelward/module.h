// Exporting host functions to Python: PYBIND11_MODULE, m.def, and the conversions of arguments and results.
#pragma once
#include "kernelward/macros.h"

namespace kw {

template <class T, class = void> struct Caster;  // load(const Value&, T&) -> accepted?

template <> struct Caster<at::Tensor> {
  static bool load(const Value& v, at::Tensor& out) { out = at::Tensor(v); return v.kind == kTensor; }
};
template <> struct Caster<bool> {
  static bool load(const Value& v, bool& out) { out = v.integer != 0; return v.kind == kBool; }
};
template <class T> struct Caster<T, std::enable_if_t<std::is_integral_v<T>>> {
  static bool load(const Value& v, T& out) {
    out = T(v.integer);
    bool fits = std::is_unsigned_v<T> ? v.integer >= 0 && (sizeof(T) == 8 || uint64_t(v.integer) == uint64_t(out)) : int64_t(out) == v.integer;
    return (v.kind == kInt || v.kind == kBool) && fits;
  }
};
template <class T> struct Caster<T, std::enable_if_t<std::is_floating_point_v<T>>> {
  static bool load(const Value& v, T& out) {
    out = v.kind == kDouble ? T(v.real) : T(v.integer);
    return v.kind == kDouble || v.kind == kInt || v.kind == kBool;
  }
};
template <> struct Caster<std::string> {
  static bool load(const Value& v, std::string& out) {
    if (v.kind == kString) out.assign(v.text, size_t(v.count));
    return v.kind == kString;
  }
};
template <> struct Caster<const char*> {
  static bool load(const Value& v, const char*& out) { out = v.text; return v.kind == kString; }
};
template <> struct Caster<c10::ScalarType> {
  static bool load(const Value& v, c10::ScalarType& out) { out = c10::ScalarType(v.dtype); return v.kind == kDtype; }
};
template <> struct Caster<c10::Scalar> {
  static bool load(const Value& v, c10::Scalar& out) {
    if (v.kind == kDouble) out = v.real;
    else if (v.kind == kBool) out = v.integer != 0;
    else out = v.integer;
    return v.kind == kDouble || v.kind == kInt || v.kind == kBool;
  }
};
template <> struct Caster<c10::Device> {
  static bool load(const Value& v, c10::Device& out) {
    out = v.kind == kString ? c10::Device(v.text) : c10::Device(v.flags == 1 ? c10::kCUDA : c10::kCPU, int(v.integer));
    return v.kind == kDevice || v.kind == kString;
  }
};
template <class T> struct Caster<std::optional<T>> {
  static bool load(const Value& v, std::optional<T>& out) {
    if (v.kind == kNone) { out.reset(); return true; }
    T item{};
    if (!Caster<T>::load(v, item)) return false;
    out = std::move(item);
    return true;
  }
};
template <class T> struct Caster<std::vector<T>> {
  static bool load(const Value& v, std::vector<T>& out) {
    if constexpr (std::is_arithmetic_v<T>) {
      if (v.kind == kInts) {
        auto items = static_cast<const int64_t*>(v.data);
        for (int64_t i = 0; i < v.count; i++) out.push_back(T(items[i]));
        return true;
      }
      if (v.kind == kDoubles && std::is_floating_point_v<T>) {
        auto items = static_cast<const double*>(v.data);
        for (int64_t i = 0; i < v.count; i++) out.push_back(T(items[i]));
        return true;
      }
    }
    if (v.kind == kInts || v.kind == kDoubles) return v.count == 0;
    if (v.kind != kList) return false;
    auto items = static_cast<const Value*>(v.data);
    for (int64_t i = 0; i < v.count; i++) {
      T item{};
      if (!Caster<T>::load(items[i], item)) return false;
      out.push_back(std::move(item));
    }
    return true;
  }
};
template <class T> struct Caster<c10::ArrayRef<T>> {
  static bool load(const Value& v, c10::ArrayRef<T>& out) {
    std::vector<T> items;
    if (v.kind == kInt && std::is_same_v<T, int64_t>) { out = c10::ArrayRef<T>(T(v.integer)); return true; }
    if (!Caster<std::vector<T>>::load(v, items)) return false;
    out = c10::ArrayRef<T>(items);
    return true;
  }
};
template <class T, size_t N> struct Caster<std::array<T, N>> {
  static bool load(const Value& v, std::array<T, N>& out) {
    std::vector<T> items;
    if (!Caster<std::vector<T>>::load(v, items) || items.size() != N) return false;
    std::copy(items.begin(), items.end(), out.begin());
    return true;
  }
};
template <class... T> struct Caster<std::tuple<T...>> {
  template <size_t... I> static bool each(const Value* items, std::tuple<T...>& out, std::index_sequence<I...>) {
    return (Caster<T>::load(items[I], std::get<I>(out)) && ...);
  }
  static bool load(const Value& v, std::tuple<T...>& out) {
    constexpr size_t n = sizeof...(T);
    if (size_t(v.count) != n) return false;
    if (v.kind == kList) return each(static_cast<const Value*>(v.data), out, std::index_sequence_for<T...>{});
    if (v.kind != kInts) return false;
    Value items[n ? n : 1] = {};
    for (size_t i = 0; i < n; i++) { items[i].kind = kInt; items[i].integer = static_cast<const int64_t*>(v.data)[i]; }
    return each(items, out, std::index_sequence_for<T...>{});
  }
};

// Results are kept alive here until Python has taken them (kw_clear).
struct Results {
  std::vector<at::Tensor> tensors;
  std::vector<std::unique_ptr<std::vector<Value>>> lists;
  std::vector<std::unique_ptr<std::string>> texts;
};
extern Results results;

void give(Value& out, const at::Tensor& t);
void give(Value& out, const std::string& s);
void give(Value& out, const c10::Scalar& s);
inline void give(Value& out, bool v) { out.kind = kBool; out.integer = v; }
inline void give(Value& out, const char* s) { give(out, std::string(s)); }
template <class T, class = std::enable_if_t<std::is_arithmetic_v<T> || std::is_enum_v<T>>> void give(Value& out, T v) {
  if constexpr (std::is_floating_point_v<T>) { out.kind = kDouble; out.real = double(v); }
  else { out.kind = kInt; out.integer = int64_t(v); }
}
std::vector<Value>& give_list(Value& out, size_t n, bool tuple);
template <class T> void give(Value& out, const std::vector<T>& items) {
  auto& list = give_list(out, items.size(), false);
  for (size_t i = 0; i < items.size(); i++) give(list[i], T(items[i]));
}
template <class T> void give(Value& out, const c10::ArrayRef<T>& items) { give(out, items.vec()); }
template <class T, size_t N> void give(Value& out, const std::array<T, N>& items) { give(out, std::vector<T>(items.begin(), items.end())); }
template <class T> void give(Value& out, const std::optional<T>& v) { if (v) give(out, *v); else out.kind = kNone; }
template <class... T> void give(Value& out, const std::tuple<T...>& items) {
  auto& list = give_list(out, sizeof...(T), true);
  size_t i = 0;
  std::apply([&](const auto&... item) { (give(list[i++], item), ...); }, items);
}
template <class A, class B> void give(Value& out, const std::pair<A, B>& p) { give(out, std::tuple<A, B>(p.first, p.second)); }

struct Function {
  std::string name, doc;
  size_t parameters;
  std::vector<std::string> names;                  // empty: positional only
  std::vector<std::unique_ptr<Value>> defaults;    // parallel to names; null where required
  bool (*run)(void* target, const Value* args, Value& out);  // false: an argument has the wrong type
  void* target;                                    // the function, or a copy of the callable
};
std::vector<Function>& functions();
Function& add_function(const char* name, size_t parameters, bool (*run)(void*, const Value*, Value&), void* target);
void add_argument(Function& f, const char* name, const Value* fallback);

template <class R, class... P, class F, size_t... I>
bool invoke(F& f, const Value* args, Value& out, std::index_sequence<I...>) {
  std::tuple<std::decay_t<P>...> values;
  if (!(Caster<std::decay_t<P>>::load(args[I], std::get<I>(values)) && ...)) return false;
  if constexpr (std::is_void_v<R>) { f(static_cast<P>(std::get<I>(values))...); out.kind = kNone; }
  else give(out, static_cast<std::decay_t<R>>(f(static_cast<P>(std::get<I>(values))...)));
  return true;
}
template <class R, class... P> Function& export_function(const char* name, R (*f)(P...)) {
  return add_function(name, sizeof...(P), [](void* target, const Value* args, Value& out) {
    auto f = reinterpret_cast<R (*)(P...)>(target);
    return invoke<R, P...>(f, args, out, std::index_sequence_for<P...>{});
  }, reinterpret_cast<void*>(f));
}
template <class R, class... P, class F> Function& define(const char* name, F f) {
  return add_function(name, sizeof...(P), [](void* target, const Value* args, Value& out) {
    return invoke<R, P...>(*static_cast<F*>(target), args, out, std::index_sequence_for<P...>{});
  }, new F(std::move(f)));
}
template <class F> struct Callable : Callable<decltype(&F::operator())> {};
template <class C, class R, class... P> struct Callable<R (C::*)(P...) const> {
  template <class F> static Function& add(const char* name, F f) { return define<R, P...>(name, f); }
};
template <class C, class R, class... P> struct Callable<R (C::*)(P...)> {
  template <class F> static Function& add(const char* name, F f) { return define<R, P...>(name, f); }
};
template <class F> Function& export_function(const char* name, F f) { return Callable<F>::add(name, std::move(f)); }

}  // namespace kw

namespace pybind11 {
struct none { operator std::nullopt_t() const { return std::nullopt; } };
struct arg_v;
struct arg {
  const char* name;
  explicit arg(const char* n) : name(n) {}
  template <class T> arg_v operator=(const T& value) const;
  arg& noconvert(bool = true) { return *this; }
  arg& none(bool = true) { return *this; }
};
struct arg_v : arg {
  kw::Value value{};
  template <class T> arg_v(const arg& a, const T& v) : arg(a) { kw::give(value, v); }
  arg_v(const arg& a, const std::nullopt_t&) : arg(a) {}
  arg_v(const arg& a, const pybind11::none&) : arg(a) {}
};
template <class T> arg_v arg::operator=(const T& value) const { return arg_v(*this, value); }
template <class T> struct call_guard {};
struct gil_scoped_release { gil_scoped_release() {} ~gil_scoped_release() {} };
struct gil_scoped_acquire { gil_scoped_acquire() {} ~gil_scoped_acquire() {} };
enum class return_value_policy { automatic, copy, move, reference, reference_internal, take_ownership };
namespace literals { inline arg operator""_a(const char* n, size_t) { return arg(n); } }
using namespace literals;

class module_ {
 public:
  template <class F, class... X> module_& def(const char* name, F f, const X&... extra) {
    kw::Function& entry = kw::export_function(name, f);
    (note(entry, extra), ...);
    return *this;
  }
  std::string& doc() { return doc_; }
  template <class T> module_& attr(const char*) { return *this; }

 private:
  static void note(kw::Function& f, const char* doc) { f.doc = doc; }
  static void note(kw::Function& f, const arg& a) { kw::add_argument(f, a.name, nullptr); }
  static void note(kw::Function& f, const arg_v& a) { kw::add_argument(f, a.name, &a.value); }
  template <class T> static void note(kw::Function&, const call_guard<T>&) {}
  static void note(kw::Function&, return_value_policy) {}
  std::string doc_;
};
using module = module_;
}  // namespace pybind11
namespace py = pybind11;

#ifndef TORCH_EXTENSION_NAME
#define TORCH_EXTENSION_NAME kernelward_extension
#endif
#define PYBIND11_MODULE(NAME, M)                                                           \
  static void kw_define_module(pybind11::module_& M);                                      \
  static const bool kw_module_defined = [] { pybind11::module_ m; kw_define_module(m); return true; }(); \
  static void kw_define_module(pybind11::module_& M)
