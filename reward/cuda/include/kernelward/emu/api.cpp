// Host-side state of the emulated runtime API, and the interface that emulator.py drives.
#include <sys/mman.h>

#include <algorithm>
#include <map>

#include "kernelward/torch.h"
#include "kernelward/emu/cublas.h"
#include "kernelward/emu/state.h"

namespace kw {
namespace emu {

cudaError_t last_error(bool clear) {
  if (rt.sticky_error) return cudaError_t(rt.sticky_error);
  int e = rt.launch_error;
  if (clear) rt.launch_error = 0;
  return cudaError_t(e);
}
cudaError_t sticky_error() { return cudaError_t(rt.sticky_error); }
void opt_in(const void* function, int bytes) {
  for (auto& e : rt.opted_in) if (e.first == function) { e.second = bytes; return; }
  rt.opted_in.emplace_back(function, bytes);
}
int device_attribute(cudaDeviceAttr a) {
  const cudaDeviceProp p;
  switch (a) {
    case cudaDevAttrMaxThreadsPerBlock: return p.maxThreadsPerBlock;
    case cudaDevAttrMaxSharedMemoryPerBlock: return int(p.sharedMemPerBlock);
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrClockRate: return p.clockRate;
    case cudaDevAttrMultiProcessorCount: return p.multiProcessorCount;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return p.maxThreadsPerMultiProcessor;
    case cudaDevAttrComputeCapabilityMajor: return p.major;
    case cudaDevAttrComputeCapabilityMinor: return p.minor;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return int(p.sharedMemPerMultiprocessor);
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return int(p.sharedMemPerBlockOptin);
    case cudaDevAttrMaxGridDimX: return p.maxGridSize[0];
    case cudaDevAttrMaxGridDimY: return p.maxGridSize[1];
    case cudaDevAttrMaxGridDimZ: return p.maxGridSize[2];
    case cudaDevAttrMaxBlockDimX: return p.maxThreadsDim[0];
    case cudaDevAttrMaxBlockDimY: return p.maxThreadsDim[1];
    case cudaDevAttrMaxBlockDimZ: return p.maxThreadsDim[2];
    default: return 1;
  }
}

// cudaMalloc: guarded like tensors, by the variant's placement.
struct Block { char* base; size_t length; };
static std::map<void*, Block>& blocks() {
  static std::map<void*, Block> table;
  return table;
}
void* allocate(size_t n) {
  if (!n) return nullptr;
  size_t body = (n + kPage - 1) / kPage * kPage, length = body + 2 * kPage;
  char* base = static_cast<char*>(mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (base == MAP_FAILED) return nullptr;
  mprotect(base, kPage, PROT_NONE);
  mprotect(base + length - kPage, kPage, PROT_NONE);
  char* p = base + kPage + (rt.variant.placement ? 0 : body - (n + 15) / 16 * 16);
  std::memset(p, poison_byte(), n);
  blocks()[p] = {base, length};
  return p;
}
cudaError_t release(void* p) {
  if (!p) return kw::emu::sticky_error();
  auto it = blocks().find(p);
  if (it == blocks().end()) return cudaErrorInvalidValue;
  munmap(it->second.base, it->second.length);
  blocks().erase(it);
  return kw::emu::sticky_error();
}

size_t data_size(cudaDataType k) { return k == CUDA_R_64F ? 8 : k == CUDA_R_32F ? 4 : k == CUDA_R_8I ? 1 : 2; }
cublasStatus_t gemm_ex(cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha, const void* a, cudaDataType ka, int lda,
                       const void* b, cudaDataType kb, int ldb, const void* beta, void* c, cudaDataType kc, int ldc) {
  float x = *static_cast<const float*>(alpha), y = *static_cast<const float*>(beta);
  auto run = [&](auto* in, auto* out) {
    using In = std::remove_pointer_t<decltype(in)>;
    return gemm(ta, tb, m, n, k, x, static_cast<const In*>(a), lda, static_cast<const In*>(b), ldb, y, out, ldc);
  };
  if (ka != kb) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (ka == CUDA_R_32F && kc == CUDA_R_32F) return run(static_cast<float*>(nullptr), static_cast<float*>(c));
  if (ka == CUDA_R_16F && kc == CUDA_R_16F) return run(static_cast<__half*>(nullptr), static_cast<__half*>(c));
  if (ka == CUDA_R_16F && kc == CUDA_R_32F) return run(static_cast<__half*>(nullptr), static_cast<float*>(c));
  if (ka == CUDA_R_16BF && kc == CUDA_R_16BF) return run(static_cast<__nv_bfloat16*>(nullptr), static_cast<__nv_bfloat16*>(c));
  if (ka == CUDA_R_16BF && kc == CUDA_R_32F) return run(static_cast<__nv_bfloat16*>(nullptr), static_cast<float*>(c));
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

static std::string quoted(const std::string& s) {
  std::string out = "\"";
  for (unsigned char c : s) {
    if (c == '"' || c == '\\') { out += '\\'; out += char(c); }
    else if (c < 32 || c > 126) out += '?';
    else out += char(c);
  }
  return out + "\"";
}

}  // namespace emu
}  // namespace kw

const char* cudaGetErrorString(cudaError_t e) {
  switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorLaunchTimeout: return "the launch timed out and was terminated";
    case cudaErrorAssert: return "device-side assert triggered";
    case cudaErrorMisalignedAddress: return "misaligned address";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    default: return "unknown error";
  }
}
const char* cudaGetErrorName(cudaError_t e) {
  switch (e) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    default: return "cudaErrorUnknown";
  }
}

