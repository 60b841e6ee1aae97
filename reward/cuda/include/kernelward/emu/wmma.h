// nvcuda::wmma in plain form: a fragment's elements lie spread over the 32 lanes, eight or so to each; a product meets in
// the warp's scratch memory and is accumulated in float.
#pragma once
#include "kernelward/emu/half.h"
#include "kernelward/emu/warp.h"

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision { struct tf32 {}; }

template <class T> struct kw_storage { using type = T; };
template <> struct kw_storage<precision::tf32> { using type = float; };

template <class Use, int M, int N, int K, class T, class Layout = void> class fragment {
 public:
  using element_type = typename kw_storage<T>::type;
  static constexpr int kw_rows = std::is_same<Use, matrix_b>::value ? K : M;
  static constexpr int kw_columns = std::is_same<Use, matrix_a>::value ? K : N;
  static constexpr int num_elements = kw_rows * kw_columns / 32;
  element_type x[num_elements];
};

inline float __float_to_tf32(float v) {
  uint32_t b = kw::emu::bits<uint32_t>(v);
  if ((b & 0x7F800000u) == 0x7F800000u) return v;
  b = (b + 0x1000u) & 0xFFFFE000u;
  return kw::emu::bits<float>(b);
}

template <class U, int M, int N, int K, class T, class L> void fill_fragment(fragment<U, M, N, K, T, L>& f, typename kw_storage<T>::type v) {
  for (auto& x : f.x) x = v;
}
template <class F> bool kw_row_major(layout_t layout) { return layout == mem_row_major; }

template <class U, int M, int N, int K, class T, class L, class P> void kw_load(fragment<U, M, N, K, T, L>& f, const P* p, unsigned ld, bool rows) {
  using F = fragment<U, M, N, K, T, L>;
  __syncwarp();
  for (int i = 0; i < F::num_elements; i++) {
    unsigned e = kw::emu::lane() * F::num_elements + unsigned(i), r = e / F::kw_columns, c = e % F::kw_columns;
    f.x[i] = rows ? p[r * ld + c] : p[c * ld + r];
  }
  __syncwarp();
}
template <class U, int M, int N, int K, class T, class L, class P> void load_matrix_sync(fragment<U, M, N, K, T, L>& f, const P* p, unsigned ld) {
  kw_load(f, p, ld, std::is_same<L, row_major>::value);
}
template <int M, int N, int K, class T, class P> void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, const P* p, unsigned ld, layout_t layout) {
  kw_load(f, p, ld, layout == mem_row_major);
}
template <int M, int N, int K, class T, class P> void store_matrix_sync(P* p, const fragment<accumulator, M, N, K, T>& f, unsigned ld, layout_t layout) {
  using F = fragment<accumulator, M, N, K, T>;
  __syncwarp();
  for (int i = 0; i < F::num_elements; i++) {
    unsigned e = kw::emu::lane() * F::num_elements + unsigned(i), r = e / N, c = e % N;
    (layout == mem_row_major ? p[r * ld + c] : p[c * ld + r]) = f.x[i];
  }
  __syncwarp();
}
template <int N> struct kw_floats { typedef float type __attribute__((vector_size(N * sizeof(float)))); };
template <int M, int N, int K, class A, class LA, class B, class LB, class C, class D>
KW_UNTRACKED void mma_sync(fragment<accumulator, M, N, K, D>& d, const fragment<matrix_a, M, N, K, A, LA>& a,
                           const fragment<matrix_b, M, N, K, B, LB>& b, const fragment<accumulator, M, N, K, C>& c) {
  float* left = static_cast<float*>(kw::emu::warp_scratch());
  float* right = left + M * K;
  unsigned l = kw::emu::lane();
  constexpr bool tf32 = std::is_same<A, precision::tf32>::value;
  for (int i = 0; i < M * K / 32; i++) left[l * (M * K / 32) + unsigned(i)] = tf32 ? __float_to_tf32(float(a.x[i])) : float(a.x[i]);
  for (int i = 0; i < K * N / 32; i++) right[l * (K * N / 32) + unsigned(i)] = tf32 ? __float_to_tf32(float(b.x[i])) : float(b.x[i]);
  __syncwarp();
  constexpr int each = M * N / 32;  // of one row
  using Part = typename kw_floats<each>::type;
  unsigned r = l * each / N, k = l * each % N;
  Part sum{}, row{};
  for (int i = 0; i < each; i++) sum[i] = float(c.x[i]);
  for (int j = 0; j < K; j++) {
    std::memcpy(&row, right + unsigned(j) * N + k, sizeof row);
    sum += left[r * K + unsigned(j)] * row;
  }
  for (int i = 0; i < each; i++) d.x[i] = sum[i];
  __syncwarp();
}

}  // namespace wmma
}  // namespace nvcuda
