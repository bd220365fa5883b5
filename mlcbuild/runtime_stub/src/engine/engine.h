// Runs requests over a bundle: batching, sampling, streaming, events.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "engine/model.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "exec/bundle.h"
#include "mlcb.h"

namespace mlcb {

struct EngineOptions {
  int32_t threads = 0;         // 0: one for each usable CPU
  int32_t max_batch_size = 0;  // 0: the bundle's limit
  int64_t kv_tokens = 0;       // 0: the context window for every sequence
  std::string activations;     // empty: no wish
  std::string variant;
};

struct RequestOptions {
  std::vector<int32_t> token_ids;
  int32_t max_tokens = 0;  // 0: as many as the context window holds
  SamplingParams sampling;
  bool ignore_eos = false;
  std::vector<std::string> stop;
};

struct Event {
  uint64_t request_id = 0;
  mlcb_event_kind kind = MLCB_EVENT_NONE;
  int32_t token_id = -1;
  mlcb_finish_reason finish_reason = MLCB_FINISH_NONE;
  mlcb_status status = MLCB_OK;
  std::string text;
};

// Thread-safe. Two locks: run_mutex_ is held through a step and guards model and scheduler;
// state_mutex_ is held briefly and guards what callers touch, so that submit, cancel and poll never
// wait for a step. run_mutex_ is taken first.
class Engine {
 public:
  Engine(std::shared_ptr<const Bundle> bundle, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const std::string& info() const { return info_; }

  // Throws Error: MLCB_ERROR_ARGUMENT, TOO_LONG or MEMORY.
  uint64_t submit(const RequestOptions& options);
  void cancel(uint64_t id);  // throws Error(MLCB_ERROR_NOT_FOUND)

  // One forward step; returns whether requests remain. What goes wrong inside a step is reported as
  // an event of each request that was part of it.
  bool step();
  void start();
  void stop();

  // The next event, or one of kind MLCB_EVENT_NONE after timeout_ms (-1: no limit). Throws
  // Error(MLCB_ERROR_ARGUMENT) if it would wait while no thread of the engine runs.
  Event poll(int32_t timeout_ms);

  // Logits of each position of a fresh sequence into float32 [token_count, vocab_size].
  void logits(const int32_t* token_ids, size_t token_count, float* out);
  int64_t vocab_size() const { return model_->plan().vocab_size; }

 private:
  class RunLock;

  void check_tokens(const int32_t* token_ids, size_t count) const;
  void take_inbox();
  void run_slices(const std::vector<ScheduledSlice>& slices);
  void accept_token(Request* request, int32_t token);
  void finish(uint64_t id, mlcb_finish_reason reason, bool flush);
  void fail(uint64_t id, mlcb_status status, const std::string& message);
  void emit(Event event);
  void thread_main();
  void write_info(const BundleVariant& variant);

  std::shared_ptr<const Bundle> bundle_;
  std::string info_;
  int64_t token_window_ = 0;  // tokens that one sequence may hold

  std::mutex run_mutex_;
  std::atomic<int> run_waiters_{0};  // callers, not the engine's thread
  std::unique_ptr<Model> model_;
  std::unique_ptr<Scheduler> scheduler_;

  std::mutex state_mutex_;
  std::condition_variable events_ready_;
  std::condition_variable work_ready_;
  std::deque<std::unique_ptr<Request>> inbox_;
  std::unordered_set<uint64_t> cancelled_;
  std::unordered_set<uint64_t> live_;  // submitted, not yet reported as done
  std::deque<Event> events_;
  uint64_t next_id_ = 1;
  bool quit_ = false;
  bool thread_runs_ = false;

  std::mutex thread_mutex_;  // guards start and stop
  std::thread thread_;
};

}  // namespace mlcb
