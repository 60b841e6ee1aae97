// cuda_pipeline.h: asynchronous copies land when they are waited for, not before; until then the target is poison.
#pragma once
#include "kernelward/emu/runtime.h"

namespace kw { namespace emu {
void copy_later(void* to, const void* from, size_t bytes, size_t zero_fill);
void commit_copies();
void wait_copies(unsigned newest_left);
} }

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zero_fill = 0) { kw::emu::copy_later(to, from, bytes, zero_fill); }
inline void __pipeline_commit() { kw::emu::commit_copies(); }
inline void __pipeline_wait_prior(unsigned n) { kw::emu::wait_copies(n); }
