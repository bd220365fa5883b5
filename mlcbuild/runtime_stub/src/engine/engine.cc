#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <new>

#include "core/cpu.h"
#include "core/error.h"
#include "core/json.h"
#include "core/os.h"
#include "engine/variant.h"

namespace mlcb {
namespace {

constexpr int32_t kMaxThreads = 1024;

void check_sampling(const RequestOptions& options) {
  const SamplingParams& sampling = options.sampling;
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0) {
    throw Error(MLCB_ERROR_ARGUMENT, "temperature must be 0 (greedy) or a positive number");
  }
  if (!(sampling.top_p >= 0 && sampling.top_p <= 1)) {
    throw Error(MLCB_ERROR_ARGUMENT, "top_p must lie between 0 and 1");
  }
  if (sampling.top_k < 0) throw Error(MLCB_ERROR_ARGUMENT, "top_k must not be negative");
  if (options.max_tokens < 0) throw Error(MLCB_ERROR_ARGUMENT, "max_tokens must not be negative");
  for (const std::string& stop : options.stop) {
    if (stop.empty()) throw Error(MLCB_ERROR_ARGUMENT, "a stop string is empty");
  }
}

int check_threads(int32_t threads) {
  if (threads < 0 || threads > kMaxThreads) {
    throw Error(MLCB_ERROR_ARGUMENT, "threads is " + std::to_string(threads) + ", not in 0.." +
                                         std::to_string(kMaxThreads));
  }
  return threads > 0 ? threads : usable_cpus();
}

// Runs body(); returns what went wrong in words, or an empty message.
template <typename Body>
std::pair<mlcb_status, std::string> capture_error(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return {error.status(), error.what()};
  } catch (const std::bad_alloc&) {
    return {MLCB_ERROR_MEMORY, "out of memory"};
  } catch (const std::exception& error) {
    return {MLCB_ERROR_INTERNAL, error.what()};
  }
  return {MLCB_OK, {}};
}

}  // namespace

// Locks run_mutex_ for a caller; the engine's thread, which would otherwise take the lock again at
// once, lets waiting callers go first.
class Engine::RunLock {
 public:
  explicit RunLock(Engine* engine) : engine_(engine) {
    ++engine_->run_waiters_;
    engine_->run_mutex_.lock();
    --engine_->run_waiters_;
  }
  ~RunLock() { engine_->run_mutex_.unlock(); }
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  Engine* engine_;
};

Engine::Engine(std::shared_ptr<const Bundle> bundle, const EngineOptions& options)
    : bundle_(std::move(bundle)) {
  const BundleLimits& limits = bundle_->limits();
  const int threads = check_threads(options.threads);
  if (options.max_batch_size < 0 || options.max_batch_size > limits.max_batch_size) {
    throw Error(MLCB_ERROR_ARGUMENT, "max_batch_size is " + std::to_string(options.max_batch_size) +
                                         ", the bundle was built for at most " +
                                         std::to_string(limits.max_batch_size));
  }
  if (options.kv_tokens < 0) throw Error(MLCB_ERROR_ARGUMENT, "kv_tokens must not be negative");
  const BundleVariant& variant =
      choose_variant(bundle_->variants(), options.variant, options.activations, cpu_has);
  const int64_t sequences =
      options.max_batch_size > 0 ? options.max_batch_size : limits.max_batch_size;
  auto pages_for = [&](int64_t tokens) { return (tokens - 1) / limits.page_size + 1; };
  const int64_t pages = options.kv_tokens > 0 ? pages_for(options.kv_tokens)
                                              : pages_for(limits.context_window_size) * sequences;
  model_ = std::make_unique<Model>(*bundle_, variant, threads, pages);
  SchedulerLimits scheduler_limits;
  scheduler_limits.rows = std::min(limits.prefill_chunk_size, model_->max_rows());
  scheduler_limits.sequences =
      std::min({sequences, model_->max_logit_rows(), scheduler_limits.rows});
  scheduler_limits.pages = std::min(pages, model_->max_page_ids());
  scheduler_ = std::make_unique<Scheduler>(scheduler_limits);
  token_window_ = std::min(limits.context_window_size, scheduler_limits.pages * limits.page_size);
  write_info(variant);
}

Engine::~Engine() { stop(); }

void Engine::write_info(const BundleVariant& variant) {
  const PlanKv& kv = model_->plan().kv;
  const int64_t page_bytes = kv.page_bytes * kv.layers;
  auto number = [](const char* key, uint64_t value) {
    return json_quote(key) + ":" + std::to_string(value);
  };
  info_ = "{\"activations\":" + json_quote(variant.activations) + ",\"limits\":{" +
          number("context_window_size", static_cast<uint64_t>(token_window_)) + "," +
          number("max_batch_size", static_cast<uint64_t>(scheduler_->limits().sequences)) + "," +
          number("prefill_chunk_size", static_cast<uint64_t>(scheduler_->limits().rows)) +
          "},\"memory\":{" + number("arena_bytes", model_->arena_bytes()) + "," +
          number("kv_bytes", static_cast<uint64_t>(page_bytes * model_->cache().total_pages())) +
          "," + number("kv_bytes_per_token", static_cast<uint64_t>(page_bytes / kv.page_size)) +
          "," + number("weights_bytes", bundle_->params().total_bytes()) + "}," +
          number("threads", static_cast<uint64_t>(model_->threads())) +
          ",\"variant\":" + json_quote(variant.name) + "}";
}

