// Copies of blocks within the cache, one after the other.
#pragma once

#include <cstdint>

namespace nightmill {

// As kernels/native/structures.py passes it.
struct Copies {
  int32_t num_layers;
  int32_t num_heads;  // of keys
  int32_t dim;        // of a head, padded
  int32_t block_size;
  int32_t format;  // of the cache
  int32_t count;
  const int32_t* pairs;  // [count, 2]: from, to
  char* cache;
  int64_t layer_bytes;
};

void copy_blocks(const Copies& copies);

}  // namespace nightmill
