// Launching through the driver: compiled once, linked into every extension for a GPU.
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernelward/torch.h"

#undef cudaGetLastError
#undef cudaPeekAtLastError

namespace {

const kw::Gpu* gpu = nullptr;

struct Config { dim3 grid, block; size_t shared; cudaStream_t stream; };
struct Report { int64_t launches = 0, failures = 0; std::string first; };

thread_local std::vector<Config> configs;
thread_local void** identified = nullptr;
thread_local cudaError_t pending = cudaSuccess;
Report report;
std::unordered_map<const char*, void*> functions;
bool strict = false;
std::unordered_map<void*, void*> twins;
std::unordered_map<void*, std::vector<std::pair<int, int>>> attributes;  // as the candidate set them
std::unordered_map<const void*, std::string>& symbols() {
  static std::unordered_map<const void*, std::string> table;
  return table;
}

void* function_for(const char* name, const char* parameters, const char* signature) {
  if (!gpu) throw c10::Error(std::string("kernel ") + name + " launched while the extension is being loaded");
  auto found = functions.find(signature);
  if (found != functions.end()) return found->second;
  void* function = gpu->resolve(name, parameters, signature);
  if (!function) throw c10::Error(std::string("kernel ") + signature + " could not be compiled for the device");
  functions[signature] = function;
  return function;
}

cudaError_t note(int code, const char* what) {
  if (!code) return cudaSuccess;
  auto error = static_cast<cudaError_t>(code);
  pending = error;
  report.failures++;
  if (report.first.empty()) report.first = std::string(what) + ": " + cudaGetErrorString(error);
  return error;
}

// The driver answers "invalid value" where the runtime says "invalid configuration".
int configuration_error(const Config& c, int code) {
  if (code != cudaErrorInvalidValue) return code;
  uint64_t threads = uint64_t(c.block.x) * c.block.y * c.block.z;
  bool empty = !threads || !c.grid.x || !c.grid.y || !c.grid.z;
  bool large = threads > 1024 || c.block.z > 64 || c.grid.y > 65535 || c.grid.z > 65535;
  return empty || large ? int(cudaErrorInvalidConfiguration) : code;
}

constexpr int kStaticShared = 1, kDynamicShared = 8;  // attributes of functions
constexpr size_t kSharedGuard = 1024;                 // as in strict.h

size_t guarded(size_t shared) { return (shared + 7) / 8 * 8 + kSharedGuard; }

// What a strict run launches in a kernel's place. Candidates only ever hold the kernel itself: what they ask about it is
// true of that one, and what they set is set for both.
void* twin_of(void* function) {
  auto found = twins.find(function);
  if (found != twins.end()) return found->second;
  void* twin = gpu->twin(function);
  if (twin) {
    for (auto [attribute, value] : attributes[function])
      if (attribute != kDynamicShared) gpu->set_attribute(twin, attribute, value);
    int fixed = 0;
    gpu->get_attribute(&fixed, kStaticShared, twin);
    for (int most : {227, 163, 99})  // KiB that a block may have, by architecture
      if (!gpu->set_attribute(twin, kDynamicShared, most * 1024 - fixed)) break;
  }
  return twins[function] = twin;
}

int launch_one(void* function, const Config& c, void** arguments, bool cooperative) {
  if (c.shared > 0xFFFFFFFFu) return cudaErrorInvalidValue;
  if (cooperative)
    return gpu->launch_cooperative(function, c.grid.x, c.grid.y, c.grid.z, c.block.x, c.block.y, c.block.z, unsigned(c.shared), c.stream, arguments);
  return gpu->launch(function, c.grid.x, c.grid.y, c.grid.z, c.block.x, c.block.y, c.block.z, unsigned(c.shared), c.stream, arguments, nullptr);
}

cudaError_t launch(void* function, const Config& c, void** arguments, bool cooperative, const char* what) {
  report.launches++;
  void* twin = strict ? twin_of(function) : nullptr;
  int code = 1, most = 0;
  if (twin && !gpu->get_attribute(&most, kDynamicShared, function) && c.shared <= size_t(most)) {
    Config larger = c;
    larger.shared = guarded(c.shared);
    code = launch_one(twin, larger, arguments, cooperative);
  }
  // A twin takes more registers and more memory, so it may not fit where the kernel does.
  if (code) code = launch_one(function, c, arguments, cooperative);
  return note(configuration_error(c, code), what);
}

}  // namespace

