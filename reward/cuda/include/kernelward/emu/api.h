// The CUDA runtime API for host code. Everything runs at once and in order, so streams and events have nothing to do.
#pragma once
#include <cstring>

#include "kernelward/emu/runtime.h"

typedef struct CUevent_st* cudaEvent_t;
typedef struct CUgraph_st* cudaGraph_t;
typedef unsigned long long cudaTextureObject_t;
typedef cudaStream_t CUstream;

enum cudaError {
  cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorInitializationError = 3,
  cudaErrorInvalidConfiguration = 9, cudaErrorInvalidSymbol = 13, cudaErrorInvalidDevicePointer = 17,
  cudaErrorInvalidDeviceFunction = 98, cudaErrorNoDevice = 100, cudaErrorInvalidDevice = 101, cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700, cudaErrorLaunchOutOfResources = 701, cudaErrorLaunchTimeout = 702, cudaErrorAssert = 710,
  cudaErrorMisalignedAddress = 716, cudaErrorLaunchFailure = 719, cudaErrorNotSupported = 801, cudaErrorUnknown = 999
};
typedef cudaError cudaError_t;
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout = 9 };
enum cudaFuncCache { cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1, cudaFuncCachePreferEqual };
enum cudaSharedMemConfig { cudaSharedMemBankSizeDefault, cudaSharedMemBankSizeFourByte, cudaSharedMemBankSizeEightByte };
enum cudaSharedCarveout { cudaSharedmemCarveoutDefault = -1, cudaSharedmemCarveoutMaxL1 = 0, cudaSharedmemCarveoutMaxShared = 100 };
enum cudaLimit { cudaLimitStackSize, cudaLimitPrintfFifoSize, cudaLimitMallocHeapSize };
enum cudaDeviceAttr {
  cudaDevAttrMaxBlockDimX = 2, cudaDevAttrMaxBlockDimY = 3, cudaDevAttrMaxBlockDimZ = 4, cudaDevAttrMaxGridDimY = 6,
  cudaDevAttrMaxGridDimZ = 7, cudaDevAttrMaxThreadsPerBlock = 1, cudaDevAttrMaxSharedMemoryPerBlock = 8, cudaDevAttrWarpSize = 10, cudaDevAttrClockRate = 13,
  cudaDevAttrMultiProcessorCount = 16, cudaDevAttrMaxThreadsPerMultiProcessor = 39, cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76, cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81, cudaDevAttrCooperativeLaunch = 95,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97, cudaDevAttrMaxGridDimX = 5
};
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2, cudaStreamDefault = 0, cudaStreamNonBlocking = 1,
       cudaHostAllocDefault = 0, cudaHostAllocMapped = 2, cudaMemAttachGlobal = 1, cudaCpuDeviceId = -1 };
#define cudaStreamLegacy ((cudaStream_t)1)
#define cudaStreamPerThread ((cudaStream_t)2)

struct cudaDeviceProp {  // of sm_90
  char name[256] = "NVIDIA H100 (kernelward CPU emulator)";
  size_t totalGlobalMem = size_t(80) << 30, sharedMemPerBlock = 49152, sharedMemPerMultiprocessor = 233472, sharedMemPerBlockOptin = 232448,
         totalConstMem = 65536, reservedSharedMemPerBlock = 1024;
  int regsPerBlock = 65536, regsPerMultiprocessor = 65536, warpSize = 32, maxThreadsPerBlock = 1024, maxThreadsDim[3] = {1024, 1024, 64},
      maxGridSize[3] = {2147483647, 65535, 65535}, clockRate = 1980000, major = 9, minor = 0, multiProcessorCount = 132,
      maxThreadsPerMultiProcessor = 2048, maxBlocksPerMultiProcessor = 32, l2CacheSize = 52428800, memoryClockRate = 2619000,
      memoryBusWidth = 5120, concurrentKernels = 1, cooperativeLaunch = 1, asyncEngineCount = 3, integrated = 0, unifiedAddressing = 1,
      managedMemory = 1;
};
struct cudaFuncAttributes { size_t sharedSizeBytes = 0, constSizeBytes = 0, localSizeBytes = 0; int maxThreadsPerBlock = 1024, numRegs = 32, maxDynamicSharedSizeBytes = 49152; };
struct cudaPointerAttributes { int type = 2, device = 0; void *devicePointer = nullptr, *hostPointer = nullptr; };

