// Candidates' code calls a hook before each access to memory, for the race check and the timed schedule. Under the other
// schedules, and in kernels without shared memory under the timed one, that is most of what a loop over an array costs: each
// call is overwritten by a no-op when it is met.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "kernelward/emu/state.h"

namespace kw {
namespace emu {
namespace {

constexpr size_t kCall = 5;  // bytes: e8 and the distance from the end of the call
struct Call { unsigned char* at; int32_t distance; };
std::vector<Call>& calls() {  // candidates' static objects come and go before and after ours
  static auto& list = *new std::vector<Call>;
  return list;
}
bool there = true;       // whether the known calls are in the code
bool refused = false;    // the system does not let code be written: it stays as it is

#if defined(__x86_64__)
constexpr unsigned char kNothing[kCall] = {0x0f, 0x1f, 0x44, 0x00, 0x00};

bool protect(const unsigned char* first, const unsigned char* last, int how) {
  uintptr_t begin = uintptr_t(first) & ~(kPage - 1);
  return mprotect(reinterpret_cast<void*>(begin), uintptr_t(last) + kCall - begin, how) == 0;
}

void write(const Call& c, bool call) {
  if (!call) { std::memcpy(c.at, kNothing, kCall); return; }
  c.at[0] = 0xe8;
  std::memcpy(c.at + 1, &c.distance, sizeof c.distance);
}
#endif

thread_local bool here = false;

}  // namespace

bool& emulating() { return here; }

__attribute__((noinline)) void leave_out(void* after, void* target) {
#if defined(__x86_64__)
  if (refused || !rt.inside || !emulating()) return;  // host code may run in several threads, and before main
  Call c{static_cast<unsigned char*>(after) - kCall, 0};
  std::memcpy(&c.distance, c.at + 1, sizeof c.distance);
  if (c.at[0] != 0xe8 || static_cast<char*>(after) + c.distance != target) return;  // met by another way than a call
  if (!protect(c.at, c.at, PROT_READ | PROT_WRITE | PROT_EXEC)) { refused = true; return; }
  calls().push_back(c);
  write(c, false);
  there = false;
  protect(c.at, c.at, PROT_READ | PROT_EXEC);
#endif
}

bool see_calls(bool needed) {
#if defined(__x86_64__)
  if (there == needed || calls().empty()) return true;
  auto before = [](const Call& a, const Call& b) { return a.at < b.at; };
  auto ends = std::minmax_element(calls().begin(), calls().end(), before);
  const unsigned char *first = ends.first->at, *last = ends.second->at;
  if (!protect(first, last, PROT_READ | PROT_WRITE | PROT_EXEC)) return !needed;
  for (const Call& c : calls()) write(c, needed);
  there = needed;
  protect(first, last, PROT_READ | PROT_EXEC);
#endif
  return true;
}

}  // namespace emu
}  // namespace kw
