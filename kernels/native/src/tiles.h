// The paged key/value cache as the native code keeps it.
//
// Cache slots (block * block_size + offset) are grouped by TILE. Per layer, the tiles lie one after the other, in each
// the heads, in each a key tile, a value tile and, for int8, TILE key scales and TILE value scales:
//   key   [dim / GROUP][TILE][GROUP]   a word of a packed matrix for every slot
//   value [TILE / GROUP][dim][GROUP]   a word of a packed matrix for every feature
// so that scores and outputs are products with packed matrices that never have to be packed.
#pragma once

#include "formats.h"
#include "rows.h"

namespace nightmill {

constexpr int TILE = 16;

template <class F>
struct Tile {
  static constexpr int SIZE = sizeof(typename F::Element);

  char* data;
  int dim;  // of a head, padded

  static size_t bytes(int dim) {
    return static_cast<size_t>(2 * TILE * dim * SIZE) + (F::FORMAT == Format::INT8 ? 2 * TILE * sizeof(float) : 0);
  }

  char* key() const { return data; }
  char* value() const { return data + TILE * dim * SIZE; }
  float* key_scales() const { return reinterpret_cast<float*>(data + 2 * TILE * dim * SIZE); }
  float* value_scales() const { return key_scales() + TILE; }

  char* key_word(int word, int lane) const { return key() + (word * TILE + lane) * 4; }
  char* value_element(int feature, int lane) const {
    return value() + ((lane / F::GROUP * dim + feature) * F::GROUP + lane % F::GROUP) * SIZE;
  }

  // Stores one slot's key and value, dim floats each. `scratch` holds a converted row.
  void write(int lane, const float* key_row, const float* value_row, char* scratch) const {
    float scale = 0.0f;
    int32_t start = 0;
    const Left row{scratch, 0, &scale, &start};
    convert_row<F>(key_row, dim, row, 0);
    for (int word = 0; word < dim / F::GROUP; word++) {
      uint32_t packed;
      std::memcpy(&packed, scratch + 4 * word, 4);
      if (F::FORMAT == Format::INT8 && PACKED_OFFSET != 0) packed ^= 0x80808080u;
      std::memcpy(key_word(word, lane), &packed, 4);
    }
    if (F::FORMAT == Format::INT8) key_scales()[lane] = scale;
    convert_row<F>(value_row, dim, row, 0);
    for (int i = 0; i < dim; i++) std::memcpy(value_element(i, lane), scratch + i * SIZE, SIZE);
    if (F::FORMAT == Format::INT8) value_scales()[lane] = scale;
  }

  // Copies one slot of another tile.
  void copy(int lane, const Tile& other, int other_lane) const {
    for (int i = 0; i < dim / F::GROUP; i++) std::memcpy(key_word(i, lane), other.key_word(i, other_lane), 4);
    for (int i = 0; i < dim; i++) std::memcpy(value_element(i, lane), other.value_element(i, other_lane), SIZE);
    if (F::FORMAT == Format::INT8) {
      key_scales()[lane] = other.key_scales()[other_lane];
      value_scales()[lane] = other.value_scales()[other_lane];
    }
  }
};

// One layer of the cache.
template <class F>
struct LayerCache {
  char* data;
  int num_heads;
  int dim;
  int block_size;

  Tile<F> tile(int64_t slot, int head) const {
    return {data + static_cast<size_t>(slot / TILE * num_heads + head) * Tile<F>::bytes(dim), dim};
  }

  bool whole_tiles() const { return block_size % TILE == 0; }

  // The TILE positions from `first` on of the sequence with this block table. Where blocks are no multiple of a tile,
  // the slots before `stop` are gathered into `scratch`.
  Tile<F> positions(const int32_t* blocks, int first, int stop, int head, char* scratch) const {
    if (whole_tiles()) return tile(slot_of(blocks, first), head);
    const Tile<F> gathered{scratch, dim};
    for (int i = 0; i < TILE && first + i < stop; i++) {
      const int64_t slot = slot_of(blocks, first + i);
      gathered.copy(i, tile(slot, head), static_cast<int>(slot % TILE));
    }
    return gathered;
  }

  int64_t slot_of(const int32_t* blocks, int position) const {
    return static_cast<int64_t>(blocks[position / block_size]) * block_size + position % block_size;
  }
};

}  // namespace nightmill
