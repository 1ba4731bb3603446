// The sizes of a model, as kernels/native/structures.py passes them.
#pragma once

#include <cstdint>

#include "rows.h"
#include "tile.h"

namespace nightmill {

struct Shape {
  int32_t vocab_size;
  int32_t hidden_size;
  int32_t num_layers;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t intermediate_size;
  int32_t format;  // Format of the weights
  int32_t spread;  // 1: all matrices but `output` expect rows after spread_row (hadamard.h); 0: as they are
  float eps;

  int group() const { return num_heads / num_kv_heads; }
  // Heads are padded with zero features to whole panels of vectors, on both instruction sets alike.
  int padded_head_dim() const { return round_up(head_dim, 32); }
  int padded_hidden() const { return round_up(hidden_size, 32); }
  int padded_intermediate() const { return round_up(intermediate_size, 32); }
  int query_columns() const { return num_heads * padded_head_dim(); }
  int qkv_columns() const { return (num_heads + 2 * num_kv_heads) * padded_head_dim(); }
};

// One step's inputs: engine/inputs.py says what the tensors mean.
struct Step {
  int32_t num_tokens;
  int32_t num_slices;
  int32_t table_width;
  int32_t num_logit_rows;
  int32_t num_threads;
  int32_t block_size;    // of the cache, in tokens
  int32_t cache_format;  // Format of keys and values
  int32_t reserved;
  const int64_t* token_ids;
  const int64_t* positions;
  const int64_t* slots;
  const int32_t* query_starts;
  const int32_t* context_lengths;
  const int32_t* block_tables;
  const int64_t* logit_rows;
  const float* cosines;  // [positions, head_dim / 2]
  const float* sines;
  char* cache;
  int64_t layer_bytes;  // of the cache
  float* hidden;        // [num_logit_rows, hidden_size], out
};

}  // namespace nightmill
