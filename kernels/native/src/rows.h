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
  int32_t* sums;     // [rows], int8 only: PACKED_OFFSET * the sum of the row's elements
};

template <class F>
size_t bytes_of_row(int columns) {
  // An odd number of cache lines: rows spread over all sets of the cache.
  const size_t lines = (static_cast<size_t>(round_up(columns, ROW_PADDING)) * sizeof(typename F::Element) + 63) / 64;
  return (lines | 1) * 64;
}

inline float largest_magnitude(const float* x, int size) {
  Floats most = zeros();
  for (int i = 0; i < size; i += LANES) most = max(most, magnitude(load(x + i)));
  return largest(most);
}

// Elements round(x * 127 / the largest magnitude) of one row -> their scale.
inline float quantise_row(const float* x, int size, float most, int8_t* out, int32_t* offset_sum) {
  const float inverse = most > 0.0f ? 127.0f / most : 0.0f;
  Words total = zero_words();
  for (int i = 0; i < size; i += LANES) {
    const Words q = to_words(mul(load(x + i), all(inverse)));
    total = add_words(total, q);
    store_bytes(out + i, q);
  }
  *offset_sum = PACKED_OFFSET * sum_words(total);
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
    left.scales[r] = quantise_row(x, size, most, reinterpret_cast<int8_t*>(out), &left.sums[r]);
  }
}

// x / sqrt(mean(x^2) + eps) * weight. `columns` elements count, `size` (padded) are written.
inline void normalise_row(const float* x, const float* weight, int columns, int size, float eps, float* out) {
  Floats squares = zeros();
  for (int i = 0; i < size; i += LANES) squares = fma(load(x + i), load(x + i), squares);
  const Floats scale = all(1.0f / std::sqrt(sum(squares) / static_cast<float>(columns) + eps));
  for (int i = 0; i < size; i += LANES) store(out + i, mul(mul(load(x + i), scale), load(weight + i)));
}

}  // namespace nightmill
