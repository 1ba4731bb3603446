// Weights packed once for the tiles of tile.h, and the product of rows with them.
#pragma once

#include <vector>

#include "expanded.h"
#include "memory.h"
#include "rows.h"
#include "tile.h"

namespace nightmill {

// A matrix [outputs, inputs] in panels of PANEL outputs. Word s of a panel holds, for each of its outputs, the inputs
// GROUP * s and those after it.
struct Matrix {
  Format format = Format::FP32;
  int outputs = 0;
  int inputs = 0;
  int panels = 0;
  int steps = 0;
  Buffer data;
  std::vector<float> scales;  // [panels * PANEL], int8 only
  std::vector<float> bias;    // [panels * PANEL], or empty
  Codes codes;                // of weights alone: then data holds them, and products are in fp32

  size_t panel_bytes() const {
    return codes.bits != 0 ? codes.panel_bytes(inputs) : static_cast<size_t>(steps) * PANEL * 4;
  }
};

// kernels/blocks.py: codes [outputs, inputs], scales and minimums [outputs, groups].
struct Blocks {
  const uint8_t* codes;
  const float* scales;
  const float* minimums;
  int32_t outputs;
  int32_t inputs;
  int32_t group;
  int32_t bits;
};

// Packs `source` [outputs, inputs]. With `paired`, the first half of its rows (gates) and the second (ups) alternate by
// vectors: a panel holds LANES gates and the LANES ups that belong to them.
Matrix pack(Format format, const float* source, int outputs, int inputs, bool paired, const float* bias);

// The same of weights in blocks.
Matrix pack_blocks(const Blocks& blocks, bool paired, const float* bias);

// A matrix of floats without its numbers.
Matrix empty_matrix(int outputs, int inputs, bool paired);

// The source row at place `i` of all panels' outputs; -1 beyond the matrix.
int source_row(const Matrix& matrix, bool paired, int i);

// Row `row` of an unpaired matrix, as floats -> out[inputs].
void unpack_row(const Matrix& matrix, int row, float* out);
void expand_row(const Matrix& matrix, int row, float* out);  // where it has codes

// Sums of a tile as floats: the epilogue's view of one panel.
template <class F>
struct Finish {
  const Left& left;
  const float* scales;  // of the panel's outputs

  Floats operator()(const char* sum, int row, int i_vector) const {
    if constexpr (F::FORMAT == Format::INT8) {
      return mul(to_floats(load_words(sum)), mul(all(left.scales[row]), load(scales + i_vector * LANES)));
    } else {
      return load(reinterpret_cast<const float*>(sum));
    }
  }
};

// multiply() where the matrix has codes.
template <class Sink>
void multiply_in_codes(const Left& left, int rows, const Matrix& matrix, int first, int last, Sink sink) {
  alignas(64) float sums[MOST_EXPANDED_ROWS * PANEL];
  for (int panel = first; panel < last; panel++) {
    const char* data = matrix.data.get() + static_cast<size_t>(panel) * matrix.panel_bytes();
    const float* bias = matrix.bias.empty() ? nullptr : matrix.bias.data() + panel * PANEL;
    for (int row = 0; row < rows; row += MOST_EXPANDED_ROWS) {
      const int count = std::min(MOST_EXPANDED_ROWS, rows - row);
      multiply_codes(matrix.codes, data, matrix.inputs, left.data + row * left.stride, left.stride, count, sums);
      for (int r = 0; r < count; r++) {
        Floats x0 = load(sums + r * PANEL), x1 = load(sums + r * PANEL + LANES);
        if (bias != nullptr) {
          x0 = add(x0, load(bias));
          x1 = add(x1, load(bias + LANES));
        }
        sink(row + r, panel, x0, x1);
      }
    }
  }
}

// left [rows, inputs] times panels [first, last) of the matrix, bias added. sink(row, panel, x0, x1) takes each row's
// two vectors of a panel.
template <class F, class Sink>
void multiply(const Left& left, int rows, const Matrix& matrix, int first, int last, Sink sink) {
  if constexpr (F::FORMAT == Format::FP32)
    if (matrix.codes.bits != 0) return multiply_in_codes(left, rows, matrix, first, last, sink);
  alignas(64) char sums[F::MOST_ROWS * PANEL * 4];
  const ptrdiff_t bytes = static_cast<ptrdiff_t>(matrix.panel_bytes()), ahead[2] = {bytes, bytes};
  for (int panel = first; panel < last; panel++) {
    const char* data = matrix.data.get() + panel * bytes;
    const Packed packed{&data, 1, matrix.steps, {0, VECTOR_BYTES}, 2 * VECTOR_BYTES, ahead};
    const Finish<F> finish{left, matrix.scales.data() + panel * PANEL};
    const float* bias = matrix.bias.empty() ? nullptr : matrix.bias.data() + panel * PANEL;
    for_each_tile<F>(rows, [&](int row, int height) {
      multiply_rows<F>(height, left.data + row * left.stride, left.stride, left.starts + row, packed, sums,
                       2 * VECTOR_BYTES);
      for (int r = 0; r < height; r++) {
        Floats x0 = finish(sums + 2 * r * VECTOR_BYTES, row + r, 0);
        Floats x1 = finish(sums + (2 * r + 1) * VECTOR_BYTES, row + r, 1);
        if (bias != nullptr) {
          x0 = add(x0, load(bias));
          x1 = add(x1, load(bias + LANES));
        }
        sink(row + r, panel, x0, x1);
      }
    });
  }
}

}  // namespace nightmill
