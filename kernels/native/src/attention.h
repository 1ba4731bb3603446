// Causal attention of a few query rows over one key/value head, in one pass over the cache (Dao et al. 2022).
//
// The cache is read in stretches of CHUNK positions that begin at multiples of CHUNK, and a row's arithmetic depends on
// its own position alone: not on the rows beside it, nor on how a sequence was cut into slices.
#pragma once

#include <vector>

#include "tile.h"
#include "tiles.h"

namespace nightmill {

constexpr int TILES_PER_CHUNK = 8;
constexpr int CHUNK = TILES_PER_CHUNK * TILE;
constexpr float MASKED = -1e30f;  // finite: a chunk without any visible position must not give NaN

// Rows are (token, query head of the group), the heads of a token beside each other. All arrays begin at the first row.
struct Queries {
  Left rows;
  int num_rows;
  int group;     // query heads per key/value head
  int position;  // of the first row
  int dim;       // of a head, padded
  float scale;
};

// Positions [0, stop) of a sequence, of one key/value head.
struct Context {
  const int32_t* blocks;
  int head;
  int stop;
};

// A thread's working memory for `num_rows` rows.
template <class F>
struct AttentionScratch {
  AttentionScratch(int num_rows, int dim)
      : scores(static_cast<size_t>(num_rows) * CHUNK),
        weights(allocate(static_cast<size_t>(num_rows) * CHUNK * 4)),
        outputs(static_cast<size_t>(num_rows) * static_cast<size_t>(dim)),
        gathered(allocate(TILES_PER_CHUNK * Tile<F>::bytes(dim))) {
    for (auto* each : {&most, &total, &decay, &step}) each->resize(static_cast<size_t>(round_up(num_rows, LANES)));
    std::memset(gathered.get(), 0, TILES_PER_CHUNK * Tile<F>::bytes(dim));
  }

  std::vector<float> scores;   // [rows, CHUNK]
  Buffer weights;              // [rows, CHUNK] elements, int8: high bytes and low bytes
  std::vector<float> outputs;  // [rows, dim]
  std::vector<float> most;     // [rows] largest score so far
  std::vector<float> total;    // [rows] sum of the weights so far
  std::vector<float> decay;    // [rows] what this chunk makes of the sums before it
  std::vector<float> step;     // [rows] int8: the unit of the weights of this chunk
  Buffer gathered;
};

template <class F>
class Attention {
 public:
  Attention(const Queries& queries, AttentionScratch<F>& scratch) : q_(queries), s_(scratch) {}

  // Row r's result goes to out + (r / group) * out_stride + (r % group) * dim. The beginning of `next` is fetched into the
  // cache meanwhile.
  void compute(const LayerCache<F>& cache, const Context& own, const Context& next, float* out, ptrdiff_t out_stride) {
    const size_t rows = static_cast<size_t>(q_.num_rows);
    std::fill_n(s_.outputs.begin(), rows * static_cast<size_t>(q_.dim), 0.0f);
    std::fill_n(s_.total.begin(), rows, 0.0f);
    std::fill_n(s_.most.begin(), rows, MASKED);
    for (int first = 0; first < own.stop; first += CHUNK) {
      num_tiles_ = tiles_of(own, first);
      for (int i = 0; i < TILES_PER_CHUNK; i++) {
        const int known = std::min(i, num_tiles_ - 1);  // a missing tile is masked, whatever it holds
        char* scratch = s_.gathered.get() + static_cast<size_t>(known) * Tile<F>::bytes(q_.dim);
        if (i == known) tiles_[i] = cache.positions(own.blocks, first + known * TILE, own.stop, own.head, scratch);
        else tiles_[i] = tiles_[known];
      }
      if (first + CHUNK < own.stop) look_ahead(cache, own, first + CHUNK);
      else look_ahead(cache, next, 0);
      score();
      weigh(first);
      gather();
    }
    for (int r = 0; r < q_.num_rows; r++) {
      const float* from = s_.outputs.data() + r * q_.dim;
      float* to = out + r / q_.group * out_stride + r % q_.group * q_.dim;
      const Floats inverse = all(1.0f / s_.total[static_cast<size_t>(r)]);
      for (int i = 0; i < q_.dim; i += LANES) store(to + i, mul(load(from + i), inverse));
    }
  }

 private:
  static int tiles_of(const Context& context, int first) {
    return (std::min(context.stop - first, CHUNK) + TILE - 1) / TILE;
  }

