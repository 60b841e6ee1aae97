// Atomic operations. Threads are fibers of one processor thread, so a plain read-modify-write is atomic here; the race
// check is told that it was meant to be.
#pragma once
#include "kernelward/emu/half.h"
#include "kernelward/emu/runtime.h"

namespace kw {
namespace emu {
template <class T> struct Same { using type = T; };
// The old value; `f` computes the new one.
template <class T, class F> KW_UNTRACKED inline T read_modify_write(volatile T* address, F f) {
  T* p = const_cast<T*>(address);
  atomic_access(p, sizeof(T));
  T old = *p;
  *p = f(old);
  return old;
}
}  // namespace emu
}  // namespace kw

#define KW_ATOMIC(NAME, EXPRESSION)                                                                                \
  template <class T> KW_UNTRACKED inline T NAME(volatile T* p, typename kw::emu::Same<T>::type v) {                 \
    return kw::emu::read_modify_write(p, [v](T old) KW_UNTRACKED { return T(EXPRESSION); });                        \
  }                                                                                                                \
  template <class T> KW_UNTRACKED inline T NAME(T* p, typename kw::emu::Same<T>::type v) {                          \
    return NAME(static_cast<volatile T*>(p), v);                                                                   \
  }                                                                                                                \
  template <class T> KW_UNTRACKED inline T NAME##_block(T* p, typename kw::emu::Same<T>::type v) { return NAME(p, v); } \
  template <class T> KW_UNTRACKED inline T NAME##_system(T* p, typename kw::emu::Same<T>::type v) { return NAME(p, v); }
KW_ATOMIC(atomicAdd, old + v)
KW_ATOMIC(atomicSub, old - v)
KW_ATOMIC(atomicExch, v)
KW_ATOMIC(atomicMin, v < old ? v : old)
KW_ATOMIC(atomicMax, old < v ? v : old)
KW_ATOMIC(atomicAnd, old & v)
KW_ATOMIC(atomicOr, old | v)
KW_ATOMIC(atomicXor, old ^ v)
KW_ATOMIC(atomicInc, old >= v ? T(0) : T(old + 1))
KW_ATOMIC(atomicDec, old == 0 || old > v ? v : T(old - 1))
#undef KW_ATOMIC
template <class T> KW_UNTRACKED inline T atomicCAS(volatile T* p, typename kw::emu::Same<T>::type expected, typename kw::emu::Same<T>::type v) {
  return kw::emu::read_modify_write(p, [expected, v](T old) KW_UNTRACKED { return old == expected ? v : old; });
}
template <class T> KW_UNTRACKED inline T atomicCAS(T* p, typename kw::emu::Same<T>::type expected, typename kw::emu::Same<T>::type v) {
  return atomicCAS(static_cast<volatile T*>(p), expected, v);
}
template <class T> KW_UNTRACKED inline T atomicCAS_block(T* p, typename kw::emu::Same<T>::type e, typename kw::emu::Same<T>::type v) { return atomicCAS(p, e, v); }
template <class T> inline T gpuAtomicAdd(T* p, typename kw::emu::Same<T>::type v) { return atomicAdd(p, v); }
template <class T> inline void gpuAtomicAddNoReturn(T* p, typename kw::emu::Same<T>::type v) { atomicAdd(p, v); }
template <class T> inline T gpuAtomicMax(T* p, typename kw::emu::Same<T>::type v) { return atomicMax(p, v); }
template <class T> inline T gpuAtomicMin(T* p, typename kw::emu::Same<T>::type v) { return atomicMin(p, v); }
