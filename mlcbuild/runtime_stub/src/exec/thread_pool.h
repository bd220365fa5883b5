// Threads that run the parallel parts of kernels.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "exec/packed_abi.h"

namespace mlcb {

// One launch at a time: the caller publishes a job, then claims tasks of it like every worker; a
// worker that comes late finds none left and nobody waits for it. Idle workers spin for some tens
// of microseconds, the distance between two kernels of a step, then sleep.
class ThreadPool {
 public:
  // The caller counts as one. Throws Error(MLCB_ERROR_MEMORY) if the system refuses a thread.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs task(i, env, closure) for every i < tasks (0: a number that balances well) and returns
  // when all have run: 0, or the first non-zero result; its message is then in kernel_error().
  // A launch from inside a task runs its tasks one after the other.
  int launch(ParallelTask task, void* closure, int tasks);

  // What a kernel's barrier call does: tasks are not tied to threads, so they cannot wait for each
  // other. The launch fails with a message instead of running on with half-written data.
  static int refuse_barrier(ParallelGroupEnv* env);

  // The pool that kernels on this thread use; nullptr outside a Scope.
  static ThreadPool* current();

  // Makes a pool the current one of this thread.
  class Scope {
   public:
    explicit Scope(ThreadPool* pool);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ThreadPool* previous_;
  };

 private:
  static int run_serially(ParallelTask task, void* closure, int tasks);
  void work_on(uint32_t epoch);
  void run_task(ParallelTask task, int index, ParallelGroupEnv* env, void* closure);
  void worker_main();
  void join_workers();
  bool has_news(uint32_t seen_epoch) const;

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  // High half: number of the job (its epoch); low half: its tasks that nobody has claimed. A
  // successful compare-exchange proves that the job was still open, so the fields below, read
  // before it, belong to it. Whether a job is closed must be told by the ticket alone: those fields
  // are written for the next job while the ticket is still that of the last one.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<ParallelTask> task_{nullptr};
  std::atomic<void*> closure_{nullptr};
  std::atomic<ParallelGroupEnv*> env_{nullptr};
  std::atomic<int> tasks_{0};
  std::atomic<int> finished_{0};
  std::atomic<int> sleeping_{0};
  std::atomic<bool> quit_{false};
  std::atomic<bool> busy_{false};
  std::atomic<int> result_{0};
  std::mutex error_mutex_;
  std::string error_;  // of the first task that failed
};

// The message that a kernel left on this thread; empty if there is none. Reading it clears it.
std::string take_kernel_error();
void set_kernel_error(std::string message);

}  // namespace mlcb
