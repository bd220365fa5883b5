#include "engine/metrics.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "core/decimal.h"
#include "core/json.h"

namespace mlcb {
namespace {

constexpr double kRateSlotSeconds = 0.5;

uint64_t count_of(int64_t value) { return value > 0 ? static_cast<uint64_t>(value) : 0; }

double ratio(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

const char* reason_name(size_t reason) {
  static const char* const kNames[] = {"none", "stop", "length", "cancel", "deadline"};
  return kNames[reason];
}

// In order of the names.
struct NamedStatus {
  mlcb_status status;
  const char* name;
};
constexpr NamedStatus kStatuses[] = {{MLCB_ERROR_ARGUMENT, "argument"},
                                     {MLCB_ERROR_BUNDLE, "bundle"},
                                     {MLCB_ERROR_BUSY, "busy"},
                                     {MLCB_ERROR_DEADLINE, "deadline"},
                                     {MLCB_ERROR_DEVICE, "device"},
                                     {MLCB_ERROR_GRAMMAR, "grammar"},
                                     {MLCB_ERROR_HASH, "hash"},
                                     {MLCB_ERROR_INTERNAL, "internal"},
                                     {MLCB_ERROR_IO, "io"},
                                     {MLCB_ERROR_KERNEL, "kernel"},
                                     {MLCB_ERROR_MEMORY, "memory"},
                                     {MLCB_ERROR_NOT_FOUND, "not_found"},
                                     {MLCB_ERROR_TOO_LONG, "too_long"},
                                     {MLCB_ERROR_TOO_SMALL, "too_small"},
                                     {MLCB_ERROR_UNSUPPORTED, "unsupported"},
                                     {MLCB_ERROR_VERSION, "version"}};

size_t index_of(mlcb_status status) {
  size_t internal = 0;
  for (size_t i = 0; i < std::size(kStatuses); ++i) {
    if (kStatuses[i].status == status) return i;
    if (kStatuses[i].status == MLCB_ERROR_INTERNAL) internal = i;
  }
  return internal;
}

template <typename Counts>
uint64_t total_of(const Counts& counts) {
  uint64_t total = 0;
  for (const uint64_t count : counts) total += count;
  return total;
}

// An object of canonical JSON: keys must come in order.
class JsonObject {
 public:
  JsonObject& raw(const char* key, const std::string& value) {
    text_ += text_.empty() ? "{" : ",";
    text_ += json_quote(key) + ":" + value;
    return *this;
  }
  JsonObject& add(const char* key, uint64_t value) { return raw(key, std::to_string(value)); }
  JsonObject& add(const char* key, double value) { return raw(key, decimal(value)); }
  std::string text() const { return text_.empty() ? "{}" : text_ + "}"; }

 private:
  std::string text_;
};

template <typename Counts>
std::string statuses_json(const Counts& counts) {
  static_assert(std::tuple_size<Counts>::value == std::size(kStatuses), "a count for each status");
  JsonObject object;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) object.add(kStatuses[i].name, counts[i]);
  }
  return object.text();
}

std::string histogram_json(const Histogram& histogram) {
  JsonObject object;
  object.add("count", histogram.count());
  const std::pair<const char*, double> shares[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}};
  for (const auto& [key, share] : shares) {
    object.raw(key, histogram.count() > 0 ? decimal(histogram.quantile(share)) : "null");
  }
  return object.add("sum", histogram.sum()).text();
}

