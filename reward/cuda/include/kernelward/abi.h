// What crosses the border between a candidate's host code and Python. Plain C layout, mirrored by binding.py.
#pragma once
#include <cstdint>

namespace kw {

enum Kind : int32_t {
  kNone = 0,     // Python's None, an undefined tensor, an empty optional
  kTensor = 1,   // handle, dtype, ndim, sizes, strides, data, device
  kInt = 2,      // integer
  kDouble = 3,   // real
  kBool = 4,     // integer
  kInts = 5,     // data -> int64_t[count]
  kString = 6,   // text, count bytes
  kDtype = 7,    // dtype
  kList = 8,     // data -> Value[count]
  kOptions = 9,  // dtype (-1: unset); device in flags (-1: unset, 0: cpu, 1: cuda)
  kFormat = 10,  // memory format in integer: 0 contiguous, 1 preserve, 2 channels_last, 3 channels_last_3d
  kSlice = 11,   // sizes[0..2] = start, stop, step; flags has bit i set where one is missing
  kDevice = 12,  // device in flags, index in integer
  kEllipsis = 13,
  kDoubles = 14  // data -> double[count]
};

constexpr int kMaxDims = 12;

struct Value {
  int32_t kind;
  int32_t dtype;
  int32_t ndim;
  int32_t flags;  // kTensor: bit 0 cuda, bit 1 requires_grad
  int64_t handle;
  int64_t count;
  int64_t integer;
  double real;
  void* data;
  const char* text;
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxDims];
};

// Filled by Python. `call` runs an operator of torch by its ATen name (a method where the name begins with '.') and
// returns 0, or 1 with out->text set; lists in `out` stay valid until the next call. A handle owns one reference to a
// Python tensor; `release` drops it. `stream` is the raw current stream.
struct Host {
  int (*call)(const char* name, const Value* args, int64_t n, Value* out);
  void (*release)(int64_t handle);
  void* (*stream)();
};

}  // namespace kw