  // Distances from this chunk's tiles to those of the chunk after it. What is gathered is near already.
  void look_ahead(const LayerCache<F>& cache, const Context& context, int first) {
    const int count = cache.whole_tiles() ? tiles_of(context, first) : 0;
    for (int i = 0; i < TILES_PER_CHUNK; i++) {
      ptrdiff_t distance = 0;
      if (i < count) {
        const Tile<F> tile = cache.tile(cache.slot_of(context.blocks, first + i * TILE), context.head);
        distance = tile.data - tiles_[i].data;
        if constexpr (F::FORMAT == Format::INT8) {
          _mm_prefetch(reinterpret_cast<const char*>(tile.key_scales()), _MM_HINT_T1);
          _mm_prefetch(reinterpret_cast<const char*>(tile.value_scales()), _MM_HINT_T1);
        }
      }
      ahead_[2 * i] = ahead_[2 * i + 1] = distance;
    }
  }

  static constexpr int TILE_VECTORS = TILE / LANES;
  static constexpr ptrdiff_t SCORE_BYTES = CHUNK * 4;
  // Bytes of a row's weights; int8 has its high bytes in the first half and its low bytes in the second.
  static constexpr ptrdiff_t WEIGHT_BYTES = F::FORMAT == Format::INT8 ? 2 * CHUNK : CHUNK * sizeof(typename F::Element);

  // A row's scores times its unit are the logarithms of its weights: natural ones, or to the base 2 where the weights are
  // kept in 16 bits. Never 0: a masked score must stay far below.
  float unit(int r) const {
    if constexpr (F::FORMAT == Format::INT8) return std::max(q_.rows.scales[r] * q_.scale * LOG2_E, 1e-20f);
    return q_.scale;
  }
  static Floats power(Floats x) {
    if constexpr (F::FORMAT == Format::INT8) return quick_power_of_two(x);
    return exponential(x);
  }

  int num_vectors() const { return (num_tiles_ * TILE_VECTORS + 1) / 2 * 2; }

  // scores[r, j] = q[r] . k[j], as raw sums.
  void score() {
    for (int v = 0; v < num_vectors(); v += 2) {
      const char* key0 = tiles_[v / TILE_VECTORS].key() + v % TILE_VECTORS * VECTOR_BYTES;
      const char* key1 = tiles_[(v + 1) / TILE_VECTORS].key() + (v + 1) % TILE_VECTORS * VECTOR_BYTES;
      const ptrdiff_t ahead[2] = {ahead_[2 * (v / TILE_VECTORS)], ahead_[2 * ((v + 1) / TILE_VECTORS)]};
      const Packed keys{&key0, 1, q_.dim / F::GROUP, {0, key1 - key0}, TILE * 4, ahead};
      char* out = reinterpret_cast<char*>(s_.scores.data()) + v * VECTOR_BYTES;
      for_each_tile<F>(q_.num_rows, [&](int row, int height) {
        multiply_rows<F>(height, q_.rows.data + row * q_.rows.stride, q_.rows.stride, q_.rows.starts + row, keys,
                         out + row * SCORE_BYTES, SCORE_BYTES);
      });
    }
  }

  // Raw sums -> scores, masked; most and decay.
  void settle(int first) {
    for (int r = 0; r < q_.num_rows; r++) {
      float* scores = s_.scores.data() + r * CHUNK;
      const int visible = q_.position + r / q_.group + 1 - first;
      Floats most = all(MASKED);
      for (int v = 0; v < num_vectors(); v++) {
        Floats x = load(scores + v * LANES);
        if constexpr (F::FORMAT == Format::INT8)
          x = mul(to_floats(bits(x)), load(tiles_[v / TILE_VECTORS].key_scales() + v % TILE_VECTORS * LANES));
        x = keep(x, visible - v * LANES, MASKED);
        store(scores + v * LANES, x);
        most = max(most, x);
      }
      s_.decay[static_cast<size_t>(r)] = s_.most[static_cast<size_t>(r)];
      s_.most[static_cast<size_t>(r)] = std::max(s_.most[static_cast<size_t>(r)], largest(most) * unit(r));
    }
    for (int r = 0; r < q_.num_rows; r += LANES)
      store(&s_.decay[static_cast<size_t>(r)],
            power(sub(load(&s_.decay[static_cast<size_t>(r)]), load(&s_.most[static_cast<size_t>(r)]))));
  }

