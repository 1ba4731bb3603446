#include "projections.h"

#include <algorithm>

#include "hadamard.h"

namespace nightmill {

Workspace::Workspace(const Shape& shape, int rows)
    : most_rows(rows),
      scales(static_cast<size_t>(rows)),
      starts(static_cast<size_t>(rows)),
      normed(static_cast<size_t>(shape.padded_hidden())),
      activated(static_cast<size_t>(rows) * static_cast<size_t>(shape.padded_intermediate())),
      qkv(static_cast<size_t>(rows) * static_cast<size_t>(shape.qkv_columns())) {
  const int widest = std::max({shape.padded_hidden(), shape.query_columns(), shape.padded_intermediate()});
  left_data = allocate(static_cast<size_t>(rows) * bytes_of_row<Fp32>(widest));
}

namespace {

template <class F>
class ProjectionsIn final : public Projections {
 public:
  explicit ProjectionsIn(const Weights& weights) : weights_(weights), shape_(weights.shape) {}

  void begin_layer(const LayerWeights& layer, const float* residual, int rows, Workspace& work) const override {
    const Left left = normalise(residual, layer.attention_norm.data(), rows, work);
    float* out = work.qkv.data();
    const int stride = shape_.qkv_columns();
    multiply<F>(left, rows, layer.qkv, 0, layer.qkv.panels, [=](int r, int panel, Floats x0, Floats x1) {
      float* to = out + r * stride + panel * PANEL;
      store(to, x0);
      store(to + LANES, x1);
    });
  }

  void end_layer(const LayerWeights& layer, const float* attended, float* residual, int rows,
                 Workspace& work) const override {
    const int columns = shape_.query_columns(), inner = shape_.padded_intermediate();
    add_product(convert(attended, columns, columns, rows, work.left_data.get(), work.scales.data(), work.starts.data()),
                rows, layer.output, residual);
    float* activated = work.activated.data();
    activate(normalise(residual, layer.mlp_norm.data(), rows, work), rows, layer.gate_up, activated);
    const Left left = left_of(inner, work);
    for (int r = 0; r < rows; r++) {
      float* row = activated + static_cast<ptrdiff_t>(r) * inner;
      if (shape_.spread != 0) spread_row(row, shape_.intermediate_size);
      convert_row<F>(row, inner, left, r);
    }
    add_product(left, rows, layer.down, residual);
  }

  void logits(const Left& left, int rows, int first, int last, float* out) const override {
    const int stride = shape_.vocab_size;
    multiply<F>(left, rows, weights_.head, first, last, [=](int r, int panel, Floats x0, Floats x1) {
      float* to = out + static_cast<ptrdiff_t>(r) * stride + panel * PANEL;
      if ((panel + 1) * PANEL <= stride) {
        store(to, x0);
        store(to + LANES, x1);
      } else {
        float both[PANEL];
        store(both, x0);
        store(both + LANES, x1);
        std::copy_n(both, stride - panel * PANEL, to);
      }
    });
  }

  void largest(const Left& left, int rows, int first, int last, const uint32_t* const* allowed,
               Largest* best) const override {
    const int size = shape_.vocab_size;
    alignas(64) int32_t lanes[LANES];
    for (int i = 0; i < LANES; i++) lanes[i] = i;
    const Words lane = load_words(lanes);
    multiply<F>(left, rows, weights_.head, first, last, [=](int r, int panel, Floats x0, Floats x1) {
      const int token = panel * PANEL;
      uint32_t bits = ~0u;
      if (allowed[r] != nullptr) bits = allowed[r][token / 32] >> token % 32;
      if (size - token < PANEL) bits &= (1u << (size - token)) - 1;
      Largest& row = best[r];
      take_greater(keep_bits(x0, bits, NEVER), add_words(lane, all_words(token)), row.most, row.where);
      take_greater(keep_bits(x1, bits >> LANES, NEVER), add_words(lane, all_words(token + LANES)), row.most, row.where);
    });
  }

  Left convert(const float* x, int columns, int stride, int rows, char* data, float* scales,
               int32_t* starts) const override {
    const Left left{data, static_cast<ptrdiff_t>(row_bytes(columns)), scales, starts};
    for (int r = 0; r < rows; r++) convert_row<F>(x + static_cast<ptrdiff_t>(r) * stride, columns, left, r);
    return left;
  }

  size_t row_bytes(int columns) const override { return bytes_of_row<F>(columns); }

 private:
  Left left_of(int columns, Workspace& work) const {
    return {work.left_data.get(), static_cast<ptrdiff_t>(row_bytes(columns)), work.scales.data(), work.starts.data()};
  }

  Left normalise(const float* x, const float* weight, int rows, Workspace& work) const {
    const int columns = shape_.hidden_size, size = shape_.padded_hidden();
    const Left left = left_of(size, work);
    for (int r = 0; r < rows; r++) {
      const float* row = x + static_cast<ptrdiff_t>(r) * size;
      if constexpr (F::FORMAT == Format::FP32) {
        normalise_row(row, weight, columns, size, shape_.eps, reinterpret_cast<float*>(left.data + r * left.stride));
      } else {
        normalise_row(row, weight, columns, size, shape_.eps, work.normed.data());
        if (shape_.spread != 0) spread_row(work.normed.data(), columns);
        convert_row<F>(work.normed.data(), size, left, r);
      }
    }
    return left;
  }

  void add_product(const Left& left, int rows, const Matrix& matrix, float* residual) const {
    const int stride = shape_.padded_hidden();
    multiply<F>(left, rows, matrix, 0, matrix.panels, [=](int r, int panel, Floats x0, Floats x1) {
      float* to = residual + static_cast<ptrdiff_t>(r) * stride + panel * PANEL;
      store(to, add(load(to), x0));
      store(to + LANES, add(load(to + LANES), x1));
    });
  }

  void activate(const Left& left, int rows, const Matrix& gate_up, float* out) const {
    const int stride = shape_.padded_intermediate();
    multiply<F>(left, rows, gate_up, 0, gate_up.panels, [=](int r, int panel, Floats gate, Floats up) {
      const Floats opened = F::FORMAT == Format::INT8 ? quick_silu(gate) : silu(gate);
      store(out + static_cast<ptrdiff_t>(r) * stride + panel * LANES, mul(opened, up));
    });
  }

  const Weights& weights_;
  const Shape& shape_;
};

}  // namespace

std::unique_ptr<Projections> make_projections(const Weights& weights) {
  switch (static_cast<Format>(weights.shape.format)) {
    case Format::BF16: return std::make_unique<ProjectionsIn<Bf16>>(weights);
    case Format::INT8: return std::make_unique<ProjectionsIn<Int8>>(weights);
    default: return std::make_unique<ProjectionsIn<Fp32>>(weights);
  }
}

}  // namespace nightmill