// Lines of the Prometheus text format.
class Exposition {
 public:
  void family(const char* name, const char* type, const char* help) {
    name_ = std::string("mlcb_") + name;
    text_ += "# HELP " + name_ + " " + help + "\n# TYPE " + name_ + " " + type + "\n";
  }
  void sample(const std::string& value, const std::string& labels = "", const char* suffix = "") {
    text_ += name_ + suffix;
    if (!labels.empty()) text_ += "{" + labels + "}";
    text_ += " " + value + "\n";
  }
  void sample(uint64_t value, const std::string& labels = "", const char* suffix = "") {
    sample(std::to_string(value), labels, suffix);
  }
  void counter(const char* name, const char* help, const std::string& value) {
    family(name, "counter", help);
    sample(value);
  }
  void counter(const char* name, const char* help, uint64_t value) {
    counter(name, help, std::to_string(value));
  }
  void gauge(const char* name, const char* help, const std::string& value) {
    family(name, "gauge", help);
    sample(value);
  }
  void gauge(const char* name, const char* help, uint64_t value) {
    gauge(name, help, std::to_string(value));
  }
  // A sample for each status; those that never occurred have none.
  template <typename Counts>
  void by_status(const char* name, const char* help, const Counts& counts) {
    family(name, "counter", help);
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      sample(counts[i], std::string("status=\"") + kStatuses[i].name + "\"");
    }
  }
  // Three bounds to a decade: 1, 2.5, 5.
  void histogram(const char* name, const char* help, const Histogram& histogram) {
    family(name, "histogram", help);
    for (size_t i = 0; i < Histogram::kBounds; ++i) {
      if (i % 10 != 0 && i % 10 != 4 && i % 10 != 7) continue;
      sample(histogram.count_below(i), "le=\"" + decimal(Histogram::bound(i)) + "\"", "_bucket");
    }
    sample(histogram.count(), "le=\"+Inf\"", "_bucket");
    sample(decimal(histogram.sum()), "", "_sum");
    sample(histogram.count(), "", "_count");
  }
  const std::string& text() const { return text_; }

 private:
  std::string name_, text_;
};

}  // namespace

double monotonic_seconds() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

EngineMetrics::EngineMetrics(int64_t batch_limit, uint64_t page_bytes, double (*clock)())
    : batch_limit_(batch_limit), page_bytes_(page_bytes), clock_(clock), created_(clock()) {
  rate_times_.fill(-1);
}

void EngineMetrics::submitted(int64_t texts) {
  std::lock_guard<std::mutex> lock(mutex_);
  submitted_ += count_of(texts);
}

void EngineMetrics::rejected(mlcb_status status) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++rejected_[index_of(status)];
}

void EngineMetrics::started(double queue_seconds, int64_t prompt_tokens, int64_t cached_tokens) {
  std::lock_guard<std::mutex> lock(mutex_);
  queue_.add(queue_seconds);
  prompt_tokens_ += count_of(prompt_tokens);
  cached_tokens_ += count_of(cached_tokens);
}

// The caller holds the lock.
void EngineMetrics::generated(int64_t tokens) {
  generated_tokens_ += count_of(tokens);
  const int64_t time = static_cast<int64_t>((clock_() - created_) / kRateSlotSeconds);
  const size_t slot = static_cast<size_t>(time) % kRateSlots;
  if (rate_times_[slot] != time) rate_tokens_[slot] = 0;
  rate_times_[slot] = time;
  rate_tokens_[slot] += count_of(tokens);
}

void EngineMetrics::first_token(double seconds, int64_t tokens) {
  std::lock_guard<std::mutex> lock(mutex_);
  ttft_.add(seconds);
  generated(tokens);
}

void EngineMetrics::next_token(double seconds, int64_t tokens) {
  if (tokens < 1) return;
  std::lock_guard<std::mutex> lock(mutex_);
  inter_token_.add(seconds / static_cast<double>(tokens), count_of(tokens));
  generated(tokens);
}

void EngineMetrics::finished(mlcb_finish_reason reason, double total_seconds) {
  const size_t index = static_cast<size_t>(reason) < kReasons ? static_cast<size_t>(reason) : 0;
  std::lock_guard<std::mutex> lock(mutex_);
  ++finished_[index];
  total_.add(total_seconds);
}

void EngineMetrics::failed(mlcb_status status, int64_t texts) {
  std::lock_guard<std::mutex> lock(mutex_);
  failed_[index_of(status)] += count_of(texts);
}

void EngineMetrics::step(const StepFigures& figures) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++steps_;
  prefill_rows_ += count_of(figures.prefill_rows);
  decode_rows_ += count_of(figures.decode_rows);
  sequence_steps_ += count_of(figures.sequences);
  step_.add(figures.seconds);
}

