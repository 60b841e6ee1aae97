// What the timed schedule (timed.cpp) knows of each thread of a block; written at every access. Not visible to candidates' code.
#pragma once
#include "kernelward/emu/state.h"

namespace kw {
namespace emu {

struct TimedThreads {
  uintptr_t place[kMaxThreads];  // of each lane's next access
  unsigned char storing[kMaxThreads];
  unsigned loads[kMaxThreads], reads[kMaxThreads];  // since the last step: of global memory, of shared memory
  uintptr_t furthest[kMaxThreads];  // in the code, of the reads since the last store or meeting
};
extern TimedThreads timed;
constexpr unsigned kRow = 64;  // reads in one go

}  // namespace emu
}  // namespace kw
