// What happens at every access of a kernel to memory. Candidates' code is compiled to call __tsan_* before each one (the
// interface of ThreadSanitizer); under KW_OWN_HOOKS those are in hooks.h and jump here, with all registers in use: this
// file is compiled to use general registers only (-mgeneral-regs-only), saves those it changes, and leaves it to
// `keeping_vectors` to call anything outside of it.
#include "kernelward/emu/races.h"
#include "kernelward/emu/registers.h"
#include "kernelward/emu/timed.h"

namespace kw {
namespace emu {
namespace {

void copy(unsigned char* to, const unsigned char* from, size_t n) {  // without the C library, which uses vectors
  for (; n >= 4; n -= 4, to += 4, from += 4) *reinterpret_cast<uint32_t*>(to) = *reinterpret_cast<const uint32_t*>(from);
  for (size_t i = 0; i < n; i++) to[i] = from[i];
}

bool equal(const unsigned char* a, const unsigned char* b, size_t n) {
  for (; n >= 4; n -= 4, a += 4, b += 4)
    if (*reinterpret_cast<const uint32_t*>(a) != *reinterpret_cast<const uint32_t*>(b)) return false;
  for (size_t i = 0; i < n; i++) if (a[i] != b[i]) return false;
  return true;
}

bool shared_address(uintptr_t a) {
  if (a - uintptr_t(rt.dynamic) < rt.dynamic_bytes) return true;
  for (const SharedArea* area : rt.areas)
    if (a - uintptr_t(area->body - kGuard) < area->bytes + 2 * kGuard) return true;
  return false;
}

void check_read(uintptr_t a, size_t n, void* pc) {
  settle();
  Access now = access_now(pc);
  each_cell(a, n, [&](Cell& c) {
    bool own_value = c.same_thread == now.thread && c.same_block == now.block;
    if (c.write.when && !c.write.atomic && !own_value && !ordered(c.write, now))
      keeping_vectors([&] { conflict(a, c.write, "wrote", now, "reads"); });
    Access* slot = &c.reads[1];
    for (Access& r : c.reads)
      if (!r.when || (r.thread == now.thread && r.block == now.block) || ordered(r, now)) { slot = &r; break; }
    *slot = now;
  });
}

void check_write(uintptr_t a, size_t n, void* pc) {
  look_beside_arrays(a, pc);
  settle();
  race.access = access_now(pc);
  race.pending = true;
  race.address = a;
  race.size = n;
  copy(race.old, reinterpret_cast<const unsigned char*>(a), n);
}

__attribute__((noinline)) void on_read(uintptr_t a, size_t n, void* pc) {
  if (ignored(a)) return;
  if (watch == Watch::kTime) timed_access(a, pc, false);
  else check_read(a, n, pc);
}

__attribute__((noinline)) void on_write(uintptr_t a, size_t n, void* pc) {
  if (ignored(a)) return;
  if (watch == Watch::kTime) timed_access(a, pc, true);
  else check_write(a, n, pc);
}

// Nobody wants to know of accesses: the schedule keeps no time of them, or there is no shared memory that they could go to.
bool unwatched() {
  return watch == Watch::kNothing || (watch == Watch::kTime && rt.dynamic_bytes == 0 && !rt.entered);
}

}  // namespace

void settle() {
  if (!race.pending) return;
  race.pending = false;
  bool changed = !equal(reinterpret_cast<const unsigned char*>(race.address), race.old, race.size);
  const Access& now = race.access;
  each_cell(race.address, race.size, [&](Cell& c) {
    if (!changed) {
      c.same_block = now.block;
      c.same_thread = now.thread;
      return;
    }
    if (c.write.when && !ordered(c.write, now)) keeping_vectors([&] { conflict(race.address, c.write, "wrote", now, "writes"); });
    for (const Access& r : c.reads)
      if (r.when && !r.atomic && !ordered(r, now)) keeping_vectors([&] { conflict(race.address, r, "read", now, "writes"); });
    c.write = now;
    c.same_thread = 0xFFFF;
  });
}

// Who jumps over an array's guard zones writes into the room beyond them.
void look_beside_arrays(uintptr_t a, void* pc) {
  for (const SharedArea* area : rt.areas) {
    uintptr_t first = uintptr_t(area->body) - kGuard - kRoom;
    if (a - first >= area->bytes + 2 * (kGuard + kRoom) || a - uintptr_t(area->body) < area->bytes) continue;
    return keeping_vectors([&] { beside_array(*area, pc); });
  }
}

void timed_access(uintptr_t address, void* pc, bool store) {
  if (rt.dynamic_bytes == 0 && rt.areas.empty()) return;
  int t = rt.current;
  if (!shared_address(address)) {
    timed.loads[t] += !store;
    return;
  }
  if (!store && uintptr_t(pc) <= timed.furthest[t] && ++timed.reads[t] < kRow) return;
  timed.place[t] = uintptr_t(pc);
  timed.storing[t] = store;
  timed.furthest[t] = store ? 0 : std::max(timed.furthest[t], uintptr_t(pc));
  rt.wait[t] = Wait::kReady;
  keeping_vectors([] { suspend(); });
}

}  // namespace emu
}  // namespace kw

