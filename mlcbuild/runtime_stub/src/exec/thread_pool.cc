#include "exec/thread_pool.h"

#include <chrono>
#include <exception>
#include <utility>

#include "core/error.h"
#include "core/os.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mlcb {
namespace {

constexpr auto kSpinTime = std::chrono::microseconds(40);
constexpr int kPausesPerClockRead = 64;
// Tasks per thread when the kernel leaves the number open: a thread that is held up by another
// process then costs a quarter of its share, not all of it.
constexpr int kTasksPerThread = 4;

thread_local ThreadPool* current_pool = nullptr;
thread_local bool inside_task = false;
thread_local std::string kernel_error;

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// What a launch returns after a task called the barrier; sync_handle points to the note of it.
int barrier_result(const std::atomic<bool>& barrier_called) {
  if (!barrier_called) return 0;
  set_kernel_error(
      "the kernel uses a barrier between its tasks, which this runtime does not offer");
  return -1;
}

uint32_t epoch_of(uint64_t ticket) { return static_cast<uint32_t>(ticket >> 32); }
int unclaimed(uint64_t ticket) { return static_cast<int>(ticket & 0xffffffffu); }

}  // namespace

std::string take_kernel_error() { return std::exchange(kernel_error, {}); }
void set_kernel_error(std::string message) { kernel_error = std::move(message); }

int ThreadPool::refuse_barrier(ParallelGroupEnv* env) {
  if (env == nullptr || env->num_task <= 1) return 0;
  *static_cast<std::atomic<bool>*>(env->sync_handle) = true;
  return -1;
}

ThreadPool* ThreadPool::current() { return current_pool; }

ThreadPool::Scope::Scope(ThreadPool* pool) : previous_(std::exchange(current_pool, pool)) {}
ThreadPool::Scope::~Scope() { current_pool = previous_; }

ThreadPool::ThreadPool(int threads) {
  if (threads > 1 && !kHasThreads) {
    throw Error(MLCB_ERROR_UNSUPPORTED,
                std::to_string(threads) +
                    " threads were asked for, this runtime was built for a platform without\n"
                    "hint: ask for one");
  }
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { worker_main(); });
  } catch (const std::exception& error) {  // no destructor runs for what was never constructed
    const size_t started = workers_.size();
    join_workers();
    throw Error(MLCB_ERROR_MEMORY, "cannot start thread " + std::to_string(started + 2) + " of " +
                                       std::to_string(threads) + "\nwhy: " + error.what() +
                                       "\nhint: ask for fewer threads");
  }
}

ThreadPool::~ThreadPool() { join_workers(); }

void ThreadPool::join_workers() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    quit_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

int ThreadPool::launch(ParallelTask task, void* closure, int tasks) {
  if (tasks <= 0) tasks = workers_.empty() || inside_task ? 1 : threads() * kTasksPerThread;
  if (workers_.empty() || tasks == 1 || inside_task || busy_.exchange(true)) {
    return run_serially(task, closure, tasks);
  }
  std::atomic<bool> barrier_called{false};
  ParallelGroupEnv env{&barrier_called, tasks};
  task_ = task;
  closure_ = closure;
  env_ = &env;
  tasks_ = tasks;
  finished_ = 0;
  result_ = 0;
  const uint32_t epoch = epoch_of(ticket_) + 1;
  ticket_ = uint64_t{epoch} << 32 | static_cast<uint32_t>(tasks);
  if (sleeping_ > 0) {
    // Taking the lock makes sure that a worker on its way to sleep has seen the ticket or waits.
    {
      std::lock_guard<std::mutex> lock(mutex_);
    }
    wake_.notify_all();
  }
  work_on(epoch);
  for (int spins = 0; finished_ != tasks; ++spins) {
    if (spins < 2000) {
      pause_cpu();
    } else {
      std::this_thread::yield();
    }
  }
  const int result = result_;
  if (result != 0) {
    std::lock_guard<std::mutex> lock(error_mutex_);
    set_kernel_error(std::exchange(error_, {}));
  }
  busy_ = false;
  return result != 0 ? result : barrier_result(barrier_called);
}

int ThreadPool::run_serially(ParallelTask task, void* closure, int tasks) {
  std::atomic<bool> barrier_called{false};
  ParallelGroupEnv env{&barrier_called, tasks};
  for (int i = 0; i < tasks; ++i) {
    if (int result = task(i, &env, closure)) return result;
  }
  return barrier_result(barrier_called);
}

void ThreadPool::work_on(uint32_t epoch) {
  for (;;) {
    uint64_t ticket = ticket_;
    const ParallelTask task = task_;
    void* const closure = closure_;
    ParallelGroupEnv* const env = env_;
    const int tasks = tasks_;
    if (epoch_of(ticket) != epoch || unclaimed(ticket) == 0) return;
    if (!ticket_.compare_exchange_strong(ticket, ticket - 1)) continue;
    run_task(task, tasks - unclaimed(ticket), env, closure);
  }
}

void ThreadPool::run_task(ParallelTask task, int index, ParallelGroupEnv* env, void* closure) {
  inside_task = true;
  const int result = task(index, env, closure);
  inside_task = false;
  if (result != 0) {
    std::lock_guard<std::mutex> lock(error_mutex_);
    if (result_ == 0) {
      error_ = take_kernel_error();
      result_ = result;
    }
  }
  finished_.fetch_add(1);
}

bool ThreadPool::has_news(uint32_t seen_epoch) const {
  return epoch_of(ticket_) != seen_epoch || quit_;
}

void ThreadPool::worker_main() {
  current_pool = this;
  uint32_t seen_epoch = 0;
  for (;;) {
    const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
    while (!has_news(seen_epoch)) {
      for (int i = 0; i < kPausesPerClockRead && !has_news(seen_epoch); ++i) pause_cpu();
      if (std::chrono::steady_clock::now() < deadline) continue;
      std::unique_lock<std::mutex> lock(mutex_);
      ++sleeping_;
      wake_.wait(lock, [&] { return has_news(seen_epoch); });
      --sleeping_;
    }
    if (quit_) return;
    seen_epoch = epoch_of(ticket_);
    work_on(seen_epoch);
  }
}

}  // namespace mlcb
