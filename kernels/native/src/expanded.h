// Products of rows of floats with matrices of 4- or 8-bit codes, which become floats just before they are used.
//
// A panel has its groups of inputs one after the other: PANEL scales, PANEL minimums, then for each input of the group
// the codes of its outputs: PANEL bytes, or LANES bytes with the first vector's in the low halves and the second's in
// the high ones. An element is scale * code + minimum, rounded once. Sums are taken in the order of tile.h, so they are
// those of a matrix of such floats to the bit.
#pragma once

#include <algorithm>
#include <type_traits>

#include "tile.h"

namespace nightmill {

// How a matrix's codes lie. bits == 0: it has none.
struct Codes {
  int bits = 0;
  int group = 0;      // inputs
  bool half = false;  // scales and minimums are kept as fp16, because that loses nothing

  size_t scale_bytes() const { return PANEL * (half ? 2 : 4); }
  size_t input_bytes() const { return static_cast<size_t>(PANEL * bits / 8); }
  size_t panel_bytes(int inputs) const {
    const size_t groups = static_cast<size_t>((inputs + group - 1) / group);
    return groups * 2 * scale_bytes() + static_cast<size_t>(inputs) * input_bytes();
  }
};

// Calls work(bits, half), both as integral constants.
template <class Work>
void with_codes(const Codes& codes, Work work) {
  using std::bool_constant, std::integral_constant;
  if (codes.bits == 4) {
    if (codes.half) work(integral_constant<int, 4>(), bool_constant<true>());
    else work(integral_constant<int, 4>(), bool_constant<false>());
  } else {
    if (codes.half) work(integral_constant<int, 8>(), bool_constant<true>());
    else work(integral_constant<int, 8>(), bool_constant<false>());
  }
}

template <bool HALF>
Floats load_scales(const char* p, int i_vector) {
#ifdef __F16C__
  if constexpr (HALF) return load_half_floats(p + i_vector * LANES * 2);
#endif
  return load(reinterpret_cast<const float*>(p) + i_vector * LANES);
}

// Scales and minimums of a group, at `from`, which moves on.
struct Group {
  Floats scales[2];
  Floats minimums[2];
};

template <bool HALF>
Group read_group(const char*& from) {
  constexpr int BYTES = PANEL * (HALF ? 2 : 4);
  const Group group{{load_scales<HALF>(from, 0), load_scales<HALF>(from, 1)},
                    {load_scales<HALF>(from + BYTES, 0), load_scales<HALF>(from + BYTES, 1)}};
  from += 2 * BYTES;
  return group;
}

// The codes of one input at `from`, which moves on -> its PANEL numbers.
template <int BITS>
void read_input(const char*& from, const Group& group, Floats& x0, Floats& x1) {
  Words c0 = widen_bytes(from), c1;
  if constexpr (BITS == 4) {
    c1 = shift_right<4>(c0);
    c0 = and_words(c0, all_words(15));
  } else {
    c1 = widen_bytes(from + LANES);
  }
  from += PANEL * BITS / 8;
  x0 = fma(to_floats(c0), group.scales[0], group.minimums[0]);
  x1 = fma(to_floats(c1), group.scales[1], group.minimums[1]);
}

// Few rows: the numbers are used as they come and never written down. So many rows' sums fit registers beside them.
constexpr int MOST_DIRECT_ROWS = NIGHTMILL_AVX512 ? 8 : 4;

template <int BITS, bool HALF, int ROWS>
void multiply_direct(int group_size, const char* panel, int inputs, const char* a, ptrdiff_t a_stride, float* out) {
  Floats sums[ROWS][2];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++) sums[r][0] = sums[r][1] = zeros();
  for (int first = 0; first < inputs; first += group_size) {
    const Group group = read_group<HALF>(panel);
    const char* const end = a + std::min(group_size, inputs - first) * 4;
    for (; a != end; a += 4) {
      Floats x0, x1;
      read_input<BITS>(panel, group, x0, x1);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) {
        const Floats y = as_floats(broadcast(a + r * a_stride));
        sums[r][0] = fma(x0, y, sums[r][0]);
        sums[r][1] = fma(x1, y, sums[r][1]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++) {
    store(out + r * PANEL, sums[r][0]);
    store(out + r * PANEL + LANES, sums[r][1]);
  }
}

// Many rows: some inputs at a time are written down as floats, in the nearest cache, for all rows.
constexpr int EXPANDED_INPUTS = 128;  // inputs
constexpr int MOST_EXPANDED_ROWS = 56;

// Reads a panel's inputs in order, some at a time.
template <int BITS, bool HALF>
struct Reader {
  const char* from;  // of the panel
  int group_size;
  int left = 0;  // inputs of the group that are still to be read
  Group group{};

  void read(int count, float* to) {
    for (int i = 0; i < count; i++, left--, to += PANEL) {
      if (left == 0) {
        group = read_group<HALF>(from);
        left = group_size;
      }
      Floats x0, x1;
      read_input<BITS>(from, group, x0, x1);
      store(to, x0);
      store(to + LANES, x1);
    }
  }
};

// sums [ROWS, PANEL] += rows of a times `count` inputs' numbers.
template <int ROWS>
void add_chunk(const char* a, ptrdiff_t a_stride, const float* numbers, int count, float* out) {
  Floats sums[ROWS][2];
  constexpr int BASES = (ROWS + 2) / 3;  // one register addresses three rows
  const char* bases[BASES];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++) {
    sums[r][0] = load(out + r * PANEL);
    sums[r][1] = load(out + r * PANEL + LANES);
  }
#pragma GCC unroll 16
  for (int i = 0; i < BASES; i++) bases[i] = a + 3 * i * a_stride;
  for (int k = 0; k < count; k++, numbers += PANEL) {
    const Floats x0 = load(numbers), x1 = load(numbers + LANES);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
      const Floats y = as_floats(broadcast(bases[r / 3] + (r % 3) * a_stride));
      sums[r][0] = fma(x0, y, sums[r][0]);
      sums[r][1] = fma(x1, y, sums[r][1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < BASES; i++) bases[i] += 4;
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++) {
    store(out + r * PANEL, sums[r][0]);
    store(out + r * PANEL + LANES, sums[r][1]);
  }
}

// Calls work(rows as an integral constant) for 1 <= rows <= MOST.
template <int MOST, int ROWS = 1, class Work>
void with_rows(int rows, Work work) {
  if constexpr (ROWS < MOST) {
    if (rows != ROWS) return with_rows<MOST, ROWS + 1>(rows, work);
  }
  work(std::integral_constant<int, ROWS>());
}

// rows [rows, inputs] of floats at `a` times one panel of codes -> out [rows, PANEL]; rows <= MOST_EXPANDED_ROWS.
inline void multiply_codes(const Codes& codes, const char* panel, int inputs, const char* a, ptrdiff_t a_stride,
                           int rows, float* out) {
  with_codes(codes, [&](auto bits, auto half) {
    if (rows <= MOST_DIRECT_ROWS) {
      with_rows<MOST_DIRECT_ROWS>(rows, [&](auto count) {
        multiply_direct<bits, half, count>(codes.group, panel, inputs, a, a_stride, out);
      });
      return;
    }
    alignas(64) float numbers[EXPANDED_INPUTS * PANEL];
    std::fill_n(out, rows * PANEL, 0.0f);
    Reader<bits, half> reader{panel, codes.group};
    for (int first = 0; first < inputs; first += EXPANDED_INPUTS) {
      const int count = std::min(EXPANDED_INPUTS, inputs - first);
      reader.read(count, numbers);
      for_each_tile<Fp32>(rows, [&](int row, int height) {
        with_rows<Fp32::MOST_ROWS>(height, [&](auto tile) {
          add_chunk<tile>(a + row * a_stride + first * 4, a_stride, numbers, count, out + row * PANEL);
        });
      });
    }
  });
}

}  // namespace nightmill
