// The part of the host API that need not be a template: compiled once, linked into every extension.
#include <array>

#include "kernelward/torch.h"

namespace kw {

const Host* host = nullptr;
Results results;

std::vector<Function>& functions() {
  static std::vector<Function> table;
  return table;
}

Function& add_function(const char* name, size_t parameters, bool (*run)(void*, const Value*, Value&), void* target) {
  functions().push_back(Function{name, {}, parameters, {}, {}, run, target});
  return functions().back();
}
void add_argument(Function& f, const char* name, const Value* fallback) {
  f.names.push_back(name);
  f.defaults.push_back(fallback ? std::make_unique<Value>(*fallback) : nullptr);
}

const Arg& absent() {
  static const Arg none;
  return none;
}

Arg::Arg() = default;
Arg::Arg(const Arg& o) = default;
Arg& Arg::operator=(const Arg& o) = default;
Arg::~Arg() = default;
Arg::Arg(const at::Tensor& t) : kind_(t.defined() ? kTensor : kNone), tensor_(t) {}
Arg::Arg(const c10::Scalar& s) {
  if (s.isFloatingPoint()) *this = Arg(s.toDouble());
  else if (s.isBoolean()) *this = Arg(s.toBool());
  else *this = Arg(s.toLong());
}
Arg::Arg(const char* s) : kind_(kString), text_(s) {}
Arg::Arg(const std::string& s) : kind_(kString), text_(s) {}
Arg::Arg(std::initializer_list<int64_t> list) : kind_(kInts), ints_(list) {}
Arg::Arg(const std::vector<int64_t>& list) : kind_(kInts), ints_(list) {}
Arg::Arg(const std::vector<int>& list) : kind_(kInts), ints_(list.begin(), list.end()) {}
Arg::Arg(const c10::IntArrayRef& list) : kind_(kInts), ints_(list.vec()) {}
Arg::Arg(std::initializer_list<at::Tensor> list) : kind_(kList), items_(list.begin(), list.end()) {}
Arg::Arg(const std::vector<at::Tensor>& list) : kind_(kList), items_(list.begin(), list.end()) {}
Arg::Arg(const at::TensorList& list) : kind_(kList), items_(list.begin(), list.end()) {}
Arg::Arg(c10::ScalarType t) : kind_(kDtype), integer_(int(t)) {}
Arg::Arg(const c10::TensorOptions& o) : kind_(kOptions), integer_(o.type), where_(o.where) {}
Arg::Arg(const c10::Device& d) : kind_(kDevice), integer_(d.index()), where_(d.is_cuda()) {}
Arg::Arg(c10::DeviceType d) : Arg(c10::Device(d)) {}
Arg::Arg(c10::MemoryFormat f) : kind_(kFormat), integer_(int(f)) {}
Arg::Arg(c10::Layout) : kind_(kNone) {}
Arg::Arg(std::nullopt_t) : kind_(kNone) {}
Arg::Arg(at::indexing::None_t) : kind_(kNone) {}
Arg::Arg(at::indexing::Ellipsis_t) : kind_(kEllipsis) {}
Arg::Arg(const at::indexing::Slice& s)
    : kind_(kSlice), ints_{s.start.value_or(0), s.stop.value_or(0), s.step.value_or(1)},
      integer_((s.start ? 0 : 1) | (s.stop ? 0 : 2) | (s.step ? 0 : 4)) {}
Arg Arg::list(std::initializer_list<Arg> items) {
  Arg a;
  a.kind_ = kList;
  a.items_ = items;
  return a;
}

TensorImpl* make_impl(const Value& v) { return v.kind == kTensor ? new TensorImpl{v, 1} : nullptr; }
void drop_impl(TensorImpl* impl) {
  if (--impl->references) return;
  if (host && impl->meta.handle) host->release(impl->meta.handle);
  delete impl;
}
void undefined_tensor() { throw c10::Error("the tensor is undefined"); }
void wrong_scalar_type(c10::ScalarType wanted, c10::ScalarType found) {
  throw c10::Error(std::string("expected scalar type ") + c10::toString(wanted) + " but found " + c10::toString(found));
}
void wrong_dimension(int64_t i, int64_t n) {
  throw c10::IndexError(c10::str("Dimension out of range (expected to be in range of [", -n, ", ", n - 1, "], but got ", i, ")"));
}

void Arg::fill(Value& v) const {
  v.kind = kind_ < 0 ? int32_t(kNone) : kind_;
  v.integer = integer_;
  v.real = real_;
  switch (kind_) {
    case kTensor: v = tensor_.meta(); break;
    case kInts: v.data = const_cast<int64_t*>(ints_.data()); v.count = int64_t(ints_.size()); break;
    case kString: v.text = text_.c_str(); v.count = int64_t(text_.size()); break;
    case kDtype: v.dtype = int32_t(integer_); break;
    case kOptions: v.dtype = int32_t(integer_); v.flags = where_; break;
    case kDevice: v.flags = where_; break;
    case kSlice: for (int i = 0; i < 3; i++) v.sizes[i] = ints_[size_t(i)]; v.flags = int32_t(integer_); break;
    case kList:
      values_.assign(items_.size(), Value{});
      for (size_t i = 0; i < items_.size(); i++) items_[i].fill(values_[i]);
      v.data = values_.data();
      v.count = int64_t(values_.size());
      break;
    default: break;
  }
}

static void run(const char* name, Args args, Value& out) {
  if (!host) throw c10::Error(std::string("torch operator ") + name + " called while the extension is being loaded");
  size_t n = args.size();
  while (n && !args.begin()[n - 1]->given()) n--;
  std::vector<Value> values(n);
  for (size_t i = 0; i < n; i++) args.begin()[i]->fill(values[i]);
  if (host->call(name, values.data(), int64_t(n), &out)) throw c10::Error(out.text ? out.text : name);
}

at::Tensor call(const char* name, Args args) {
  Value out{};
  run(name, args, out);
  if (out.kind == kList) return at::Tensor(static_cast<Value*>(out.data)[0]);
  if (out.kind != kTensor && out.kind != kNone) throw c10::Error(std::string(name) + ": the operator did not return a tensor");
  return at::Tensor(out);
}

std::vector<at::Tensor> call_list(const char* name, Args args) {
  Value out{};
  run(name, args, out);
  std::vector<at::Tensor> list;
  if (out.kind == kTensor) list.emplace_back(out);
  for (int64_t i = 0; out.kind == kList && i < out.count; i++) list.emplace_back(static_cast<Value*>(out.data)[i]);
  return list;
}

void call_inplace(const char* name, Args args) {
  Value out{};
  run(name, args, out);
}

c10::Scalar call_scalar(const char* name, Args args) {
  Value out{};
  run(name, args, out);
  c10::Scalar s;
  if (!Caster<c10::Scalar>::load(out, s)) throw c10::Error(std::string(name) + ": the operator did not return a number");
  return s;
}

void give(Value& out, const at::Tensor& t) {
  out.kind = kNone;
  if (!t.defined()) return;
  out = t.meta();
  results.tensors.push_back(t);
}
void give(Value& out, const std::string& s) {
  results.texts.push_back(std::make_unique<std::string>(s));
  out.kind = kString;
  out.text = results.texts.back()->c_str();
  out.count = int64_t(s.size());
}
void give(Value& out, const c10::Scalar& s) {
  if (s.isFloatingPoint()) give(out, s.toDouble());
  else if (s.isBoolean()) give(out, s.toBool());
  else give(out, s.toLong());
}
std::vector<Value>& give_list(Value& out, size_t n, bool tuple) {
  results.lists.push_back(std::make_unique<std::vector<Value>>(n));
  out.kind = kList;
  out.flags = tuple;
  out.data = results.lists.back()->data();
  out.count = int64_t(n);
  return *results.lists.back();
}

}  // namespace kw

