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
//
// What happens at every access is in accesses.cpp.
#include <cstring>
#include <unordered_map>

#include "kernelward/emu/races.h"

namespace kw {
namespace emu {

Race race;

namespace {

constexpr size_t kMaxPages = 8192;  // 4 KiB of the candidate's memory each

struct Seen {
  std::unordered_map<uintptr_t, Page*> pages;
  std::unordered_map<uintptr_t, Cell> bytes;
  std::unordered_map<const void*, uint64_t> released;
  std::vector<std::pair<const char*, std::pair<size_t, const char*>>> names;
  bool full = false;
} seen;

std::string target(uintptr_t a) {
  const char* p = reinterpret_cast<const char*>(a);
  for (auto& n : seen.names)
    if (p >= n.first && p < n.first + n.second.first) return std::string("shared ") + n.second.second + " + " + std::to_string(p - n.first);
  if (p >= rt.dynamic && p < rt.dynamic + rt.dynamic_bytes) return "dynamic shared memory + " + std::to_string(p - rt.dynamic);
  return "global memory";
}

std::string who(const Access& a) {
  return "thread " + std::to_string(a.thread) + " of block " + std::to_string(a.block);
}

}  // namespace

void conflict(uintptr_t address, const Access& before, const char* did, const Access& now, const char* does) {
  bool same_warp = before.block == now.block && before.thread / 32 == now.thread / 32;
  bool both_write = did[0] == 'w' && does[0] == 'w';
  const char* kind = same_warp && !both_write ? "warp-synchronous" : "race";
  for (auto& f : rt.findings) if (f.kind == kind) { f.count++; return; }
  note(kind, who(before) + " " + did + " (" + code_address(static_cast<char*>(before.pc) - 1) + ") and " + who(now) + " " + does + " (" + code_address(static_cast<char*>(now.pc) - 1) + ") " + target(address) +
                 " without synchronisation in kernel " + rt.kernel);
}

Page* find_page(uintptr_t number, bool make) {
  auto it = seen.pages.find(number);
  if (it == seen.pages.end()) {
    if (!make) return nullptr;
    if (seen.pages.size() >= kMaxPages) {
      if (!seen.full) note("race-check-partial", "the race check covers the first 32 MiB of memory only");
      seen.full = true;
      return nullptr;
    }
    it = seen.pages.emplace(number, new Page).first;
  }
  return it->second;
}

Cell& byte_cell(uintptr_t address) { return seen.bytes[address]; }

void beside_array(const SharedArea& area, void* pc) {
  for (auto& f : rt.findings) if (f.kind == "shared-out-of-bounds") { f.count++; return; }
  note("shared-out-of-bounds", std::string("a thread wrote outside the shared array ") + area.name + where() + ", " +
                                   code_address(static_cast<char*>(pc) - 1));
}

void race_launch_begin() {
  race.launch++;
  race.block = 0;
  seen.released.clear();
  seen.names.clear();
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
  auto it = seen.released.find(address);
  if (it != seen.released.end()) {
    race.acquired_block = std::max(race.acquired_block, it->second);
    race.acquired[rt.current] = std::max(race.acquired[rt.current], it->second);
  }
  if (race.fence_block) {
    uint64_t& r = seen.released[address];
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
  if (!seen.bytes.empty())
    for (uintptr_t a = uintptr_t(begin), end = a + bytes; a < end; a++) {
      auto it = seen.bytes.find(a);
      if (it != seen.bytes.end()) it->second.launch = 0;
    }
}
void race_name(const void* begin, size_t bytes, const char* name) {
  for (auto& n : seen.names) if (n.first == begin) return;
  seen.names.push_back({static_cast<const char*>(begin), {bytes, name}});
}

}  // namespace emu
}  // namespace kw
