// What lies between a layer's two groups of products: rotation, the cache, attention, in one cache format.
#pragma once

#include <memory>
#include <vector>

#include "projections.h"
#include "shape.h"

namespace nightmill {

// Some neighbouring tokens of a slice.
struct Piece {
  int slice;
  int first_row;  // of the step's tokens
  int num_tokens;
};

// One key/value head of a piece.
struct Turn {
  const Piece& piece;
  int head;
};

class Heads {
 public:
  virtual ~Heads() = default;
  // Makes room for a step's queries.
  virtual void prepare(int num_tokens, int num_threads) = 0;
  // Rotates a row's queries and keys (in place), keeps the queries and writes keys and values to the cache.
  virtual void accept(const Step& step, int i_layer, const LayerWeights& layer, int row, float* qkv) = 0;
  // Attention of a piece's queries over one key/value head -> attended [tokens, query_columns]. `next` is what the thread
  // will most probably be given then.
  virtual void attend(const Step& step, int i_layer, Turn turn, Turn next, int i_thread, float* attended) = 0;
};

// Tokens of a piece: a few tiles' worth of query rows.
int tokens_of_piece(const Shape& shape);

std::unique_ptr<Heads> make_heads(const Shape& shape, Format format);

}  // namespace nightmill