namespace kw {

void push_launch(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) { configs.push_back({grid, block, shared, stream}); }

void run_stub(const char* name, const char* parameters, const char* signature, void** arguments) {
  if (identified) {
    *identified = function_for(name, parameters, signature);
    return;
  }
  if (configs.empty()) throw c10::Error(std::string("kernel ") + name + " called without a launch configuration");
  Config config = configs.back();
  configs.pop_back();
  launch(function_for(name, parameters, signature), config, arguments, false, name);
}

// Calls the stub with nothing in its arguments: in this mode it does not look at them.
void* identify(void (*stub)()) {
  void* function = nullptr;
  struct Mode {
    explicit Mode(void** target) { identified = target; }
    ~Mode() { identified = nullptr; }
  } mode(&function);
  stub();
  return function;
}

void register_symbol(const void* host, const char* name) { symbols()[host] = name; }

cudaError_t launch_function(void* function, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream, bool cooperative) {
  return launch(function, {grid, block, shared, stream}, arguments, cooperative, "cudaLaunchKernel");
}

static cudaError_t find_symbol(const void* host, void** address, size_t* size) {
  auto entry = symbols().find(host);
  if (!gpu || entry == symbols().end()) return cudaErrorInvalidSymbol;
  return gpu->symbol(entry->second.c_str(), address, size) ? cudaErrorInvalidSymbol : cudaSuccess;
}
cudaError_t symbol_address(void** address, const void* host) {
  size_t size;
  return note(find_symbol(host, address, &size), "cudaGetSymbolAddress");
}
cudaError_t symbol_size(size_t* size, const void* host) {
  void* address;
  return note(find_symbol(host, &address, size), "cudaGetSymbolSize");
}
cudaError_t copy_symbol(const void* host, void* other, size_t count, size_t offset, cudaMemcpyKind kind, cudaStream_t stream, bool async, bool to) {
  void* address = nullptr;
  size_t size = 0;
  cudaError_t error = find_symbol(host, &address, &size);
  if (!error && (offset > size || count > size - offset)) error = cudaErrorInvalidValue;
  if (!error) {
    char* device = static_cast<char*>(address) + offset;
    void* target = to ? device : other;
    const void* source = to ? other : device;
    error = async ? cudaMemcpyAsync(target, source, count, kind, stream) : cudaMemcpy(target, source, count, kind);
  }
  return note(error, to ? "cudaMemcpyToSymbol" : "cudaMemcpyFromSymbol");
}

cudaError_t set_function_attribute(void* function, int attribute, int value) {
  attributes[function].emplace_back(attribute, value);
  auto twin = twins.find(function);
  if (twin != twins.end() && twin->second && attribute != kDynamicShared) gpu->set_attribute(twin->second, attribute, value);
  return note(gpu->set_attribute(function, attribute, value), "cudaFuncSetAttribute");
}
cudaError_t function_attributes(cudaFuncAttributes* a, void* function) {
  std::memset(static_cast<void*>(a), 0, sizeof *a);
  int code = 0, value = 0;
  auto read = [&](int which) { code = code ? code : gpu->get_attribute(&value, which, function); return value; };
  a->maxThreadsPerBlock = read(0);
  a->sharedSizeBytes = size_t(read(1));
  a->constSizeBytes = size_t(read(2));
  a->localSizeBytes = size_t(read(3));
  a->numRegs = read(4);
  a->ptxVersion = read(5);
  a->binaryVersion = read(6);
  a->maxDynamicSharedSizeBytes = read(8);
  return note(code, "cudaFuncGetAttributes");
}
cudaError_t active_blocks(int* blocks, void* function, int block, size_t shared) {
  int code = gpu->active_blocks(blocks, function, block, shared), fewer = 0;
  // Who asks may go on to wait for all blocks at once: so many of the twin's have to fit.
  void* twin = strict && !code ? twin_of(function) : nullptr;
  if (twin && !gpu->active_blocks(&fewer, twin, block, guarded(shared)) && fewer && fewer < *blocks) *blocks = fewer;
  return note(code, "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
}
cudaError_t potential_block(int* grid, int* block, void* function, size_t shared, int limit) {
  return note(gpu->potential_block(grid, block, function, nullptr, shared, limit), "cudaOccupancyMaxPotentialBlockSize");
}

}  // namespace kw

cudaError_t kw_last_error(bool clear) {
  cudaError_t error = pending;
  if (clear) pending = cudaSuccess;
  if (error) return error;
  return clear ? cudaGetLastError() : cudaPeekAtLastError();
}

extern "C" {
__attribute__((visibility("default"))) void kw_gpu_bind(const kw::Gpu* table) { gpu = table; }
// Whether launches take the instrumented kernels from here on.
__attribute__((visibility("default"))) void kw_gpu_strict(int on) { strict = on; }
// Before each call from Python; a configuration left behind by a call that threw must not serve the next.
__attribute__((visibility("default"))) void kw_gpu_begin() {
  configs.clear();
  pending = cudaSuccess;
  report = Report{};
}
// After it: launches, failed calls, the error that nobody looked at (0: none), the first failure's text.
__attribute__((visibility("default"))) void kw_gpu_report(int64_t* launches, int64_t* failures, int* unseen, const char** first) {
  *launches = report.launches;
  *failures = report.failures;
  *unseen = int(pending);
  *first = report.first.c_str();
}
}
