// cub's block and warp collectives, in plain form. A result is only where cub promises it; elsewhere it is poison.
#pragma once
#include "kernelward/emu/warp.h"

namespace cub {

struct Sum { template <class T> T operator()(const T& a, const T& b) const { return a + b; } };
struct Max { template <class T> T operator()(const T& a, const T& b) const { return a < b ? b : a; } };
struct Min { template <class T> T operator()(const T& a, const T& b) const { return b < a ? b : a; } };
template <class K, class V> struct KeyValuePair {
  K key;
  V value;
};
struct ArgMax {
  template <class T> T operator()(const T& a, const T& b) const { return b.value > a.value || (b.value == a.value && b.key < a.key) ? b : a; }
};
struct ArgMin {
  template <class T> T operator()(const T& a, const T& b) const { return b.value < a.value || (b.value == a.value && b.key < a.key) ? b : a; }
};

enum BlockReduceAlgorithm { BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS };
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

inline unsigned kw_rank() { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }
template <class T> T kw_undefined() {
  T v;
  std::memset(static_cast<void*>(&v), kw::emu::poison_byte(), sizeof v);
  return v;
}

// Every thread lays its value down, the block meets, one thread (reduce) or all (scan) read. There is no barrier at the
// end: like cub's, the storage may not be used again before the block has met.
template <class T, int X, BlockReduceAlgorithm A = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1, int Arch = 0> class BlockReduce {
 public:
  struct TempStorage { T kw_value[X * Y * Z]; };
  BlockReduce(TempStorage& s) : s_(s) {}
  template <class F> T Reduce(T v, F f, int valid) {
    s_.kw_value[kw_rank()] = v;
    kw::emu::barrier(-2);
    if (kw_rank()) return kw_undefined<T>();
    T sum = s_.kw_value[0];
    for (int i = 1; i < valid; i++) sum = f(sum, s_.kw_value[i]);
    return sum;
  }
  template <class F> T Reduce(T v, F f) { return Reduce(v, f, X * Y * Z); }
  template <int N, class F> T Reduce(T (&items)[N], F f) {
    T v = items[0];
    for (int i = 1; i < N; i++) v = f(v, items[i]);
    return Reduce(v, f);
  }
  T Sum(T v) { return Reduce(v, cub::Sum()); }
  T Sum(T v, int valid) { return Reduce(v, cub::Sum(), valid); }
  template <int N> T Sum(T (&items)[N]) { return Reduce(items, cub::Sum()); }

 private:
  TempStorage& s_;
};

template <class T, int X, BlockScanAlgorithm A = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1, int Arch = 0> class BlockScan {
 public:
  struct TempStorage { T kw_value[X * Y * Z]; };
  BlockScan(TempStorage& s) : s_(s) {}
  template <class F> void InclusiveScan(T v, T& out, F f, T& total) { scan(v, f); out = fold(kw_rank(), f); total = fold(X * Y * Z - 1, f); }
  template <class F> void InclusiveScan(T v, T& out, F f) { scan(v, f); out = fold(kw_rank(), f); }
  template <class F> void ExclusiveScan(T v, T& out, T initial, F f, T& total) {
    scan(v, f);
    out = kw_rank() ? f(initial, fold(kw_rank() - 1, f)) : initial;
    total = fold(X * Y * Z - 1, f);
  }
  template <class F> void ExclusiveScan(T v, T& out, T initial, F f) { scan(v, f); out = kw_rank() ? f(initial, fold(kw_rank() - 1, f)) : initial; }
  void InclusiveSum(T v, T& out) { InclusiveScan(v, out, cub::Sum()); }
  void InclusiveSum(T v, T& out, T& total) { InclusiveScan(v, out, cub::Sum(), total); }
  void ExclusiveSum(T v, T& out) { ExclusiveScan(v, out, T(0), cub::Sum()); }
  void ExclusiveSum(T v, T& out, T& total) { ExclusiveScan(v, out, T(0), cub::Sum(), total); }

 private:
  template <class F> void scan(T v, F) { s_.kw_value[kw_rank()] = v; kw::emu::barrier(-3); }
  template <class F> T fold(unsigned last, F f) {
    T sum = s_.kw_value[0];
    for (unsigned i = 1; i <= last; i++) sum = f(sum, s_.kw_value[i]);
    return sum;
  }
  TempStorage& s_;
};

template <class T, int N = 32, int Arch = 0> class WarpReduce {
 public:
  struct TempStorage { T kw_value[1]; };
  WarpReduce(TempStorage&) {}
  template <class F> T Reduce(T v, F f) { return Reduce(v, f, N); }
  template <class F> T Reduce(T v, F f, int valid) {
    unsigned base = kw::emu::lane() & ~unsigned(N - 1);
    kw::emu::Meeting m = kw::emu::meet((N == 32 ? ~0u : (1u << (N & 31)) - 1) << base, &v, sizeof v);
    if (kw::emu::lane() != base) return kw_undefined<T>();
    T sum = v;
    for (unsigned i = base + 1; i < base + unsigned(valid); i++) if (m.present >> i & 1) sum = f(sum, kw::emu::read_lane<T>(m, i));
    return sum;
  }
  T Sum(T v) { return Reduce(v, cub::Sum()); }
  T Sum(T v, int valid) { return Reduce(v, cub::Sum(), valid); }
};

template <class T, int N = 32, int Arch = 0> class WarpScan {
 public:
  struct TempStorage { T kw_value[1]; };
  WarpScan(TempStorage&) {}
  template <class F> void InclusiveScan(T v, T& out, F f) {
    unsigned base = kw::emu::lane() & ~unsigned(N - 1);
    kw::emu::Meeting m = kw::emu::meet((N == 32 ? ~0u : (1u << (N & 31)) - 1) << base, &v, sizeof v);
    out = kw::emu::read_lane<T>(m, base);
    for (unsigned i = base + 1; i <= kw::emu::lane(); i++) out = f(out, kw::emu::read_lane<T>(m, i));
  }
  void InclusiveSum(T v, T& out) { InclusiveScan(v, out, cub::Sum()); }
  void ExclusiveSum(T v, T& out) { InclusiveScan(v, out, cub::Sum()); out = out - v; }
};

}  // namespace cub