void Engine::check_tokens(const int32_t* token_ids, size_t count) const {
  if (count == 0) throw Error(MLCB_ERROR_ARGUMENT, "there are no tokens: the prompt is empty");
  if (count > static_cast<size_t>(bundle_->limits().context_window_size)) {
    throw Error(MLCB_ERROR_TOO_LONG, std::to_string(count) + " tokens do not fit the context " +
                                         "window of " +
                                         std::to_string(bundle_->limits().context_window_size));
  }
  for (size_t i = 0; i < count; ++i) {
    if (token_ids[i] < 0 || token_ids[i] >= vocab_size()) {
      throw Error(MLCB_ERROR_ARGUMENT, "token " + std::to_string(i) + " has the id " +
                                           std::to_string(token_ids[i]) + ", not in 0.." +
                                           std::to_string(vocab_size() - 1));
    }
  }
}

uint64_t Engine::submit(const RequestOptions& options) {
  check_sampling(options);
  check_tokens(options.token_ids.data(), options.token_ids.size());
  const int64_t prompt = static_cast<int64_t>(options.token_ids.size());
  int64_t limit = token_window_;
  if (options.max_tokens > 0) limit = std::min(limit, prompt + options.max_tokens);
  std::vector<std::string> stops;
  if (!options.ignore_eos) {
    stops = options.stop;
    const std::vector<std::string>& own = bundle_->chat().stop_strings();
    stops.insert(stops.end(), own.begin(), own.end());
  }
  auto request = std::make_unique<Request>(options.sampling, std::move(stops));
  request->tokens = options.token_ids;
  request->token_limit = std::max(limit, prompt + 1);
  request->ignore_stops = options.ignore_eos;
  scheduler_->check_fits(request->token_limit, prompt, model_->cache());
  std::lock_guard<std::mutex> lock(state_mutex_);
  const uint64_t id = next_id_++;
  request->id = id;
  live_.insert(id);
  inbox_.push_back(std::move(request));
  work_ready_.notify_one();
  return id;
}

void Engine::cancel(uint64_t id) {
  std::lock_guard<std::mutex> lock(state_mutex_);
  if (live_.count(id) == 0) {
    throw Error(MLCB_ERROR_NOT_FOUND, "no request " + std::to_string(id) + " is running");
  }
  cancelled_.insert(id);
}

void Engine::take_inbox() {
  std::unordered_set<uint64_t> cancelled;
  {
    std::lock_guard<std::mutex> lock(state_mutex_);
    for (auto& request : inbox_) scheduler_->add(std::move(request));
    inbox_.clear();
    cancelled.swap(cancelled_);
  }
  for (uint64_t id : cancelled) finish(id, MLCB_FINISH_CANCEL, true);
}

bool Engine::step() {
  RunLock lock(this);
  take_inbox();
  const std::vector<ScheduledSlice> slices = scheduler_->next(&model_->cache());
  if (!slices.empty()) run_slices(slices);
  std::lock_guard<std::mutex> state_lock(state_mutex_);
  return !live_.empty();
}

void Engine::run_slices(const std::vector<ScheduledSlice>& slices) {
  std::vector<Slice> model_slices;
  std::vector<int32_t> logit_rows;
  int64_t rows = 0;
  for (const ScheduledSlice& slice : slices) {
    const Request& request = *slice.request;
    model_slices.push_back({request.sequence, request.tokens.data() + request.cached, slice.rows});
    rows += slice.rows;
    if (slice.needs_logits) logit_rows.push_back(static_cast<int32_t>(rows - 1));
  }
  const float* logits = nullptr;
  auto failure = capture_error([&] { logits = model_->step(model_slices, logit_rows); });
  if (failure.first != MLCB_OK) {
    for (const ScheduledSlice& slice : slices) {
      fail(slice.request->id, failure.first, failure.second);
    }
    return;
  }
  const size_t vocab = static_cast<size_t>(vocab_size());
  const size_t valid = std::min(vocab, static_cast<size_t>(bundle_->tokenizer_vocab_size()));
  for (const ScheduledSlice& slice : slices) {
    slice.request->cached += slice.rows;
    if (!slice.needs_logits) continue;
    const uint64_t id = slice.request->id;
    failure = capture_error(
        [&] { accept_token(slice.request, slice.request->sampler.sample(logits, vocab, valid)); });
    if (failure.first != MLCB_OK) fail(id, failure.first, failure.second);
    logits += vocab;
  }
}

