#include "pool.h"

#include <csignal>

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

namespace nightmill {

namespace {
constexpr int SPINS_IN_STEP = 20000;  // about 200 us: longer than the phases' ends lie apart
constexpr int SPINS_BETWEEN = 4000;   // the host's part of a step
constexpr int YIELDS = 200;
}  // namespace

Pool::Pool(int num_threads) : num_threads_(num_threads) {
  // Signals belong to the threads of the host program.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int i = 1; i < num_threads; i++) threads_.emplace_back(&Pool::serve, this, i);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Pool::~Pool() {
  closing_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Pool::run(void (*work)(void*, int), void* context) {
  work_ = work;
  context_ = context;
  next_task_.store(0, std::memory_order_relaxed);
  if (num_threads_ > 1) {
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
  }
  work(context, 0);
  barrier();
}

void Pool::serve(int i_thread) {
  uint32_t seen = 0;
  while (true) {
    wait(round_, seen, SPINS_BETWEEN);
    seen++;
    if (closing_.load(std::memory_order_relaxed)) return;
    work_(context_, i_thread);
    barrier();
  }
}

void Pool::barrier() {
  if (num_threads_ == 1) {
    next_task_.store(0, std::memory_order_relaxed);
    return;
  }
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < num_threads_) {
    wait(phase_, phase, SPINS_IN_STEP);
    return;
  }
  arrived_.store(0, std::memory_order_relaxed);
  next_task_.store(0, std::memory_order_relaxed);
  phase_.store(phase + 1, std::memory_order_release);
  phase_.notify_all();
}

void Pool::wait(const std::atomic<uint32_t>& value, uint32_t old, int spins) {
  for (int i = 0; i < spins; i++) {
    if (value.load(std::memory_order_acquire) != old) return;
    _mm_pause();
  }
  for (int i = 0; i < YIELDS; i++) {
    if (value.load(std::memory_order_acquire) != old) return;
    sched_yield();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace nightmill
