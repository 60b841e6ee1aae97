// What device code may use beyond the language, where it is compiled without the host's headers (NVRTC).
// nvcc sees the C and C++ standard headers and torch's; NVRTC has none. Only what the ISO headers and torch define is
// here, with their values and their meaning.
#pragma once

#if defined(KW_WITH_CCCL)
#include <cuda/std/climits>
#include <cuda/std/cstdint>
#else
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef long intptr_t;
typedef unsigned long uintptr_t;
typedef long ptrdiff_t;

#define INT8_MIN (-128)
#define INT8_MAX 127
#define UINT8_MAX 255
#define INT16_MIN (-32768)
#define INT16_MAX 32767
#define UINT16_MAX 65535
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define UINT32_MAX 4294967295U
#define INT64_MIN (-9223372036854775807L - 1)
#define INT64_MAX 9223372036854775807L
#define UINT64_MAX 18446744073709551615UL
#define SIZE_MAX 18446744073709551615UL
#define CHAR_BIT 8
#define SCHAR_MIN (-128)
#define SCHAR_MAX 127
#define UCHAR_MAX 255
#define SHRT_MIN (-32768)
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MIN (-2147483647 - 1)
#define INT_MAX 2147483647
#define UINT_MAX 4294967295U
#define LONG_MIN (-9223372036854775807L - 1)
#define LONG_MAX 9223372036854775807L
#define ULONG_MAX 18446744073709551615UL
#define LLONG_MIN (-9223372036854775807LL - 1)
#define LLONG_MAX 9223372036854775807LL
#define ULLONG_MAX 18446744073709551615ULL
#endif

#define FLT_RADIX 2
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define FLT_MAX 3.40282346638528859811704183484516925e+38F
#define FLT_MIN 1.17549435082228750796873653722224568e-38F
#define FLT_EPSILON 1.19209289550781250000000000000000000e-7F
#define DBL_DIG 15
#define DBL_MANT_DIG 53
#define DBL_MAX 1.79769313486231570814527423731704357e+308
#define DBL_MIN 2.22507385850720138309023271733240406e-308
#define DBL_EPSILON 2.22044604925031308084726333618164062e-16
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#define HUGE_VAL __longlong_as_double(0x7ff0000000000000LL)
#define HUGE_VALF INFINITY

#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440

#define C10_HOST_DEVICE __host__ __device__
#define C10_DEVICE __device__
#define C10_HOST __host__
#define C10_RESTRICT __restrict__
#define C10_ALWAYS_INLINE __forceinline__
#define C10_LAUNCH_BOUNDS_1(a) __launch_bounds__(a)
#define C10_LAUNCH_BOUNDS_2(a, b) __launch_bounds__(a, b)
#define C10_WARP_SIZE 32
#define CUDA_KERNEL_ASSERT(condition) \
  do {                                \
    if (!(condition)) __trap();       \
  } while (0)
#define CUDA_KERNEL_LOOP_TYPE(i, n, index_type)                                                                   \
  for (index_type i = static_cast<index_type>(blockIdx.x) * blockDim.x + threadIdx.x; i < (n);                    \
       i += static_cast<index_type>(blockDim.x) * gridDim.x)
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)
#ifndef assert
#define assert(condition) CUDA_KERNEL_ASSERT(condition)
#endif

#define KW_HD __host__ __device__

// The standard's overloads for integers and for mixed types: all of them compute in double.
namespace kw {
template <class T> struct integral {};
template <> struct integral<int> { using type = double; };
template <> struct integral<unsigned> { using type = double; };
template <> struct integral<long> { using type = double; };
template <> struct integral<unsigned long> { using type = double; };
template <> struct integral<long long> { using type = double; };
template <> struct integral<unsigned long long> { using type = double; };
template <class T> struct arithmetic : integral<T> {};
template <> struct arithmetic<float> { using type = double; };
template <> struct arithmetic<double> { using type = double; };
template <class A, class B, class = typename arithmetic<A>::type, class = typename arithmetic<B>::type> struct mixed {
  using type = double;
};
template <> struct mixed<float, float> {};
template <> struct mixed<double, double> {};
}  // namespace kw
#define KW_OF_INTEGER(NAME) \
  template <class T> KW_HD typename kw::integral<T>::type NAME(T x) { return NAME(static_cast<double>(x)); }