void EngineMetrics::load(const LoadFigures& figures) {
  std::lock_guard<std::mutex> lock(mutex_);
  load_ = figures;
}

void EngineMetrics::evicted(int64_t pages) {
  std::lock_guard<std::mutex> lock(mutex_);
  evictions_ += count_of(pages);
}

void EngineMetrics::preempted() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++preemptions_;
}

void EngineMetrics::speculated(int64_t proposed, int64_t accepted) {
  std::lock_guard<std::mutex> lock(mutex_);
  proposed_ += count_of(proposed);
  accepted_ += count_of(accepted);
}

void EngineMetrics::grammar_mask(double seconds) {
  std::lock_guard<std::mutex> lock(mutex_);
  mask_seconds_ += std::max(seconds, 0.0);
}

void EngineMetrics::jumped_ahead(int64_t tokens) {
  std::lock_guard<std::mutex> lock(mutex_);
  jump_ahead_tokens_ += count_of(tokens);
}

// Over the ten seconds, or what there was of them, up to the begin of the oldest slot.
double EngineMetrics::tokens_per_second() const {
  const double age = clock_() - created_;
  const int64_t now = static_cast<int64_t>(age / kRateSlotSeconds);
  const int64_t oldest = now - static_cast<int64_t>(kRateSlots) + 1;
  uint64_t tokens = 0;
  for (size_t i = 0; i < kRateSlots; ++i) {
    if (rate_times_[i] >= std::max<int64_t>(oldest, 0)) tokens += rate_tokens_[i];
  }
  const double begin = static_cast<double>(std::max<int64_t>(oldest, 0)) * kRateSlotSeconds;
  // A fresh engine's first tokens count as half a second's.
  return static_cast<double>(tokens) / std::max(age - begin, kRateSlotSeconds);
}

std::string EngineMetrics::json(const Profile* profile) const {
  std::lock_guard<std::mutex> lock(mutex_);
  uint64_t finished = 0;
  JsonObject reasons;
  for (size_t reason : {size_t{MLCB_FINISH_CANCEL}, size_t{MLCB_FINISH_DEADLINE},
                        size_t{MLCB_FINISH_LENGTH}, size_t{MLCB_FINISH_STOP}}) {
    reasons.add(reason_name(reason), finished_[reason]);
    finished += finished_[reason];
  }
  const uint64_t limit = count_of(batch_limit_);
  JsonObject batch, kv, latency, requests, speculation, tokens, grammar;
  batch.add("decode_rows", decode_rows_)
      .add("limit", limit)
      .add("occupancy", ratio(sequence_steps_, steps_ * limit))
      .add("preemptions", preemptions_)
      .add("prefill_rows", prefill_rows_)
      .add("rows_per_step", ratio(prefill_rows_ + decode_rows_, steps_))
      .add("steps", steps_);
  grammar.add("jump_ahead_tokens", jump_ahead_tokens_).add("mask_seconds", mask_seconds_);
  kv.add("cached_pages", count_of(load_.kv_pages_cached))
      .add("evictions", evictions_)
      .add("free_pages", count_of(load_.kv_pages - load_.kv_pages_used - load_.kv_pages_cached))
      .add("page_bytes", page_bytes_)
      .add("total_pages", count_of(load_.kv_pages))
      .add("used_pages", count_of(load_.kv_pages_used));
  latency.raw("e2e", histogram_json(total_))
      .raw("inter_token", histogram_json(inter_token_))
      .raw("queue", histogram_json(queue_))
      .raw("step", histogram_json(step_))
      .raw("ttft", histogram_json(ttft_));
  requests.add("failed", total_of(failed_))
      .raw("failed_by_status", statuses_json(failed_))
      .add("finished", finished)
      .raw("finished_by_reason", reasons.text())
      .add("rejected", total_of(rejected_))
      .raw("rejected_by_status", statuses_json(rejected_))
      .add("running", count_of(load_.running))
      .add("submitted", submitted_)
      .add("waiting", count_of(load_.waiting));
  speculation.add("acceptance_rate", ratio(accepted_, proposed_))
      .add("accepted", accepted_)
      .add("proposed", proposed_);
  tokens.add("cached_prompt", cached_tokens_)
      .add("generated", generated_tokens_)
      .add("per_second", tokens_per_second())
      .add("prompt", prompt_tokens_);
  return JsonObject()
      .raw("batch", batch.text())
      .raw("functions", profile != nullptr ? profile->functions_json() : "null")
      .raw("grammar", grammar.text())
      .raw("kernels", profile != nullptr ? profile->json() : "null")
      .raw("kv", kv.text())
      .raw("latency", latency.text())
      .raw("requests", requests.text())
      .raw("speculation", speculation.text())
      .raw("tokens", tokens.text())
      .add("uptime_seconds", clock_() - created_)
      .text();
}

