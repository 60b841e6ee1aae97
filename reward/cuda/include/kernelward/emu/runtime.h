// What device code and host code need from the emulator: built-in variables, launches, barriers, rendezvous, shared memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernelward/emu/types.h"

typedef struct CUstream_st* cudaStream_t;

#define KW_OURS __attribute__((visibility("hidden")))  // defined in the same library: no table lies between
extern KW_OURS uint3 threadIdx, blockIdx;
extern KW_OURS dim3 blockDim, gridDim;
constexpr int warpSize = 32;

#define KW_UNTRACKED __attribute__((no_sanitize("thread")))

namespace kw {
namespace emu {

struct Config {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
  template <class S = cudaStream_t> Config(dim3 g, dim3 b, size_t bytes = 0, S s = S()) : grid(g), block(b), shared(bytes), stream(s) {}
};

// Runs every thread of a grid. `function` identifies the kernel for cudaFuncSetAttribute, null where it is not known.
void run_grid(const Config& config, const char* name, const void* function, void (*body)(void*), void* context);

template <class F, class... A> void launch(const Config& config, const char* name, const void* function, const F& call, A... args) {
  auto thread = [&] { call(args...); };
  run_grid(config, name, function, [](void* p) { (*static_cast<decltype(thread)*>(p))(); }, &thread);
}

// A block-wide barrier; `line` tells divergent call sites apart.
void barrier(int line);
// Barrier that also counts the threads with a true predicate.
int barrier_count(int predicate, int line);

// One warp-level rendezvous: the lanes of `mask` meet and see each other's values.
struct Meeting {
  unsigned present;          // lanes that took part
  const uint64_t (*values)[2];  // by lane; 16 bytes each
};
Meeting meet(unsigned mask, const void* value, size_t bytes);
unsigned lane();
unsigned live_lanes();
// The lanes that reach this point together: those of the warp that are not held up elsewhere.
unsigned converged_lanes();
// Bytes of a value nobody wrote (a lane that did not take part): the poison pattern, or zeros in plain mode.
int poison_byte();
// Scratch memory of the current warp, 16 KiB (matrix fragments meet there).
void* warp_scratch();
void* block_scratch();

// Ends the kernel with an error, as if the hardware had trapped. `kind` is the finding's class.
[[noreturn]] void fail(int error, const char* kind, const char* message);
// Another thread may run now (spin loops).
void pause();
// Bookkeeping for an atomic access, called before it is performed.
void atomic_access(const volatile void* address, size_t bytes);
void fence();

void* dynamic_shared();
size_t dynamic_shared_bytes();

constexpr size_t kGuard = 64;
constexpr size_t kRoom = 8192 + 320;  // the 320 keep arrays from lying at the same offset within their pages
// A static __shared__ declaration between two guard zones. The first thread of a block that reaches it poisons it.
struct SharedArea {
  uint64_t block = 0;  // serial number of the block that last entered
  size_t bytes = 0;
  const char* name = nullptr;
  unsigned char* body = nullptr;
};
// Beyond the guard zones lies room: an array that is overrun (a block of twice as many threads, say) must not overwrite
// what the runtime, the candidate's other data and the C library keep in memory; the process would give any answer then.
template <class Body> struct SharedBlock {
  SharedArea kw_area;
  unsigned char kw_before[kRoom];
  alignas(kGuard) alignas(Body) unsigned char kw_head[alignof(Body) > kGuard ? alignof(Body) : kGuard];
  Body kw_body;
  unsigned char kw_tail[kGuard];
  unsigned char kw_after[kRoom];

  unsigned char* kw_first() { return kw_head + sizeof kw_head; }
  size_t kw_bytes() { return size_t(kw_tail - kw_first()); }
};
void enter_shared(SharedArea& area, unsigned char* body, size_t bytes, const char* name);
extern uint64_t block_serial;
template <class Body> KW_UNTRACKED inline void shared(SharedBlock<Body>& block, const char* name) {
  if (block.kw_area.block != block_serial) enter_shared(block.kw_area, block.kw_first(), block.kw_bytes(), name);
}
struct SharedGlobal {  // a __shared__ declaration at namespace scope
  SharedArea* area;
  unsigned char* body;
  size_t bytes;
  const char* name;
  template <class Body>
  SharedGlobal(SharedBlock<Body>& b, const char* s)
      : area(&b.kw_area), body(b.kw_first()), bytes(b.kw_bytes()), name(s) { add(); }
  void add();
};
template <class T> struct DynamicShared {  // extern __shared__ at namespace scope
  operator T*() const { return static_cast<T*>(dynamic_shared()); }
};

}  // namespace emu
}  // namespace kw

#define __syncthreads() ::kw::emu::barrier(__LINE__)
#define __syncthreads_count(P) ::kw::emu::barrier_count((P), __LINE__)
#define __syncthreads_or(P) (::kw::emu::barrier_count((P), __LINE__) != 0)
#define __syncthreads_and(P) (::kw::emu::barrier_count(!(P), __LINE__) == 0)
inline void __threadfence() { kw::emu::fence(); }
inline void __threadfence_block() { kw::emu::fence(); }
inline void __threadfence_system() { kw::emu::fence(); }
inline void __nanosleep(unsigned) { kw::emu::pause(); }
[[noreturn]] inline void __trap() { kw::emu::fail(719, "trap", "__trap() was called"); }
inline void __brkpt() {}
inline void __prof_trigger(int) {}
inline long long clock64() { static long long ticks = 0; return ticks += 100; }
#undef assert
#define assert(COND) ((COND) ? (void)0 : ::kw::emu::assertion(#COND, __LINE__))
namespace kw { namespace emu { void assertion(const char* condition, int line); } }
