// The decoder's last product: hidden states to logits, or to the most probable tokens alone.
#include <algorithm>
#include <bit>
#include <cmath>

#include "decoder.h"
#include "hadamard.h"

namespace nightmill {

namespace {

constexpr int PANELS_PER_TASK = 16;

// The one token that a row may have: 0 … vocab_size - 1, or -1 where there are several, or none.
int only_token(const uint32_t* allowed, int vocab_size) {
  int found = -1;
  for (int i = 0; i < (vocab_size + 31) / 32; i++) {
    if (allowed[i] == 0) continue;
    if (found >= 0 || !std::has_single_bit(allowed[i])) return -1;
    found = 32 * i + std::countr_zero(allowed[i]);
  }
  return found;
}

bool finite(const float* x, int size) {
  return std::all_of(x, x + size, [](float value) { return std::isfinite(value); });
}

// The largest over all lanes of all threads; of equals, the first token.
void settle(const Largest* best, int num_threads, int stride, float* most, int64_t* token) {
  *most = NEVER;
  *token = 0;
  for (int i = 0; i < num_threads; i++) {
    float values[LANES];
    int32_t places[LANES];
    store(values, best[i * stride].most);
    store_words(places, best[i * stride].where);
    for (int j = 0; j < LANES; j++) {
      if (values[j] > *most || (values[j] == *most && places[j] < *token)) {
        *most = values[j];
        *token = places[j];
      }
    }
  }
}

}  // namespace

// Rows of hidden [rows, hidden_size] as the head's product wants them.
struct Decoder::HeadRows {
  HeadRows(const Decoder& decoder, const float* hidden, const std::vector<int>& which) {
    const Shape& shape = decoder.weights_.shape;
    const int size = shape.padded_hidden();
    count = static_cast<int>(which.size());
    std::vector<float> padded(which.size() * static_cast<size_t>(size), 0.0f);
    for (int r = 0; r < count; r++) {
      float* row = padded.data() + static_cast<ptrdiff_t>(r) * size;
      std::copy_n(hidden + static_cast<ptrdiff_t>(which[static_cast<size_t>(r)]) * shape.hidden_size,
                  shape.hidden_size, row);
      if (shape.spread != 0) spread_row(row, shape.hidden_size);
    }
    data = allocate(which.size() * decoder.projections_->row_bytes(size));
    scales.resize(which.size());
    starts.resize(which.size());
    left = decoder.projections_->convert(padded.data(), size, size, count, data.get(), scales.data(), starts.data());
  }

  int count;
  Buffer data;
  std::vector<float> scales;
  std::vector<int32_t> starts;
  Left left;
};

// Calls work(thread, first panel, last panel) for all panels of the head, in all threads.
template <class Function>
void Decoder::for_head_panels(Function work) {
  struct Context {
    Decoder* self;
    Function* work;
  } context{this, &work};
  pool_->run(
      [](void* pointer, int i_thread) {
        const Context& c = *static_cast<Context*>(pointer);
        const int panels = c.self->weights_.head.panels;
        for (int i = c.self->pool_->next_task() * PANELS_PER_TASK; i < panels;
             i = c.self->pool_->next_task() * PANELS_PER_TASK)
          (*c.work)(i_thread, i, std::min(i + PANELS_PER_TASK, panels));
      },
      &context);
}

void Decoder::logits(const float* hidden, int rows, int num_threads, float* out) {
  use_threads(num_threads);
  std::vector<int> all_rows(static_cast<size_t>(rows));
  for (int r = 0; r < rows; r++) all_rows[static_cast<size_t>(r)] = r;
  const HeadRows head(*this, hidden, all_rows);
  for_head_panels([&](int, int first, int last) { projections_->logits(head.left, rows, first, last, out); });
}

void Decoder::largest(const float* hidden, int rows, const uint32_t* masks, const int32_t* mask_of_row,
                      int num_threads, float* most, int64_t* tokens) {
  use_threads(num_threads);
  const Shape& shape = weights_.shape;
  const ptrdiff_t words = (shape.vocab_size + 31) / 32;
  std::vector<int> open;
  std::vector<const uint32_t*> allowed;
  for (int r = 0; r < rows; r++) {
    const uint32_t* mask = masks != nullptr && mask_of_row[r] >= 0 ? masks + mask_of_row[r] * words : nullptr;
    const float* row = hidden + static_cast<ptrdiff_t>(r) * shape.hidden_size;
    const int only = mask != nullptr ? only_token(mask, shape.vocab_size) : -1;
    if (!finite(row, shape.hidden_size)) {
      most[r] = std::nanf("");
      tokens[r] = 0;
    } else if (only >= 0) {  // whatever its logit
      most[r] = 0.0f;
      tokens[r] = only;
    } else {
      open.push_back(r);
      allowed.push_back(mask);
    }
  }
  if (open.empty()) return;
  const HeadRows head(*this, hidden, open);
  std::vector<Largest> best(open.size() * static_cast<size_t>(num_threads), Largest{all(NEVER), zero_words()});
  for_head_panels([&](int i_thread, int first, int last) {
    projections_->largest(head.left, head.count, first, last, allowed.data(), best.data() + i_thread * head.count);
  });
  for (int i = 0; i < head.count; i++) {
    const int r = open[static_cast<size_t>(i)];
    settle(best.data() + i, num_threads, head.count, &most[r], &tokens[r]);
  }
}

}  // namespace nightmill
