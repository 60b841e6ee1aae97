// Warp-level operations as rendezvous of the lanes in the mask.
#pragma once
#include "kernelward/emu/runtime.h"

namespace kw {
namespace emu {

template <class T> inline T read_lane(const Meeting& m, unsigned source) {
  static_assert(sizeof(T) <= 16 && std::is_trivially_copyable<T>::value, "shuffles take values of up to 16 bytes");
  T out;
  if (m.present >> source & 1) std::memcpy(&out, m.values[source], sizeof(T));
  else std::memset(&out, poison_byte(), sizeof(T));
  return out;
}
template <class T> inline T shuffle(unsigned mask, T value, int source, bool own) {
  Meeting m = meet(mask, &value, sizeof(T));
  return own ? value : read_lane<T>(m, unsigned(source) & 31u);
}
template <class T, class F> inline T fold(unsigned mask, T value, F f) {
  Meeting m = meet(mask, &value, sizeof(T));
  bool first = true;
  T out{};
  for (unsigned i = 0; i < 32; i++)
    if (m.present >> i & 1) { T v = read_lane<T>(m, i); out = first ? v : f(out, v); first = false; }
  return out;
}

}  // namespace emu
}  // namespace kw

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) { kw::emu::meet(mask, nullptr, 0); }
inline unsigned __activemask() { return kw::emu::converged_lanes(); }
template <class T> inline T __shfl_sync(unsigned mask, T v, int source, int width = 32) {
  int l = int(kw::emu::lane());
  return kw::emu::shuffle(mask, v, (l & ~(width - 1)) | (source & (width - 1)), false);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, unsigned d, int width = 32) {
  int l = int(kw::emu::lane());
  return kw::emu::shuffle(mask, v, l - int(d), (l & (width - 1)) < int(d));
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, unsigned d, int width = 32) {
  int l = int(kw::emu::lane());
  return kw::emu::shuffle(mask, v, l + int(d), (l & (width - 1)) + int(d) >= width);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int x, int width = 32) {
  int l = int(kw::emu::lane()), s = l ^ x;
  return kw::emu::shuffle(mask, v, s, s / width > l / width);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  int p = predicate != 0;
  kw::emu::Meeting m = kw::emu::meet(mask, &p, sizeof p);
  unsigned bits = 0;
  for (unsigned i = 0; i < 32; i++) if ((m.present >> i & 1) && kw::emu::read_lane<int>(m, i)) bits |= 1u << i;
  return bits;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
template <class T> inline unsigned __match_any_sync(unsigned mask, T v) {
  kw::emu::Meeting m = kw::emu::meet(mask, &v, sizeof v);
  unsigned bits = 0;
  for (unsigned i = 0; i < 32; i++) if ((m.present >> i & 1) && kw::emu::read_lane<T>(m, i) == v) bits |= 1u << i;
  return bits;
}
template <class T> inline unsigned __match_all_sync(unsigned mask, T v, int* all) {
  unsigned same = __match_any_sync(mask, v);
  *all = (same & mask) == mask;
  return *all ? mask : 0;
}
inline unsigned __reduce_add_sync(unsigned m, unsigned v) { return kw::emu::fold(m, v, [](unsigned a, unsigned b) { return a + b; }); }
inline int __reduce_add_sync(unsigned m, int v) { return int(__reduce_add_sync(m, unsigned(v))); }
template <class T> inline T __reduce_min_sync(unsigned m, T v) { return kw::emu::fold(m, v, [](T a, T b) { return b < a ? b : a; }); }
template <class T> inline T __reduce_max_sync(unsigned m, T v) { return kw::emu::fold(m, v, [](T a, T b) { return a < b ? b : a; }); }
inline unsigned __reduce_and_sync(unsigned m, unsigned v) { return kw::emu::fold(m, v, [](unsigned a, unsigned b) { return a & b; }); }
inline unsigned __reduce_or_sync(unsigned m, unsigned v) { return kw::emu::fold(m, v, [](unsigned a, unsigned b) { return a | b; }); }
inline unsigned __reduce_xor_sync(unsigned m, unsigned v) { return kw::emu::fold(m, v, [](unsigned a, unsigned b) { return a ^ b; }); }