KW_OF_INTEGER(sqrt)
KW_OF_INTEGER(cbrt)
KW_OF_INTEGER(exp)
KW_OF_INTEGER(exp2)
KW_OF_INTEGER(log)
KW_OF_INTEGER(log2)
KW_OF_INTEGER(log10)
KW_OF_INTEGER(sin)
KW_OF_INTEGER(cos)
KW_OF_INTEGER(tan)
KW_OF_INTEGER(tanh)
KW_OF_INTEGER(fabs)
KW_OF_INTEGER(floor)
KW_OF_INTEGER(ceil)
KW_OF_INTEGER(round)
KW_OF_INTEGER(erf)
#undef KW_OF_INTEGER
#define KW_OF_MIXED(NAME)                                                                    \
  template <class A, class B> KW_HD typename kw::mixed<A, B>::type NAME(A a, B b) {          \
    return NAME(static_cast<double>(a), static_cast<double>(b));                             \
  }
KW_OF_MIXED(atan2)
KW_OF_MIXED(fmod)
KW_OF_MIXED(fmax)
KW_OF_MIXED(fmin)
KW_OF_MIXED(hypot)
KW_OF_MIXED(copysign)
KW_OF_MIXED(fdim)
KW_OF_MIXED(remainder)
#undef KW_OF_MIXED
// NVRTC's own pow(float, int) rounds otherwise than the standard library's, which nvcc uses. Calls are sent here by a
// macro that stands behind all headers.
KW_HD inline float kw_pow(float a, float b) { return powf(a, b); }
KW_HD inline double kw_pow(double a, double b) { return pow(a, b); }
template <class A, class B> KW_HD typename kw::mixed<A, B>::type kw_pow(A a, B b) {
  return pow(static_cast<double>(a), static_cast<double>(b));
}

