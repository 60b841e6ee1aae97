// What candidates' code calls before each access to memory, as far as the compiler lets us define it (`KW_OWN_HOOKS`,
// emulator_build.py).
//
// The compiler puts the calls in (-fsanitize=thread, alignment), and a call to a function that it knows nothing of may
// change every register that is not the callee's to keep, among them all that hold floating-point numbers: each sum of
// each loop would go through memory. Of a function that it has compiled before it knows which registers that one changes
// (-fipa-ra), and these change none. What they jump to, in accesses.cpp, keeps that promise.
#pragma once

#if defined(KW_OWN_HOOKS) && defined(__SANITIZE_THREAD__)  // not in the runtime itself
#define KW_HOOK(NAME, ...)                                                                               \
  extern "C" __attribute__((noinline, no_reorder, no_sanitize("thread"))) void __builtin_##NAME(__VA_ARGS__) { \
    asm volatile("jmp kw" #NAME);                                                                        \
  }
#define KW_SIZED(N)                 \
  KW_HOOK(__tsan_read##N, void*)    \
  KW_HOOK(__tsan_write##N, void*)
KW_SIZED(1) KW_SIZED(2) KW_SIZED(4) KW_SIZED(8) KW_SIZED(16)
KW_HOOK(__ubsan_handle_type_mismatch_v1, void*, void*)
#undef KW_SIZED
#undef KW_HOOK
#endif
