// The race check. Candidates' code is compiled to call __tsan_* before every access to memory (the interface of ThreadSanitizer);
// here each access is held against the last write and the last reads of the same bytes by a happens-before relation:
//
//   - one thread's accesses are ordered;
//   - a barrier orders everything before it in its block with everything after it;
//   - a warp-level operation orders the lanes that met;
//   - an atomic orders what its thread (and, across blocks, its block) did before a __threadfence() with what another
//     thread does after an atomic on the same address.
//
// Threads run one after the other, so a running number of accesses is a clock for all of them. A write that leaves the
// bytes as they were conflicts with nothing: many threads may store the same value. A plain read beside an atomic is not
// reported either: it is the customary first guess of a compare-and-swap loop.
#include <cstring>
#include <unordered_map>

#include "kernelward/emu/state.h"

extern "C" char __start_kw_builtin[], __stop_kw_builtin[];

namespace kw {
namespace emu {
namespace {

struct Access {
  uint64_t when = 0;  // 0: none
  void* pc = nullptr;
  uint32_t block = 0;
  uint16_t thread = 0;
  bool atomic = false;
};
struct Cell {
  Access write, reads[2];
  uint32_t launch = 0, same_block = 0;
  uint16_t same_thread = 0xFFFF;  // last thread that stored the value already there
};
struct Page { Cell cells[1024]; };

constexpr size_t kMaxPages = 8192;  // 4 KiB of the candidate's memory each
constexpr size_t kSlots = 1024;
struct Slot { uintptr_t number = ~uintptr_t(0); Page* page = nullptr; };

struct State {
  std::unordered_map<uintptr_t, Page*> pages;
  std::unordered_map<uintptr_t, Cell> bytes;
  Slot slots[kSlots];
  uint64_t clock = 1;
  uint32_t launch = 1, block = 0;
  uint64_t barrier = 0;                       // clock of the block's last barrier
  uint64_t acquired_block = 0;                // what other blocks released before it, and this block acquired
  uint64_t acquired[kMaxThreads];             // the same within the block, per thread
  uint64_t fence_block = 0, fence[kMaxThreads];
  uint64_t met[kMaxThreads][32];              // clock up to which each lane of the own warp is ordered before this thread
  std::unordered_map<const void*, uint64_t> released;
  std::vector<std::pair<const char*, std::pair<size_t, const char*>>> names;
  bool full = false;
  // The last write, not judged before its value can be seen.
  bool pending = false;
  uintptr_t address = 0;
  size_t size = 0;
  unsigned char old[16];
  Access access;
} race;

Cell& fresh(Cell& c) {
  if (c.launch != race.launch) { c = Cell(); c.launch = race.launch; }
  return c;
}

Page* page_of(uintptr_t number, bool make) {
  Slot& s = race.slots[number % kSlots];
  if (s.number == number) return s.page;
  auto it = race.pages.find(number);
  if (it == race.pages.end()) {
    if (!make) return nullptr;
    if (race.pages.size() >= kMaxPages) {
      if (!race.full) note("race-check-partial", "the race check covers the first 32 MiB of memory only");
      race.full = true;
      return nullptr;
    }
    it = race.pages.emplace(number, new Page).first;
  }
  s = {number, it->second};
  return it->second;
}

// Calls f on each cell of an access: words where it is made of words, bytes else.
template <class F> void each_cell(uintptr_t a, size_t n, F f) {
  if (n % 4 == 0 && a % 4 == 0) {
    for (size_t i = 0; i < n; i += 4)
      if (Page* p = page_of((a + i) >> 12, true)) f(fresh(p->cells[(a + i) >> 2 & 1023]));
    return;
  }
  for (size_t i = 0; i < n; i++) f(fresh(race.bytes[a + i]));
}

bool ordered(const Access& before, const Access& now) {
  if (before.block != now.block) return before.when <= race.acquired_block;
  if (before.thread == now.thread || before.when <= race.barrier || before.when <= race.acquired[now.thread]) return true;
  return before.thread / 32 == now.thread / 32 && before.when <= race.met[now.thread][before.thread % 32];
}

std::string target(uintptr_t a) {
  const char* p = reinterpret_cast<const char*>(a);
  for (auto& n : race.names)
    if (p >= n.first && p < n.first + n.second.first) return std::string("shared ") + n.second.second + " + " + std::to_string(p - n.first);
  if (p >= rt.dynamic && p < rt.dynamic + rt.dynamic_bytes) return "dynamic shared memory + " + std::to_string(p - rt.dynamic);
  return "global memory";
}

std::string who(const Access& a) {
  return "thread " + std::to_string(a.thread) + " of block " + std::to_string(a.block);
}

void conflict(uintptr_t address, const Access& before, const char* did, const Access& now, const char* does) {
  bool same_warp = before.block == now.block && before.thread / 32 == now.thread / 32;
  bool both_write = did[0] == 'w' && does[0] == 'w';
  const char* kind = same_warp && !both_write ? "warp-synchronous" : "race";
  for (auto& f : rt.findings) if (f.kind == kind) { f.count++; return; }
  note(kind, who(before) + " " + did + " (" + code_address(static_cast<char*>(before.pc) - 1) + ") and " + who(now) + " " + does + " (" + code_address(static_cast<char*>(now.pc) - 1) + ") " + target(address) +
                 " without synchronisation in kernel " + rt.kernel);
}

// Judges the last write now that its value is in memory.
void settle() {
  if (!race.pending) return;
  race.pending = false;
  bool changed = std::memcmp(reinterpret_cast<void*>(race.address), race.old, race.size) != 0;
  const Access& now = race.access;
  each_cell(race.address, race.size, [&](Cell& c) {
    if (!changed) {
      c.same_block = now.block;
      c.same_thread = now.thread;
      return;
    }
    if (c.write.when && !ordered(c.write, now)) conflict(race.address, c.write, "wrote", now, "writes");
    for (const Access& r : c.reads)
      if (r.when && !r.atomic && !ordered(r, now)) conflict(race.address, r, "read", now, "writes");
    c.write = now;
    c.same_thread = 0xFFFF;
  });
}

bool ignored(uintptr_t a) {
  if (a - uintptr_t(rt.stacks) < kStack * kMaxThreads) return true;
  return a >= uintptr_t(__start_kw_builtin) && a < uintptr_t(__stop_kw_builtin);
}

Access access_now(void* pc) {
  Access a;
  a.when = ++race.clock;
  a.pc = pc;
  a.block = race.block;
  a.thread = uint16_t(rt.current);
  return a;
}

__attribute__((noinline)) void on_read(uintptr_t a, size_t n, void* pc) {
  if (ignored(a)) return;
  if (watch == Watch::kTime) return timed_access(a, pc, false);
  settle();
  Access now = access_now(pc);
  each_cell(a, n, [&](Cell& c) {
    bool own_value = c.same_thread == now.thread && c.same_block == now.block;
    if (c.write.when && !c.write.atomic && !own_value && !ordered(c.write, now)) conflict(a, c.write, "wrote", now, "reads");
    Access* slot = &c.reads[1];
    for (Access& r : c.reads)
      if (!r.when || (r.thread == now.thread && r.block == now.block) || ordered(r, now)) { slot = &r; break; }
    *slot = now;
  });
}

// Who jumps over an array's guard zones writes into the room beyond them.
void look_beside_arrays(uintptr_t a, void* pc) {
  for (const SharedArea* area : rt.areas) {
    uintptr_t first = uintptr_t(area->body) - kGuard - kRoom;
    if (a - first >= area->bytes + 2 * (kGuard + kRoom) || a - uintptr_t(area->body) < area->bytes) continue;
    for (auto& f : rt.findings) if (f.kind == "shared-out-of-bounds") { f.count++; return; }
    return note("shared-out-of-bounds", std::string("a thread wrote outside the shared array ") + area->name + where() + ", " +
                                            code_address(static_cast<char*>(pc) - 1));
  }
}

__attribute__((noinline)) void on_write(uintptr_t a, size_t n, void* pc) {
  if (ignored(a)) return;
  if (watch == Watch::kTime) return timed_access(a, pc, true);
  look_beside_arrays(a, pc);
  settle();
  race.access = access_now(pc);
  race.pending = true;
  race.address = a;
  race.size = n;
  std::memcpy(race.old, reinterpret_cast<void*>(a), n);
}

}  // namespace

void race_launch_begin() {
  race.launch++;
  race.block = 0;
  race.released.clear();
  race.names.clear();
  race.pending = false;
}
void race_block_begin() {
  settle();
  race.block++;
  race.barrier = race.acquired_block = race.fence_block = 0;
  std::memset(race.acquired, 0, sizeof race.acquired);
  std::memset(race.fence, 0, sizeof race.fence);
  std::memset(race.met, 0, sizeof race.met[0] * size_t(rt.threads));
}
void race_barrier() { settle(); race.barrier = race.clock; }
void race_meeting(int warp, unsigned lanes) {
  settle();
  uint64_t joined[32] = {};
  for (int l = 0; l < 32; l++)
    if (lanes >> l & 1)
      for (int k = 0; k < 32; k++) joined[k] = std::max(joined[k], race.met[warp * 32 + l][k]);
  for (int k = 0; k < 32; k++) if (lanes >> k & 1) joined[k] = race.clock;
  for (int l = 0; l < 32; l++)
    if (lanes >> l & 1) std::memcpy(race.met[warp * 32 + l], joined, sizeof joined);
}
void race_fence() {
  settle();
  race.fence[rt.current] = race.fence_block = race.clock;
}
void race_atomic(const void* address, size_t bytes, void* pc) {
  if (ignored(uintptr_t(address))) return;
  look_beside_arrays(uintptr_t(address), pc);
  settle();
  Access now = access_now(pc);
  now.atomic = true;
  auto it = race.released.find(address);
  if (it != race.released.end()) {
    race.acquired_block = std::max(race.acquired_block, it->second);
    race.acquired[rt.current] = std::max(race.acquired[rt.current], it->second);
  }
  if (race.fence_block) {
    uint64_t& r = race.released[address];
    r = std::max(r, race.fence_block);
  }
  each_cell(uintptr_t(address), bytes, [&](Cell& c) {
    if (c.write.when && !c.write.atomic && !ordered(c.write, now)) conflict(uintptr_t(address), c.write, "wrote", now, "writes (atomically)");
    c.write = now;
    c.same_thread = 0xFFFF;
  });
}
void race_thread_end() { settle(); }
void race_shared(const void* begin, size_t bytes) {
  settle();
  for (uintptr_t a = uintptr_t(begin) & ~uintptr_t(3), end = uintptr_t(begin) + bytes; a < end; a += 4) {
    if (Page* p = page_of(a >> 12, false)) p->cells[a >> 2 & 1023].launch = 0;
    else a |= 4092;
  }
  if (!race.bytes.empty())
    for (uintptr_t a = uintptr_t(begin), end = a + bytes; a < end; a++) {
      auto it = race.bytes.find(a);
      if (it != race.bytes.end()) it->second.launch = 0;
    }
}
void race_name(const void* begin, size_t bytes, const char* name) {
  for (auto& n : race.names) if (n.first == begin) return;
  race.names.push_back({static_cast<const char*>(begin), {bytes, name}});
}

}  // namespace emu
}  // namespace kw

