// Qualifiers, built-in vector types, dim3.
#pragma once

#define __CUDACC__ 1
#define __NVCC__ 1
#define __CUDA_ARCH__ 900
#define CUDART_VERSION 12080
#define CUDA_VERSION 12080
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 8

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __shared__ static  // declarations the translation could not rewrite: shared by all blocks, never poisoned
#undef __forceinline__
#define __forceinline__ inline
#define __align__(N) __attribute__((aligned(N)))
#define __builtin_align__(N) __attribute__((aligned(N)))
#define __nv_pure__
#define __CUDA_ALIGN__(N) __attribute__((aligned(N)))
// The standard library spells attributes `__noinline__` and `__inline__`, so these two stay what they are.

// Vector types have CUDA's alignment, though tensors may lie at odd addresses, so that they end exactly at a guard page:
// the assembler makes unaligned moves of aligned ones. Where it cannot, alignment is not checked.
#ifdef KW_PACKED_VECTORS
#define KW_VECTOR_ALIGN(N)
#else
#define KW_VECTOR_ALIGN(N) __attribute__((aligned(N)))
#endif

#define KW_VECTOR(NAME, T, A2, A4)                                                              \
  struct NAME##1 { T x; };                                                                      \
  struct KW_VECTOR_ALIGN(A2) NAME##2 { T x, y; };                                               \
  struct NAME##3 { T x, y, z; };                                                                \
  struct KW_VECTOR_ALIGN(A4) NAME##4 { T x, y, z, w; };                                         \
  inline constexpr NAME##1 make_##NAME##1(T x) { return {x}; }                                  \
  inline constexpr NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                          \
  inline constexpr NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }                  \
  inline constexpr NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
KW_VECTOR(char, signed char, 2, 4)
KW_VECTOR(uchar, unsigned char, 2, 4)
KW_VECTOR(short, short, 4, 8)
KW_VECTOR(ushort, unsigned short, 4, 8)
KW_VECTOR(int, int, 8, 16)
KW_VECTOR(uint, unsigned, 8, 16)
KW_VECTOR(long, long, 16, 16)
KW_VECTOR(ulong, unsigned long, 16, 16)
KW_VECTOR(longlong, long long, 16, 16)
KW_VECTOR(ulonglong, unsigned long long, 16, 16)
KW_VECTOR(float, float, 8, 16)
KW_VECTOR(double, double, 16, 16)
#undef KW_VECTOR

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
  constexpr dim3(uint3 u) : x(u.x), y(u.y), z(u.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};
