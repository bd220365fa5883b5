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
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/grammars.h"
#include "engine/metrics.h"
#include "engine/model.h"
#include "engine/prefix_cache.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/speculation.h"
#include "exec/bundle.h"
#include "exec/profile.h"
#include "mlcb.h"

namespace mlcb {

struct EngineOptions {
  int32_t threads = 0;         // 0: one for each usable CPU
  int32_t max_batch_size = 0;  // 0: the mode's limit
  int64_t kv_tokens = 0;       // 0: kv_bytes
  uint64_t kv_bytes = 0;       // 0: the context window for every sequence
  std::string mode;            // empty: "server"
  int32_t max_waiting = 0;     // 0: no limit
  bool prefix_cache = true;
  std::string speculation;         // empty, "ngram" or "draft"
  int32_t speculation_tokens = 0;  // 0: 4
  std::shared_ptr<const Bundle> draft;
  bool profile = false;
  std::string activations;  // empty: no wish
  std::string variant;
};

struct RequestOptions {
  std::vector<int32_t> token_ids;
  int32_t n = 1;
  int32_t max_tokens = 0;  // 0: as many as the context window holds
  SamplingParams sampling;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  int32_t timeout_ms = 0;  // 0: none
  int32_t grammar_kind = MLCB_GRAMMAR_NONE;
  std::string grammar;
};

struct Event {
  uint64_t request_id = 0;
  mlcb_event_kind kind = MLCB_EVENT_NONE;
  int32_t choice = 0;
  int32_t token_id = -1;
  mlcb_finish_reason finish_reason = MLCB_FINISH_NONE;
  mlcb_status status = MLCB_OK;
  std::string text;
  float logprob = 0;
  std::vector<TokenLogprob> top;
  std::string stop_string;
  int32_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  double queue_seconds = 0, first_token_seconds = 0, total_seconds = 0;
};

// Thread-safe. Two locks: run_mutex_ is held through a step and guards model and scheduler;
// state_mutex_ is held briefly and guards what callers touch, so that submit, cancel and poll never
// wait for a step. run_mutex_ is taken first.
class Engine {
 public:
  Engine(std::shared_ptr<const Bundle> bundle, std::shared_ptr<Grammars> grammars,
         const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const std::string& info() const { return info_; }

  // Throws Error: MLCB_ERROR_ARGUMENT, TOO_LONG, MEMORY, BUSY or GRAMMAR.
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

  // format: "json" or "prometheus".
  std::string metrics(const std::string& format);
  // What exec/limits.h measures, for this engine's threads and variant; once, then it is known.
  std::string limits();
  void clear_cache();

 private:
  class RunLock;
  // Whether a text ends with the token just added; flush: what the stream held back belongs to it.
  struct Verdict {
    mlcb_finish_reason reason = MLCB_FINISH_NONE;
    bool flush = false;
  };

  uint64_t add_request(const RequestOptions& options);
  void check_tokens(const int32_t* token_ids, size_t count) const;
  void make_speculator(const EngineOptions& options, int threads);
  void take_inbox();
  void end_late();
  void speculate();
  void run_slices(const std::vector<ScheduledSlice>& slices);
  void take_results(const ScheduledSlice& slice, const float* logits);
  void branch_off(Choice* leader, const float* logits);
  void accept_rows(Choice* choice, const float* logits, int64_t rows);
  Verdict sample_rows(Choice* choice, const float* logits, int64_t rows);
  Verdict accept_token(Choice* choice, const SampledToken& sampled);
  Verdict add_token(Choice* choice, const SampledToken& sampled);
  std::string text_of(int32_t token) const;
  Verdict jump_ahead(Choice* choice);
  void note_tokens(Choice* choice, int64_t count);
  void tell_prefixes(Choice* choice);
  void finish(Choice* choice, mlcb_finish_reason reason, bool flush);
  void fail(uint64_t id, mlcb_status status, const std::string& message);
  void emit(Event event, bool last_of_request);
  void tell_load();
  void thread_main();
  void write_info(const BundleVariant& variant, const EngineOptions& options);

  std::shared_ptr<const Bundle> bundle_, draft_;
  std::shared_ptr<Grammars> grammars_;
  std::string info_;
  int64_t token_window_ = 0;  // tokens that one sequence may hold
  int64_t speculation_tokens_ = 0;
  int64_t max_live_ = 0;  // requests; 0: no limit
  std::unique_ptr<Profile> profile_;

  std::mutex run_mutex_;
  std::atomic<int> run_waiters_{0};  // callers, not the engine's thread
  std::unique_ptr<Model> model_;
  std::unique_ptr<PrefixCache> prefixes_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Speculator> speculator_;  // nullptr: none
  std::unique_ptr<EngineMetrics> metrics_;
  std::string limits_;
  int64_t told_evictions_ = 0, told_preemptions_ = 0;

  std::mutex state_mutex_;
  std::condition_variable events_ready_;
  std::condition_variable work_ready_;
  std::deque<std::unique_ptr<Choice>> inbox_;
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
