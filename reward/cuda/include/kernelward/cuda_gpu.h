// CUDA for host code that is compiled without nvcc: the toolkit's own types and runtime, and launches through the driver.
// The runtime is the libcudart that torch has loaded. What nvcc's generated code would do (registering kernels and
// symbols, launching stubs) is done here: a kernel's body on the host is KW_KERNEL_STUB, which hands its arguments to
// gpu.cpp, and that to cuLaunchKernel with the function that Python looked up in the cubin.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

// The headers mark device code with these; g++ sees host code only.
#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <vector_types.h>

#undef __noinline__
#undef __align__
#define __align__(N) __attribute__((aligned(N)))
#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __shared__
#undef __managed__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __cluster_dims__
#undef __maxnreg__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __grid_constant__

namespace kw {

// What Python provides; addresses are those of libcuda's functions, or of a recorder in tests.
struct Gpu {
  // The loaded function for a kernel: `name` qualified, `signature` what g++ calls the instantiation. Null: see error().
  void* (*resolve)(const char* name, const char* parameters, const char* signature);
  // Device address and size of a variable; 0 if it was found.
  int (*symbol)(const char* name, void** address, size_t* size);
  int (*launch)(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                unsigned shared, void* stream, void** arguments, void** extra);
  int (*launch_cooperative)(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, void* stream, void** arguments);
  int (*set_attribute)(void* function, int attribute, int value);
  int (*get_attribute)(int* value, int attribute, void* function);
  int (*active_blocks)(int* blocks, void* function, int block, size_t shared);
  int (*potential_block)(int* grid, int* block, void* function, void* shared_of_block, size_t shared, int limit);
  // The same kernel with pauses and poison, for strict runs; null where there is none.
  void* (*twin)(void* function);
};

void push_launch(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = nullptr);
void run_stub(const char* name, const char* parameters, const char* signature, void** arguments);
void* identify(void (*stub)());
void register_symbol(const void* host, const char* name);
cudaError_t launch_function(void* function, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream, bool cooperative);
cudaError_t symbol_address(void** address, const void* host);
cudaError_t symbol_size(size_t* size, const void* host);
cudaError_t copy_symbol(const void* host, void* other, size_t count, size_t offset, cudaMemcpyKind kind, cudaStream_t stream, bool async, bool to);
cudaError_t set_function_attribute(void* function, int attribute, int value);
cudaError_t function_attributes(cudaFuncAttributes* attributes, void* function);
cudaError_t active_blocks(int* blocks, void* function, int block, size_t shared);
cudaError_t potential_block(int* grid, int* block, void* function, size_t shared, int limit);

template <class... A>
inline void stub(const char* name, const char* parameters, const char* signature, const A&... arguments) {
  void* addresses[sizeof...(A) + 1] = {const_cast<void*>(static_cast<const volatile void*>(&arguments))...};
  run_stub(name, parameters, signature, addresses);
}
template <class F> void* function_of(F* kernel) { return identify((void (*)())(kernel)); }

struct SymbolEntry { SymbolEntry(const void* host, const char* name) { register_symbol(host, name); } };

}  // namespace kw

#define KW_KERNEL_STUB(NAME, PARAMETERS, ...) ::kw::stub(NAME, PARAMETERS, __PRETTY_FUNCTION__ __VA_OPT__(, ) __VA_ARGS__)
#define KW_JOIN_(A, B) A##B
#define KW_JOIN(A, B) KW_JOIN_(A, B)
#define KW_SYMBOL(VARIABLE, NAME) \
  static const ::kw::SymbolEntry KW_JOIN(kw_symbol_, __COUNTER__){static_cast<const void*>(&VARIABLE), NAME};

