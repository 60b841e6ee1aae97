// State of the race check: what each access needs of it is inline, the rest is in races.cpp. Not visible to candidates' code.
#pragma once
#include "kernelward/emu/registers.h"
#include "kernelward/emu/state.h"

extern "C" char __start_kw_builtin[], __stop_kw_builtin[];

namespace kw {
namespace emu {

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
struct Page { Cell cells[1024]; };  // 4 KiB of the candidate's memory

constexpr size_t kSlots = 1024;
struct Slot { uintptr_t number = ~uintptr_t(0); Page* page = nullptr; };

struct Race {
  Slot slots[kSlots];
  uint64_t clock = 1;
  uint32_t launch = 1, block = 0;
  uint64_t barrier = 0;                       // clock of the block's last barrier
  uint64_t acquired_block = 0;                // what other blocks released before it, and this block acquired
  uint64_t acquired[kMaxThreads];             // the same within the block, per thread
  uint64_t fence_block = 0, fence[kMaxThreads];
  uint64_t met[kMaxThreads][32];              // clock up to which each lane of the own warp is ordered before this thread
  // The last write, not judged before its value can be seen.
  bool pending = false;
  uintptr_t address = 0;
  size_t size = 0;
  unsigned char old[16];
  Access access;
};
extern Race race;

Page* find_page(uintptr_t number, bool make);  // null where there is none, or no room for it
Cell& byte_cell(uintptr_t address);
void conflict(uintptr_t address, const Access& before, const char* did, const Access& now, const char* does);
void beside_array(const SharedArea& area, void* pc);
// Judges the last write now that its value is in memory.
void settle();
void look_beside_arrays(uintptr_t address, void* pc);

static inline Cell& fresh(Cell& c) {
  if (c.launch != race.launch) { c = Cell(); c.launch = race.launch; }
  return c;
}

static inline Page* page_of(uintptr_t number, bool make) {
  Slot& s = race.slots[number % kSlots];
  if (s.number == number) return s.page;
  Page* page = nullptr;
  keeping_vectors([&] { page = find_page(number, make); });
  if (page) s = {number, page};
  return page;
}

// Calls f on each cell of an access: words where it is made of words, bytes else.
template <class F> static inline void each_cell(uintptr_t a, size_t n, F f) {
  if (n % 4 == 0 && a % 4 == 0) {
    for (size_t i = 0; i < n; i += 4)
      if (Page* p = page_of((a + i) >> 12, true)) f(fresh(p->cells[(a + i) >> 2 & 1023]));
    return;
  }
  for (size_t i = 0; i < n; i++) {
    Cell* c = nullptr;
    keeping_vectors([&] { c = &byte_cell(a + i); });
    f(fresh(*c));
  }
}

static inline bool ordered(const Access& before, const Access& now) {
  if (before.block != now.block) return before.when <= race.acquired_block;
  if (before.thread == now.thread || before.when <= race.barrier || before.when <= race.acquired[now.thread]) return true;
  return before.thread / 32 == now.thread / 32 && before.when <= race.met[now.thread][before.thread % 32];
}

static inline bool ignored(uintptr_t a) {
  if (a - uintptr_t(rt.stacks) < kStack * kMaxThreads) return true;
  return a >= uintptr_t(__start_kw_builtin) && a < uintptr_t(__stop_kw_builtin);
}

static inline Access access_now(void* pc) {
  Access a;
  a.when = ++race.clock;
  a.pc = pc;
  a.block = race.block;
  a.thread = uint16_t(rt.current);
  return a;
}

}  // namespace emu
}  // namespace kw