  // Scores -> weights exp(score - most), in the cache's format; total.
  void weigh(int first) {
    settle(first);
    for (int r = 0; r < q_.num_rows; r++) {
      const size_t row = static_cast<size_t>(r);
      float* scores = s_.scores.data() + r * CHUNK;
      char* out = s_.weights.get() + r * WEIGHT_BYTES;
      Floats total = zeros(), most = zeros();
      for (int v = 0; v < num_vectors(); v++) {
        Floats x = power(fma(load(scores + v * LANES), all(unit(r)), all(-s_.most[row])));
        total = add(total, x);
        if constexpr (F::FORMAT == Format::FP32) store(reinterpret_cast<float*>(out) + v * LANES, x);
        if constexpr (F::FORMAT == Format::BF16) store_halves(out + 2 * v * LANES, to_bf16(x));
        if constexpr (F::FORMAT == Format::INT8) {
          x = mul(x, load(tiles_[v / TILE_VECTORS].value_scales() + v % TILE_VECTORS * LANES));
          store(scores + v * LANES, x);
          most = max(most, x);
        }
      }
      s_.total[row] = s_.total[row] * s_.decay[row] + sum(total);
      if constexpr (F::FORMAT == Format::INT8) s_.step[row] = quantise(scores, largest(most), out);
    }
  }

  // Weights as 16-bit numbers in two bytes, each against the chunk's largest: long tails of small weights must count.
  float quantise(const float* weights, float most, char* out) const {
    constexpr float LEVELS = 65535.0f;
    const Floats inverse = all(most > 0.0f ? LEVELS / most : 0.0f);
    for (int v = 0; v < num_vectors(); v += 2)
      store_two_bytes(out + v * LANES, out + CHUNK + v * LANES, to_words(mul(load(weights + v * LANES), inverse)),
                      to_words(mul(load(weights + (v + 1) * LANES), inverse)));
    return most / LEVELS;
  }

  // outputs[r] = outputs[r] * decay + weights[r] . values
  void gather() {
    const char* values[TILES_PER_CHUNK];
    for (int i = 0; i < num_tiles_; i++) values[i] = tiles_[i].value();
    for (int v = 0; v < q_.dim / LANES; v += 2) {
      const Packed packed{values, num_tiles_, TILE / F::GROUP, {v * VECTOR_BYTES, (v + 1) * VECTOR_BYTES},
                          static_cast<ptrdiff_t>(q_.dim) * 4, ahead_};
      for_each_tile<F>(q_.num_rows, [&](int row, int height) { gather_tile(row, height, v, packed); });
    }
  }

  void gather_tile(int row, int height, int v, const Packed& values) {
    alignas(64) char sums[F::MOST_ROWS * PANEL * 4];
    alignas(64) char low[F::MOST_ROWS * PANEL * 4];
    const char* weights = s_.weights.get() + row * WEIGHT_BYTES;
    if constexpr (F::FORMAT == Format::INT8) {
      multiply_rows<Unsigned8>(height, weights, WEIGHT_BYTES, nullptr, values, sums, PANEL * 4);
      multiply_rows<Unsigned8>(height, weights + CHUNK, WEIGHT_BYTES, nullptr, values, low, PANEL * 4);
    } else {
      multiply_rows<F>(height, weights, WEIGHT_BYTES, nullptr, values, sums, PANEL * 4);
    }
    for (int r = 0; r < height; r++) {
      const size_t i = static_cast<size_t>(row + r);
      float* out = s_.outputs.data() + (row + r) * q_.dim + v * LANES;
      for (int j = 0; j < 2; j++) {
        const char* place = sums + (2 * r + j) * VECTOR_BYTES;
        Floats x;
        if constexpr (F::FORMAT == Format::INT8) {
          const Words whole = add_words(shift_left<8>(load_words(place)), load_words(low + (place - sums)));
          x = mul(to_floats(whole), all(s_.step[i]));
        } else {
          x = load(reinterpret_cast<const float*>(place));
        }
        store(out + j * LANES, fma(load(out + j * LANES), all(s_.decay[i]), x));
      }
    }
  }

  const Queries& q_;
  AttentionScratch<F>& s_;
  Tile<F> tiles_[TILES_PER_CHUNK] = {};
  ptrdiff_t ahead_[2 * TILES_PER_CHUNK] = {};  // bytes, two of each tile
  int num_tiles_ = 0;
};

}  // namespace nightmill
