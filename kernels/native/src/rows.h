// Rows of floats on their way into a product: normalised, converted, quantised.
//
// Rows of floats are padded with zeros to a multiple of 16 elements, so that whole vectors may be read and written.
#pragma once

#include "formats.h"

namespace nightmill {

constexpr int ROW_PADDING = 16;

// The rows of a product in the format's elements. Row r begins at data + r * stride.
struct Left {
  char* data;
  ptrdiff_t stride;  // bytes
  float* scales;     // [rows], int8 only: value = scale * element
  int32_t* starts;   // [rows], int8 only: what the row's sums begin with to take PACKED_OFFSET out of them
};

template <class F>
size_t bytes_of_row(int columns) {
  // An odd number of cache lines: rows spread over all sets of the cache.
  const size_t lines = (static_cast<size_t>(round_up(columns, ROW_PADDING)) * sizeof(typename F::Element) + 63) / 64;
  return (lines | 1) * 64;
}

// Folds a row's vectors, in four chains that do not wait for each other, and then the chains.
template <class Take, class Join>
Floats fold(const float* x, int size, Take take, Join join) {
  constexpr int CHAINS = 4;
  Floats chains[CHAINS] = {zeros(), zeros(), zeros(), zeros()};
  int i = 0;
  for (; i + CHAINS * LANES <= size; i += CHAINS * LANES)
    for (int j = 0; j < CHAINS; j++) chains[j] = take(chains[j], load(x + i + j * LANES));
  for (; i < size; i += LANES) chains[0] = take(chains[0], load(x + i));
  return join(join(chains[0], chains[1]), join(chains[2], chains[3]));
}

inline float largest_magnitude(const float* x, int size) {
  return largest(fold(x, size, [](Floats most, Floats v) { return max(most, magnitude(v)); }, max));
}

inline float sum_of_squares(const float* x, int size) {
  return sum(fold(x, size, [](Floats total, Floats v) { return fma(v, v, total); }, add));
}

// Elements round(x * 127 / the largest magnitude) of one row -> their scale.
inline float quantise_row(const float* x, int size, float most, int8_t* out, int32_t* start) {
  const Floats inverse = all(most > 0.0f ? 127.0f / most : 0.0f);
  Words total = zero_words();
  const auto quantised = [&](int i) {
    const Words q = to_words(mul(load(x + i), inverse));
    total = add_words(total, q);
    return q;
  };
  int i = 0;
  for (; i + 4 * LANES <= size; i += 4 * LANES)
    store_bytes(out + i, quantised(i), quantised(i + LANES), quantised(i + 2 * LANES), quantised(i + 3 * LANES));
  for (; i < size; i += LANES) store_bytes(out + i, quantised(i));
  *start = -PACKED_OFFSET * sum_words(total);
  return most / 127.0f;
}

// Converts one row of floats to row r of `left`.
template <class F>
void convert_row(const float* x, int size, const Left& left, int r) {
  char* out = left.data + r * left.stride;
  if constexpr (F::FORMAT == Format::FP32) {
    std::memcpy(out, x, static_cast<size_t>(size) * sizeof(float));
  } else if constexpr (F::FORMAT == Format::BF16) {
    for (int i = 0; i < size; i += LANES) store_halves(out + 2 * i, to_bf16(load(x + i)));
  } else {
    const float most = largest_magnitude(x, size);
    left.scales[r] = quantise_row(x, size, most, reinterpret_cast<int8_t*>(out), &left.starts[r]);
  }
}

// x / sqrt(mean(x^2) + eps) * weight. `columns` elements count, `size` (padded) are written.
inline void normalise_row(const float* x, const float* weight, int columns, int size, float eps, float* out) {
  const Floats scale = all(1.0f / std::sqrt(sum_of_squares(x, size) / static_cast<float>(columns) + eps));
  for (int i = 0; i < size; i += LANES) store(out + i, mul(mul(load(x + i), scale), load(weight + i)));
}

}  // namespace nightmill
