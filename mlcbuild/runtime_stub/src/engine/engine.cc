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
#include "exec/limits.h"

namespace mlcb {
namespace {

constexpr int32_t kMaxThreads = 1024;
constexpr int32_t kMaxChoices = 128;
constexpr int32_t kMaxSpeculation = 64;
constexpr int64_t kLocalSequences = 4;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

void check_request(const RequestOptions& options) {
  auto require = [](bool holds, const char* message) {
    if (!holds) throw Error(MLCB_ERROR_ARGUMENT, message);
  };
  require(options.max_tokens >= 0, "max_tokens must not be negative");
  require(options.timeout_ms >= 0, "timeout_ms must not be negative");
  require(options.n >= 1 && options.n <= kMaxChoices, "n must lie between 1 and 128");
  for (const std::string& stop : options.stop) require(!stop.empty(), "a stop string is empty");
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

int64_t mode_sequences(const std::string& mode, const BundleLimits& limits) {
  if (mode.empty() || mode == "server") return limits.max_batch_size;
  if (mode == "local") return std::min(kLocalSequences, limits.max_batch_size);
  if (mode == "interactive") return 1;
  throw Error(MLCB_ERROR_ARGUMENT,
              "mode is \"" + mode + "\", not \"local\", \"interactive\" or \"server\"");
}

// Pages of the KV cache; most: what the plan allows.
int64_t choose_pages(const EngineOptions& options, const BundleLimits& limits, const PlanKv& kv,
                     int64_t sequences, int64_t most) {
  auto pages_for = [&](int64_t tokens) { return (tokens - 1) / limits.page_size + 1; };
  if (options.kv_tokens > 0 && options.kv_bytes > 0) {
    throw Error(MLCB_ERROR_ARGUMENT, "kv_tokens and kv_bytes are both given: which is it?");
  }
  if (options.kv_tokens > 0) return pages_for(options.kv_tokens);
  if (options.kv_bytes > 0) {
    const uint64_t page_bytes = static_cast<uint64_t>(kv.page_bytes * kv.layers);
    const uint64_t pages = options.kv_bytes / page_bytes;
    if (pages == 0) {
      throw Error(MLCB_ERROR_ARGUMENT, "kv_bytes is " + std::to_string(options.kv_bytes) +
                                           ", one page of " + std::to_string(kv.page_size) +
                                           " tokens takes " + std::to_string(page_bytes) +
                                           "\nhint: raise kv_bytes");
    }
    return static_cast<int64_t>(std::min<uint64_t>(pages, static_cast<uint64_t>(most)));
  }
  return std::min(pages_for(limits.context_window_size) * sequences, most);
}

std::string tokenizer_hash(const Bundle& bundle) {
  const std::string& path = bundle.manifest().at("tokenizer").as_string();
  for (const Json& file : bundle.manifest().at("files").items()) {
    if (file.at("path").as_string() == path) return file.at("sha256").as_string();
  }
  return {};
}

void check_same_vocabulary(const Bundle& bundle, const Bundle& draft) {
  if (bundle.vocab_size() == draft.vocab_size() &&
      tokenizer_hash(bundle) == tokenizer_hash(draft)) {
    return;
  }
  throw Error(MLCB_ERROR_UNSUPPORTED, "the draft bundle " + draft.root() +
                                          " has another tokenizer than " + bundle.root() +
                                          "\nhint: draft with a smaller model of the same family");
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

Engine::Engine(std::shared_ptr<const Bundle> bundle, std::shared_ptr<Grammars> grammars,
               const EngineOptions& options)
    : bundle_(std::move(bundle)), draft_(options.draft), grammars_(std::move(grammars)) {
  const BundleLimits& limits = bundle_->limits();
  const int threads = check_threads(options.threads);
  if (options.max_batch_size < 0 || options.max_batch_size > limits.max_batch_size) {
    throw Error(MLCB_ERROR_ARGUMENT, "max_batch_size is " + std::to_string(options.max_batch_size) +
                                         ", the bundle was built for at most " +
                                         std::to_string(limits.max_batch_size));
  }
  if (options.kv_tokens < 0) throw Error(MLCB_ERROR_ARGUMENT, "kv_tokens must not be negative");
  if (options.max_waiting < 0) throw Error(MLCB_ERROR_ARGUMENT, "max_waiting must not be negative");
  const BundleVariant& variant =
      choose_variant(bundle_->variants(), options.variant, options.activations, cpu_has);
  const int64_t sequences =
      options.max_batch_size > 0 ? options.max_batch_size : mode_sequences(options.mode, limits);
  model_ = std::make_unique<Model>(
      *bundle_, variant, threads, [&](const PlanKv& kv, int64_t most_pages) {
        return choose_pages(options, limits, kv, sequences, most_pages);
      });
  const PlanKv& kv = model_->plan().kv;
  const int64_t pages = model_->cache().total_pages();
  SchedulerLimits scheduler_limits;
  scheduler_limits.rows = std::min(limits.prefill_chunk_size, model_->max_rows());
  scheduler_limits.logit_rows = model_->max_logit_rows();
  scheduler_limits.sequences =
      std::min({sequences, model_->max_logit_rows(), scheduler_limits.rows});
  scheduler_limits.pages = std::min(pages, model_->max_page_ids());
  // Behind a sliding window the pages of a text's beginning are given back while it runs, so there
  // is no whole beginning to share.
  prefixes_ =
      std::make_unique<PrefixCache>(&model_->cache(), options.prefix_cache && kv.window == 0);
  scheduler_ = std::make_unique<Scheduler>(scheduler_limits, &model_->cache(), prefixes_.get(),
                                           [this](const Choice& choice) {
                                             if (speculator_ != nullptr)
                                               speculator_->forget(choice);
                                           });
  token_window_ = limits.context_window_size;
  if (kv.window == 0) {
    token_window_ = std::min(token_window_, scheduler_limits.pages * limits.page_size);
  }
  if (options.max_waiting > 0) max_live_ = scheduler_limits.sequences + options.max_waiting;
  if (options.profile) {
    profile_ = std::make_unique<Profile>();
    model_->set_profile(profile_.get());
  }
  metrics_ = std::make_unique<EngineMetrics>(scheduler_limits.sequences,
                                             static_cast<uint64_t>(kv.page_bytes * kv.layers));
  make_speculator(options, threads);
  write_info(variant, options);
  tell_load();
}

Engine::~Engine() { stop(); }

void Engine::make_speculator(const EngineOptions& options, int threads) {
  if (options.speculation_tokens < 0 || options.speculation_tokens > kMaxSpeculation) {
    throw Error(MLCB_ERROR_ARGUMENT, "speculation_tokens is " +
                                         std::to_string(options.speculation_tokens) +
                                         ", not in 0.." + std::to_string(kMaxSpeculation));
  }
  if (options.speculation.empty()) {
    if (draft_ == nullptr) return;
    throw Error(MLCB_ERROR_ARGUMENT, "a draft bundle was given, but speculation is not \"draft\"");
  }
  speculation_tokens_ = options.speculation_tokens > 0 ? options.speculation_tokens : 4;
  if (options.speculation == "ngram") {
    if (draft_ != nullptr) {
      throw Error(MLCB_ERROR_ARGUMENT, "speculation \"ngram\" uses no draft bundle");
    }
    speculator_ = std::make_unique<NgramSpeculator>();
    return;
  }
  if (options.speculation != "draft") {
    throw Error(MLCB_ERROR_ARGUMENT,
                "speculation is \"" + options.speculation + "\", not \"ngram\" or \"draft\"");
  }
  if (draft_ == nullptr) {
    throw Error(MLCB_ERROR_ARGUMENT, "speculation \"draft\" needs a draft bundle");
  }
  check_same_vocabulary(*bundle_, *draft_);
  const BundleLimits& limits = draft_->limits();
  const int64_t sequences = std::min(limits.max_batch_size, scheduler_->limits().sequences);
  const int64_t pages = ((limits.context_window_size - 1) / limits.page_size + 1) * sequences;
  speculator_ = std::make_unique<DraftSpeculator>(
      *draft_, choose_variant(draft_->variants(), "", "", cpu_has), threads, pages);
}

void Engine::write_info(const BundleVariant& variant, const EngineOptions& options) {
  const PlanKv& kv = model_->plan().kv;
  const int64_t page_bytes = kv.page_bytes * kv.layers;
  const int64_t pages = model_->cache().total_pages();
  auto number = [](const char* key, int64_t value) {
    return json_quote(key) + ":" + std::to_string(value);
  };
  const uint64_t draft_bytes = speculator_ == nullptr ? 0 : speculator_->memory_bytes();
  const bool prefix_cache = options.prefix_cache && kv.window == 0;
  info_ =
      "{\"activations\":" + json_quote(variant.activations) +
      ",\"kv\":{\"dtype\":" + json_quote(kv.dtype) + "," + number("page_size", kv.page_size) + "," +
      number("pages", pages) + "," + number("sinks", kv.sinks) + "," + number("window", kv.window) +
      "},\"limits\":{" + number("context_window_size", token_window_) + "," +
      number("max_batch_size", scheduler_->limits().sequences) + "," +
      number("max_waiting", options.max_waiting) + "," +
      number("prefill_chunk_size", scheduler_->limits().rows) + "},\"memory\":{" +
      number("arena_bytes", static_cast<int64_t>(model_->arena_bytes())) + "," +
      number("draft_bytes", static_cast<int64_t>(draft_bytes)) + "," +
      number("kv_bytes", page_bytes * pages) + "," +
      number("kv_bytes_per_token", page_bytes / kv.page_size) + "," +
      number("weights_bytes", static_cast<int64_t>(bundle_->params().total_bytes())) +
      "},\"mode\":" + json_quote(options.mode.empty() ? "server" : options.mode) +
      ",\"prefix_cache\":" + (prefix_cache ? "true" : "false") + ",\"speculation\":" +
      (speculator_ == nullptr ? "null"
                              : "{\"kind\":" + json_quote(options.speculation) + "," +
                                    number("tokens", speculation_tokens_) + "}") +
      "," + number("threads", model_->threads()) + ",\"variant\":" + json_quote(variant.name) + "}";
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
  try {
    return add_request(options);
  } catch (const Error& error) {
    metrics_->rejected(error.status());
    throw;
  }
}

uint64_t Engine::add_request(const RequestOptions& options) {
  check_request(options);
  check_sampling_params(options.sampling, static_cast<size_t>(vocab_size()));
  check_tokens(options.token_ids.data(), options.token_ids.size());
  auto request = std::make_shared<Request>();
  request->submitted = Clock::now();
  request->n = options.n;
  request->open_choices = options.n;
  request->prompt_tokens = static_cast<int64_t>(options.token_ids.size());
  int64_t limit = token_window_;
  if (options.max_tokens > 0) limit = std::min(limit, request->prompt_tokens + options.max_tokens);
  request->token_limit = std::max(limit, request->prompt_tokens + 1);
  scheduler_->check_fits(request->token_limit, request->prompt_tokens);
  request->ignore_stops = options.ignore_eos;
  request->stop_tokens = options.stop_token_ids;
  request->stop_strings = options.stop;
  if (!options.ignore_eos) {
    const std::vector<std::string>& own = bundle_->chat().stop_strings();
    request->stop_strings.insert(request->stop_strings.end(), own.begin(), own.end());
  }
  request->sampling = options.sampling;
  request->wants_logprobs = options.sampling.top_logprobs >= 0;
  request->deadline = options.timeout_ms > 0
                          ? request->submitted + std::chrono::milliseconds(options.timeout_ms)
                          : Clock::time_point::max();
  request->grammar = grammars_->get(options.grammar_kind, options.grammar);
  auto choice = std::make_unique<Choice>(request, 0, options.token_ids);
  choice->forks = options.n - 1;
  std::lock_guard<std::mutex> lock(state_mutex_);
  if (max_live_ > 0 && static_cast<int64_t>(live_.size()) >= max_live_) {
    throw Error(MLCB_ERROR_BUSY, std::to_string(live_.size()) +
                                     " requests run or wait already, which is the limit\n"
                                     "hint: try again later, or raise max_waiting");
  }
  const uint64_t id = next_id_++;
  request->id = id;
  live_.insert(id);
  metrics_->submitted(options.n);
  inbox_.push_back(std::move(choice));
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
    for (auto& choice : inbox_) scheduler_->add(std::move(choice));
    inbox_.clear();
    cancelled.swap(cancelled_);
  }
  for (uint64_t id : cancelled) {
    for (Choice* choice : scheduler_->choices_of(id)) finish(choice, MLCB_FINISH_CANCEL, true);
  }
}

// Ends the requests whose time is over.
void Engine::end_late() {
  const Clock::time_point now = Clock::now();
  for (Choice* choice : scheduler_->all()) {
    const std::shared_ptr<Request> request = choice->request;
    if (request->deadline > now) continue;
    // A request that has answered nothing has one choice here: failing it takes no other of this
    // list along.
    if (request->has_token() || request->open_choices < request->n) {
      finish(choice, MLCB_FINISH_DEADLINE, true);
    } else {
      fail(request->id, MLCB_ERROR_DEADLINE,
           "the request's time ran out before its first token\n"
           "hint: give it more time, or run fewer requests at once");
    }
  }
}

bool Engine::step() {
  RunLock lock(this);
  take_inbox();
  end_late();
  scheduler_->admit();
  const Clock::time_point begin = Clock::now();
  speculate();
  const std::vector<ScheduledSlice> slices = scheduler_->next();
  if (!slices.empty()) {
    StepFigures figures;
    for (const ScheduledSlice& slice : slices) {
      const bool decodes = slice.choice->decodes() && slice.choice->generated() > 0;
      (decodes ? figures.decode_rows : figures.prefill_rows) += slice.rows;
    }
    figures.sequences = static_cast<int64_t>(slices.size());
    run_slices(slices);
    figures.seconds = seconds_between(begin, Clock::now());
    metrics_->step(figures);
  }
  tell_load();
  std::lock_guard<std::mutex> state_lock(state_mutex_);
  return !live_.empty();
}

void Engine::tell_load() {
  const KvCache& cache = model_->cache();
  LoadFigures load;
  load.running = static_cast<int64_t>(scheduler_->running().size());
  load.waiting = static_cast<int64_t>(scheduler_->waiting().size());
  load.kv_pages = cache.total_pages();
  load.kv_pages_cached = cache.idle_pages();
  load.kv_pages_used = cache.total_pages() - cache.free_pages() - cache.idle_pages();
  metrics_->load(load);
  metrics_->evicted(prefixes_->evictions() - told_evictions_);
  told_evictions_ = prefixes_->evictions();
  for (; told_preemptions_ < scheduler_->preemptions(); ++told_preemptions_) metrics_->preempted();
}

void Engine::speculate() {
  if (speculator_ == nullptr || scheduler_->spare_rows() <= 0) return;
  std::vector<Choice*> choices;
  for (const auto& choice : scheduler_->running()) {
    if (choice->decodes()) choices.push_back(choice.get());
  }
  if (choices.empty()) return;
  const auto failure = capture_error([&] { speculator_->propose(choices, speculation_tokens_); });
  if (failure.first == MLCB_OK) return;
  std::unordered_set<uint64_t> ids;
  for (Choice* choice : choices) ids.insert(choice->request->id);
  for (uint64_t id : ids) fail(id, failure.first, "speculation: " + failure.second);
}

void Engine::run_slices(const std::vector<ScheduledSlice>& slices) {
  std::vector<Slice> model_slices;
  std::vector<int32_t> logit_rows;
  std::vector<std::vector<int32_t>> guessed;  // tokens of the slices that hold guesses
  guessed.reserve(slices.size());
  int64_t rows = 0;
  const Clock::time_point now = Clock::now();
  for (const ScheduledSlice& slice : slices) {
    Choice& choice = *slice.choice;
    Request& request = *choice.request;
    if (!request.has_started()) {
      request.started = now;
      metrics_->started(seconds_between(request.submitted, now), request.prompt_tokens,
                        request.cached_tokens);
    }
    const int32_t* tokens = choice.tokens.data() + choice.cached;
    if (slice.drafts > 0) {
      guessed.emplace_back(tokens, tokens + slice.rows - slice.drafts);
      guessed.back().insert(guessed.back().end(), choice.draft.begin(),
                            choice.draft.begin() + static_cast<ptrdiff_t>(slice.drafts));
      tokens = guessed.back().data();
    }
    model_slices.push_back({choice.sequence, tokens, slice.rows});
    rows += slice.rows;
    if (!slice.needs_logits) continue;
    for (int64_t row = rows - slice.drafts - 1; row < rows; ++row) {
      logit_rows.push_back(static_cast<int32_t>(row));
    }
  }
  const float* logits = nullptr;
  auto failure = capture_error([&] { logits = model_->step(model_slices, logit_rows); });
  if (failure.first != MLCB_OK) {
    std::unordered_set<uint64_t> ids;
    for (const ScheduledSlice& slice : slices) ids.insert(slice.choice->request->id);
    for (uint64_t id : ids) fail(id, failure.first, failure.second);
    return;
  }
  std::unordered_set<const Choice*> failed;  // gone
  for (const ScheduledSlice& slice : slices) {
    const float* own = logits;
    if (slice.needs_logits) logits += (slice.drafts + 1) * vocab_size();
    // A choice that failed took the others of its request with it.
    if (failed.count(slice.choice) > 0) continue;
    const std::shared_ptr<Request> request = slice.choice->request;
    failure = capture_error([&] { take_results(slice, own); });
    if (failure.first == MLCB_OK) continue;
    for (Choice* choice : scheduler_->choices_of(request->id)) failed.insert(choice);
    fail(request->id, failure.first, failure.second);
  }
}

void Engine::take_results(const ScheduledSlice& slice, const float* logits) {
  Choice* choice = slice.choice;
  choice->cached += slice.rows - slice.drafts;
  if (!slice.needs_logits) {
    tell_prefixes(choice);
    model_->cache().drop_unseen(choice->sequence);
    return;
  }
  if (choice->forks > 0) branch_off(choice, logits);
  accept_rows(choice, logits, slice.drafts + 1);
}

// The prompt of a request for several texts is computed: the other choices start from it.
void Engine::branch_off(Choice* leader, const float* logits) {
  tell_prefixes(leader);
  std::vector<Choice*> started;
  for (int32_t index = 1; leader->forks > 0; ++index, --leader->forks) {
    auto fork = std::make_unique<Choice>(leader->request, index, leader->tokens);
    fork->tree_node = leader->tree_node;
    fork->tree_pages = leader->tree_pages;
    Choice* added = scheduler_->add_fork(std::move(fork), leader->sequence);
    if (added->sequence != 0) {
      started.push_back(added);
    } else {
      added->tree_node = PrefixCache::kRoot;
      added->tree_pages = 0;
    }
  }
  for (Choice* choice : started) accept_rows(choice, logits, 1);
}

// Takes tokens from the rows of logits, the first of which follows what is in the text.
void Engine::accept_rows(Choice* choice, const float* logits, int64_t rows) {
  const int64_t before = choice->size();
  Verdict verdict;
  try {
    verdict = sample_rows(choice, logits, rows);
  } catch (...) {
    note_tokens(choice, choice->size() - before);  // they were told already
    throw;
  }
  note_tokens(choice, choice->size() - before);
  if (verdict.reason != MLCB_FINISH_NONE) {
    finish(choice, verdict.reason, verdict.flush);
    return;
  }
  KvCache& cache = model_->cache();
  cache.pop(choice->sequence, cache.length(choice->sequence) - choice->cached);
  tell_prefixes(choice);
  cache.drop_unseen(choice->sequence);
}

// A row counts if all tokens before it were guessed right, be they sampled or forced.
Engine::Verdict Engine::sample_rows(Choice* choice, const float* logits, int64_t rows) {
  const size_t vocab = static_cast<size_t>(vocab_size());
  const size_t valid = std::min(vocab, static_cast<size_t>(bundle_->tokenizer_vocab_size()));
  std::vector<int32_t> guesses;
  guesses.swap(choice->draft);
  const int64_t before = choice->size();
  Verdict verdict;
  int64_t row = 0;
  for (;;) {
    const uint32_t* allowed = nullptr;
    if (choice->matcher != nullptr) {
      const Clock::time_point begin = Clock::now();
      allowed = choice->matcher->allowed();
      metrics_->grammar_mask(seconds_between(begin, Clock::now()));
    }
    const SampledToken sampled =
        choice->sampler.sample(logits + row * static_cast<int64_t>(vocab), vocab, valid, allowed);
    verdict = accept_token(choice, sampled);
    if (verdict.reason == MLCB_FINISH_NONE) verdict = jump_ahead(choice);
    if (verdict.reason != MLCB_FINISH_NONE) break;
    const int64_t known = choice->size() - before;
    while (row + 1 < rows && row < known &&
           choice->tokens[static_cast<size_t>(before + row)] == guesses[static_cast<size_t>(row)]) {
      ++row;
      ++choice->cached;
    }
    if (row < known) break;
  }
  if (rows > 1) metrics_->speculated(rows - 1, row);
  return verdict;
}

Engine::Verdict Engine::accept_token(Choice* choice, const SampledToken& sampled) {
  const Request& request = *choice->request;
  auto is_in = [&](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), sampled.token) != ids.end();
  };
  const bool model_stops = !request.ignore_stops || choice->matcher != nullptr;
  if ((model_stops && is_in(bundle_->chat().stop_token_ids())) || is_in(request.stop_tokens)) {
    return {MLCB_FINISH_STOP, true};
  }
  if (choice->matcher != nullptr && !choice->matcher->accept(sampled.token)) {
    throw Error(MLCB_ERROR_INTERNAL, "the grammar refuses token " + std::to_string(sampled.token) +
                                         ", which it allowed");
  }
  return add_token(choice, sampled);
}

// Puts a token that was decided on into the text.
Engine::Verdict Engine::add_token(Choice* choice, const SampledToken& sampled) {
  choice->tokens.push_back(sampled.token);
  choice->sampler.accept(sampled.token);
  Event event;
  event.request_id = choice->request->id;
  event.kind = MLCB_EVENT_TOKEN;
  event.choice = choice->index;
  event.token_id = sampled.token;
  event.logprob = sampled.logprob;
  event.top = sampled.top;
  event.text = choice->stream.push(text_of(sampled.token));
  emit(std::move(event), false);
  if (choice->stream.stopped()) return {MLCB_FINISH_STOP, false};
  if (choice->matcher != nullptr && choice->matcher->must_end()) return {MLCB_FINISH_STOP, true};
  if (choice->size() >= choice->request->token_limit) return {MLCB_FINISH_LENGTH, true};
  return {};
}

std::string Engine::text_of(int32_t token) const {
  const std::vector<int32_t>& kept = bundle_->chat().kept_token_ids();
  const bool keep = std::find(kept.begin(), kept.end(), token) != kept.end();
  return bundle_->tokenizer().token_bytes(token, keep);
}

// Where the grammar leaves one way to go on, its text is put in without asking the model. The last
// token of that text stays with the model, which may join it with what follows.
Engine::Verdict Engine::jump_ahead(Choice* choice) {
  const Request& request = *choice->request;
  // These need the sampler's say about every token.
  if (choice->matcher == nullptr || request.wants_logprobs || !request.stop_tokens.empty() ||
      !request.sampling.logit_bias.empty()) {
    return {};
  }
  const std::string forced = choice->matcher->forced_bytes();
  if (forced.empty()) return {};
  // Special tokens too: markers that stay in the text are meant, others are not accepted below.
  std::vector<int32_t> tokens = bundle_->tokenizer().encode(forced, true);
  if (!tokens.empty()) tokens.pop_back();
  size_t used = 0;
  for (int32_t token : tokens) {
    const std::string bytes = text_of(token);
    // Some tokenizers put a space in front of a text: then there is nothing to gain here.
    if (bytes.empty() || forced.compare(used, bytes.size(), bytes) != 0) return {};
    if (!choice->matcher->accept(token)) return {};
    used += bytes.size();
    SampledToken sampled;
    sampled.token = token;
    const Verdict verdict = add_token(choice, sampled);
    metrics_->jumped_ahead(1);
    if (verdict.reason != MLCB_FINISH_NONE) return verdict;
  }
  return {};
}

void Engine::note_tokens(Choice* choice, int64_t count) {
  if (count == 0) return;
  const Clock::time_point now = Clock::now();
  Request& request = *choice->request;
  if (choice->last_token == Clock::time_point()) {
    metrics_->first_token(seconds_between(request.submitted, now), count);
  } else {
    metrics_->next_token(seconds_between(choice->last_token, now), count);
  }
  choice->last_token = now;
  if (!request.has_token()) request.first_token = now;
}

// Pages that became full can serve other requests from now on.
void Engine::tell_prefixes(Choice* choice) {
  const int64_t page_size = model_->cache().page_size();
  while (choice->tree_pages >= 0 && choice->tree_pages < choice->cached / page_size) {
    const int32_t node =
        prefixes_->insert(choice->tree_node, choice->tokens.data() + choice->tree_pages * page_size,
                          choice->sequence, static_cast<size_t>(choice->tree_pages));
    choice->tree_node = node;
    choice->tree_pages = node == PrefixCache::kRoot ? -1 : choice->tree_pages + 1;
  }
}

void Engine::finish(Choice* choice, mlcb_finish_reason reason, bool flush) {
  if (choice->sequence != 0) {
    KvCache& cache = model_->cache();
    cache.pop(choice->sequence, cache.length(choice->sequence) - choice->cached);
    tell_prefixes(choice);
  }
  const std::unique_ptr<Choice> ended = scheduler_->remove(choice);
  Request& request = *ended->request;
  const Clock::time_point now = Clock::now();
  // Choices that were not branched off yet end with the one that they wait for.
  for (int32_t index = ended->index; index <= ended->index + ended->forks; ++index) {
    Event event;
    event.request_id = request.id;
    event.kind = MLCB_EVENT_DONE;
    event.choice = index;
    event.finish_reason = reason;
    if (flush && index == ended->index) event.text = ended->stream.finish();
    event.stop_string = ended->stream.met();
    event.prompt_tokens = static_cast<int32_t>(request.prompt_tokens);
    event.cached_tokens = static_cast<int32_t>(request.cached_tokens);
    event.completion_tokens = static_cast<int32_t>(ended->generated());
    event.total_seconds = seconds_between(request.submitted, now);
    event.queue_seconds = request.has_started()
                              ? seconds_between(request.submitted, request.started)
                              : event.total_seconds;
    if (request.has_token()) {
      event.first_token_seconds = seconds_between(request.submitted, request.first_token);
    }
    metrics_->finished(reason, event.total_seconds);
    --request.open_choices;
    emit(std::move(event), request.open_choices == 0);
  }
}

void Engine::fail(uint64_t id, mlcb_status status, const std::string& message) {
  int32_t open = 0;
  for (Choice* choice : scheduler_->choices_of(id)) {
    open = choice->request->open_choices;
    scheduler_->remove(choice);
  }
  metrics_->failed(status, open);
  Event event;
  event.request_id = id;
  event.kind = MLCB_EVENT_ERROR;
  event.status = status;
  event.text = message;
  emit(std::move(event), true);
}

void Engine::emit(Event event, bool last_of_request) {
  std::lock_guard<std::mutex> lock(state_mutex_);
  if (last_of_request) {
    live_.erase(event.request_id);
    cancelled_.erase(event.request_id);
  }
  events_.push_back(std::move(event));
  events_ready_.notify_one();
}

void Engine::start() {
  std::lock_guard<std::mutex> lock(thread_mutex_);
  if (thread_.joinable()) return;
  if (!kHasThreads) {
    throw Error(MLCB_ERROR_UNSUPPORTED,
                "the engine cannot have a thread of its own\n"
                "why: this runtime was built for a platform without threads\n"
                "hint: call mlcb_engine_step until it is no longer busy");
  }
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
    std::unordered_set<uint64_t> ids;
    for (Choice* choice : scheduler_->all()) ids.insert(choice->request->id);
    for (uint64_t id : ids) fail(id, failure.first, failure.second);
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
  const int64_t most = std::min(model_->max_logit_rows(), model_->max_rows());
  const int64_t needed = cache.most_pages_for(count, most);
  if (!scheduler_->make_free(needed)) {
    throw Error(MLCB_ERROR_MEMORY, "the KV cache has " + std::to_string(cache.free_pages()) +
                                       " free pages, " + std::to_string(needed) +
                                       " are needed: running requests hold the others");
  }
  struct Temporary {
    KvCache& cache;
    SequenceId id;
    ~Temporary() { cache.remove(id); }
  } sequence{cache, cache.add()};
  for (int64_t begin = 0; begin < count; begin += most) {
    const int64_t rows = std::min(most, count - begin);
    std::vector<int32_t> wanted;
    for (int64_t row = 0; row < rows; ++row) wanted.push_back(static_cast<int32_t>(row));
    const float* found = model_->step({{sequence.id, token_ids + begin, rows}}, wanted);
    const size_t values = static_cast<size_t>(rows * vocab_size());
    std::memcpy(out, found, values * sizeof(float));
    out += values;
    cache.drop_unseen(sequence.id);
  }
}

std::string Engine::metrics(const std::string& format) {
  if (format == "json") return metrics_->json(profile_.get());
  if (format == "prometheus") return metrics_->prometheus();
  throw Error(MLCB_ERROR_ARGUMENT,
              "the format is \"" + format + "\", not \"json\" or \"prometheus\"");
}

std::string Engine::limits() {
  RunLock lock(this);
  if (limits_.empty()) {
    const Plan& plan = model_->plan();
    limits_ = measure_limits(model_->pool(), plan.capability, plan.activations == "int8");
  }
  return limits_;
}

void Engine::clear_cache() {
  RunLock lock(this);
  prefixes_->clear();
  tell_load();
}

}  // namespace mlcb