namespace kw {
// Behind the declaration of a local without an initialiser (`instrument.py`): bytes 0xFE.
template <class T> __attribute__((always_inline)) inline void unset(T& variable) {
  if constexpr (std::is_arithmetic<T>::value || std::is_pointer<T>::value) {
    std::remove_cv_t<T> value;
    __builtin_memset(&value, 0xFE, sizeof value);
    variable = value;
  } else if constexpr (std::is_trivially_default_constructible<T>::value) {
    __builtin_memset((void*)&variable, 0xFE, sizeof variable);
  }
}
namespace emu {
cudaError_t last_error(bool clear);
cudaError_t sticky_error();
void* allocate(size_t bytes);
cudaError_t release(void* p);
void opt_in(const void* function, int bytes);
int device_attribute(cudaDeviceAttr a);
template <class F> const void* identity(F f) {
  if constexpr (std::is_pointer_v<F>) return reinterpret_cast<const void*>(f);
  else return nullptr;
}
}  // namespace emu
}  // namespace kw

const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);
inline cudaError_t cudaGetLastError() { return kw::emu::last_error(true); }
inline cudaError_t cudaPeekAtLastError() { return kw::emu::last_error(false); }
inline cudaError_t cudaDeviceSynchronize() { return kw::emu::sticky_error(); }
inline cudaError_t cudaThreadSynchronize() { return kw::emu::sticky_error(); }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return kw::emu::sticky_error(); }
inline cudaError_t cudaStreamQuery(cudaStream_t) { return kw::emu::sticky_error(); }

template <class T> cudaError_t cudaMalloc(T** p, size_t n) { *p = static_cast<T*>(kw::emu::allocate(n)); return *p || !n ? cudaSuccess : cudaErrorMemoryAllocation; }
template <class T> cudaError_t cudaMallocManaged(T** p, size_t n, unsigned = cudaMemAttachGlobal) { return cudaMalloc(p, n); }
template <class T> cudaError_t cudaMallocAsync(T** p, size_t n, cudaStream_t) { return cudaMalloc(p, n); }
template <class T> cudaError_t cudaMallocHost(T** p, size_t n, unsigned = 0) { return cudaMalloc(p, n); }
template <class T> cudaError_t cudaHostAlloc(T** p, size_t n, unsigned) { return cudaMalloc(p, n); }
inline cudaError_t cudaFree(void* p) { return kw::emu::release(p); }
inline cudaError_t cudaFreeAsync(void* p, cudaStream_t) { return kw::emu::release(p); }
inline cudaError_t cudaFreeHost(void* p) { return kw::emu::release(p); }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind) { std::memmove(to, from, n); return kw::emu::sticky_error(); }
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind kind, cudaStream_t = nullptr) { return cudaMemcpy(to, from, n, kind); }
inline cudaError_t cudaMemcpy2D(void* to, size_t dp, const void* from, size_t sp, size_t w, size_t h, cudaMemcpyKind) {
  for (size_t i = 0; i < h; i++) std::memmove(static_cast<char*>(to) + i * dp, static_cast<const char*>(from) + i * sp, w);
  return kw::emu::sticky_error();
}
inline cudaError_t cudaMemcpy2DAsync(void* to, size_t dp, const void* from, size_t sp, size_t w, size_t h, cudaMemcpyKind k, cudaStream_t = nullptr) {
  return cudaMemcpy2D(to, dp, from, sp, w, h, k);
}
inline cudaError_t cudaMemset(void* p, int v, size_t n) { std::memset(p, v, n); return kw::emu::sticky_error(); }
inline cudaError_t cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t = nullptr) { return cudaMemset(p, v, n); }
template <class T> cudaError_t cudaMemcpyToSymbol(const T& symbol, const void* from, size_t n, size_t offset = 0, cudaMemcpyKind = cudaMemcpyHostToDevice) {
  if (offset > sizeof(T) || n > sizeof(T) - offset) return cudaErrorInvalidValue;
  std::memcpy(reinterpret_cast<char*>(const_cast<std::remove_const_t<T>*>(&symbol)) + offset, from, n);
  return kw::emu::sticky_error();
}
template <class T> cudaError_t cudaMemcpyToSymbolAsync(const T& symbol, const void* from, size_t n, size_t offset = 0,
                                                       cudaMemcpyKind kind = cudaMemcpyHostToDevice, cudaStream_t = nullptr) {
  return cudaMemcpyToSymbol(symbol, from, n, offset, kind);
}
template <class T> cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, size_t n, size_t offset = 0, cudaMemcpyKind = cudaMemcpyDeviceToHost) {
  if (offset > sizeof(T) || n > sizeof(T) - offset) return cudaErrorInvalidValue;
  std::memcpy(to, reinterpret_cast<const char*>(&symbol) + offset, n);
  return kw::emu::sticky_error();
}
template <class T> cudaError_t cudaGetSymbolAddress(void** p, const T& symbol) { *p = const_cast<std::remove_const_t<T>*>(&symbol); return cudaSuccess; }
inline cudaError_t cudaMemPrefetchAsync(const void*, size_t, int, cudaStream_t = nullptr) { return cudaSuccess; }
inline cudaError_t cudaMemGetInfo(size_t* free, size_t* total) { *free = *total = size_t(80) << 30; return cudaSuccess; }
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) { *a = {}; a->devicePointer = const_cast<void*>(p); return cudaSuccess; }

