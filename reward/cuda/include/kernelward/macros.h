// TORCH_CHECK, AT_DISPATCH_* and their kind.
#pragma once
#include "kernelward/ops.h"

#define TORCH_CHECK(COND, ...)                                                                          \
  do {                                                                                                  \
    if (!(COND)) throw c10::Error(::kw::check_message("Expected " #COND " to be true, but got false.", ::c10::str(__VA_ARGS__))); \
  } while (0)
#define TORCH_INTERNAL_ASSERT(COND, ...) TORCH_CHECK(COND, ##__VA_ARGS__)
#define TORCH_INTERNAL_ASSERT_DEBUG_ONLY(COND, ...) TORCH_CHECK(COND, ##__VA_ARGS__)
#define TORCH_CHECK_VALUE(COND, ...) do { if (!(COND)) throw c10::ValueError(::c10::str(__VA_ARGS__)); } while (0)
#define TORCH_CHECK_INDEX(COND, ...) do { if (!(COND)) throw c10::IndexError(::c10::str(__VA_ARGS__)); } while (0)
#define TORCH_CHECK_TYPE(COND, ...) do { if (!(COND)) throw c10::TypeError(::c10::str(__VA_ARGS__)); } while (0)
#define TORCH_CHECK_NOT_IMPLEMENTED(COND, ...) TORCH_CHECK(COND, ##__VA_ARGS__)
#define TORCH_CHECK_EQ(A, B) TORCH_CHECK((A) == (B))
#define TORCH_CHECK_NE(A, B) TORCH_CHECK((A) != (B))
#define TORCH_CHECK_LT(A, B) TORCH_CHECK((A) < (B))
#define TORCH_CHECK_LE(A, B) TORCH_CHECK((A) <= (B))
#define TORCH_CHECK_GT(A, B) TORCH_CHECK((A) > (B))
#define TORCH_CHECK_GE(A, B) TORCH_CHECK((A) >= (B))
#define AT_ASSERT(COND, ...) TORCH_CHECK(COND, ##__VA_ARGS__)
#define AT_ASSERTM(COND, ...) TORCH_CHECK(COND, ##__VA_ARGS__)
#define AT_CHECK(COND, ...) TORCH_CHECK(COND, ##__VA_ARGS__)
#define AT_ERROR(...) throw c10::Error(::c10::str(__VA_ARGS__))
#define TORCH_WARN(...) ((void)0)
#define TORCH_WARN_ONCE(...) ((void)0)
#define TORCH_API
#define C10_API
#define C10_ALWAYS_INLINE inline
#define C10_RESTRICT __restrict__
#define C10_UNLIKELY(E) (__builtin_expect(bool(E), 0))
#define C10_LIKELY(E) (__builtin_expect(bool(E), 1))
#define C10_UNUSED __attribute__((unused))

namespace kw {
inline std::string check_message(const char* standard, const std::string& given) { return given.empty() ? standard : given; }
[[noreturn]] inline void undispatched(const char* name, c10::ScalarType t) {
  throw c10::Error(c10::str('"', name, "\" not implemented for '", t, "'"));
}
inline c10::ScalarType scalar_type(c10::ScalarType t) { return t; }
}  // namespace kw

#define AT_DISPATCH_CASE(TYPE, ...)                                                    \
  case TYPE: {                                                                         \
    using scalar_t [[maybe_unused]] = typename ::kw::CppType<TYPE>::type;              \
    return __VA_ARGS__();                                                              \
  }
#define AT_DISPATCH_SWITCH(TYPE, NAME, ...)                                            \
  [&] {                                                                                \
    const auto kw_type = ::kw::scalar_type(TYPE);                                      \
    switch (kw_type) { __VA_ARGS__ default: ::kw::undispatched(NAME, kw_type); }       \
  }()
#define AT_PRIVATE_CASE_TYPE(TYPE, CPP, ...) AT_DISPATCH_CASE(TYPE, __VA_ARGS__)

namespace kw {
template <c10::ScalarType> struct CppType;
#define KW_TYPE(S, T) template <> struct CppType<c10::ScalarType::S> { using type = T; };
KW_TYPE(Byte, uint8_t) KW_TYPE(Char, int8_t) KW_TYPE(Short, int16_t) KW_TYPE(Int, int) KW_TYPE(Long, int64_t)
KW_TYPE(Half, c10::Half) KW_TYPE(Float, float) KW_TYPE(Double, double) KW_TYPE(Bool, bool) KW_TYPE(BFloat16, c10::BFloat16)
#undef KW_TYPE
}  // namespace kw

#define KW_CASE(S, ...) AT_DISPATCH_CASE(::c10::ScalarType::S, __VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES(...) KW_CASE(Double, __VA_ARGS__) KW_CASE(Float, __VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES_AND_HALF(...) AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) KW_CASE(Half, __VA_ARGS__)
#define AT_DISPATCH_CASE_INTEGRAL_TYPES(...)                                                                     \
  KW_CASE(Byte, __VA_ARGS__) KW_CASE(Char, __VA_ARGS__) KW_CASE(Int, __VA_ARGS__) KW_CASE(Long, __VA_ARGS__)     \
  KW_CASE(Short, __VA_ARGS__)
#define AT_DISPATCH_CASE_ALL_TYPES(...) AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__)

#define AT_DISPATCH_FLOATING_TYPES(T, N, ...) AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(T, N, ...) AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_FLOATING_TYPES_AND_HALF(__VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(T, N, ...) AT_DISPATCH_SWITCH(T, N, KW_CASE(Half, __VA_ARGS__) KW_CASE(BFloat16, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND(S, T, N, ...) \
  AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(S, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(S1, S2, T, N, ...)                                        \
  AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(S1, __VA_ARGS__) \
                               AT_DISPATCH_CASE(S2, __VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(T, N, ...) AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(T, N, ...) AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND(S, T, N, ...) \
  AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(S, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND2(S1, S2, T, N, ...)                                        \
  AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(S1, __VA_ARGS__) \
                               AT_DISPATCH_CASE(S2, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND3(S1, S2, S3, T, N, ...)                                    \
  AT_DISPATCH_SWITCH(T, N, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) AT_DISPATCH_CASE(S1, __VA_ARGS__) \
                               AT_DISPATCH_CASE(S2, __VA_ARGS__) AT_DISPATCH_CASE(S3, __VA_ARGS__))
#define AT_DISPATCH_INDEX_TYPES(T, N, ...)                                                          \
  [&] {                                                                                             \
    switch (::kw::scalar_type(T)) {                                                                 \
      case ::c10::ScalarType::Int: { using index_t = int; return __VA_ARGS__(); }                   \
      case ::c10::ScalarType::Long: { using index_t = int64_t; return __VA_ARGS__(); }              \
      default: ::kw::undispatched(N, ::kw::scalar_type(T));                                         \
    }                                                                                               \
  }()
