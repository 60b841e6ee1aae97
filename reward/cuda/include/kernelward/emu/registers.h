// Calls out of a hook. Candidates' code has values in vector registers while a hook runs (hooks.h), so accesses.cpp is
// compiled to use none of them, and calls what may use them through here.
#pragma once

#ifdef KW_OWN_HOOKS
extern "C" __attribute__((visibility("hidden"))) void kw_keeping_vectors(void* context, void (*call)(void*));
#endif

namespace kw {
namespace emu {

template <class F> static inline void keeping_vectors(F f) {
#ifdef KW_OWN_HOOKS
  kw_keeping_vectors(&f, [](void* p) { (*static_cast<F*>(p))(); });
#else
  f();
#endif
}

}  // namespace emu
}  // namespace kw