#define KW_EXPORT extern "C" __attribute__((visibility("default")))
KW_EXPORT void kw_emu_configure(const kw::emu::Variant* v) {
  kw::emu::rt.variant = *v;
  kw::emu::rt.findings.clear();
  kw::emu::rt.launches = kw::emu::rt.kernel_threads = kw::emu::rt.rejected_launches = kw::emu::rt.switches = kw::emu::rt.lenient = 0;
}
// The pending error as CUDA would report it at the next synchronisation; 0 if none. Clears launch errors, not sticky ones.
KW_EXPORT int kw_emu_take_error(const char** message) {
  auto& rt = kw::emu::rt;
  int e = rt.sticky_error ? rt.sticky_error : rt.launch_error;
  rt.launch_error = 0;
  *message = rt.sticky_error ? rt.error_message.c_str() : cudaGetErrorString(cudaError_t(e));
  return e;
}
// Whole pages of CPU memory that kernels must not reach; `host` 0 takes them off the list.
KW_EXPORT void kw_emu_host(char* pages, size_t bytes, int host) {
  auto& list = kw::emu::rt.host_pages;
  for (size_t i = 0; i < list.size(); i++)
    if (list[i].first == pages) { list.erase(list.begin() + long(i)); break; }
  if (host) list.emplace_back(pages, bytes);
}
// A fresh process would have no sticky error; tests reuse one.
KW_EXPORT void kw_emu_reset() { kw::emu::rt.sticky_error = kw::emu::rt.launch_error = 0; }
KW_EXPORT const char* kw_emu_report() {
  static std::string text;
  auto& rt = kw::emu::rt;
  text = "{\"launches\":" + std::to_string(rt.launches) + ",\"threads\":" + std::to_string(rt.kernel_threads) +
         ",\"rejected_launches\":" + std::to_string(rt.rejected_launches) + ",\"findings\":[";
  for (size_t i = 0; i < rt.findings.size(); i++) {
    auto& f = rt.findings[i];
    text += std::string(i ? "," : "") + "{\"kind\":" + kw::emu::quoted(f.kind) + ",\"message\":" + kw::emu::quoted(f.message) +
            ",\"count\":" + std::to_string(f.count) + "}";
  }
  text += "]}";
  return text.c_str();
}
