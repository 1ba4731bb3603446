// The products of a layer for a tile of rows, in one weight format.
#pragma once

#include <limits>
#include <memory>
#include <vector>

#include "matrix.h"
#include "shape.h"

namespace nightmill {

constexpr float NEVER = -std::numeric_limits<float>::infinity();

struct LayerWeights {
  Matrix qkv;      // heads padded
  Matrix output;   // its inputs padded likewise
  Matrix gate_up;  // paired
  Matrix down;
  std::vector<float> attention_norm;  // [padded_hidden]
  std::vector<float> mlp_norm;
  std::vector<float> query_norm;  // [head_dim], or empty
  std::vector<float> key_norm;
};

struct Weights {
  Shape shape;
  std::vector<LayerWeights> layers;
  std::vector<float> norm;  // [padded_hidden]
  Matrix embedding;         // empty where it is the head
  Matrix head;
};

// A thread's working memory for a tile of rows.
struct Workspace {
  Workspace(const Shape& shape, int rows);

  const int most_rows;
  Buffer left_data;
  std::vector<float> scales;
  std::vector<int32_t> starts;
  std::vector<float> normed;     // one row
  std::vector<float> activated;  // [rows, padded_intermediate]
  std::vector<float> qkv;        // [rows, qkv_columns]
};

// The largest of a row's logits so far, lane by lane, and its token.
struct Largest {
  Floats most;
  Words where;
};

class Projections {
 public:
  virtual ~Projections() = default;
  // residual [rows, padded_hidden] -> work.qkv, without position
  virtual void begin_layer(const LayerWeights& layer, const float* residual, int rows, Workspace& work) const = 0;
  // attended [rows, query_columns], residual -> residual after the layer
  virtual void end_layer(const LayerWeights& layer, const float* attended, float* residual, int rows,
                         Workspace& work) const = 0;
  // hidden [rows, hidden_size] -> columns [first, last) panels of logits [rows, vocab_size]
  virtual void logits(const Left& left, int rows, int first, int last, float* out) const = 0;
  // The same columns, of which only the largest are kept: best [rows]. Row r may have the tokens that are set in
  // allowed[r] [vocab_size bits], or any where that is null.
  virtual void largest(const Left& left, int rows, int first, int last, const uint32_t* const* allowed,
                       Largest* best) const = 0;
  virtual Left convert(const float* x, int columns, int stride, int rows, char* data, float* scales,
                       int32_t* starts) const = 0;
  virtual size_t row_bytes(int columns) const = 0;
};

std::unique_ptr<Projections> make_projections(const Weights& weights);

}  // namespace nightmill
