// The functions that kernels/native/library.py calls. Each returns 0, or -1 where memory ran out.
#include <algorithm>
#include <new>

#include "copies.h"
#include "decoder.h"

#define EXPORTED __attribute__((visibility("default")))

using nightmill::Decoder;
using nightmill::Format;
using nightmill::Shape;
using nightmill::Step;

namespace {

enum Part : int32_t { QKV, OUTPUT, GATE_UP, DOWN, EMBEDDING, HEAD };
enum Norm : int32_t { ATTENTION, MLP, QUERY, KEY, LAST };

std::vector<float>& norm_of(nightmill::Weights& weights, int32_t norm, int32_t i_layer) {
  if (norm == LAST) return weights.norm;
  nightmill::LayerWeights& layer = weights.layers[static_cast<size_t>(i_layer)];
  return norm == ATTENTION ? layer.attention_norm
         : norm == MLP     ? layer.mlp_norm
         : norm == QUERY   ? layer.query_norm
                           : layer.key_norm;
}

nightmill::Matrix& matrix_of(nightmill::Weights& weights, int32_t part, int32_t i_layer) {
  if (part == EMBEDDING) return weights.embedding;
  if (part == HEAD) return weights.head;
  nightmill::LayerWeights& layer = weights.layers[static_cast<size_t>(i_layer)];
  return part == QKV ? layer.qkv : part == OUTPUT ? layer.output : part == GATE_UP ? layer.gate_up : layer.down;
}

// Exceptions end here: Python sees a status.
template <class Function>
int32_t guarded(Function fn) {
  try {
    fn();
    return 0;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

}  // namespace

extern "C" {

EXPORTED Decoder* nightmill_create(const Shape* shape) { return new (std::nothrow) Decoder(*shape); }

EXPORTED void nightmill_destroy(Decoder* decoder) { delete decoder; }

EXPORTED int32_t nightmill_set_matrix(Decoder* decoder, int32_t part, int32_t i_layer, const float* source, int32_t outputs,
                             int32_t inputs, const float* bias) {
  return guarded([&] {
    nightmill::Weights& weights = decoder->weights();
    const auto format = static_cast<Format>(weights.shape.format);
    matrix_of(weights, part, i_layer) = nightmill::pack(format, source, outputs, inputs, part == GATE_UP, bias);
  });
}

EXPORTED int32_t nightmill_set_blocks(Decoder* decoder, int32_t part, int32_t i_layer, const nightmill::Blocks* blocks,
                             const float* bias) {
  return guarded([&] {
    matrix_of(decoder->weights(), part, i_layer) = nightmill::pack_blocks(*blocks, part == GATE_UP, bias);
  });
}

EXPORTED int32_t nightmill_set_norm(Decoder* decoder, int32_t norm, int32_t i_layer, const float* source, int32_t size) {
  return guarded([&] {
    std::vector<float>& target = norm_of(decoder->weights(), norm, i_layer);
    target.assign(static_cast<size_t>(nightmill::round_up(size, 32)), 0.0f);
    std::copy_n(source, size, target.begin());
  });
}

EXPORTED int32_t nightmill_finish(Decoder* decoder) {
  return guarded([&] { decoder->finish(); });
}

EXPORTED int32_t nightmill_forward(Decoder* decoder, const Step* step) {
  return guarded([&] { decoder->forward(*step); });
}

EXPORTED int32_t nightmill_logits(Decoder* decoder, const float* hidden, int32_t rows, int32_t num_threads, float* out) {
  return guarded([&] { decoder->logits(hidden, rows, num_threads, out); });
}

EXPORTED int32_t nightmill_largest(Decoder* decoder, const float* hidden, int32_t rows, const uint32_t* masks,
                          const int32_t* mask_of_row, int32_t num_threads, float* most, int64_t* tokens) {
  return guarded([&] { decoder->largest(hidden, rows, masks, mask_of_row, num_threads, most, tokens); });
}

EXPORTED void nightmill_copy_blocks(const nightmill::Copies* copies) { nightmill::copy_blocks(*copies); }

}  // extern "C"
