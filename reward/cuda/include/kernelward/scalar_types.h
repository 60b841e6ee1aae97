// c10's small values: scalar types, devices, sizes, scalars, tensor options, errors.
#pragma once
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "kernelward/abi.h"

namespace kw {

inline float half_bits_to_float(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000u) << 16, exponent = (h >> 10) & 31, fraction = h & 1023u, bits;
  if (exponent == 31) {
    bits = sign | 0x7F800000u | (fraction << 13);
  } else if (exponent) {
    bits = sign | ((exponent + 112) << 23) | (fraction << 13);
  } else if (fraction) {
    int shift = __builtin_clz(fraction) - 21;
    bits = sign | (uint32_t(113 - shift) << 23) | ((fraction << (shift + 13)) & 0x7FFFFFu);
  } else {
    bits = sign;
  }
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// Round to nearest even.
inline uint16_t float_to_half_bits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return uint16_t(sign | 0x7FFFu);
  if (magnitude >= 0x477FF000u) return uint16_t(sign | 0x7C00u);
  if (magnitude < 0x33000001u) return uint16_t(sign);
  if (magnitude < 0x38800000u) {
    int shift = 126 - int(magnitude >> 23);
    uint32_t value = (magnitude & 0x7FFFFFu) | 0x800000u;
    uint32_t kept = value >> shift, rest = value & ((1u << shift) - 1), middle = 1u << (shift - 1);
    return uint16_t(sign | (kept + (rest > middle || (rest == middle && (kept & 1)))));
  }
  uint32_t value = magnitude - 0x38000000u, kept = value >> 13, rest = value & 0x1FFFu;
  return uint16_t(sign | (kept + (rest > 0x1000u || (rest == 0x1000u && (kept & 1)))));
}

inline float bfloat_bits_to_float(uint16_t b) {
  uint32_t bits = uint32_t(b) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

inline uint16_t float_to_bfloat_bits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC0;
  return uint16_t((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16);
}

}  // namespace kw

namespace c10 {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
  const char* what_without_backtrace() const { return what(); }
  const char* msg() const { return what(); }
};
struct IndexError : Error { using Error::Error; };
struct ValueError : Error { using Error::Error; };
struct TypeError : Error { using Error::Error; };

template <class T> using optional = std::optional<T>;
using std::nullopt;
using nullopt_t = std::nullopt_t;

enum class ScalarType : int8_t {
  Byte, Char, Short, Int, Long, Half, Float, Double, ComplexHalf, ComplexFloat, ComplexDouble, Bool, QInt8, QUInt8,
  QInt32, BFloat16, Undefined = 127
};

inline size_t elementSize(ScalarType t) {
  switch (t) {
    case ScalarType::Byte: case ScalarType::Char: case ScalarType::Bool: return 1;
    case ScalarType::Short: case ScalarType::Half: case ScalarType::BFloat16: return 2;
    case ScalarType::Int: case ScalarType::Float: return 4;
    default: return 8;
  }
}

inline const char* toString(ScalarType t) {
  static const char* const names[] = {"Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double", "ComplexHalf",
                                      "ComplexFloat", "ComplexDouble", "Bool", "QInt8", "QUInt8", "QInt32", "BFloat16"};
  int i = int(t);
  return i >= 0 && i < 16 ? names[i] : "Undefined";
}
inline std::ostream& operator<<(std::ostream& out, ScalarType t) { return out << toString(t); }
inline bool isFloatingType(ScalarType t) {
  return t == ScalarType::Float || t == ScalarType::Half || t == ScalarType::Double || t == ScalarType::BFloat16;
}
inline bool isIntegralType(ScalarType t, bool with_bool = false) {
  return int(t) <= int(ScalarType::Long) || (with_bool && t == ScalarType::Bool);
}

