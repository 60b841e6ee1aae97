// Strict runs on a GPU: what `instrument.py` puts into a candidate's device code. Nothing here changes what a correct
// kernel computes: warps pause, and memory that nobody has written holds what no result looks like.
#pragma once

// How many threads found something written behind the block's shared memory; read and cleared by gpu_module.py.
extern "C" __device__ unsigned kw_strays = 0;

namespace kw {

constexpr unsigned kSharedGuard = 1024;  // bytes that gpu.cpp adds to the dynamic shared memory of a launch

__device__ __forceinline__ unsigned lane_of_block() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
__device__ __forceinline__ unsigned threads_of_block() { return blockDim.x * blockDim.y * blockDim.z; }

// Each warp of the block pauses for a time of its own, up to some 8 us. The order is another one for each line, block and
// shape, and the same in every run. Of many blocks a sixteenth pauses: a race shows in some or in none.
__device__ __forceinline__ void pause(unsigned line) {
  unsigned warps = (threads_of_block() + 31) / 32, warp = lane_of_block() / 32;
  unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  if (warps == 1 || (block >= 64 && block % 16)) return;
  unsigned h = line * 0xC2B2AE35u ^ block * 0x85EBCA6Bu ^ (gridDim.x * 31 + blockDim.x) * 0x27D4EB2Fu;
  h ^= h >> 15;
  h *= 0x2C1B3C6Du;
  h ^= h >> 13;
  unsigned rank = h & 1 ? warp : warps - 1 - warp;          // forwards or backwards,
  rank = (rank + (h >> 1) % warps) % warps;                 // from anywhere
  if (h & 0x10000) rank = rank / 2 + (rank % 2 ? (warps + 1) / 2 : 0);  // and now and then every other one first
#if __CUDA_ARCH__ >= 700
  __nanosleep(rank * (8000 / warps));
#endif
}

__device__ __forceinline__ void syncthreads(unsigned line) {
  __syncthreads();
  pause(line);
}

// NaN and large numbers of either sign by turns: `fmaxf` and `fminf` drop NaN, and each of them one of the signs.
__device__ __forceinline__ unsigned poisoned(unsigned i) {
  return i % 2 == 0 ? 0xFFFFFFFFu : i % 4 == 1 ? 0x7B7B7B7Bu : 0xFBFBFBFBu;
}
__device__ __forceinline__ void poison(unsigned* words, unsigned count) {
  for (unsigned i = lane_of_block(); i < count; i += threads_of_block()) words[i] = poisoned(i);
}

__device__ __forceinline__ unsigned dynamic_words() {
  unsigned bytes;
  asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return bytes / 4;
}

// At the head of a kernel: its dynamic shared memory, and the guard behind it.
__device__ __forceinline__ void enter(unsigned line) {
  extern __shared__ unsigned kw_dynamic_shared[];
  poison(kw_dynamic_shared, dynamic_words());
  __syncthreads();
  pause(line);
}

// Where a thread leaves the kernel. Each warp looks at the whole guard, so the last one to leave sees whatever was
// written. No barrier: a thread that has left is not waited for at those of the kernel.
__device__ __forceinline__ void leave() {
  extern __shared__ unsigned kw_dynamic_shared[];
  unsigned words = dynamic_words(), strays = 0;
  volatile unsigned* all = kw_dynamic_shared;
  for (unsigned i = words - kSharedGuard / 4 + lane_of_block() % 32; i < words; i += 32) strays += all[i] != poisoned(i);
  if (strays) atomicAdd(&kw_strays, 1u);
}

// Behind the declaration of a static shared variable in a kernel's outermost block.
template <class T> __device__ __forceinline__ void unset_shared(T& variable) {
  if constexpr (alignof(T) >= 4) poison(reinterpret_cast<unsigned*>(const_cast<char*>(&reinterpret_cast<const volatile char&>(variable))), sizeof(T) / 4);
  __syncthreads();
}

// Behind the declaration of a local variable without an initialiser.
template <class T> __device__ __forceinline__ void unset(T& variable) {
  if constexpr (__is_trivially_constructible(T)) memset((void*)&variable, 0xFE, sizeof(T));
}

}  // namespace kw
