// A pool of threads that compute one thing together, in phases.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace nightmill {

// The caller of run() is one of the threads. Waiting spins, then yields, then sleeps: phases are shorter than a system
// call, but a thread may have been taken off its core. Not for two callers at once.
class Pool {
 public:
  explicit Pool(int num_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls work(context, i) on every thread i at once; returns when all are done.
  void run(void (*work)(void*, int), void* context);

  // Within work: waits until every thread is here. What each did before is visible to all afterwards, and the tasks of
  // the next phase are numbered from 0.
  void barrier();

  // Within work: the number of the next task of this phase that nobody has taken.
  int next_task() { return next_task_.fetch_add(1, std::memory_order_relaxed); }

 private:
  void serve(int i_thread);
  static void wait(const std::atomic<uint32_t>& value, uint32_t old, int spins);

  const int num_threads_;
  void (*work_)(void*, int) = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint32_t> round_{0};  // of run()
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> next_task_{0};
  std::atomic<bool> closing_{false};
  std::vector<std::thread> threads_;
};

}  // namespace nightmill
