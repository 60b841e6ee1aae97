// Device mathematics that C++ does not have under the same name. Fast intrinsics are the exact functions.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernelward/emu/types.h"

namespace kw {
namespace emu {
template <class To, class From> inline To bits(From v) {
  static_assert(sizeof(To) == sizeof(From), "");
  To out;
  std::memcpy(&out, &v, sizeof out);
  return out;
}
// Conversions saturate, and NaN becomes 0, as the hardware's cvt does.
template <class I, class F> inline I to_integer(F v) {
  if (v != v) return 0;
  if (v <= F(std::numeric_limits<I>::min())) return std::numeric_limits<I>::min();
  if (v >= F(std::numeric_limits<I>::max())) return std::numeric_limits<I>::max();
  return I(v);
}
}  // namespace emu
}  // namespace kw

// The C library declares functions of these names without exporting them, so they can only be macros.
#define __cosf(X) cosf(X)
#define __sinf(X) sinf(X)
#define __tanf(X) tanf(X)
#define __logf(X) logf(X)
#define __log2f(X) log2f(X)
#define __log10f(X) log10f(X)
#define __expf(X) expf(X)
#define __exp10f(X) exp10f(X)
#define __exp2f(X) exp2f(X)
#define __tanhf(X) tanhf(X)
#define __powf(X, Y) powf(X, Y)
#define __sincosf(X, S, C) sincosf(X, S, C)

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline double rcbrt(double x) { return 1.0 / cbrt(x); }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }
inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
inline float sinpif(float x) { return float(sin(double(x) * 3.14159265358979323846)); }
inline float cospif(float x) { return float(cos(double(x) * 3.14159265358979323846)); }
inline double sinpi(double x) { return sin(x * 3.14159265358979323846); }
inline double cospi(double x) { return cos(x * 3.14159265358979323846); }
inline float norm3df(float a, float b, float c) { return sqrtf(a * a + b * b + c * c); }
inline float norm4df(float a, float b, float c, float d) { return sqrtf(a * a + b * b + c * c + d * d); }
inline float rhypotf(float a, float b) { return 1.0f / hypotf(a, b); }
inline float erfcxf(float x) { return float(exp(double(x) * x) * erfc(double(x))); }
inline double erfinv(double y) {  // Newton from a logarithmic start (Winitzki)
  if (y <= -1 || y >= 1) return y == 1 ? HUGE_VAL : y == -1 ? -HUGE_VAL : NAN;
  double l = log(1 - y * y), a = 0.147, t = 2 / (3.14159265358979323846 * a) + l / 2;
  double x = copysign(sqrt(sqrt(t * t - l / a) - t), y);
  for (int i = 0; i < 4; i++) x -= (erf(x) - y) / (1.12837916709551257390 * exp(-x * x));
  return x;
}
inline float erfinvf(float y) { return float(erfinv(double(y))); }

inline float fdividef(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
// Never part of a fused multiply-add: neither what goes into a sum nor what comes out of a product.
#define KW_ROUNDED(SUFFIX)                                                                \
  inline float __fadd_##SUFFIX(float a, float b) { volatile float p = a, q = b; return p + q; } \
  inline float __fsub_##SUFFIX(float a, float b) { volatile float p = a, q = b; return p - q; } \
  inline float __fmul_##SUFFIX(float a, float b) { volatile float r = a * b; return r; }  \
  inline float __fdiv_##SUFFIX(float a, float b) { return a / b; }                        \
  inline float __frcp_##SUFFIX(float a) { return 1.0f / a; }                              \
  inline float __fsqrt_##SUFFIX(float a) { return sqrtf(a); }                             \
  inline float __fmaf_##SUFFIX(float a, float b, float c) { return fmaf(a, b, c); }       \
  inline double __dadd_##SUFFIX(double a, double b) { volatile double p = a, q = b; return p + q; } \
  inline double __dsub_##SUFFIX(double a, double b) { volatile double p = a, q = b; return p - q; } \
  inline double __dmul_##SUFFIX(double a, double b) { volatile double r = a * b; return r; } \
  inline double __ddiv_##SUFFIX(double a, double b) { return a / b; }                     \
  inline double __fma_##SUFFIX(double a, double b, double c) { return fma(a, b, c); }
KW_ROUNDED(rn)
#undef KW_ROUNDED
inline float __frsqrt_rn(float a) { return 1.0f / sqrtf(a); }
inline float __fmaf_ieee_rn(float a, float b, float c) { return fmaf(a, b, c); }

inline int __mul24(int a, int b) { return a * b; }
inline unsigned __umul24(unsigned a, unsigned b) { return a * b; }
inline int __mulhi(int a, int b) { return int((int64_t(a) * b) >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
  return r;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
  uint64_t v = uint64_t(y) << 32 | x;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) {
    unsigned k = s >> (4 * i), byte = unsigned(v >> (8 * (k & 7))) & 255;
    if (k & 8) byte = byte & 128 ? 255 : 0;
    r |= byte << (8 * i);
  }
  return r;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s) { return unsigned(((uint64_t(hi) << 32 | lo) << (s & 31)) >> 32); }
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) { return unsigned((uint64_t(hi) << 32 | lo) >> (s & 31)); }
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; i++) c += int(int8_t(a >> (8 * i))) * int(int8_t(b >> (8 * i)));
  return c;
}
inline unsigned __sad(int a, int b, unsigned c) { return c + unsigned(a > b ? a - b : b - a); }