// The calls that concern kernels and symbols, which the runtime does not know because nvcc did not register them.
cudaError_t kw_last_error(bool clear);
template <class T> cudaError_t kw_to_symbol(const T& symbol, const void* source, size_t count, size_t offset = 0, cudaMemcpyKind kind = cudaMemcpyHostToDevice) {
  return kw::copy_symbol(&symbol, const_cast<void*>(source), count, offset, kind, nullptr, false, true);
}
template <class T> cudaError_t kw_to_symbol_async(const T& symbol, const void* source, size_t count, size_t offset = 0, cudaMemcpyKind kind = cudaMemcpyHostToDevice, cudaStream_t stream = nullptr) {
  return kw::copy_symbol(&symbol, const_cast<void*>(source), count, offset, kind, stream, true, true);
}
template <class T> cudaError_t kw_from_symbol(void* target, const T& symbol, size_t count, size_t offset = 0, cudaMemcpyKind kind = cudaMemcpyDeviceToHost) {
  return kw::copy_symbol(&symbol, target, count, offset, kind, nullptr, false, false);
}
template <class T> cudaError_t kw_from_symbol_async(void* target, const T& symbol, size_t count, size_t offset = 0, cudaMemcpyKind kind = cudaMemcpyDeviceToHost, cudaStream_t stream = nullptr) {
  return kw::copy_symbol(&symbol, target, count, offset, kind, stream, true, false);
}
template <class P, class T> cudaError_t kw_symbol_address(P** address, const T& symbol) { return kw::symbol_address(reinterpret_cast<void**>(address), &symbol); }
template <class T> cudaError_t kw_symbol_size(size_t* size, const T& symbol) { return kw::symbol_size(size, &symbol); }
template <class F> cudaError_t kw_set_attribute(F* kernel, int attribute, int value) { return kw::set_function_attribute(kw::function_of(kernel), attribute, value); }
template <class F, class C> cudaError_t kw_set_cache(F* kernel, C) { return kw::function_of(kernel) ? cudaSuccess : cudaErrorInvalidDeviceFunction; }
template <class F> cudaError_t kw_attributes(cudaFuncAttributes* attributes, F* kernel) { return kw::function_attributes(attributes, kw::function_of(kernel)); }
template <class F> cudaError_t kw_launch(F* kernel, dim3 grid, dim3 block, void** arguments, size_t shared = 0, cudaStream_t stream = nullptr) {
  return kw::launch_function(kw::function_of(kernel), grid, block, arguments, shared, stream, false);
}
template <class F> cudaError_t kw_launch_cooperative(F* kernel, dim3 grid, dim3 block, void** arguments, size_t shared = 0, cudaStream_t stream = nullptr) {
  return kw::launch_function(kw::function_of(kernel), grid, block, arguments, shared, stream, true);
}
template <class F> cudaError_t kw_active_blocks(int* blocks, F* kernel, int block, size_t shared) { return kw::active_blocks(blocks, kw::function_of(kernel), block, shared); }
template <class F> cudaError_t kw_potential_block(int* grid, int* block, F* kernel, size_t shared = 0, int limit = 0) {
  return kw::potential_block(grid, block, kw::function_of(kernel), shared, limit);
}

#define cudaGetLastError() kw_last_error(true)
#define cudaPeekAtLastError() kw_last_error(false)
#define cudaMemcpyToSymbol(...) kw_to_symbol(__VA_ARGS__)
#define cudaMemcpyToSymbolAsync(...) kw_to_symbol_async(__VA_ARGS__)
#define cudaMemcpyFromSymbol(...) kw_from_symbol(__VA_ARGS__)
#define cudaMemcpyFromSymbolAsync(...) kw_from_symbol_async(__VA_ARGS__)
#define cudaGetSymbolAddress(...) kw_symbol_address(__VA_ARGS__)
#define cudaGetSymbolSize(...) kw_symbol_size(__VA_ARGS__)
#define cudaFuncSetAttribute(...) kw_set_attribute(__VA_ARGS__)
#define cudaFuncSetCacheConfig(...) kw_set_cache(__VA_ARGS__)
#define cudaFuncSetSharedMemConfig(...) kw_set_cache(__VA_ARGS__)
#define cudaFuncGetAttributes(...) kw_attributes(__VA_ARGS__)
#define cudaLaunchKernel(...) kw_launch(__VA_ARGS__)
#define cudaLaunchCooperativeKernel(...) kw_launch_cooperative(__VA_ARGS__)
#define cudaOccupancyMaxActiveBlocksPerMultiprocessor(...) kw_active_blocks(__VA_ARGS__)
#define cudaOccupancyMaxPotentialBlockSize(...) kw_potential_block(__VA_ARGS__)

// Templates of cuda_runtime.h that need no registration.
template <class T> inline cudaError_t cudaMalloc(T** pointer, size_t size) { return ::cudaMalloc(reinterpret_cast<void**>(pointer), size); }
template <class T> inline cudaError_t cudaMallocAsync(T** pointer, size_t size, cudaStream_t stream) {
  return ::cudaMallocAsync(reinterpret_cast<void**>(pointer), size, stream);
}
template <class T> inline cudaError_t cudaMallocHost(T** pointer, size_t size, unsigned = 0) {
  return ::cudaMallocHost(reinterpret_cast<void**>(pointer), size);
}
template <class T> inline cudaError_t cudaMallocManaged(T** pointer, size_t size, unsigned flags = cudaMemAttachGlobal) {
  return ::cudaMallocManaged(reinterpret_cast<void**>(pointer), size, flags);
}
template <class T> inline cudaError_t cudaHostAlloc(T** pointer, size_t size, unsigned flags) {
  return ::cudaHostAlloc(reinterpret_cast<void**>(pointer), size, flags);
}

// Device functions that code for both sides may call; on the host they are the C library's.
#include <algorithm>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <type_traits>
#include <unordered_map>
#include <utility>

#if __has_include(<cuda_fp16.h>)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif
using std::max;
using std::min;
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }

// Namespaces of device headers: host code may say `using namespace`, and uses nothing of them.
namespace cooperative_groups {}
namespace cub {}
namespace nvcuda {
namespace wmma {
struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
namespace precision {
struct tf32;
}
template <typename Use, int M, int N, int K, typename T, typename Layout = void>
class fragment;  // named by aliases at namespace scope; complete in device code alone
}  // namespace wmma
}  // namespace nvcuda
