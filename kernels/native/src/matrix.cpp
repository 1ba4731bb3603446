#include "matrix.h"

#include <algorithm>

namespace nightmill {

namespace {

uint16_t bf16_of(float x) {
  uint32_t b;
  std::memcpy(&b, &x, sizeof b);
  return static_cast<uint16_t>((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}

// One output's elements, each at its place in the panel. Returns the scale.
float pack_row(Format format, const float* x, int inputs, char* lane_of_panel) {
  const int group = format == Format::FP32 ? 1 : format == Format::BF16 ? 2 : 4;
  const int size = 4 / group;
  float most = 0.0f;
  for (int i = 0; i < inputs; i++) most = std::max(most, std::fabs(x[i]));
  const float inverse = most > 0.0f ? 127.0f / most : 0.0f;
  for (int i = 0; i < inputs; i++) {
    char* place = lane_of_panel + static_cast<size_t>(i / group) * PANEL * 4 + static_cast<size_t>(i % group * size);
    if (format == Format::FP32) {
      std::memcpy(place, &x[i], 4);
    } else if (format == Format::BF16) {
      const uint16_t h = bf16_of(x[i]);
      std::memcpy(place, &h, 2);
    } else {
      *place = static_cast<char>(std::lrint(x[i] * inverse) + PACKED_OFFSET);
    }
  }
  return most / 127.0f;
}

}  // namespace

int source_row(const Matrix& matrix, bool paired, int i) {
  if (!paired) return i < matrix.outputs ? i : -1;
  const int half = matrix.outputs / 2, row = i / PANEL * LANES + i % LANES;
  return row < half ? i % PANEL / LANES * half + row : -1;
}

Matrix empty_matrix(int outputs, int inputs, bool paired) {
  Matrix matrix;
  matrix.outputs = outputs;
  matrix.inputs = inputs;
  matrix.panels = (outputs / (paired ? 2 : 1) + (paired ? LANES : PANEL) - 1) / (paired ? LANES : PANEL);
  matrix.steps = inputs;
  return matrix;
}

Matrix pack(Format format, const float* source, int outputs, int inputs, bool paired, const float* bias) {
  Matrix matrix = empty_matrix(outputs, inputs, paired);
  matrix.format = format;
  const int group = format == Format::FP32 ? 1 : format == Format::BF16 ? 2 : 4;
  matrix.steps = (inputs + group - 1) / group;
  const size_t bytes = matrix.panel_bytes() * static_cast<size_t>(matrix.panels);
  matrix.data = allocate(bytes);
  std::memset(matrix.data.get(), format == Format::INT8 ? PACKED_OFFSET : 0, bytes);
  const size_t padded = static_cast<size_t>(matrix.panels) * PANEL;
  if (format == Format::INT8) matrix.scales.assign(padded, 0.0f);
  if (bias != nullptr) matrix.bias.assign(padded, 0.0f);
  for (size_t i = 0; i < padded; i++) {
    const int row = source_row(matrix, paired, static_cast<int>(i));
    if (row < 0) continue;
    char* lane = matrix.data.get() + i / PANEL * matrix.panel_bytes() + (i % PANEL) * 4;
    const float scale = pack_row(format, source + static_cast<size_t>(row) * static_cast<size_t>(inputs), inputs, lane);
    if (format == Format::INT8) matrix.scales[i] = scale;
    if (bias != nullptr) matrix.bias[i] = bias[row];
  }
  return matrix;
}

void unpack_row(const Matrix& matrix, int row, float* out) {
  if (matrix.codes.bits != 0) return expand_row(matrix, row, out);
  const char* lane = matrix.data.get() + static_cast<size_t>(row / PANEL) * matrix.panel_bytes() + row % PANEL * 4;
  for (int s = 0; s < matrix.steps; s++, lane += PANEL * 4) {
    if (matrix.format == Format::FP32) {
      std::memcpy(&out[s], lane, 4);
    } else if (matrix.format == Format::BF16) {
      uint16_t pair[2];
      std::memcpy(pair, lane, 4);
      for (int i = 0; i < 2 && 2 * s + i < matrix.inputs; i++) out[2 * s + i] = from_bf16(pair[i]);
    } else {
      const float scale = matrix.scales[static_cast<size_t>(row)];
      for (int i = 0; i < 4 && 4 * s + i < matrix.inputs; i++) {
        const int q = PACKED_OFFSET != 0 ? static_cast<uint8_t>(lane[i]) - PACKED_OFFSET : static_cast<int8_t>(lane[i]);
        out[4 * s + i] = scale * static_cast<float>(q);
      }
    }
  }
}

}  // namespace nightmill