namespace at {
Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides, const TensorOptions& o) {
  kw::Arg address(reinterpret_cast<int64_t>(data)), s(sizes), t(strides), options(o);
  return kw::call("from_blob", {&address, &s, &t, &options});
}
}  // namespace at

namespace {
std::string last_error, names;
enum Status { kOk = 0, kRuntimeError = 1, kTypeError = 2, kValueError = 3, kIndexError = 4, kNoFunction = 5 };

// Positional and keyword arguments in the order of the parameters; false where they do not fit.
bool arrange(const kw::Function& f, const kw::Value* args, int64_t n, const char* const* keywords, int64_t nk, std::vector<kw::Value>& out) {
  if (size_t(n) > f.parameters) return false;
  out.assign(args, args + n);
  int64_t used = 0;
  for (size_t i = size_t(n); i < f.parameters; i++) {
    if (i >= f.names.size()) return false;
    int64_t k = 0;
    while (k < nk && f.names[i] != keywords[k]) k++;
    if (k < nk) { out.push_back(args[n + k]); used++; }
    else if (f.defaults[i]) out.push_back(*f.defaults[i]);
    else return false;
  }
  return used == nk;
}
}  // namespace

extern "C" {
__attribute__((visibility("default"))) void kw_bind(const kw::Host* host) {
  static const kw::Results defaults = std::move(kw::results);  // values of default arguments live as long as the library
  (void)defaults;
  kw::results = {};
  kw::host = host;
}
__attribute__((visibility("default"))) const char* kw_error() { return last_error.c_str(); }
__attribute__((visibility("default"))) const char* kw_names() {
  names.clear();
  for (auto& f : kw::functions()) names += f.name + "\n";
  return names.c_str();
}
__attribute__((visibility("default"))) void kw_clear() {
  kw::results.tensors.clear();
  kw::results.lists.clear();
  kw::results.texts.clear();
}
// `args` holds n positional values, then nk values named by `keywords`.
__attribute__((visibility("default"))) int kw_invoke(const char* name, const kw::Value* args, int64_t n, const char* const* keywords, int64_t nk,
                                                     kw::Value* out) {
  bool found = false;
  try {
    for (auto& f : kw::functions()) {
      if (f.name != name) continue;
      found = true;
      std::vector<kw::Value> values;
      if (arrange(f, args, n, keywords, nk, values) && f.run(f.target, values.data(), *out)) return kOk;
    }
    last_error = found ? std::string(name) + "(): incompatible function arguments." : std::string("no function ") + name;
    return found ? kTypeError : kNoFunction;
  } catch (const c10::IndexError& e) { last_error = e.what(); return kIndexError;
  } catch (const c10::ValueError& e) { last_error = e.what(); return kValueError;
  } catch (const c10::TypeError& e) { last_error = e.what(); return kTypeError;
  } catch (const std::invalid_argument& e) { last_error = e.what(); return kValueError;
  } catch (const std::out_of_range& e) { last_error = e.what(); return kIndexError;
  } catch (const std::exception& e) { last_error = e.what(); return kRuntimeError;
  } catch (...) { last_error = "the host function threw an object that is not a std::exception"; return kRuntimeError; }
}
}