inline int __float_as_int(float v) { return kw::emu::bits<int>(v); }
inline unsigned __float_as_uint(float v) { return kw::emu::bits<unsigned>(v); }
inline float __int_as_float(int v) { return kw::emu::bits<float>(v); }
inline float __uint_as_float(unsigned v) { return kw::emu::bits<float>(v); }
inline long long __double_as_longlong(double v) { return kw::emu::bits<long long>(v); }
inline double __longlong_as_double(long long v) { return kw::emu::bits<double>(v); }
inline int __double2hiint(double v) { return int(kw::emu::bits<int64_t>(v) >> 32); }
inline int __double2loint(double v) { return int(kw::emu::bits<int64_t>(v)); }
inline double __hiloint2double(int hi, int lo) { return kw::emu::bits<double>(int64_t(uint64_t(uint32_t(hi)) << 32 | uint32_t(lo))); }
#define KW_CONVERT(NAME, F, I)                                                            \
  inline I NAME##_rn(F v) { return kw::emu::to_integer<I>(std::nearbyint(v)); }               \
  inline I NAME##_rz(F v) { return kw::emu::to_integer<I>(std::trunc(v)); }                   \
  inline I NAME##_rd(F v) { return kw::emu::to_integer<I>(std::floor(v)); }                   \
  inline I NAME##_ru(F v) { return kw::emu::to_integer<I>(std::ceil(v)); }
KW_CONVERT(__float2int, float, int) KW_CONVERT(__float2uint, float, unsigned) KW_CONVERT(__float2ll, float, long long)
KW_CONVERT(__float2ull, float, unsigned long long) KW_CONVERT(__double2int, double, int) KW_CONVERT(__double2uint, double, unsigned)
KW_CONVERT(__double2ll, double, long long) KW_CONVERT(__double2ull, double, unsigned long long)
#undef KW_CONVERT
inline float __int2float_rn(int v) { return float(v); }
inline float __uint2float_rn(unsigned v) { return float(v); }
inline float __ll2float_rn(long long v) { return float(v); }
inline float __double2float_rn(double v) { return float(v); }
inline double __int2double_rn(int v) { return double(v); }
inline double __uint2double_rn(unsigned v) { return double(v); }

// max and min drop a NaN for floating types, like fmax.
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
inline constexpr std::common_type_t<A, B> max(A a, B b) {
  using C = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<C>) return C(a) != C(a) ? C(b) : C(b) > C(a) ? C(b) : C(a);
  else return C(a) < C(b) ? C(b) : C(a);
}
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
inline constexpr std::common_type_t<A, B> min(A a, B b) {
  using C = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<C>) return C(a) != C(a) ? C(b) : C(b) < C(a) ? C(b) : C(a);
  else return C(b) < C(a) ? C(b) : C(a);
}
inline unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned umax(unsigned a, unsigned b) { return a < b ? b : a; }
inline long long llmax(long long a, long long b) { return a < b ? b : a; }
inline long long llmin(long long a, long long b) { return a < b ? a : b; }

template <class T> inline T __ldg(const T* p) { return *p; }
#define KW_LOAD(NAME) template <class T> inline T NAME(const T* p) { return *p; }
KW_LOAD(__ldcg) KW_LOAD(__ldca) KW_LOAD(__ldcs) KW_LOAD(__ldlu) KW_LOAD(__ldcv)
#undef KW_LOAD
#define KW_STORE(NAME) template <class T> inline void NAME(T* p, T v) { *p = v; }
KW_STORE(__stwb) KW_STORE(__stcg) KW_STORE(__stcs) KW_STORE(__stwt)
#undef KW_STORE
inline unsigned __isGlobal(const void*) { return 1; }
inline size_t __cvta_generic_to_shared(const void* p) { return size_t(p); }
inline void __builtin_assume(bool) {}
#define __builtin_assume_aligned(P, ...) (P)

#define CUDART_INF_F __builtin_inff()
#define CUDART_INF __builtin_inf()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_NAN __builtin_nan("")
#define CUDART_PI_F 3.141592654f
#define CUDART_PI 3.1415926535897931e+0
#define CUDART_SQRT_HALF_F 0.707106781f
#define CUDART_SQRT_TWO_F 1.414213562f
#define CUDART_SQRT_2OVERPI_F 0.797884561f
#define CUDART_L2E_F 1.442695041f
#define CUDART_LN2_F 0.693147181f
#define CUDART_MAX_NORMAL_F 3.402823466e38f
#define CUDART_MIN_DENORM_F 1.401298464e-45f
#define CUDART_ONE_F 1.0f
#define CUDART_ZERO_F 0.0f
