#include "heads.h"

#include <algorithm>

#include "attention.h"

namespace nightmill {

namespace {

constexpr int ROWS_OF_PIECE = 56;

void normalise_head(float* x, const std::vector<float>& weight, int dim, float eps) {
  if (weight.empty()) return;
  float squares = 0.0f;
  for (int i = 0; i < dim; i++) squares += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(dim) + eps);
  for (int i = 0; i < dim; i++) x[i] = x[i] * scale * weight[static_cast<size_t>(i)];
}

void rotate(float* __restrict x, const float* __restrict cosines, const float* __restrict sines, int half) {
  int i = 0;
  for (; i + LANES <= half; i += LANES) {  // whole vectors, as the next reader loads them
    const Floats first = load(x + i), second = load(x + half + i), c = load(cosines + i), s = load(sines + i);
    store(x + i, sub(mul(first, c), mul(second, s)));
    store(x + half + i, add(mul(second, c), mul(first, s)));
  }
  for (; i < half; i++) {
    const float first = x[i], second = x[half + i];
    x[i] = first * cosines[i] - second * sines[i];
    x[half + i] = second * cosines[i] + first * sines[i];
  }
}

template <class F>
class HeadsIn final : public Heads {
 public:
  explicit HeadsIn(const Shape& shape) : shape_(shape), dim_(shape.padded_head_dim()) {}

  void prepare(int num_tokens, int num_threads) override {
    if (num_tokens > room_) {
      const size_t rows = static_cast<size_t>(num_tokens) * static_cast<size_t>(shape_.num_heads);
      queries_ = allocate(rows * row_bytes());
      scales_.resize(rows);
      starts_.resize(rows);
      room_ = num_tokens;
    }
    while (static_cast<int>(scratch_.size()) < num_threads)
      scratch_.push_back(
          std::make_unique<AttentionScratch<F>>(tokens_of_piece(shape_) * shape_.group(), dim_));
  }

  void accept(const Step& step, int i_layer, const LayerWeights& layer, int row, float* qkv) override {
    const int half = shape_.head_dim / 2, num_keys = shape_.num_kv_heads, group = shape_.group();
    const ptrdiff_t angle = step.positions[row] * half;
    const Left queries{queries_.get(), static_cast<ptrdiff_t>(row_bytes()), scales_.data(), starts_.data()};
    for (int h = 0; h < shape_.num_heads + num_keys; h++) {
      float* x = qkv + h * dim_;
      normalise_head(x, h < shape_.num_heads ? layer.query_norm : layer.key_norm, shape_.head_dim, shape_.eps);
      rotate(x, step.cosines + angle, step.sines + angle, half);
      if (h < shape_.num_heads)
        convert_row<F>(x, dim_, queries, first_query(h / group, row) + h % group);
    }
    const LayerCache<F> cache = layer_cache(step, i_layer);
    alignas(64) char scratch[4 * 1024];
    for (int h = 0; h < num_keys; h++) {
      const float* key = qkv + (shape_.num_heads + h) * dim_;
      cache.tile(step.slots[row], h)
          .write(static_cast<int>(step.slots[row] % TILE), key, key + num_keys * dim_, scratch);
    }
  }

  void attend(const Step& step, int i_layer, Turn turn, Turn next, int i_thread, float* attended) override {
    const auto [piece, head] = turn;
    const int first = first_query(head, piece.first_row), group = shape_.group();
    const Left rows{queries_.get() + static_cast<size_t>(first) * row_bytes(), static_cast<ptrdiff_t>(row_bytes()),
                    scales_.data() + first, starts_.data() + first};
    const Queries queries{rows,
                          piece.num_tokens * group,
                          group,
                          static_cast<int>(step.positions[piece.first_row]),
                          dim_,
                          1.0f / std::sqrt(static_cast<float>(shape_.head_dim))};
    const ptrdiff_t stride = shape_.query_columns();
    Attention<F>(queries, *scratch_[static_cast<size_t>(i_thread)])
        .compute(layer_cache(step, i_layer), context(step, turn), context(step, next),
                 attended + piece.first_row * stride + head * group * dim_, stride);
  }

 private:
  size_t row_bytes() const { return static_cast<size_t>(dim_) * sizeof(typename F::Element); }

  // Queries lie by key/value head, so that the rows of a piece follow each other.
  int first_query(int head, int row) const { return (head * room_ + row) * shape_.group(); }

  static Context context(const Step& step, Turn turn) {
    return {step.block_tables + static_cast<ptrdiff_t>(turn.piece.slice) * step.table_width, turn.head,
            static_cast<int>(step.positions[turn.piece.first_row]) + turn.piece.num_tokens};
  }

  LayerCache<F> layer_cache(const Step& step, int i_layer) const {
    return {step.cache + i_layer * step.layer_bytes, shape_.num_kv_heads, dim_, step.block_size};
  }

  const Shape& shape_;
  const int dim_;
  int room_ = 0;
  Buffer queries_;
  std::vector<float> scales_;
  std::vector<int32_t> starts_;
  std::vector<std::unique_ptr<AttentionScratch<F>>> scratch_;
};

}  // namespace

int tokens_of_piece(const Shape& shape) { return std::max(1, ROWS_OF_PIECE / shape.group()); }

std::unique_ptr<Heads> make_heads(const Shape& shape, Format format) {
  switch (format) {
    case Format::BF16: return std::make_unique<HeadsIn<Bf16>>(shape);
    case Format::INT8: return std::make_unique<HeadsIn<Int8>>(shape);
    default: return std::make_unique<HeadsIn<Fp32>>(shape);
  }
}

}  // namespace nightmill