namespace std {
using ::kw_pow;
using ::int8_t;
using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::uint8_t;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
using ::intptr_t;
using ::uintptr_t;
using ::ptrdiff_t;
using ::size_t;
typedef decltype(nullptr) nullptr_t;

using ::abs;
using ::acos;
using ::acosh;
using ::asin;
using ::asinh;
using ::atan;
using ::atan2;
using ::atanh;
using ::cbrt;
using ::ceil;
using ::copysign;
using ::cos;
using ::cosh;
using ::erf;
using ::erfc;
using ::exp;
using ::exp2;
using ::expm1;
using ::fabs;
using ::fdim;
using ::floor;
using ::fma;
using ::fmax;
using ::fmin;
using ::fmod;
using ::frexp;
using ::hypot;
using ::ilogb;
using ::isfinite;
using ::isinf;
using ::isnan;
using ::ldexp;
using ::lgamma;
using ::llrint;
using ::llround;
using ::log;
using ::log10;
using ::log1p;
using ::log2;
using ::logb;
using ::lrint;
using ::lround;
using ::modf;
using ::nearbyint;
using ::nextafter;
using ::remainder;
using ::rint;
using ::round;
using ::scalbn;
using ::signbit;
using ::sin;
using ::sinh;
using ::sqrt;
using ::tan;
using ::tanh;
using ::tgamma;
using ::trunc;
// The C names that candidates also write with std::.
using ::expf;
using ::fabsf;
using ::fmaxf;
using ::fminf;
using ::logf;
using ::powf;
using ::sqrtf;
using ::tanhf;

template <class T> KW_HD constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <class T> KW_HD constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <class T> KW_HD constexpr const T& clamp(const T& v, const T& lo, const T& hi) {
  return v < lo ? lo : hi < v ? hi : v;
}

template <class T, T v> struct integral_constant {
  static constexpr T value = v;
  using value_type = T;
  using type = integral_constant;
  KW_HD constexpr operator T() const noexcept { return v; }
  KW_HD constexpr T operator()() const noexcept { return v; }
};
template <bool b> using bool_constant = integral_constant<bool, b>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;
template <class T> struct type_identity { using type = T; };
template <class T, class U> struct is_same : false_type {};
template <class T> struct is_same<T, T> : true_type {};
template <class T, class U> inline constexpr bool is_same_v = is_same<T, U>::value;
template <bool c, class T, class F> struct conditional : type_identity<T> {};
template <class T, class F> struct conditional<false, T, F> : type_identity<F> {};
template <bool c, class T, class F> using conditional_t = typename conditional<c, T, F>::type;
template <bool c, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> : type_identity<T> {};
template <bool c, class T = void> using enable_if_t = typename enable_if<c, T>::type;
template <class T> struct remove_reference : type_identity<T> {};
template <class T> struct remove_reference<T&> : type_identity<T> {};
template <class T> struct remove_reference<T&&> : type_identity<T> {};
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> struct remove_const : type_identity<T> {};
template <class T> struct remove_const<const T> : type_identity<T> {};
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> struct remove_volatile : type_identity<T> {};
template <class T> struct remove_volatile<volatile T> : type_identity<T> {};
template <class T> using remove_cv_t = typename remove_const<typename remove_volatile<T>::type>::type;
template <class T> struct remove_cv : type_identity<remove_cv_t<T>> {};
template <class T> using remove_cvref_t = remove_cv_t<remove_reference_t<T>>;
template <class T> using decay_t = remove_cvref_t<T>;
template <class T> struct decay : type_identity<decay_t<T>> {};
template <class T> struct remove_pointer : type_identity<T> {};
template <class T> struct remove_pointer<T*> : type_identity<T> {};
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> struct is_floating_point
    : bool_constant<is_same_v<remove_cv_t<T>, float> || is_same_v<remove_cv_t<T>, double>> {};
template <class T> inline constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T> struct kw_is_integral : false_type {};
#define KW_INTEGRAL(T) \
  template <> struct kw_is_integral<T> : true_type {}
KW_INTEGRAL(bool);
KW_INTEGRAL(char);
KW_INTEGRAL(signed char);
KW_INTEGRAL(unsigned char);
KW_INTEGRAL(short);
KW_INTEGRAL(unsigned short);
KW_INTEGRAL(int);
KW_INTEGRAL(unsigned);
KW_INTEGRAL(long);
KW_INTEGRAL(unsigned long);
KW_INTEGRAL(long long);
KW_INTEGRAL(unsigned long long);
#undef KW_INTEGRAL
template <class T> struct is_integral : kw_is_integral<remove_cv_t<T>> {};
template <class T> inline constexpr bool is_integral_v = is_integral<T>::value;
template <class T> struct is_arithmetic : bool_constant<is_integral_v<T> || is_floating_point_v<T>> {};
template <class T> inline constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <class T> struct is_signed : bool_constant<is_arithmetic_v<T> && (T(-1) < T(0))> {};
template <class T> inline constexpr bool is_signed_v = is_signed<T>::value;
template <class T> struct is_unsigned : bool_constant<is_integral_v<T> && !is_signed_v<T>> {};
template <class T> inline constexpr bool is_unsigned_v = is_unsigned<T>::value;
template <class T> KW_HD constexpr void swap(T& a, T& b) {
  T c = a;
  a = b;
  b = c;
}

template <class T> struct numeric_limits {
  static constexpr bool is_specialized = false;
};
#define KW_FLOAT_LIMITS(T, LOWEST, MIN, MAX, EPS, INF, NANV, DIGITS)              \
  template <> struct numeric_limits<T> {                                           \
    static constexpr bool is_specialized = true, is_signed = true, is_integer = false; \
    static constexpr bool has_infinity = true, has_quiet_NaN = true;               \
    static constexpr int digits = DIGITS;                                          \
    KW_HD static constexpr T lowest() noexcept { return LOWEST; }                  \
    KW_HD static constexpr T min() noexcept { return MIN; }                        \
    KW_HD static constexpr T max() noexcept { return MAX; }                        \
    KW_HD static constexpr T epsilon() noexcept { return EPS; }                    \
    KW_HD static constexpr T infinity() noexcept { return INF; }                   \
    KW_HD static constexpr T quiet_NaN() noexcept { return NANV; }                 \
  }
KW_FLOAT_LIMITS(float, -FLT_MAX, FLT_MIN, FLT_MAX, FLT_EPSILON, __builtin_bit_cast(float, 0x7f800000), __builtin_bit_cast(float, 0x7fc00000), 24);
KW_FLOAT_LIMITS(double, -DBL_MAX, DBL_MIN, DBL_MAX, DBL_EPSILON, __builtin_bit_cast(double, 0x7ff0000000000000L), __builtin_bit_cast(double, 0x7ff8000000000000L), 53);
#undef KW_FLOAT_LIMITS
#define KW_INT_LIMITS(T, MIN, MAX, DIGITS)                                                       \
  template <> struct numeric_limits<T> {                                                         \
    static constexpr bool is_specialized = true, is_signed = MIN < 0, is_integer = true;         \
    static constexpr bool has_infinity = false, has_quiet_NaN = false;                           \
    static constexpr int digits = DIGITS;                                                        \
    KW_HD static constexpr T lowest() noexcept { return MIN; }                                   \
    KW_HD static constexpr T min() noexcept { return MIN; }                                      \
    KW_HD static constexpr T max() noexcept { return MAX; }                                      \
    KW_HD static constexpr T epsilon() noexcept { return 0; }                                    \
  }
KW_INT_LIMITS(char, SCHAR_MIN, SCHAR_MAX, 7);
KW_INT_LIMITS(signed char, SCHAR_MIN, SCHAR_MAX, 7);
KW_INT_LIMITS(unsigned char, 0, UCHAR_MAX, 8);
KW_INT_LIMITS(short, SHRT_MIN, SHRT_MAX, 15);
KW_INT_LIMITS(unsigned short, 0, USHRT_MAX, 16);
KW_INT_LIMITS(int, INT_MIN, INT_MAX, 31);
KW_INT_LIMITS(unsigned, 0, UINT_MAX, 32);
KW_INT_LIMITS(long, LONG_MIN, LONG_MAX, 63);
KW_INT_LIMITS(unsigned long, 0, ULONG_MAX, 64);
KW_INT_LIMITS(long long, LLONG_MIN, LLONG_MAX, 63);
KW_INT_LIMITS(unsigned long long, 0, ULLONG_MAX, 64);
#undef KW_INT_LIMITS

template <class T, size_t N> struct array {
  T _data[N ? N : 1];
  KW_HD constexpr T& operator[](size_t i) { return _data[i]; }
  KW_HD constexpr const T& operator[](size_t i) const { return _data[i]; }
  KW_HD constexpr size_t size() const { return N; }
  KW_HD constexpr T* data() { return _data; }
  KW_HD constexpr const T* data() const { return _data; }
};
}  // namespace std