template <class F> cudaError_t cudaFuncSetAttribute(F f, cudaFuncAttribute a, int v) {
  if (a != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (v < 0 || v > 232448) return cudaErrorInvalidValue;
  kw::emu::opt_in(kw::emu::identity(f), v);
  return cudaSuccess;
}
template <class F> cudaError_t cudaFuncSetCacheConfig(F, cudaFuncCache) { return cudaSuccess; }
template <class F> cudaError_t cudaFuncSetSharedMemConfig(F, cudaSharedMemConfig) { return cudaSuccess; }
template <class F> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, F) { *a = {}; return cudaSuccess; }
template <class F> cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, F, int threads, size_t) {
  *n = threads > 0 ? std::min(32, 2048 / threads) : 0;
  return cudaSuccess;
}
template <class F> cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid, int* block, F, size_t = 0, int limit = 0) {
  *block = limit > 0 && limit < 1024 ? limit : 1024;
  *grid = 264;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
inline cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return cudaSuccess; }
inline cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* d) { *d = 0; return cudaSuccess; }
inline cudaError_t cudaSetDevice(int d) { return d == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
inline cudaError_t cudaGetDeviceCount(int* n) { *n = 1; return cudaSuccess; }
inline cudaError_t cudaDeviceReset() { return cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) { *p = cudaDeviceProp(); return cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int) { *v = kw::emu::device_attribute(a); return cudaSuccess; }
inline cudaError_t cudaRuntimeGetVersion(int* v) { *v = CUDART_VERSION; return cudaSuccess; }
inline cudaError_t cudaDriverGetVersion(int* v) { *v = CUDART_VERSION; return cudaSuccess; }

inline cudaError_t cudaStreamCreate(cudaStream_t* s) { *s = nullptr; return cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) { *s = nullptr; return cudaSuccess; }
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) { *s = nullptr; return cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0) { return cudaSuccess; }
inline cudaError_t cudaEventCreate(cudaEvent_t* e) { *e = nullptr; return cudaSuccess; }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { *e = nullptr; return cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = nullptr) { return cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return kw::emu::sticky_error(); }
inline cudaError_t cudaEventQuery(cudaEvent_t) { return kw::emu::sticky_error(); }
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) { *ms = 0.001f; return cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }

namespace kw {
namespace emu {
template <class... P, size_t... I> void launch_packed(const Config& c, void (*f)(P...), void** args, std::index_sequence<I...>) {
  launch(c, "(cudaLaunchKernel)", reinterpret_cast<const void*>(f), f, *static_cast<std::decay_t<P>*>(args[I])...);
}
}  // namespace emu
}  // namespace kw
template <class... P> cudaError_t cudaLaunchKernel(void (*f)(P...), dim3 grid, dim3 block, void** args, size_t shared = 0, cudaStream_t s = nullptr) {
  kw::emu::launch_packed(kw::emu::Config(grid, block, shared, s), f, args, std::index_sequence_for<P...>{});
  return cudaPeekAtLastError();
}
template <class F> cudaError_t cudaLaunchCooperativeKernel(F f, dim3 grid, dim3 block, void** args, size_t shared = 0, cudaStream_t s = nullptr) {
  return cudaLaunchKernel(f, grid, block, args, shared, s);
}