void Engine::accept_token(Request* request, int32_t token) {
  const std::vector<int32_t>& stops = bundle_->chat().stop_token_ids();
  if (!request->ignore_stops && std::find(stops.begin(), stops.end(), token) != stops.end()) {
    finish(request->id, MLCB_FINISH_STOP, true);
    return;
  }
  request->tokens.push_back(token);
  Event event;
  event.request_id = request->id;
  event.kind = MLCB_EVENT_TOKEN;
  event.token_id = token;
  event.text = request->stream.push(bundle_->tokenizer().token_bytes(token, false));
  emit(std::move(event));
  if (request->stream.stopped()) {
    finish(request->id, MLCB_FINISH_STOP, false);
  } else if (static_cast<int64_t>(request->tokens.size()) >= request->token_limit) {
    finish(request->id, MLCB_FINISH_LENGTH, true);
  }
}

void Engine::finish(uint64_t id, mlcb_finish_reason reason, bool flush) {
  std::unique_ptr<Request> request = scheduler_->remove(id, &model_->cache());
  if (request == nullptr) return;  // it ended before the cancellation arrived
  Event event;
  event.request_id = id;
  event.kind = MLCB_EVENT_DONE;
  event.finish_reason = reason;
  if (flush) event.text = request->stream.finish();
  emit(std::move(event));
}

void Engine::fail(uint64_t id, mlcb_status status, const std::string& message) {
  scheduler_->remove(id, &model_->cache());
  Event event;
  event.request_id = id;
  event.kind = MLCB_EVENT_ERROR;
  event.status = status;
  event.text = message;
  emit(std::move(event));
}

void Engine::emit(Event event) {
  std::lock_guard<std::mutex> lock(state_mutex_);
  if (event.kind != MLCB_EVENT_TOKEN) {
    live_.erase(event.request_id);
    cancelled_.erase(event.request_id);
  }
  events_.push_back(std::move(event));
  events_ready_.notify_one();
}

void Engine::start() {
  std::lock_guard<std::mutex> lock(thread_mutex_);
  if (thread_.joinable()) return;
  std::lock_guard<std::mutex> state_lock(state_mutex_);
  quit_ = false;
  try {
    thread_ = std::thread([this] { thread_main(); });
  } catch (const std::exception& error) {
    throw Error(MLCB_ERROR_MEMORY,
                std::string("cannot start the engine's thread\nwhy: ") + error.what());
  }
  thread_runs_ = true;
}

void Engine::stop() {
  std::lock_guard<std::mutex> lock(thread_mutex_);
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> state_lock(state_mutex_);
    quit_ = true;
  }
  work_ready_.notify_all();
  thread_.join();
  {
    std::lock_guard<std::mutex> state_lock(state_mutex_);
    thread_runs_ = false;
  }
  events_ready_.notify_all();
}

void Engine::thread_main() {
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(state_mutex_);
      work_ready_.wait(lock, [this] { return quit_ || !live_.empty(); });
      if (quit_) return;
    }
    while (run_waiters_ > 0) std::this_thread::yield();
    auto failure = capture_error([this] { step(); });
    if (failure.first == MLCB_OK) continue;
    RunLock lock(this);
    for (uint64_t id : scheduler_->ids()) fail(id, failure.first, failure.second);
  }
}

Event Engine::poll(int32_t timeout_ms) {
  std::unique_lock<std::mutex> lock(state_mutex_);
  if (events_.empty() && timeout_ms != 0) {
    if (!thread_runs_) {
      throw Error(MLCB_ERROR_ARGUMENT,
                  "waiting for an event needs the engine's own thread\n"
                  "hint: call mlcb_engine_start first, or poll with timeout 0");
    }
    auto ready = [this] { return !events_.empty() || !thread_runs_; };
    if (timeout_ms < 0) {
      events_ready_.wait(lock, ready);
    } else {
      events_ready_.wait_for(lock, std::chrono::milliseconds(timeout_ms), ready);
    }
  }
  if (events_.empty()) return {};
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void Engine::logits(const int32_t* token_ids, size_t token_count, float* out) {
  check_tokens(token_ids, token_count);
  RunLock lock(this);
  KvCache& cache = model_->cache();
  const int64_t count = static_cast<int64_t>(token_count);
  const int64_t available =
      std::min(cache.total_pages(), model_->max_page_ids()) - scheduler_->reserved_pages();
  if (cache.pages_for(count) > available) {
    throw Error(MLCB_ERROR_MEMORY, "the KV cache has room for " +
                                       std::to_string(available * cache.page_size()) +
                                       " more tokens, " + std::to_string(count) + " are needed");
  }
  struct Temporary {
    KvCache& cache;
    SequenceId id;
    ~Temporary() { cache.remove(id); }
  } sequence{cache, cache.add()};
  const int64_t most = std::min(model_->max_logit_rows(), model_->max_rows());
  for (int64_t begin = 0; begin < count; begin += most) {
    const int64_t rows = std::min(most, count - begin);
    std::vector<int32_t> wanted;
    for (int64_t row = 0; row < rows; ++row) wanted.push_back(static_cast<int32_t>(row));
    const float* found = model_->step({{sequence.id, token_ids + begin, rows}}, wanted);
    const size_t values = static_cast<size_t>(rows * vocab_size());
    std::memcpy(out, found, values * sizeof(float));
    out += values;
  }
}

}  // namespace mlcb