// ---- ThreadSanitizer's interface

using kw::emu::on_read;
using kw::emu::on_write;
#define KW_PC __builtin_return_address(0)
#define KW_HOOK extern "C" __attribute__((visibility("hidden"))) void
#define KW_SEES(CALL) if (__builtin_expect(kw::emu::watch != kw::emu::Watch::kNothing, 0)) CALL
#define KW_ACCESS(NAME, CALL, N)                                      \
  KW_HOOK NAME(void* a) {                                             \
    if (__builtin_expect(kw::emu::watch == kw::emu::Watch::kNothing, 1)) \
      kw::emu::leave_out(KW_PC, reinterpret_cast<void*>(NAME));       \
    else CALL(uintptr_t(a), N, KW_PC);                                \
  }
#define KW_SIZED(N)                             \
  KW_ACCESS(__tsan_read##N, on_read, N)         \
  KW_ACCESS(__tsan_write##N, on_write, N)       \
  KW_ACCESS(__tsan_unaligned_read##N, on_read, N) \
  KW_ACCESS(__tsan_unaligned_write##N, on_write, N)
KW_SIZED(1) KW_SIZED(2) KW_SIZED(4) KW_SIZED(8) KW_SIZED(16)
KW_HOOK __tsan_read_range(void* a, unsigned long n) { KW_SEES(on_read(uintptr_t(a), n, KW_PC)); }
KW_HOOK __tsan_write_range(void* a, unsigned long n) {
  if (kw::emu::watch == kw::emu::Watch::kNothing) return;
  for (uintptr_t p = uintptr_t(a), end = p + n; p < end; p += 16) on_write(p, end - p < 16 ? end - p : 16, KW_PC);
}
// -fsanitize=alignment: a reference to an object at an address its type does not allow (float4 at a multiple of 4). Where
// tensors end at a guard page they lie at odd addresses, which says nothing.
KW_HOOK __ubsan_handle_type_mismatch_v1(void*, void* address) {
  bool odd = kw::emu::rt.variant.placement == 0 && kw::emu::rt.variant.poison >= 0;
  if (kw::emu::rt.inside && address && !odd) kw::emu::fail(716, "misaligned", "misaligned address");
}
KW_HOOK __tsan_init() {}
KW_HOOK __tsan_func_entry(void*) {}
KW_HOOK __tsan_func_exit() {}
KW_HOOK __tsan_vptr_update(void**, void*) {}
KW_HOOK __tsan_vptr_read(void**) {}
extern "C" {
#define KW_ATOMIC(BITS, T)                                                                                                                       \
  __attribute__((visibility("hidden"))) T __tsan_atomic##BITS##_load(const volatile T* a, int) { return *a; }                                    \
  __attribute__((visibility("hidden"))) void __tsan_atomic##BITS##_store(volatile T* a, T v, int) { *a = v; }                                    \
  __attribute__((visibility("hidden"))) T __tsan_atomic##BITS##_exchange(volatile T* a, T v, int) { return __atomic_exchange_n(a, v, 5); }       \
  __attribute__((visibility("hidden"))) T __tsan_atomic##BITS##_fetch_add(volatile T* a, T v, int) { return __atomic_fetch_add(a, v, 5); }       \
  __attribute__((visibility("hidden"))) T __tsan_atomic##BITS##_fetch_sub(volatile T* a, T v, int) { return __atomic_fetch_sub(a, v, 5); }       \
  __attribute__((visibility("hidden"))) T __tsan_atomic##BITS##_fetch_and(volatile T* a, T v, int) { return __atomic_fetch_and(a, v, 5); }       \
  __attribute__((visibility("hidden"))) T __tsan_atomic##BITS##_fetch_or(volatile T* a, T v, int) { return __atomic_fetch_or(a, v, 5); }         \
  __attribute__((visibility("hidden"))) T __tsan_atomic##BITS##_fetch_xor(volatile T* a, T v, int) { return __atomic_fetch_xor(a, v, 5); }       \
  __attribute__((visibility("hidden"))) int __tsan_atomic##BITS##_compare_exchange_strong(volatile T* a, T* e, T v, int, int) {                  \
    return __atomic_compare_exchange_n(a, e, v, false, 5, 5);                                                                                    \
  }                                                                                                                                              \
  __attribute__((visibility("hidden"))) int __tsan_atomic##BITS##_compare_exchange_weak(volatile T* a, T* e, T v, int, int) {                    \
    return __atomic_compare_exchange_n(a, e, v, false, 5, 5);                                                                                    \
  }
KW_ATOMIC(8, uint8_t) KW_ATOMIC(16, uint16_t) KW_ATOMIC(32, uint32_t) KW_ATOMIC(64, uint64_t)
__attribute__((visibility("hidden"))) void __tsan_atomic_thread_fence(int) {}
__attribute__((visibility("hidden"))) void __tsan_atomic_signal_fence(int) {}
}
