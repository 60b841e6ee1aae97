// __half and __nv_bfloat16: 16 bits of storage; every operation is done in float and rounded once.
#pragma once
#include <cstdint>

#include "kernelward/emu/math.h"

namespace kw {
inline float half_bits_to_float(uint16_t h);
inline uint16_t float_to_half_bits(float f);
inline float bfloat_bits_to_float(uint16_t b);
inline uint16_t float_to_bfloat_bits(float f);
}  // namespace kw

#define KW_HALF_TYPE(NAME, PAIR, FROM, TO)                                                                     \
  struct alignas(2) NAME {                                                                                     \
    uint16_t bits;                                                                                             \
    NAME() = default;                                                                                          \
    NAME(float v) : bits(kw::TO(v)) {}                                                                         \
    NAME(double v) : bits(kw::TO(float(v))) {}                                                                 \
    NAME(int v) : bits(kw::TO(float(v))) {}                                                                    \
    NAME(unsigned v) : bits(kw::TO(float(v))) {}                                                               \
    NAME(long v) : bits(kw::TO(float(v))) {}                                                                   \
    NAME(unsigned long v) : bits(kw::TO(float(v))) {}                                                          \
    NAME(long long v) : bits(kw::TO(float(v))) {}                                                              \
    operator float() const { return kw::FROM(bits); }                                                          \
    template <class T> NAME& operator+=(T v) { return *this = NAME(float(*this) + float(v)); }                 \
    template <class T> NAME& operator-=(T v) { return *this = NAME(float(*this) - float(v)); }                 \
    template <class T> NAME& operator*=(T v) { return *this = NAME(float(*this) * float(v)); }                 \
    template <class T> NAME& operator/=(T v) { return *this = NAME(float(*this) / float(v)); }                 \
  };                                                                                                           \
  struct KW_VECTOR_ALIGN(4) PAIR {                                                                             \
    NAME x, y;                                                                                                 \
    PAIR() = default;                                                                                          \
    PAIR(NAME a, NAME b) : x(a), y(b) {}                                                                       \
  };                                                                                                           \
  inline NAME operator+(NAME a, NAME b) { return NAME(float(a) + float(b)); }                                  \
  inline NAME operator-(NAME a, NAME b) { return NAME(float(a) - float(b)); }                                  \
  inline NAME operator*(NAME a, NAME b) { return NAME(float(a) * float(b)); }                                  \
  inline NAME operator/(NAME a, NAME b) { return NAME(float(a) / float(b)); }                                  \
  inline NAME operator-(NAME a) { return NAME(-float(a)); }                                                    \
  inline bool operator==(NAME a, NAME b) { return float(a) == float(b); }                                      \
  inline bool operator!=(NAME a, NAME b) { return float(a) != float(b); }                                      \
  inline bool operator<(NAME a, NAME b) { return float(a) < float(b); }                                        \
  inline bool operator>(NAME a, NAME b) { return float(a) > float(b); }                                        \
  inline bool operator<=(NAME a, NAME b) { return float(a) <= float(b); }                                      \
  inline bool operator>=(NAME a, NAME b) { return float(a) >= float(b); }                                      \
  inline NAME __hadd(NAME a, NAME b) { return a + b; }                                                         \
  inline NAME __hsub(NAME a, NAME b) { return a - b; }                                                         \
  inline NAME __hmul(NAME a, NAME b) { return a * b; }                                                         \
  inline NAME __hdiv(NAME a, NAME b) { return a / b; }                                                         \
  inline NAME __hadd_rn(NAME a, NAME b) { return a + b; }                                                      \
  inline NAME __hmul_rn(NAME a, NAME b) { return a * b; }                                                      \
  inline NAME __hneg(NAME a) { return -a; }                                                                    \
  inline NAME __habs(NAME a) { return NAME(fabsf(float(a))); }                                                 \
  inline NAME __hfma(NAME a, NAME b, NAME c) { return NAME(fmaf(float(a), float(b), float(c))); }              \
  inline bool __heq(NAME a, NAME b) { return a == b; }                                                         \
  inline bool __hne(NAME a, NAME b) { return a != b; }                                                         \
  inline bool __hlt(NAME a, NAME b) { return a < b; }                                                          \
  inline bool __hle(NAME a, NAME b) { return a <= b; }                                                         \
  inline bool __hgt(NAME a, NAME b) { return a > b; }                                                          \
  inline bool __hge(NAME a, NAME b) { return a >= b; }                                                         \
  inline bool __hisnan(NAME a) { return float(a) != float(a); }                                                \
  inline int __hisinf(NAME a) { return std::isinf(float(a)) ? (float(a) > 0 ? 1 : -1) : 0; }                   \
  inline NAME __hmax(NAME a, NAME b) { return NAME(fmaxf(float(a), float(b))); }                               \
  inline NAME __hmin(NAME a, NAME b) { return NAME(fminf(float(a), float(b))); }                               \
  inline NAME hexp(NAME a) { return NAME(expf(float(a))); }                                                    \
  inline NAME hexp2(NAME a) { return NAME(exp2f(float(a))); }                                                  \
  inline NAME hlog(NAME a) { return NAME(logf(float(a))); }                                                    \
  inline NAME hlog2(NAME a) { return NAME(log2f(float(a))); }                                                  \
  inline NAME hsqrt(NAME a) { return NAME(sqrtf(float(a))); }                                                  \
  inline NAME hrsqrt(NAME a) { return NAME(rsqrtf(float(a))); }                                                \
  inline NAME hrcp(NAME a) { return NAME(1.0f / float(a)); }                                                   \
  inline NAME hsin(NAME a) { return NAME(sinf(float(a))); }                                                    \
  inline NAME hcos(NAME a) { return NAME(cosf(float(a))); }                                                    \
  inline NAME htanh(NAME a) { return NAME(tanhf(float(a))); }                                                  \
  inline NAME hfloor(NAME a) { return NAME(floorf(float(a))); }                                                \
  inline NAME hceil(NAME a) { return NAME(ceilf(float(a))); }                                                  \
  inline PAIR operator+(PAIR a, PAIR b) { return {a.x + b.x, a.y + b.y}; }                                     \
  inline PAIR operator-(PAIR a, PAIR b) { return {a.x - b.x, a.y - b.y}; }                                     \
  inline PAIR operator*(PAIR a, PAIR b) { return {a.x * b.x, a.y * b.y}; }                                     \
  inline PAIR operator/(PAIR a, PAIR b) { return {a.x / b.x, a.y / b.y}; }                                     \
  inline PAIR __hadd2(PAIR a, PAIR b) { return a + b; }                                                        \
  inline PAIR __hsub2(PAIR a, PAIR b) { return a - b; }                                                        \
  inline PAIR __hmul2(PAIR a, PAIR b) { return a * b; }                                                        \
  inline PAIR __h2div(PAIR a, PAIR b) { return a / b; }                                                        \
  inline PAIR __hneg2(PAIR a) { return {-a.x, -a.y}; }                                                         \
  inline PAIR __habs2(PAIR a) { return {__habs(a.x), __habs(a.y)}; }                                           \
  inline PAIR __hfma2(PAIR a, PAIR b, PAIR c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }       \
  inline PAIR __hmax2(PAIR a, PAIR b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                         \
  inline PAIR __hmin2(PAIR a, PAIR b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                         \
  inline PAIR h2exp(PAIR a) { return {hexp(a.x), hexp(a.y)}; }                                                 \
  inline PAIR h2rsqrt(PAIR a) { return {hrsqrt(a.x), hrsqrt(a.y)}; }                                           \
  inline PAIR h2sqrt(PAIR a) { return {hsqrt(a.x), hsqrt(a.y)}; }

KW_HALF_TYPE(__half, __half2, half_bits_to_float, float_to_half_bits)
KW_HALF_TYPE(__nv_bfloat16, __nv_bfloat162, bfloat_bits_to_float, float_to_bfloat_bits)
#undef KW_HALF_TYPE
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
struct __half_raw { unsigned short x; };

inline __half __float2half(float v) { return __half(v); }
inline __half __float2half_rn(float v) { return __half(v); }
inline __half __double2half(double v) { return __half(v); }
inline float __half2float(__half v) { return float(v); }
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline __half2 make_half2(__half a, __half b) { return {a, b}; }
inline __half2 __half2half2(__half a) { return {a, a}; }
inline __half2 __float2half2_rn(float a) { return {__half(a), __half(a)}; }
inline __half2 __floats2half2_rn(float a, float b) { return {__half(a), __half(b)}; }
inline __half2 __float22half2_rn(float2 a) { return {__half(a.x), __half(a.y)}; }
inline float2 __half22float2(__half2 v) { return {float(v.x), float(v.y)}; }
inline float __low2float(__half2 v) { return float(v.x); }
inline float __high2float(__half2 v) { return float(v.y); }
inline __half __low2half(__half2 v) { return v.x; }
inline __half __high2half(__half2 v) { return v.y; }
inline __half __int2half_rn(int v) { return __half(v); }
inline __half __uint2half_rn(unsigned v) { return __half(v); }
inline int __half2int_rn(__half v) { return __float2int_rn(float(v)); }
inline int __half2int_rz(__half v) { return __float2int_rz(float(v)); }
inline unsigned short __half_as_ushort(__half v) { return v.bits; }
inline short __half_as_short(__half v) { return short(v.bits); }
inline __half __ushort_as_half(unsigned short b) { __half h; h.bits = b; return h; }
inline __half __short_as_half(short b) { return __ushort_as_half((unsigned short)b); }
#define CUDART_INF_FP16 __ushort_as_half(0x7C00)
#define CUDART_ZERO_FP16 __ushort_as_half(0)
#define CUDART_ONE_FP16 __ushort_as_half(0x3C00)

inline __nv_bfloat16 __float2bfloat16(float v) { return __nv_bfloat16(v); }
inline __nv_bfloat16 __float2bfloat16_rn(float v) { return __nv_bfloat16(v); }
inline __nv_bfloat16 __double2bfloat16(double v) { return __nv_bfloat16(v); }
inline float __bfloat162float(__nv_bfloat16 v) { return float(v); }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }
inline __nv_bfloat162 __float2bfloat162_rn(float a) { return {__nv_bfloat16(a), __nv_bfloat16(a)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__nv_bfloat16(a), __nv_bfloat16(b)}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 a) { return {__nv_bfloat16(a.x), __nv_bfloat16(a.y)}; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {float(v.x), float(v.y)}; }
inline float __low2float(__nv_bfloat162 v) { return float(v.x); }
inline float __high2float(__nv_bfloat162 v) { return float(v.y); }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short b) { __nv_bfloat16 h; h.bits = b; return h; }

// at::Half and at::BFloat16 convert to and from the device types.
#define KW_SMALL_FLOAT_BACKEND(NAME) KW_SMALL_FLOAT_##NAME
#define KW_SMALL_FLOAT_Half Half(__half v) : x(v.bits) {} operator __half() const { return __ushort_as_half(x); }
#define KW_SMALL_FLOAT_BFloat16 BFloat16(__nv_bfloat16 v) : x(v.bits) {} operator __nv_bfloat16() const { return __ushort_as_bfloat16(x); }