// at::Half and at::BFloat16: storage of 16 bits, arithmetic in float.
#define KW_SMALL_FLOAT(NAME, FROM, TO)                                                                        \
  struct alignas(2) NAME {                                                                                    \
    uint16_t x;                                                                                               \
    struct from_bits_t {};                                                                                    \
    static constexpr from_bits_t from_bits() { return {}; }                                                   \
    NAME() = default;                                                                                         \
    constexpr NAME(uint16_t bits, from_bits_t) : x(bits) {}                                                   \
    NAME(float f) : x(kw::TO(f)) {}                                                                           \
    operator float() const { return kw::FROM(x); }                                                            \
    KW_SMALL_FLOAT_BACKEND(NAME)                                                                              \
    template <class T> NAME& operator+=(T v) { return *this = NAME(float(*this) + float(v)); }                \
    template <class T> NAME& operator-=(T v) { return *this = NAME(float(*this) - float(v)); }                \
    template <class T> NAME& operator*=(T v) { return *this = NAME(float(*this) * float(v)); }                \
    template <class T> NAME& operator/=(T v) { return *this = NAME(float(*this) / float(v)); }                \
  };                                                                                                          \
  inline NAME operator+(NAME a, NAME b) { return NAME(float(a) + float(b)); }                                 \
  inline NAME operator-(NAME a, NAME b) { return NAME(float(a) - float(b)); }                                 \
  inline NAME operator*(NAME a, NAME b) { return NAME(float(a) * float(b)); }                                 \
  inline NAME operator/(NAME a, NAME b) { return NAME(float(a) / float(b)); }                                 \
  inline NAME operator-(NAME a) { return NAME(-float(a)); }                                                   \
  inline float operator+(NAME a, float b) { return float(a) + b; }                                            \
  inline float operator-(NAME a, float b) { return float(a) - b; }                                            \
  inline float operator*(NAME a, float b) { return float(a) * b; }                                            \
  inline float operator/(NAME a, float b) { return float(a) / b; }                                            \
  inline float operator+(float a, NAME b) { return a + float(b); }                                            \
  inline float operator-(float a, NAME b) { return a - float(b); }                                            \
  inline float operator*(float a, NAME b) { return a * float(b); }                                            \
  inline float operator/(float a, NAME b) { return a / float(b); }                                            \
  inline double operator+(NAME a, double b) { return float(a) + b; }                                          \
  inline double operator-(NAME a, double b) { return float(a) - b; }                                          \
  inline double operator*(NAME a, double b) { return float(a) * b; }                                          \
  inline double operator/(NAME a, double b) { return float(a) / b; }                                          \
  inline double operator+(double a, NAME b) { return a + float(b); }                                          \
  inline double operator-(double a, NAME b) { return a - float(b); }                                          \
  inline double operator*(double a, NAME b) { return a * float(b); }                                          \
  inline double operator/(double a, NAME b) { return a / float(b); }                                          \
  inline NAME operator+(NAME a, int b) { return NAME(float(a) + b); }                                         \
  inline NAME operator-(NAME a, int b) { return NAME(float(a) - b); }                                         \
  inline NAME operator*(NAME a, int b) { return NAME(float(a) * b); }                                         \
  inline NAME operator/(NAME a, int b) { return NAME(float(a) / b); }                                         \
  inline NAME operator+(int a, NAME b) { return NAME(a + float(b)); }                                         \
  inline NAME operator-(int a, NAME b) { return NAME(a - float(b)); }                                         \
  inline NAME operator*(int a, NAME b) { return NAME(a * float(b)); }                                         \
  inline NAME operator/(int a, NAME b) { return NAME(a / float(b)); }                                         \
  inline std::ostream& operator<<(std::ostream& out, NAME v) { return out << float(v); }

// A backend whose device code has its own 16-bit types adds conversions here.
#ifndef KW_SMALL_FLOAT_BACKEND
#define KW_SMALL_FLOAT_BACKEND(NAME)
#endif
KW_SMALL_FLOAT(Half, half_bits_to_float, float_to_half_bits)
KW_SMALL_FLOAT(BFloat16, bfloat_bits_to_float, float_to_bfloat_bits)
#undef KW_SMALL_FLOAT

template <class T> struct CppTypeToScalarType { static constexpr ScalarType value = ScalarType::Undefined; };
#define KW_CPP_TYPE(T, S) \
  template <> struct CppTypeToScalarType<T> { static constexpr ScalarType value = ScalarType::S; };
KW_CPP_TYPE(float, Float) KW_CPP_TYPE(double, Double) KW_CPP_TYPE(int, Int) KW_CPP_TYPE(long, Long)
KW_CPP_TYPE(long long, Long) KW_CPP_TYPE(uint8_t, Byte) KW_CPP_TYPE(int8_t, Char) KW_CPP_TYPE(short, Short)
KW_CPP_TYPE(bool, Bool) KW_CPP_TYPE(Half, Half) KW_CPP_TYPE(BFloat16, BFloat16)
#undef KW_CPP_TYPE

enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };
using DeviceIndex = int8_t;
struct Device {
  DeviceType kind = DeviceType::CUDA;
  int number = 0;
  Device(DeviceType t = DeviceType::CUDA, int index = 0) : kind(t), number(index < 0 ? 0 : index) {}
  Device(const std::string& name) : kind(name.rfind("cuda", 0) == 0 ? DeviceType::CUDA : DeviceType::CPU) {
    if (kind == DeviceType::CPU && name != "cpu") throw Error("Invalid device string: '" + name + "'");
  }
  Device(const char* name) : Device(std::string(name)) {}
  bool is_cuda() const { return kind == DeviceType::CUDA; }
  bool is_cpu() const { return kind == DeviceType::CPU; }
  DeviceIndex index() const { return DeviceIndex(number); }
  bool has_index() const { return true; }
  DeviceType type() const { return kind; }
  bool operator==(const Device& o) const { return kind == o.kind && number == o.number; }
  bool operator!=(const Device& o) const { return !(*this == o); }
  std::string str() const { return is_cuda() ? "cuda:" + std::to_string(number) : "cpu"; }
};
inline std::ostream& operator<<(std::ostream& out, const Device& d) { return out << d.str(); }
inline std::ostream& operator<<(std::ostream& out, DeviceType t) { return out << (t == DeviceType::CUDA ? "cuda" : "cpu"); }

