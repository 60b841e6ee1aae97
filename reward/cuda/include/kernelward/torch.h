// The part of torch's C++ API that kernels use, small enough to compile in a fraction of a second.
// One backend header provides CUDA's own types and calls: the emulator's, or on a GPU those of the CUDA toolkit.
#pragma once
#if defined(KERNELWARD_GPU)
#include "kernelward/cuda_gpu.h"
#else
#include "kernelward/cuda_cpu.h"
#endif
#include <array>

#include "kernelward/module.h"

namespace at {
constexpr auto kByte = ScalarType::Byte, kChar = ScalarType::Char, kShort = ScalarType::Short, kInt = ScalarType::Int,
               kLong = ScalarType::Long, kHalf = ScalarType::Half, kFloat = ScalarType::Float, kDouble = ScalarType::Double,
               kBool = ScalarType::Bool, kBFloat16 = ScalarType::BFloat16, kUInt8 = ScalarType::Byte, kInt8 = ScalarType::Char,
               kInt16 = ScalarType::Short, kInt32 = ScalarType::Int, kInt64 = ScalarType::Long, kFloat16 = ScalarType::Half,
               kFloat32 = ScalarType::Float, kFloat64 = ScalarType::Double;
inline TensorOptions dtype(ScalarType t) { return TensorOptions(t); }
template <class T> TensorOptions dtype() { return TensorOptions(CppTypeToScalarType<T>::value); }
inline TensorOptions device(Device d) { return TensorOptions(d); }
inline TensorOptions layout(Layout) { return {}; }
inline TensorOptions requires_grad(bool = true) { return {}; }
struct NoGradGuard { NoGradGuard() {} ~NoGradGuard() {} };
struct AutoGradMode { explicit AutoGradMode(bool) {} ~AutoGradMode() {} };
struct DeviceGuard { explicit DeviceGuard(Device) {} ~DeviceGuard() {} };
inline std::optional<Device> device_of(const Tensor& t) { return t.defined() ? std::optional<Device>(t.device()) : std::nullopt; }
template <class T> struct OpMathType { using type = T; };
template <> struct OpMathType<Half> { using type = float; };
template <> struct OpMathType<BFloat16> { using type = float; };
template <class T> using opmath_type = typename OpMathType<T>::type;
template <class T, bool = true> using acc_type = typename OpMathType<T>::type;

namespace cuda {
class CUDAStream {
 public:
  cudaStream_t stream() const { return static_cast<cudaStream_t>(kw::host && kw::host->stream ? kw::host->stream() : nullptr); }
  operator cudaStream_t() const { return stream(); }
  void synchronize() const { cudaStreamSynchronize(stream()); }
  Device device() const { return Device(kCUDA); }
  DeviceIndex device_index() const { return 0; }
};
inline CUDAStream getCurrentCUDAStream(int = -1) { return {}; }
inline CUDAStream getDefaultCUDAStream(int = -1) { return {}; }
inline CUDAStream getStreamFromPool(bool = false, int = -1) { return {}; }
inline void setCurrentCUDAStream(CUDAStream) {}
struct CUDAGuard {
  template <class D> explicit CUDAGuard(const D&) {}
  ~CUDAGuard() {}
  template <class D> void set_device(const D&) {}
  template <class D> void set_index(const D&) {}
};
struct OptionalCUDAGuard {
  OptionalCUDAGuard() {}
  template <class D> explicit OptionalCUDAGuard(const D&) {}
  ~OptionalCUDAGuard() {}
  template <class D> void set_device(const D&) {}
};
struct CUDAStreamGuard { explicit CUDAStreamGuard(CUDAStream) {} ~CUDAStreamGuard() {} };
inline int current_device() { return 0; }
inline int device_count() { return 1; }
inline bool is_available() { return true; }
inline void synchronize(int = -1) { cudaDeviceSynchronize(); }
inline cudaDeviceProp* getCurrentDeviceProperties() {
  static cudaDeviceProp properties = [] { cudaDeviceProp p; cudaGetDeviceProperties(&p, 0); return p; }();
  return &properties;
}
inline cudaDeviceProp* getDeviceProperties(int = 0) { return getCurrentDeviceProperties(); }
inline int warp_size() { return 32; }
template <class T> T ceil_div(T a, T b) { return (a + b - 1) / b; }
template <class A, class B> auto ATenCeilDiv(A a, B b) { return (a + b - 1) / b; }
}  // namespace cuda
template <class T> T ceil_div(T a, T b) { return (a + b - 1) / b; }
namespace native {}
}  // namespace at

namespace c10 {
using at::device_of;
namespace cuda {
using at::cuda::CUDAGuard; using at::cuda::CUDAStream; using at::cuda::CUDAStreamGuard; using at::cuda::OptionalCUDAGuard;
using at::cuda::current_device; using at::cuda::device_count; using at::cuda::getCurrentCUDAStream;
using at::cuda::getDefaultCUDAStream; using at::cuda::getStreamFromPool;
inline void device_synchronize() { cudaDeviceSynchronize(); }
}  // namespace cuda
}  // namespace c10

namespace torch {
using namespace at;
using at::Tensor; using at::TensorList; using c10::ArrayRef; using c10::DeviceType; using c10::IntArrayRef; using c10::MemoryFormat;
using c10::ScalarType; using c10::nullopt; using c10::optional;
using Dtype = c10::ScalarType;
namespace autograd { using variable_list = std::vector<at::Tensor>; }
namespace cuda {
using namespace at::cuda;
}  // namespace cuda
}  // namespace torch

#define C10_CUDA_CHECK(EXPR)                                                                       \
  do {                                                                                             \
    const cudaError_t kw_error = (EXPR);                                                           \
    if (kw_error != cudaSuccess) throw c10::Error(std::string("CUDA error: ") + cudaGetErrorString(kw_error)); \
  } while (0)
#define AT_CUDA_CHECK(EXPR) C10_CUDA_CHECK(EXPR)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#define C10_DEVICE __device__
#define C10_HOST __host__
#define C10_HOST_DEVICE __host__ __device__
#define C10_LAUNCH_BOUNDS_1(N) __launch_bounds__(N)
#define C10_LAUNCH_BOUNDS_2(N, M) __launch_bounds__(N, M)
#define CUDA_KERNEL_LOOP_TYPE(I, N, T)                                                                   \
  int64_t kw_index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;                                     \
  for (T I = kw_index; kw_index < (N); kw_index += int64_t(blockDim.x) * gridDim.x, I = kw_index)
#define CUDA_KERNEL_LOOP(I, N) CUDA_KERNEL_LOOP_TYPE(I, N, int)
