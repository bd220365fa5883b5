// What the engine has done so far and holds now, in figures: docs/metrics.md lists them.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "engine/histogram.h"
#include "exec/profile.h"
#include "mlcb.h"

namespace mlcb {

// Seconds on a clock that never goes back; its zero means nothing.
double monotonic_seconds();

// One forward step, once it is done.
struct StepFigures {
  double seconds = 0;
  int64_t prefill_rows = 0;  // token rows of prompts
  int64_t decode_rows = 0;   // the others: guesses of speculation among them
  int64_t sequences = 0;     // that had rows in it
};

// What is there now.
struct LoadFigures {
  int64_t running = 0;  // sequences that have a place
  int64_t waiting = 0;  // requests that have none yet
  int64_t kv_pages = 0;
  int64_t kv_pages_used = 0;    // that running sequences hold
  int64_t kv_pages_cached = 0;  // that only the prefix cache holds; the rest is free
};

// Every call is short (a lock that is hardly ever contended, no allocation in the ones of a step),
// and may come from any thread. A text is what one choice of a request generates: a request for n
// texts counts n times in submitted, finished and failed, so that these balance.
class EngineMetrics {
 public:
  // batch_limit: sequences that may run at once. page_bytes: of one KV page in all layers. clock is
  // for tests.
  EngineMetrics(int64_t batch_limit, uint64_t page_bytes, double (*clock)() = monotonic_seconds);

  // ---- requests ----
  void submitted(int64_t texts = 1);
  void rejected(mlcb_status status);  // submit refused it
  // A prompt is in its first step. cached_tokens of it came from the prefix cache. Once a request,
  // not again after a preemption.
  void started(double queue_seconds, int64_t prompt_tokens, int64_t cached_tokens);
  // The first tokens of a text, so long after it was submitted.
  void first_token(double seconds, int64_t tokens = 1);
  // Its next tokens, so long after those before; several at once count as evenly spread.
  void next_token(double seconds, int64_t tokens = 1);
  void finished(mlcb_finish_reason reason, double total_seconds);
  void failed(mlcb_status status, int64_t texts = 1);

  // ---- steps ----
  void step(const StepFigures& figures);
  void load(const LoadFigures& figures);  // after each step, and before json() or prometheus()
  void evicted(int64_t pages);            // taken from the prefix cache
  void preempted();                       // a running sequence lost its place
  void speculated(int64_t proposed, int64_t accepted);  // tokens
  void grammar_mask(double seconds);                    // time to find the allowed tokens
  void jumped_ahead(
      int64_t tokens);  // tokens that the grammar left no choice for: no logits needed

  // Canonical JSON (sorted keys, no white space). profile: nullptr if kernels are not timed; then
  // "kernels" and "functions" are null.
  std::string json(const Profile* profile) const;
  // The text format 0.0.4 that a Prometheus server scrapes.
  std::string prometheus() const;

 private:
  double tokens_per_second() const;
  void generated(int64_t tokens);

  static constexpr size_t kReasons = 5;  // mlcb_finish_reason
  static constexpr size_t kStatusCount = 16;
  static constexpr size_t kRateSlots = 21;  // of half a second: ten seconds, and the current one

  const int64_t batch_limit_;
  const uint64_t page_bytes_;
  double (*const clock_)();
  const double created_;

  mutable std::mutex mutex_;
  uint64_t submitted_ = 0;
  std::array<uint64_t, kReasons> finished_{};
  std::array<uint64_t, kStatusCount> failed_{}, rejected_{};
  uint64_t prompt_tokens_ = 0, cached_tokens_ = 0, generated_tokens_ = 0;
  uint64_t steps_ = 0, prefill_rows_ = 0, decode_rows_ = 0, sequence_steps_ = 0;
  uint64_t evictions_ = 0, preemptions_ = 0;
  uint64_t proposed_ = 0, accepted_ = 0;
  double mask_seconds_ = 0;
  uint64_t jump_ahead_tokens_ = 0;
  LoadFigures load_;
  Histogram ttft_, inter_token_, total_, queue_, step_;
  std::array<uint64_t, kRateSlots> rate_tokens_{};
  std::array<int64_t, kRateSlots> rate_times_{};  // which half second a slot counts
};

}  // namespace mlcb
