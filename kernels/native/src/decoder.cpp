#include "decoder.h"

#include <algorithm>

#include <unistd.h>

#include "hadamard.h"

namespace nightmill {

namespace {

constexpr int MOST_TILE_ROWS = 56;
constexpr int FEW_PIECES = 16;  // for a thread

// Rows [first(i), first(i + 1)) are tile i. Tiles are as many as keep all threads busy to the end.
struct Tiles {
  int rows;
  int count;

  Tiles(int num_rows, int num_threads) : rows(num_rows) {
    count = std::max((rows + MOST_TILE_ROWS - 1) / MOST_TILE_ROWS, std::min(rows, num_threads));
    count = std::min(rows, (count + num_threads - 1) / num_threads * num_threads);
  }
  int first(int i) const { return static_cast<int>(static_cast<int64_t>(rows) * i / std::max(count, 1)); }
};

}  // namespace

Decoder::Decoder(const Shape& shape) {
  weights_.shape = shape;
  weights_.layers.resize(static_cast<size_t>(shape.num_layers));
}

void Decoder::finish() { projections_ = make_projections(weights_); }

void Decoder::use_threads(int num_threads) {
  const int process = static_cast<int>(getpid());
  if (pool_ != nullptr && pool_owner_ != process) (void)pool_.release();  // its threads stayed in the other process
  if (pool_ == nullptr || pool_->num_threads() != num_threads) pool_ = std::make_unique<Pool>(num_threads);
  pool_owner_ = process;
  while (static_cast<int>(workspaces_.size()) < num_threads)
    workspaces_.push_back(std::make_unique<Workspace>(weights_.shape, MOST_TILE_ROWS));
}

void Decoder::forward(const Step& step) {
  step_ = &step;
  prepare(step);
  pool_->run([](void* self, int i_thread) { static_cast<Decoder*>(self)->work(i_thread); }, this);
}

void Decoder::prepare(const Step& step) {
  const Shape& shape = weights_.shape;
  use_threads(step.num_threads);
  const auto format = static_cast<Format>(step.cache_format);
  if (heads_ == nullptr || format != heads_format_) heads_ = make_heads(shape, format);
  heads_format_ = format;
  heads_->prepare(step.num_tokens, step.num_threads);
  const size_t rows = static_cast<size_t>(step.num_tokens);
  residual_.resize(std::max(residual_.size(), rows * static_cast<size_t>(shape.padded_hidden())));
  attended_.resize(std::max(attended_.size(), rows * static_cast<size_t>(shape.query_columns())));
  cut_pieces(step);
}

void Decoder::cut_pieces(const Step& step) {
  const int most = tokens_of_piece(weights_.shape);
  const int64_t* wanted = step.logit_rows;
  const int64_t* const end = wanted + step.num_logit_rows;
  pieces_.clear();
  last_pieces_.clear();
  for (int s = 0; s < step.num_slices; s++) {
    const int start = step.query_starts[s], stop = step.query_starts[s + 1];
    for (int row = start; row < stop; row += most) pieces_.push_back({s, row, std::min(most, stop - row)});
    if (wanted == end || *wanted >= stop) continue;
    for (int row = static_cast<int>(*wanted); row < stop; row += most)
      last_pieces_.push_back({s, row, std::min(most, stop - row)});
    while (wanted != end && *wanted < stop) wanted++;
  }
}

void Decoder::work(int i_thread) {
  const Step& step = *step_;
  const int num_layers = weights_.shape.num_layers;
  Workspace& work = *workspaces_[static_cast<size_t>(i_thread)];
  const Tiles tiles(step.num_tokens, pool_->num_threads());
  for (int i_layer = 0; i_layer < num_layers; i_layer++) {
    for (int i = pool_->next_task(); i < tiles.count; i = pool_->next_task()) {
      const int first = tiles.first(i), rows = tiles.first(i + 1) - first;
      begin_tile(i_layer, first, rows, work);
    }
    pool_->barrier();
    attend(i_layer, i_layer + 1 < num_layers ? pieces_ : last_pieces_, i_thread);
    pool_->barrier();
  }
  const Tiles wanted(step.num_logit_rows, pool_->num_threads());
  for (int i = pool_->next_task(); i < wanted.count; i = pool_->next_task())
    end_tile(wanted.first(i), wanted.first(i + 1) - wanted.first(i), work);
}

void Decoder::embed(const Step& step, int first, int rows) {
  const Matrix& table = weights_.embedding.panels != 0 ? weights_.embedding : weights_.head;
  const int width = weights_.shape.hidden_size, stride = weights_.shape.padded_hidden();
  for (int row = first; row < first + rows; row++) {
    float* out = residual_.data() + static_cast<ptrdiff_t>(row) * stride;
    unpack_row(table, static_cast<int>(step.token_ids[row]), out);
    std::fill(out + width, out + stride, 0.0f);
    if (weights_.shape.spread != 0) spread_row(out, width);  // takes back what was done to the matrix
  }
}

// The end of the layer before and the beginning of this one, for one tile: rows do not meet outside of attention.
void Decoder::begin_tile(int i_layer, int first, int rows, Workspace& work) {
  const Shape& shape = weights_.shape;
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(i_layer)];
  float* residual = residual_.data() + static_cast<ptrdiff_t>(first) * shape.padded_hidden();
  const float* attended = attended_.data() + static_cast<ptrdiff_t>(first) * shape.query_columns();
  if (i_layer == 0) embed(*step_, first, rows);
  else projections_->end_layer(weights_.layers[static_cast<size_t>(i_layer - 1)], attended, residual, rows, work);
  projections_->begin_layer(layer, residual, rows, work);
  for (int r = 0; r < rows; r++)
    heads_->accept(*step_, i_layer, layer, first + r, work.qkv.data() + static_cast<ptrdiff_t>(r) * shape.qkv_columns());
}

