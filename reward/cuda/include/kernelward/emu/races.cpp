// The race check's entry points; the happens-before bookkeeping is filled in by the instrumented build.
#include "kernelward/emu/state.h"
namespace kw { namespace emu {
void race_block_begin() {}
void race_launch_begin() {}
void race_barrier() {}
void race_meeting(unsigned) {}
void race_atomic(const void*, size_t, void*) {}
void race_fence() {}
void race_thread_end() {}
void race_shared(const void*, size_t) {}
void race_name(const void*, size_t, const char*) {}
} }