// The host passes these by value, so the layout is that of the class in tensor.h.
namespace at {
template <class T> struct DefaultPtrTraits { using PtrType = T*; };
template <class T> struct RestrictPtrTraits { using PtrType = T* __restrict__; };
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class I = int64_t>
class PackedTensorAccessor {
 public:
  __device__ PackedTensorAccessor(T* data, const I* sizes, const I* strides) : data_(data) {
    for (size_t i = 0; i < N; i++) {
      sizes_[i] = sizes[i];
      strides_[i] = strides[i];
    }
  }
  __device__ decltype(auto) operator[](I i) const {
    if constexpr (N == 1) return (data_[i * strides_[0]]);
    else return PackedTensorAccessor<T, N - 1, Traits, I>(data_ + i * strides_[0], sizes_ + 1, strides_ + 1);
  }
  __device__ T* data() const { return data_; }
  __device__ I size(size_t i) const { return sizes_[i]; }
  __device__ I stride(size_t i) const { return strides_[i]; }

 private:
  T* data_;
  I sizes_[N], strides_[N];
};
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = PackedTensorAccessor<T, N, Traits, int32_t>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = PackedTensorAccessor<T, N, Traits, int64_t>;
template <class T, size_t N> using TensorAccessor = PackedTensorAccessor<T, N>;
}  // namespace at
namespace torch {
using at::DefaultPtrTraits;
using at::PackedTensorAccessor;
using at::PackedTensorAccessor32;
using at::PackedTensorAccessor64;
using at::RestrictPtrTraits;
using at::TensorAccessor;
}  // namespace torch

