// The schedule that stands in for a GPU: warps in lockstep, interleaved by a small model of time.
//
// The lanes of a warp go from one access to shared memory to the next together: those whose next access lies first in
// the code go first, the others wait for them, which is how a warp comes together again after a branch or a loop. Among
// the warps the one with the earliest clock goes next. Clocks advance by what an access costs; loads from global memory
// take several hundred cycles and differ from warp to warp, which is what drives the warps of a block apart on a real
// machine; a barrier brings them together. At equal times loads come before stores: a warp that has something to store
// had more to do.
//
// Reads that a loop repeats are made in one go, up to 64 of them: most accesses of most kernels are such rows. What a row
// misses are stores by others meanwhile.
//
// So a value that lanes of one warp hand to each other without a barrier arrives, one that crosses warps arrives or not
// as latencies have it: a tile that is read before its loads are waited for is stale, the barrier at the
// end of a tile's use is hardly ever missed. Blocks without shared memory run thread after thread.
#include <algorithm>

#include "kernelward/emu/timed.h"

namespace kw {
namespace emu {

TimedThreads timed;

namespace {

constexpr uint64_t kAccess = 20, kPause = 100, kLatency = 300, kSpread = 400, kNextLoad = 10;
constexpr int kPatience = 10000;  // steps of part of a warp before the rest goes once: it may be what they wait for

struct WarpClock {
  uint64_t now = 0;
  uintptr_t at = 0;        // where the lanes that go next are in the code
  unsigned lanes = 0;      // which they are; 0: none can go
  bool stores = false;     // they store
  unsigned loads = 0;      // loads from global memory since the last step
  unsigned drawn = 0;
  int divided = 0;         // steps in a row that left lanes behind
};
WarpClock clocks[kMaxWarps];

struct Step {
  int first = 0;       // thread of the warp that goes
  unsigned lanes = 0;  // which have not gone yet
  uintptr_t at = 0;
} step;

uint64_t spread(int warp, unsigned drawn) {
  uint64_t z = rt.random + (uint64_t(blockIdx.x) << 32) + (uint64_t(blockIdx.y) << 16) + blockIdx.z;
  z = (z ^ (uint64_t(warp) << 20 | drawn)) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return (z ^ (z >> 31)) % kSpread;
}

// Looks at a warp after its lanes have moved: what the loads cost, and who goes next.
void refresh(int w) {
  WarpClock& c = clocks[w];
  int first = w * 32, last = std::min(rt.threads, first + 32);
  unsigned most = 0, row = 0, ready = 0;
  uintptr_t lowest = ~uintptr_t(0), highest = 0;
  for (int t = first; t < last; t++) {
    most = std::max(most, timed.loads[t]);
    row = std::max(row, timed.reads[t]);
    timed.loads[t] = timed.reads[t] = 0;
    if (rt.wait[t] != Wait::kReady) continue;
    ready |= 1u << (t - first);
    lowest = std::min(lowest, timed.place[t]);
    highest = std::max(highest, timed.place[t]);
  }
  c.now += row * kAccess;
  if (most) c.now += kLatency + spread(w, c.drawn++) + most * kNextLoad;
  c.divided = lowest == highest ? 0 : c.divided + 1;
  if (c.divided > kPatience) { lowest = highest; c.divided = 0; }
  c.at = lowest;
  c.lanes = 0;
  for (int t = first; t < last; t++)
    if ((ready >> (t - first) & 1) && timed.place[t] == lowest) {
      c.lanes |= 1u << (t - first);
      c.stores = timed.storing[t];
    }
}

}  // namespace

void timed_place(void* pc) {
  timed.place[rt.current] = uintptr_t(pc);
  timed.storing[rt.current] = false;
  timed.furthest[rt.current] = 0;
}

void timed_pause() { timed.place[rt.current] = ~uintptr_t(0); }

Fiber* timed_next() {
  while (step.lanes) {
    int t = step.first + __builtin_ctz(step.lanes);
    step.lanes &= step.lanes - 1;
    if (rt.wait[t] != Wait::kReady || timed.place[t] != step.at) continue;
    if (step.lanes) {
      const char* stack = static_cast<char*>(rt.fiber_of[step.first + __builtin_ctz(step.lanes)]->sp);
      for (int line = 0; line < 12; line++) __builtin_prefetch(stack + 64 * line);
    }
    return rt.fiber_of[t];
  }
  return nullptr;
}

void timed_block() {
  step.lanes = 0;
  for (int w = 0; w < rt.warps; w++) clocks[w] = WarpClock();
  std::fill(timed.loads, timed.loads + rt.threads, 0);
  std::fill(timed.reads, timed.reads + rt.threads, 0);
  std::fill(timed.furthest, timed.furthest + rt.threads, 0);
  std::fill(timed.place, timed.place + rt.threads, 0);
  start_until(rt.threads);
}

void timed_barrier() {
  uint64_t latest = 0;
  for (int w = 0; w < rt.warps; w++) latest = std::max(latest, clocks[w].now);
  for (int w = 0; w < rt.warps; w++) clocks[w].now = latest;
}

bool timed_sweep() {
  bool progress = false;
  for (int w = 0; w < rt.warps; w++) refresh(w);
  while (!rt.sticky_error) {
    int best = -1;
    for (int w = 0; w < rt.warps; w++) {
      const WarpClock& c = clocks[w];
      if (!c.lanes) continue;
      if (best < 0 || c.now < clocks[best].now || (c.now == clocks[best].now && !c.stores && clocks[best].stores)) best = w;
    }
    if (best < 0) return progress;
    progress = true;
    WarpClock& c = clocks[best];
    step = {best * 32, c.lanes, c.at};
    while (Fiber* f = rt.sticky_error ? nullptr : timed_next()) resume(f);
    c.now += step.at == ~uintptr_t(0) ? kPause : kAccess;
    refresh(best);
  }
  return progress;
}

}  // namespace emu
}  // namespace kw