// ---- what candidates' code calls

using kw::emu::on_read;
using kw::emu::on_write;
#define KW_PC __builtin_return_address(0)
#define KW_HIDDEN extern "C" __attribute__((visibility("hidden")))
#ifdef KW_OWN_HOOKS
#define KW_HOOK(NAME) KW_HIDDEN __attribute__((no_caller_saved_registers)) void kw##NAME
#else
#define KW_HOOK(NAME) KW_HIDDEN void NAME
#endif
#define KW_ACCESS(NAME, CALL, N)                                                                       \
  extern "C" void NAME(void*);                                                                         \
  KW_HOOK(NAME)(void* a) {                                                                             \
    void* pc = KW_PC;                                                                                  \
    if (!kw::emu::rt.inside) return;                                                                   \
    if (kw::emu::unwatched()) kw::emu::keeping_vectors([pc] { kw::emu::leave_out(pc, reinterpret_cast<void*>(NAME)); }); \
    else CALL(uintptr_t(a), N, pc);                                                                    \
  }
#define KW_SIZED(N)                               \
  KW_ACCESS(__tsan_read##N, on_read, N)           \
  KW_ACCESS(__tsan_write##N, on_write, N)
KW_SIZED(1) KW_SIZED(2) KW_SIZED(4) KW_SIZED(8) KW_SIZED(16)
// -fsanitize=alignment: a reference to an object at an address its type does not allow (float4 at a multiple of 4). Where
// tensors end at a guard page they lie at odd addresses, which says nothing.
KW_HOOK(__ubsan_handle_type_mismatch_v1)(void*, void* address) {
  bool odd = kw::emu::rt.variant.placement == 0 && kw::emu::rt.variant.poison >= 0;
  if (kw::emu::rt.inside && address && !odd)
    kw::emu::keeping_vectors([] { kw::emu::fail(716, "misaligned", "misaligned address"); });
}
KW_HIDDEN void __tsan_read_range(void* a, unsigned long n) {
  if (kw::emu::watch != kw::emu::Watch::kNothing) on_read(uintptr_t(a), n, KW_PC);
}
KW_HIDDEN void __tsan_write_range(void* a, unsigned long n) {
  if (kw::emu::watch == kw::emu::Watch::kNothing) return;
  for (uintptr_t p = uintptr_t(a), end = p + n; p < end; p += 16) on_write(p, end - p < 16 ? end - p : 16, KW_PC);
}
KW_HIDDEN void __tsan_init() {}
KW_HIDDEN void __tsan_func_entry(void*) {}
KW_HIDDEN void __tsan_func_exit() {}
KW_HIDDEN void __tsan_vptr_update(void**, void*) {}
KW_HIDDEN void __tsan_vptr_read(void**) {}
#define KW_ATOMIC(BITS, T)                                                                                                  \
  KW_HIDDEN T __tsan_atomic##BITS##_load(const volatile T* a, int) { return *a; }                                           \
  KW_HIDDEN void __tsan_atomic##BITS##_store(volatile T* a, T v, int) { *a = v; }                                           \
  KW_HIDDEN T __tsan_atomic##BITS##_exchange(volatile T* a, T v, int) { return __atomic_exchange_n(a, v, 5); }              \
  KW_HIDDEN T __tsan_atomic##BITS##_fetch_add(volatile T* a, T v, int) { return __atomic_fetch_add(a, v, 5); }              \
  KW_HIDDEN T __tsan_atomic##BITS##_fetch_sub(volatile T* a, T v, int) { return __atomic_fetch_sub(a, v, 5); }              \
  KW_HIDDEN T __tsan_atomic##BITS##_fetch_and(volatile T* a, T v, int) { return __atomic_fetch_and(a, v, 5); }              \
  KW_HIDDEN T __tsan_atomic##BITS##_fetch_or(volatile T* a, T v, int) { return __atomic_fetch_or(a, v, 5); }                \
  KW_HIDDEN T __tsan_atomic##BITS##_fetch_xor(volatile T* a, T v, int) { return __atomic_fetch_xor(a, v, 5); }              \
  KW_HIDDEN int __tsan_atomic##BITS##_compare_exchange_strong(volatile T* a, T* e, T v, int, int) {                         \
    return __atomic_compare_exchange_n(a, e, v, false, 5, 5);                                                               \
  }                                                                                                                         \
  KW_HIDDEN int __tsan_atomic##BITS##_compare_exchange_weak(volatile T* a, T* e, T v, int, int) {                           \
    return __atomic_compare_exchange_n(a, e, v, false, 5, 5);                                                               \
  }
KW_ATOMIC(8, uint8_t) KW_ATOMIC(16, uint16_t) KW_ATOMIC(32, uint32_t) KW_ATOMIC(64, uint64_t)
KW_HIDDEN void __tsan_atomic_thread_fence(int) {}
KW_HIDDEN void __tsan_atomic_signal_fence(int) {}