#if defined(KW_WITH_HALF)
// torch's scalar types, with its rule that arithmetic happens in float.
namespace c10 {
struct alignas(2) Half {
  unsigned short x;
  Half() = default;
  __device__ Half(float f) : x(__half_as_ushort(__float2half_rn(f))) {}
  __device__ Half(__half h) : x(__half_as_ushort(h)) {}
  __device__ operator float() const { return __half2float(__ushort_as_half(x)); }
  __device__ operator __half() const { return __ushort_as_half(x); }
};
struct alignas(2) BFloat16 {
  unsigned short x;
  BFloat16() = default;
  __device__ BFloat16(float f) : x(__bfloat16_as_ushort(__float2bfloat16_rn(f))) {}
  __device__ BFloat16(__nv_bfloat16 h) : x(__bfloat16_as_ushort(h)) {}
  __device__ operator float() const { return __bfloat162float(__ushort_as_bfloat16(x)); }
  __device__ operator __nv_bfloat16() const { return __ushort_as_bfloat16(x); }
};
#define KW_SCALAR_OPERATORS(T)                                                                     \
  __device__ inline T operator+(const T& a, const T& b) { return float(a) + float(b); }            \
  __device__ inline T operator-(const T& a, const T& b) { return float(a) - float(b); }            \
  __device__ inline T operator*(const T& a, const T& b) { return float(a) * float(b); }            \
  __device__ inline T operator/(const T& a, const T& b) { return float(a) / float(b); }            \
  __device__ inline T operator-(const T& a) { return -float(a); }                                  \
  __device__ inline T& operator+=(T& a, const T& b) { return a = a + b; }                          \
  __device__ inline T& operator-=(T& a, const T& b) { return a = a - b; }                          \
  __device__ inline T& operator*=(T& a, const T& b) { return a = a * b; }                          \
  __device__ inline T& operator/=(T& a, const T& b) { return a = a / b; }                          \
  __device__ inline float operator+(T a, float b) { return float(a) + b; }                         \
  __device__ inline float operator-(T a, float b) { return float(a) - b; }                         \
  __device__ inline float operator*(T a, float b) { return float(a) * b; }                         \
  __device__ inline float operator/(T a, float b) { return float(a) / b; }                         \
  __device__ inline float operator+(float a, T b) { return a + float(b); }                         \
  __device__ inline float operator-(float a, T b) { return a - float(b); }                         \
  __device__ inline float operator*(float a, T b) { return a * float(b); }                         \
  __device__ inline float operator/(float a, T b) { return a / float(b); }                         \
  __device__ inline T operator+(T a, int b) { return float(a) + float(b); }                        \
  __device__ inline T operator-(T a, int b) { return float(a) - float(b); }                        \
  __device__ inline T operator*(T a, int b) { return float(a) * float(b); }                        \
  __device__ inline T operator/(T a, int b) { return float(a) / float(b); }                        \
  __device__ inline T operator+(int a, T b) { return float(a) + float(b); }                        \
  __device__ inline T operator-(int a, T b) { return float(a) - float(b); }                        \
  __device__ inline T operator*(int a, T b) { return float(a) * float(b); }                        \
  __device__ inline T operator/(int a, T b) { return float(a) / float(b); }
KW_SCALAR_OPERATORS(Half)
KW_SCALAR_OPERATORS(BFloat16)
#undef KW_SCALAR_OPERATORS
}  // namespace c10
namespace at {
using c10::BFloat16;
using c10::Half;
}  // namespace at
namespace torch {
using c10::BFloat16;
using c10::Half;
}  // namespace torch
#endif
