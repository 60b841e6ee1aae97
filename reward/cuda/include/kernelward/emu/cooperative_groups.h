// The common part of cooperative groups: thread blocks, tiles, coalesced threads, shuffles, votes, reductions, scans.
#pragma once
#include "kernelward/emu/warp.h"

namespace cooperative_groups {

template <class T> struct plus { T operator()(const T& a, const T& b) const { return a + b; } };
template <class T> struct less { T operator()(const T& a, const T& b) const { return b < a ? b : a; } };
template <class T> struct greater { T operator()(const T& a, const T& b) const { return a < b ? b : a; } };
template <class T> struct bit_and { T operator()(const T& a, const T& b) const { return a & b; } };
template <class T> struct bit_or { T operator()(const T& a, const T& b) const { return a | b; } };
template <class T> struct bit_xor { T operator()(const T& a, const T& b) const { return a ^ b; } };

inline unsigned long long kw_thread_in_block() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * (unsigned long long)blockDim.x + threadIdx.x;
}

class thread_block {
 public:
  void sync() const { kw::emu::barrier(-1); }
  static void kw_sync() { kw::emu::barrier(-1); }
  unsigned thread_rank() const { return unsigned(kw_thread_in_block()); }
  unsigned size() const { return blockDim.x * blockDim.y * blockDim.z; }
  unsigned num_threads() const { return size(); }
  dim3 group_index() const { return blockIdx; }
  dim3 thread_index() const { return threadIdx; }
  dim3 group_dim() const { return blockDim; }
  dim3 dim_threads() const { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

class grid_group {
 public:
  [[noreturn]] void sync() const { kw::emu::fail(801, "unsupported", "grid-wide synchronisation is not emulated; it needs a GPU"); }
  bool is_valid() const { return true; }
  unsigned long long size() const { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z * blockDim.x * blockDim.y * blockDim.z; }
  unsigned long long num_threads() const { return size(); }
  unsigned long long block_rank() const { return (blockIdx.z * gridDim.y + blockIdx.y) * (unsigned long long)gridDim.x + blockIdx.x; }
  unsigned long long num_blocks() const { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z; }
  unsigned long long thread_rank() const { return block_rank() * (blockDim.x * blockDim.y * blockDim.z) + kw_thread_in_block(); }
  dim3 group_dim() const { return gridDim; }
};
inline grid_group this_grid() { return {}; }

// Lanes of one warp, given by a mask: tiles and coalesced groups.
class kw_lanes {
 public:
  explicit kw_lanes(unsigned mask) : mask_(mask) {}
  void sync() const { kw::emu::meet(mask_, nullptr, 0); }
  unsigned thread_rank() const { return unsigned(__builtin_popcount(mask_ & ((1u << kw::emu::lane()) - 1))); }
  unsigned size() const { return unsigned(__builtin_popcount(mask_)); }
  unsigned num_threads() const { return size(); }
  template <class T> T shfl(T v, int rank) const { return kw::emu::shuffle(mask_, v, lane_of(unsigned(rank) % size()), false); }
  template <class T> T shfl_down(T v, unsigned d) const {
    unsigned r = thread_rank() + d;
    return kw::emu::shuffle(mask_, v, r < size() ? lane_of(r) : 0, r >= size());
  }
  template <class T> T shfl_up(T v, unsigned d) const {
    unsigned r = thread_rank();
    return kw::emu::shuffle(mask_, v, r >= d ? lane_of(r - d) : 0, r < d);
  }
  template <class T> T shfl_xor(T v, unsigned x) const {
    unsigned r = thread_rank() ^ x;
    return kw::emu::shuffle(mask_, v, r < size() ? lane_of(r) : 0, r >= size());
  }
  unsigned ballot(int p) const { return compact(__ballot_sync(mask_, p)); }
  int any(int p) const { return __ballot_sync(mask_, p) != 0; }
  int all(int p) const { return __ballot_sync(mask_, !p) == 0; }
  template <class T> unsigned match_any(T v) const { return compact(__match_any_sync(mask_, v)); }
  unsigned kw_mask() const { return mask_; }

 private:
  int lane_of(unsigned rank) const {
    for (int i = 0; i < 32; i++) if ((mask_ >> i & 1) && rank-- == 0) return i;
    return 0;
  }
  unsigned compact(unsigned bits) const {
    unsigned out = 0, k = 0;
    for (int i = 0; i < 32; i++) if (mask_ >> i & 1) out |= (bits >> i & 1) << k++;
    return out;
  }
  unsigned mask_;
};

class coalesced_group : public kw_lanes {
 public:
  explicit coalesced_group(unsigned mask) : kw_lanes(mask) {}
  unsigned meta_group_rank() const { return 0; }
  unsigned meta_group_size() const { return 1; }
};
inline coalesced_group coalesced_threads() { return coalesced_group(kw::emu::converged_lanes()); }

template <unsigned N, class Parent = void> class thread_block_tile : public kw_lanes {
 public:
  static_assert(N && N <= 32 && (N & (N - 1)) == 0, "tiles of up to 32 threads, powers of two");
  thread_block_tile() : kw_lanes((N == 32 ? ~0u : (1u << (N & 31)) - 1) << (kw::emu::lane() & ~(N - 1))) {}
  template <class Q, class P = Parent, class = std::enable_if_t<std::is_void<P>::value>>
  thread_block_tile(const thread_block_tile<N, Q>& other) : kw_lanes(other) {}  // `thread_block_tile<32> t = tiled_partition<32>(b);`
  static constexpr unsigned size() { return N; }
  static constexpr unsigned num_threads() { return N; }
  unsigned thread_rank() const { return kw::emu::lane() & (N - 1); }
  unsigned meta_group_rank() const { return unsigned(kw_thread_in_block() / N); }
  unsigned meta_group_size() const { return (blockDim.x * blockDim.y * blockDim.z + N - 1) / N; }
};
template <unsigned N, class P> thread_block_tile<N, P> tiled_partition(const P&) { return {}; }
inline coalesced_group tiled_partition(const thread_block&, unsigned n) {
  return coalesced_group((n >= 32 ? ~0u : (1u << n) - 1) << (kw::emu::lane() & ~(n - 1)));
}
inline coalesced_group binary_partition(const coalesced_group& g, bool p) {
  unsigned yes = __ballot_sync(g.kw_mask(), p);
  return coalesced_group(p ? yes : g.kw_mask() & ~yes);
}
inline coalesced_group labeled_partition(const coalesced_group& g, int label) { return coalesced_group(__match_any_sync(g.kw_mask(), label)); }

template <class G> void sync(const G& g) { g.sync(); }
template <class G> unsigned thread_rank(const G& g) { return g.thread_rank(); }
template <class G, class T, class F> T reduce(const G& g, T v, F f) { return kw::emu::fold(g.kw_mask(), v, f); }
template <class G, class T, class F> T inclusive_scan(const G& g, T v, F f) {
  kw::emu::Meeting m = kw::emu::meet(g.kw_mask(), &v, sizeof v);
  T sum{};
  bool first = true;
  for (unsigned i = 0; i <= kw::emu::lane(); i++)
    if (m.present >> i & 1) { T x = kw::emu::read_lane<T>(m, i); sum = first ? x : f(sum, x); first = false; }
  return sum;
}
template <class G, class T> T inclusive_scan(const G& g, T v) { return inclusive_scan(g, v, plus<T>()); }
template <class G, class T, class F> T exclusive_scan(const G& g, T v, F f) {
  T sum = inclusive_scan(g, v, f), before = g.shfl_up(sum, 1);
  return g.thread_rank() ? before : T{};
}
template <class G, class T> T exclusive_scan(const G& g, T v) { return exclusive_scan(g, v, plus<T>()); }
template <class G> void memcpy_async(const G& g, void* to, const void* from, size_t bytes) {
  if (g.thread_rank() == 0) std::memcpy(to, from, bytes);
}
template <class G, class T> void memcpy_async(const G& g, T* to, const T* from, size_t bytes) {
  if (g.thread_rank() == 0) std::memcpy(to, from, bytes);
}
template <class G> void wait(const G& g) { g.sync(); }
template <unsigned N, class G> void wait_prior(const G& g) { g.sync(); }

}  // namespace cooperative_groups
