#include "expanded.h"

#include "matrix.h"

namespace nightmill {

namespace {

// Whether fp16 holds all of them.
bool fit_halves(const float* values, size_t count) {
#ifdef __F16C__
  for (size_t i = 0; i < count; i++)
    if (_cvtsh_ss(_cvtss_sh(values[i], 0)) != values[i]) return false;
  return true;
#else
  (void)values;
  (void)count;
  return false;
#endif
}

void put_scale(char* place, size_t i, float value, bool half) {
#ifdef __F16C__
  if (half) {
    const uint16_t narrow = _cvtss_sh(value, 0);
    std::memcpy(place + 2 * i, &narrow, 2);
    return;
  }
#endif
  (void)half;
  std::memcpy(place + 4 * i, &value, 4);
}

float scale_at(const char* place, size_t i, bool half) {
#ifdef __F16C__
  if (half) {
    uint16_t narrow;
    std::memcpy(&narrow, place + 2 * i, 2);
    return _cvtsh_ss(narrow);
  }
#endif
  (void)half;
  float value;
  std::memcpy(&value, place + 4 * i, 4);
  return value;
}

}  // namespace

Matrix pack_blocks(const Blocks& blocks, bool paired, const float* bias) {
  Matrix matrix = empty_matrix(blocks.outputs, blocks.inputs, paired);
  const size_t inputs = static_cast<size_t>(blocks.inputs), group = static_cast<size_t>(blocks.group);
  const size_t groups = (inputs + group - 1) / group, scales = groups * static_cast<size_t>(blocks.outputs);
  Codes& codes = matrix.codes;
  codes.bits = blocks.bits;
  codes.group = blocks.group;
  codes.half = fit_halves(blocks.scales, scales) && fit_halves(blocks.minimums, scales);
  const size_t bytes = matrix.panel_bytes() * static_cast<size_t>(matrix.panels);
  matrix.data = allocate(bytes);
  std::memset(matrix.data.get(), 0, bytes);
  const size_t padded = static_cast<size_t>(matrix.panels) * PANEL;
  if (bias != nullptr) matrix.bias.assign(padded, 0.0f);
  for (size_t i = 0; i < padded; i++) {
    const int row = source_row(matrix, paired, static_cast<int>(i));
    if (row < 0) continue;
    if (bias != nullptr) matrix.bias[i] = bias[row];
    const size_t place = i % PANEL, r = static_cast<size_t>(row);
    char* to = matrix.data.get() + i / PANEL * matrix.panel_bytes();
    for (size_t g = 0; g < groups; g++) {
      put_scale(to, place, blocks.scales[r * groups + g], codes.half);
      to += codes.scale_bytes();
      put_scale(to, place, blocks.minimums[r * groups + g], codes.half);
      to += codes.scale_bytes();
      for (size_t k = g * group; k < std::min(inputs, (g + 1) * group); k++) {
        const uint8_t code = blocks.codes[r * inputs + k];
        if (codes.bits == 8) to[place] = static_cast<char>(code);
        else to[place % LANES] = static_cast<char>(to[place % LANES] | code << (place < LANES ? 0 : 4));
        to += PANEL * codes.bits / 8;
      }
    }
  }
  return matrix;
}

void expand_row(const Matrix& matrix, int row, float* out) {
  const Codes& codes = matrix.codes;
  const size_t place = static_cast<size_t>(row % PANEL);
  const char* from = matrix.data.get() + static_cast<size_t>(row / PANEL) * matrix.panel_bytes();
  for (int first = 0; first < matrix.inputs; first += codes.group) {
    const float scale = scale_at(from, place, codes.half), minimum = scale_at(from + codes.scale_bytes(), place, codes.half);
    from += 2 * codes.scale_bytes();
    for (int k = first; k < std::min(matrix.inputs, first + codes.group); k++, from += PANEL * codes.bits / 8) {
      const int code = codes.bits == 8 ? static_cast<uint8_t>(from[place])
                                       : static_cast<uint8_t>(from[place % LANES]) >> (place < LANES ? 0 : 4) & 15;
      out[k] = std::fma(scale, static_cast<float>(code), minimum);
    }
  }
}

}  // namespace nightmill
