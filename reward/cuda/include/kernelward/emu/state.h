// Internal state of the emulator's runtime, shared by runtime.cpp, report.cpp and races.cpp. Not visible to candidates' code.
#pragma once
#include <csignal>
#include <string>
#include <vector>

#include "kernelward/emu/runtime.h"

namespace kw {
namespace emu {

constexpr int kMaxThreads = 1024, kMaxWarps = 32;
constexpr size_t kPage = 4096, kScratch = 16384;
// 128 KiB and a guard page. At a power of two from each other all stacks compete for the same few entries of the
// processor's table of pages: a fifth to a third of the time of kernels whose threads switch at barriers.
constexpr size_t kStack = 32 * kPage + kPage;
constexpr size_t kMaxDynamicShared = 232448, kDefaultShared = 49152;

enum Order : int { kAscending = 0, kReversed = 1, kRandomThreads = 2, kRandomWarps = 3, kGreedyWarp = 4, kGreedyReversed = 5, kTimed = 6 };
enum class Wait : unsigned char { kNew, kReady, kBarrier, kWarp, kDone };

// How the next calls run; mirrored by emulator.py.
struct Variant {
  int32_t order;
  int32_t poison;     // byte written to fresh shared memory; -1: plain mode (zeros, no canaries, no findings but errors)
  int32_t placement;  // of dynamic shared memory: 0 ends at a guard page, 1 begins after one
  int32_t races;      // 1: record accesses
  uint64_t seed;
};

struct Group {
  unsigned mask = 0, arrived = 0;
  bool open = false;  // whoever comes takes part; complete when nobody else can come
  int phase = 0;
  unsigned present[2] = {0, 0};
  uint64_t values[2][32][2];
};
struct Warp {
  unsigned alive = 0;
  std::vector<Group*> groups;
  alignas(64) unsigned char scratch[kScratch];
};
// An asynchronous copy that has not landed.
struct Copy {
  char* to;
  const char* from;
  size_t bytes, zero_fill;
  unsigned batch;
};
struct Fiber {
  void* sp = nullptr;
  char* stack = nullptr;
};
struct Finding {
  std::string kind, message;
  uint64_t count;
};

struct Runtime {
  Variant variant{0, -1, 0, 0, 1};
  // the launch
  const char* kernel = "";
  void (*body)(void*) = nullptr;
  void* context = nullptr;
  int threads = 0, warps = 0;
  uint3 index[kMaxThreads];
  int order[kMaxThreads];
  size_t dynamic_bytes = 0, dynamic_limit = 0;
  char* dynamic = nullptr;
  // the block
  Wait wait[kMaxThreads];
  Fiber* fiber_of[kMaxThreads];
  int line[kMaxThreads];
  Warp warp[kMaxWarps];
  int at = 0, end = 0;  // positions of a sweep: the thread that runs, and where it ends; end is 0 elsewhere
  int next = 0, limit = 0, alive = 0, at_barrier = 0, at_warp = 0, votes = 0, counted = 0;
  size_t static_bytes = 0;
  bool entered = false;  // some block of the launch has entered a static shared array
  std::vector<SharedArea*> areas;  // entered by this block
  std::vector<Copy> copies[kMaxThreads];
  unsigned batch[kMaxThreads];
  bool copying = false;  // some thread of the block has copies
  // the running thread
  int current = 0;
  Fiber* fiber = nullptr;
  void* main_sp = nullptr;
  bool inside = false;
  uint64_t spins = 0;  // atomics since the thread was last switched to
  uint64_t idle = 0;   // pauses since anything else happened in the block
  // stacks
  char* stacks = nullptr;
  int stacks_used = 0;
  Fiber fibers[kMaxThreads];
  std::vector<Fiber*> free_fibers;
  uint64_t random = 1;
  // results
  int launch_error = 0;   // cleared by cudaGetLastError
  int sticky_error = 0;   // a kernel died: every later call fails
  std::string error_message;
  uint64_t launches = 0, kernel_threads = 0, rejected_launches = 0, switches = 0, lenient = 0;
  std::vector<Finding> findings;
  std::vector<std::pair<const void*, int>> opted_in;  // cudaFuncSetAttribute
  std::vector<std::pair<char*, size_t>> host_pages;   // CPU memory: out of reach while a kernel runs
};
extern Runtime rt;

// What instrumented accesses are reported for, while a kernel runs.
enum class Watch : int { kNothing, kRaces, kTime };
extern Watch watch;
// While nobody wants to know, calls that report an access are taken out of the code as they are met. `see_calls` says
// whether they have to be there, and is false where they cannot be put back.
void leave_out(void* after, void* target);
bool see_calls(bool needed);
// Whether this thread of the process runs a kernel.
bool& emulating();

void suspend();
void resume(Fiber* f);
bool start_until(int limit);
// The schedule of timed.cpp: starts a block's threads; runs what can run; notes where a thread waits or what it accesses.
void timed_block();
bool timed_sweep();
Fiber* timed_next();  // the next lane of the step that is made, or null
void timed_barrier();
void timed_place(void* pc);
void timed_pause();
void timed_access(uintptr_t address, void* pc, bool store);

std::string where();  // " in kernel K, block (x,y,z), thread (x,y,z)"
std::string code_address(void* pc);
void note(const char* kind, const std::string& message);
void race_block_begin();
void race_launch_begin();
void race_barrier();
void race_meeting(int warp, unsigned lanes);
void race_atomic(const void* address, size_t bytes, void* pc);
void race_fence();
void race_thread_end();
void race_shared(const void* begin, size_t bytes);
void race_name(const void* begin, size_t bytes, const char* name);

}  // namespace emu
}  // namespace kw