enum class MemoryFormat : int8_t { Contiguous, Preserve, ChannelsLast, ChannelsLast3d };
enum class Layout : int8_t { Strided };
constexpr Layout kStrided = Layout::Strided;

template <class T> class ArrayRef {
 public:
  ArrayRef() = default;
  ArrayRef(std::initializer_list<T> list) : own_(list) {}
  ArrayRef(const std::vector<T>& list) : own_(list) {}
  ArrayRef(const T* data, size_t n) : own_(data, data + n) {}
  ArrayRef(const T* first, const T* last) : own_(first, last) {}
  ArrayRef(T one) : own_{one} {}
  size_t size() const { return own_.size(); }
  bool empty() const { return own_.empty(); }
  const T& operator[](size_t i) const { return own_[i]; }
  const T& at(size_t i) const { return own_.at(i); }
  auto begin() const { return own_.begin(); }
  auto end() const { return own_.end(); }
  auto rbegin() const { return own_.rbegin(); }
  auto rend() const { return own_.rend(); }
  auto cbegin() const { return own_.begin(); }
  auto cend() const { return own_.end(); }
  const T* data() const { return own_.data(); }
  const T& front() const { return own_.front(); }
  const T& back() const { return own_.back(); }
  std::vector<T> vec() const { return own_; }
  bool equals(const ArrayRef& o) const { return own_ == o.own_; }
  bool operator==(const ArrayRef& o) const { return own_ == o.own_; }
  bool operator!=(const ArrayRef& o) const { return own_ != o.own_; }
  ArrayRef slice(size_t first, size_t n) const { return ArrayRef(own_.data() + first, n); }
  ArrayRef slice(size_t first) const { return slice(first, size() - first); }
  operator std::vector<T>() const { return own_; }

 private:
  std::vector<T> own_;
};
using IntArrayRef = ArrayRef<int64_t>;
template <class T> std::ostream& operator<<(std::ostream& out, const ArrayRef<T>& list) {
  out << "[";
  for (size_t i = 0; i < list.size(); i++) out << (i ? ", " : "") << list[i];
  return out << "]";
}

class Scalar {
 public:
  Scalar() : Scalar(int64_t(0)) {}
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Scalar(T v) : real_(double(v)), integer_(int64_t(v)),
      type_(std::is_floating_point_v<T> ? ScalarType::Double : std::is_same_v<T, bool> ? ScalarType::Bool : ScalarType::Long) {}
  Scalar(Half v) : Scalar(float(v)) {}
  Scalar(BFloat16 v) : Scalar(float(v)) {}
  template <class T> T to() const { return isFloatingPoint() ? T(real_) : T(integer_); }
  double toDouble() const { return to<double>(); }
  float toFloat() const { return to<float>(); }
  int64_t toLong() const { return to<int64_t>(); }
  int toInt() const { return to<int>(); }
  bool toBool() const { return to<bool>(); }
  bool isFloatingPoint() const { return type_ == ScalarType::Double; }
  bool isIntegral(bool with_bool = false) const { return type_ == ScalarType::Long || (with_bool && isBoolean()); }
  bool isBoolean() const { return type_ == ScalarType::Bool; }
  ScalarType type() const { return type_; }

 private:
  double real_;
  int64_t integer_;
  ScalarType type_;
};

struct TensorOptions {
  int type = -1;    // -1: unset
  int where = -1;   // -1: unset, 0: cpu, 1: cuda
  TensorOptions() = default;
  TensorOptions(ScalarType s) : type(int(s)) {}
  TensorOptions(Device d) : where(d.is_cuda()) {}
  TensorOptions(DeviceType d) : where(d == DeviceType::CUDA) {}
  TensorOptions(MemoryFormat) {}
  TensorOptions(Layout) {}
  TensorOptions dtype(ScalarType s) const { auto o = *this; o.type = int(s); return o; }
  TensorOptions dtype(std::optional<ScalarType> s) const { return s ? dtype(*s) : *this; }
  template <class T> TensorOptions dtype() const { return dtype(CppTypeToScalarType<T>::value); }
  ScalarType dtype() const { return type < 0 ? ScalarType::Float : ScalarType(type); }
  TensorOptions device(Device d) const { auto o = *this; o.where = d.is_cuda(); return o; }
  TensorOptions device(DeviceType d, int = 0) const { return device(Device(d)); }
  TensorOptions device(std::optional<Device> d) const { return d ? device(*d) : *this; }
  TensorOptions device_index(int) const { return device(DeviceType::CUDA); }
  Device device() const { return Device(where == 1 ? DeviceType::CUDA : DeviceType::CPU); }
  TensorOptions layout(Layout) const { return *this; }
  TensorOptions requires_grad(bool = true) const { return *this; }
  TensorOptions pinned_memory(bool = true) const { return *this; }
  TensorOptions memory_format(MemoryFormat) const { return *this; }
  bool has_dtype() const { return type >= 0; }
};

inline std::string str() { return {}; }
template <class... A> std::string str(const A&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}
inline std::string str(const char* text) { return text; }
inline std::string str(const std::string& text) { return text; }

constexpr DeviceType kCUDA = DeviceType::CUDA, kCPU = DeviceType::CPU;

}  // namespace c10