void Decoder::attend(int i_layer, const std::vector<Piece>& pieces, int i_thread) {
  const int heads = weights_.shape.num_kv_heads, count = static_cast<int>(pieces.size()) * heads;
  const auto turn = [&](int i) { return Turn{pieces[static_cast<size_t>(i / heads)], i % heads}; };
  // The heads of a piece lie beside each other in memory: one thread takes them all where there are pieces enough.
  const int together = count >= FEW_PIECES * heads * pool_->num_threads() ? heads : 1;
  for (int task = pool_->next_task(); task * together < count; task = pool_->next_task()) {
    const int first = task * together, next_task = std::min(first + pool_->num_threads() * together, count - 1);
    for (int i = first; i < first + together; i++)
      heads_->attend(*step_, i_layer, turn(i), turn(i + 1 < first + together ? i + 1 : next_task), i_thread,
                     attended_.data());
  }
}

// The end of the last layer and the final norm, for some of the logit rows.
void Decoder::end_tile(int first, int rows, Workspace& work) {
  const Shape& shape = weights_.shape;
  const int width = shape.padded_hidden(), columns = shape.query_columns();
  // The tile's rows lie apart; work.qkv is free and wider than both.
  std::vector<float> residual(static_cast<size_t>(rows) * static_cast<size_t>(width));
  std::vector<float> attended(static_cast<size_t>(rows) * static_cast<size_t>(columns));
  for (int r = 0; r < rows; r++) {
    const ptrdiff_t row = step_->logit_rows[first + r];
    std::copy_n(residual_.data() + row * width, width, residual.data() + static_cast<ptrdiff_t>(r) * width);
    std::copy_n(attended_.data() + row * columns, columns, attended.data() + static_cast<ptrdiff_t>(r) * columns);
  }
  projections_->end_layer(weights_.layers.back(), attended.data(), residual.data(), rows, work);
  for (int r = 0; r < rows; r++) {
    normalise_row(residual.data() + static_cast<ptrdiff_t>(r) * width, weights_.norm.data(), shape.hidden_size, width,
                  shape.eps, work.normed.data());
    std::copy_n(work.normed.data(), shape.hidden_size,
                step_->hidden + static_cast<ptrdiff_t>(first + r) * shape.hidden_size);
  }
}

}  // namespace nightmill
