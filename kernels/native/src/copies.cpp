// Copies of blocks within the cache.
#include "copies.h"

#include "tiles.h"

namespace nightmill {

namespace {

template <class F>
void copy_block(const LayerCache<F>& cache, int32_t from, int32_t to) {
  const int64_t source = static_cast<int64_t>(from) * cache.block_size;
  const int64_t target = static_cast<int64_t>(to) * cache.block_size;
  if (cache.whole_tiles()) {  // a tile's heads lie together
    const size_t bytes = static_cast<size_t>(cache.num_heads * cache.block_size / TILE) * Tile<F>::bytes(cache.dim);
    std::memcpy(cache.tile(target, 0).data, cache.tile(source, 0).data, bytes);
    return;
  }
  for (int i = 0; i < cache.block_size; i++)
    for (int head = 0; head < cache.num_heads; head++)
      cache.tile(target + i, head)
          .copy(static_cast<int>((target + i) % TILE), cache.tile(source + i, head),
                static_cast<int>((source + i) % TILE));
}

template <class F>
void copy_all(const Copies& copies) {
  for (int32_t i = 0; i < copies.count; i++) {
    const int32_t from = copies.pairs[2 * i], to = copies.pairs[2 * i + 1];
    if (from == to) continue;
    for (int32_t i_layer = 0; i_layer < copies.num_layers; i_layer++)
      copy_block<F>({copies.cache + i_layer * copies.layer_bytes, copies.num_heads, copies.dim, copies.block_size},
                    from, to);
  }
}

}  // namespace

void copy_blocks(const Copies& copies) {
  switch (static_cast<Format>(copies.format)) {
    case Format::BF16: return copy_all<Bf16>(copies);
    case Format::INT8: return copy_all<Int8>(copies);
    default: return copy_all<Fp32>(copies);
  }
}

}  // namespace nightmill
