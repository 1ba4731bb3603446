// The innermost loop of every product: a tile of a few rows by two vectors of columns, kept in registers over all of K.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "formats.h"

namespace nightmill {

// Columns of one panel of a packed matrix: two vectors.
constexpr int PANEL = 2 * LANES;
constexpr int VECTOR_BYTES = LANES * 4;

// The packed side: `num_parts` stretches of `steps` words per column, each step `stride` bytes after the one before.
// Column vector v of part i begins at parts[i] + offsets[v]. Beside each word that is used, the one 2 * i + v of `ahead`
// bytes after it is fetched into the cache.
struct Packed {
  const char* const* parts;
  int num_parts;
  int steps;
  ptrdiff_t offsets[2];
  ptrdiff_t stride;
  const ptrdiff_t* ahead;  // [2 * num_parts]
};

// Rows: `a` is the first row's words, over all parts one after the other, `a_stride` bytes from row to row. A row's sums
// begin with its element of `starts` where the format has such (Left) and the pointer is not null, else with zero.
// Sums go to `out` as 32-bit values, `out_stride` bytes from row to row, the two vectors beside each other.
// A row's sum is taken in the order of K alone, whatever rows are beside it.
template <class F, int ROWS>
void multiply_tile(const char* a, ptrdiff_t a_stride, const int32_t* starts, const Packed& b, char* out,
                   ptrdiff_t out_stride) {
  typename F::Sum sums[ROWS][2];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++) sums[r][0] = sums[r][1] = F::begin(starts, r);
  constexpr int BASES = (ROWS + 2) / 3;  // one register addresses three rows
  const char* bases[BASES];
#pragma GCC unroll 16
  for (int i = 0; i < BASES; i++) bases[i] = a + 3 * i * a_stride;
  for (int i_part = 0; i_part < b.num_parts; i_part++) {
    const char* w0 = b.parts[i_part] + b.offsets[0];
    const char* w1 = b.parts[i_part] + b.offsets[1];
    const ptrdiff_t ahead0 = b.ahead[2 * i_part], ahead1 = b.ahead[2 * i_part + 1];
    for (int k = 0; k < b.steps; k++) {
      const auto x0 = F::right(load_words(w0));
      const auto x1 = F::right(load_words(w1));
      _mm_prefetch(w0 + ahead0, _MM_HINT_T1);
      _mm_prefetch(w1 + ahead1, _MM_HINT_T1);
      w0 += b.stride;
      w1 += b.stride;
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) {
        const auto y = F::left(broadcast(bases[r / 3] + (r % 3) * a_stride));
        sums[r][0] = F::dot(sums[r][0], x0, y);
        sums[r][1] = F::dot(sums[r][1], x1, y);
      }
#pragma GCC unroll 16
      for (int i = 0; i < BASES; i++) bases[i] += 4;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++) {
    F::put(out + r * out_stride, sums[r][0]);
    F::put(out + r * out_stride + VECTOR_BYTES, sums[r][1]);
  }
}

using TileFunction = void (*)(const char*, ptrdiff_t, const int32_t*, const Packed&, char*, ptrdiff_t);

template <class F, size_t... I>
constexpr std::array<TileFunction, sizeof...(I)> tile_functions(std::index_sequence<I...>) {
  return {multiply_tile<F, static_cast<int>(I) + 1>...};
}

// Any number of rows up to F::MOST_ROWS.
template <class F>
void multiply_rows(int rows, const char* a, ptrdiff_t a_stride, const int32_t* starts, const Packed& b, char* out,
                   ptrdiff_t out_stride) {
  static constexpr auto FUNCTIONS = tile_functions<F>(std::make_index_sequence<F::MOST_ROWS>());
  FUNCTIONS[static_cast<size_t>(rows - 1)](a, a_stride, starts, b, out, out_stride);
}

// `rows` in the fewest tiles of nearly equal height: fn(first row, rows).
template <class F, class Function>
void for_each_tile(int rows, Function fn) {
  const int num_tiles = (rows + F::MOST_ROWS - 1) / F::MOST_ROWS;
  for (int i = 0; i < num_tiles; i++) {
    const int first = rows * i / num_tiles;
    fn(first, rows * (i + 1) / num_tiles - first);
  }
}

}  // namespace nightmill
