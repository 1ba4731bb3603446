// A model: steps of many sequences at once, computed by one pool of threads.
#pragma once

#include <memory>
#include <vector>

#include "heads.h"
#include "pool.h"
#include "projections.h"

namespace nightmill {

class Decoder {
 public:
  explicit Decoder(const Shape& shape);

  Weights& weights() { return weights_; }

  // Call once, when all weights are there.
  void finish();

  // Computes a step: writes the cache, and the normed hidden states of the logit rows.
  void forward(const Step& step);

  // hidden [rows, hidden_size] -> out [rows, vocab_size]
  void logits(const float* hidden, int rows, int num_threads, float* out);

  // The largest logit of each row and its token, of equals the first -> most, tokens [rows]. Row r is under mask
  // mask_of_row[r] of masks [any, vocab_size bits in words of 32], or under none where that is negative. Of a row that
  // may have one token alone, no logit is computed: its `most` is 0. `most` is not a number where hidden is not, and
  // minus infinity where nothing is allowed.
  void largest(const float* hidden, int rows, const uint32_t* masks, const int32_t* mask_of_row, int num_threads,
               float* most, int64_t* tokens);

 private:
  void prepare(const Step& step);
  void cut_pieces(const Step& step);
  void work(int i_thread);
  void embed(const Step& step, int first, int rows);
  void begin_tile(int i_layer, int first, int rows, Workspace& work);
  void attend(int i_layer, const std::vector<Piece>& pieces, int i_thread);
  void end_tile(int first, int rows, Workspace& work);
  void use_threads(int num_threads);
  struct HeadRows;
  template <class Function> void for_head_panels(Function work);

  Weights weights_;
  std::unique_ptr<Projections> projections_;
  std::unique_ptr<Heads> heads_;
  Format heads_format_ = Format::FP32;
  std::unique_ptr<Pool> pool_;
  int pool_owner_ = 0;  // process id: threads do not survive a fork
  std::vector<std::unique_ptr<Workspace>> workspaces_;

  // Of the step being computed.
  const Step* step_ = nullptr;
  std::vector<float> residual_;  // [tokens, padded_hidden]
  std::vector<float> attended_;  // [tokens, query_columns]
  std::vector<Piece> pieces_;
  std::vector<Piece> last_pieces_;  // of the last layer: rows whose logits are wanted
};

}  // namespace nightmill