std::string EngineMetrics::prometheus() const {
  std::lock_guard<std::mutex> lock(mutex_);
  Exposition out;
  const uint64_t limit = count_of(batch_limit_);
  out.counter("requests_submitted_total", "Texts asked for: a request for n counts n times.",
              submitted_);
  out.family("requests_finished_total", "counter", "Texts that ended, by reason.");
  for (size_t reason = 1; reason < kReasons; ++reason) {
    out.sample(finished_[reason], std::string("reason=\"") + reason_name(reason) + "\"");
  }
  out.by_status("requests_failed_total", "Texts that ended with an error, by status.", failed_);
  out.by_status("requests_rejected_total", "Requests that were refused at once, by status.",
                rejected_);
  out.gauge("requests_running", "Sequences that have a place in the batch.",
            count_of(load_.running));
  out.gauge("requests_waiting", "Requests that wait for a place.", count_of(load_.waiting));
  out.counter("prompt_tokens_total", "Tokens of prompts.", prompt_tokens_);
  out.counter("cached_prompt_tokens_total", "Tokens of prompts found in the prefix cache.",
              cached_tokens_);
  out.counter("generated_tokens_total", "Tokens of generated texts.", generated_tokens_);
  out.gauge("generated_tokens_per_second", "Over the last ten seconds.",
            decimal(tokens_per_second()));
  out.family("step_rows_total", "counter", "Token rows of all forward steps, by kind.");
  out.sample(prefill_rows_, "kind=\"prefill\"");
  out.sample(decode_rows_, "kind=\"decode\"");
  out.counter("step_sequences_total", "Sequences in forward steps, added up over the steps.",
              sequence_steps_);
  out.gauge("batch_limit", "Sequences that may run at once.", limit);
  out.counter("preemptions_total", "Running sequences that lost their place.", preemptions_);
  out.family("kv_pages", "gauge", "Pages of the KV cache, by state.");
  out.sample(count_of(load_.kv_pages_used), "state=\"used\"");
  out.sample(count_of(load_.kv_pages_cached), "state=\"cached\"");
  out.sample(count_of(load_.kv_pages - load_.kv_pages_used - load_.kv_pages_cached),
             "state=\"free\"");
  out.gauge("kv_page_bytes", "Size of a page in all layers.", page_bytes_);
  out.counter("kv_evicted_pages_total", "Pages taken from the prefix cache.", evictions_);
  out.counter("speculation_proposed_tokens_total", "Tokens guessed.", proposed_);
  out.counter("speculation_accepted_tokens_total", "Guessed tokens that were right.", accepted_);
  out.counter("grammar_mask_seconds_total", "Time to find the tokens that grammars allow.",
              decimal(mask_seconds_));
  out.counter("grammar_jump_ahead_tokens_total", "Tokens that a grammar left no choice for.",
              jump_ahead_tokens_);
  out.histogram("step_seconds", "Time of a forward step.", step_);
  out.histogram("time_to_first_token_seconds", "From submit to a text's first token.", ttft_);
  out.histogram("inter_token_seconds", "From a token to the next of its text.", inter_token_);
  out.histogram("request_seconds", "From submit to a text's end.", total_);
  out.histogram("queue_seconds", "From submit to a request's first step.", queue_);
  out.gauge("uptime_seconds", "Age of the engine.", decimal(clock_() - created_));
  return out.text();
}

}  // namespace mlcb
