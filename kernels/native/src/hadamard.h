// The transform that spreads a row's outliers over many features before it is quantised; kernels/quantised.py defines
// it. The weights are transformed alike beforehand, so that the product is the same.
#pragma once

#include <algorithm>

#include "simd.h"

namespace nightmill {

constexpr int GROUP_WIDTH = 16;
constexpr int MOST_GROUPS = 16;

// Sums and differences of each lane and the one DISTANCE lanes further, within one vector.
template <int DISTANCE>
Floats butterfly(Floats x) {
#if NIGHTMILL_AVX512
  const Words place = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const Floats other = DISTANCE == 1   ? _mm512_permute_ps(x, 0xb1)
                       : DISTANCE == 2 ? _mm512_permute_ps(x, 0x4e)
                       : DISTANCE == 4 ? _mm512_shuffle_f32x4(x, x, 0xb1)
                                       : _mm512_shuffle_f32x4(x, x, 0x4e);
  const Floats sign = _mm512_mask_mov_ps(all(1.0f), _mm512_test_epi32_mask(place, all_words(DISTANCE)), all(-1.0f));
#else
  const Words place = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const Floats other = DISTANCE == 1   ? _mm256_permute_ps(x, 0xb1)
                       : DISTANCE == 2 ? _mm256_permute_ps(x, 0x4e)
                                       : _mm256_permute2f128_ps(x, x, 1);
  const Words low = _mm256_cmpeq_epi32(and_words(place, all_words(DISTANCE)), zero_words());
  const Floats sign = _mm256_blendv_ps(all(-1.0f), all(1.0f), as_floats(low));
#endif
  return fma(x, sign, other);
}

inline void swap_sum(Floats& a, Floats& b) {
  const Floats sum = add(a, b);
  b = sub(a, b);
  a = sum;
}

// Across COUNT neighbouring groups: feature j of each with feature j of the others.
template <int COUNT>
void mix_groups(float* x) {
  for (int part = 0; part < GROUP_WIDTH; part += LANES) {
    Floats v[COUNT];
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; i++) v[i] = load(x + i * GROUP_WIDTH + part);
#pragma GCC unroll 4
    for (int half = 1; half < COUNT; half *= 2) {
#pragma GCC unroll 16
      for (int i = 0; i < COUNT; i++)
        if ((i & half) == 0) swap_sum(v[i], v[i + half]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; i++) store(x + i * GROUP_WIDTH + part, v[i]);
  }
}

// Within one group.
inline void mix_lanes(float* x) {
#if NIGHTMILL_AVX512
  store(x, butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(load(x))))));
#else
  Floats a = butterfly<4>(butterfly<2>(butterfly<1>(load(x))));
  Floats b = butterfly<4>(butterfly<2>(butterfly<1>(load(x + LANES))));
  swap_sum(a, b);
  store(x, a);
  store(x + LANES, b);
#endif
}

// x[size] -> transformed, in place. Twice it is x times a power of two.
inline void spread_row(float* x, int size) {
  if (size % GROUP_WIDTH != 0) return;
  const int groups = std::min(size / GROUP_WIDTH & -(size / GROUP_WIDTH), MOST_GROUPS);
  for (int i = 0; i < size; i += groups * GROUP_WIDTH) {
    if (groups == 16) mix_groups<16>(x + i);
    else if (groups == 8) mix_groups<8>(x + i);
    else if (groups == 4) mix_groups<4>(x + i);
    else if (groups == 2) mix_groups<2>(x + i);
  }
  if (groups == MOST_GROUPS) return;
  for (int i = 0; i < size; i += GROUP_WIDTH) mix_lanes(x + i);
}

}  // namespace nightmill
