// Tests of the runtime's inner parts that the C interface does not reach one by one.
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/cpu.h"
#include "core/error.h"
#include "core/os.h"
#include "core/sha256.h"
#include "engine/kv_cache.h"
#include "engine/prefix_cache.h"
#include "engine/rope_table.h"
#include "engine/scheduler.h"
#include "engine/variant.h"
#include "exec/executor.h"
#include "exec/plan.h"
#include "exec/profile.h"
#include "exec/thread_pool.h"

namespace mlcb {
namespace {

int failures = 0;

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::printf("%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                          \
    }                                                                      \
  } while (false)

// Status of the Error that body() throws; MLCB_OK if it throws none.
mlcb_status status_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.status();
  }
  return MLCB_OK;
}

void test_sha256() {
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  std::string text;
  for (int i = 0; i < 300; ++i) {
    CHECK(sha256_hex(text) == sha256_hex_portable(text.data(), text.size()));
    text += static_cast<char>(i * 7);
  }
}

void test_machine() {
  CHECK(usable_cpus() >= 1);
  CHECK(!executable_path().empty());
  CHECK(!cpu_has("avx9000"));
#if defined(__x86_64__)
  CHECK(cpu_has("sse2"));
#endif
}

// ---- thread pool
// ---------------------------------------------------------------------------------

struct Sum {
  std::atomic<int64_t> total{0};
  std::atomic<int> inner_launches{0};
};

int add_task(int task, ParallelGroupEnv* env, void* closure) {
  static_cast<Sum*>(closure)->total += task + 1000 * env->num_task;
  return 0;
}

int nested_task(int, ParallelGroupEnv*, void* closure) {
  return ThreadPool::current()->launch(add_task, closure, 3);
}

int failing_task(int task, ParallelGroupEnv*, void*) {
  if (task != 5) return 0;
  set_kernel_error("task five");
  return -1;
}

void test_thread_pool(int threads) {
  ThreadPool pool(threads);
  ThreadPool::Scope scope(&pool);
  for (int round = 0; round < 300; ++round) {
    Sum sum;
    CHECK(pool.launch(add_task, &sum, 10) == 0);
    CHECK(sum.total == 45 + 10 * 10000);
    // Now and then long enough for the workers to fall asleep.
    if (round % 100 == 99) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  Sum nested;
  CHECK(pool.launch(nested_task, &nested, 8) == 0);
  CHECK(nested.total == 8 * (3 + 3 * 3000));
  CHECK(pool.launch(failing_task, nullptr, 8) == -1);
  CHECK(take_kernel_error() == "task five");
  CHECK(pool.launch(failing_task, nullptr, 4) == 0);
}

struct RunCounts {
  std::array<std::atomic<int>, 40> runs{};
};

int count_task(int task, ParallelGroupEnv*, void* closure) {
  return static_cast<RunCounts*>(closure)->runs[static_cast<size_t>(task)]++ == 0 ? 0 : -1;
}

// Right behind a small job comes a larger one: a worker that is late for the first must not take a
// task of the second for one of the first.
void test_growing_jobs(int threads) {
  ThreadPool pool(threads);
  for (int round = 0; round < 30000; ++round) {
    RunCounts counts;
    const int tasks = round % 2 ? 40 : 2;
    CHECK(pool.launch(count_task, &counts, tasks) == 0);
    int total = 0;
    for (const auto& runs : counts.runs) total += runs;
    CHECK(total == tasks);
  }
}

void test_two_pools() {
  auto work = [] {
    ThreadPool pool(2);
    ThreadPool::Scope scope(&pool);
    for (int round = 0; round < 200; ++round) {
      Sum sum;
      CHECK(ThreadPool::current()->launch(add_task, &sum, 6) == 0);
      CHECK(sum.total == 15 + 6 * 6000);
    }
  };
  std::thread other(work);
  work();
  other.join();
  CHECK(ThreadPool::current() == nullptr);
}

// ---- KV cache
// ------------------------------------------------------------------------------------

PlanKv small_kv() {
  PlanKv kv;
  kv.layers = 2;
  kv.kv_heads = 1;
  kv.head_dim = 4;
  kv.page_size = 4;
  kv.page_bytes = 2 * 1 * 4 * 4 * 4;
  return kv;
}

struct Tables {
  std::vector<int32_t> positions = std::vector<int32_t>(64), slots = std::vector<int32_t>(64);
  std::vector<int32_t> page_begin = std::vector<int32_t>(64), values = std::vector<int32_t>(64);
  std::vector<int32_t> page_skip = std::vector<int32_t>(64);

  void append(KvCache* cache, const std::vector<KvAppend>& appends) {
    cache->append(appends, {positions.data(), slots.data(), page_begin.data(), page_skip.data(),
                            values.data()});
  }
};

void test_kv_tables() {
  KvCache cache(small_kv(), 8);
  Tables tables;
  const SequenceId a = cache.add(), b = cache.add();
  tables.append(&cache, {{a, 6}, {b, 3}});
  CHECK(cache.length(a) == 6 && cache.length(b) == 3 && cache.free_pages() == 5);
  CHECK(cache.page_ids_after({{a, 0}, {b, 0}}) == 3);
  CHECK(cache.page_ids_after({{a, 3}, {b, 1}}) == 4);
  for (int i = 0; i < 6; ++i) CHECK(tables.positions[i] == i && tables.page_begin[i] == 0);
  for (int i = 6; i < 9; ++i) CHECK(tables.positions[i] == i - 6 && tables.page_begin[i] == 2);
  for (int i = 0; i < 6; ++i) CHECK(tables.slots[i] == tables.values[i / 4] * 4 + i % 4);
  CHECK(tables.slots[7] == tables.values[2] * 4 + 1);
  tables.append(&cache, {{b, 1}});  // fills the page
  tables.append(&cache, {{b, 1}});  // opens the next
  CHECK(tables.positions[0] == 4 && tables.slots[0] == tables.values[1] * 4);
  cache.remove(a);
  cache.remove(b);
  CHECK(cache.free_pages() == 8);
  CHECK(status_of([&] { cache.length(a); }) == MLCB_ERROR_INTERNAL);
}

void test_kv_fork_copies_on_write() {
  KvCache cache(small_kv(), 8);
  Tables tables;
  const SequenceId parent = cache.add();
  tables.append(&cache, {{parent, 6}});
  const int32_t shared = tables.values[1];
  const size_t page_bytes = static_cast<size_t>(small_kv().page_bytes);
  for (const Span& layer : cache.layers()) {
    std::memset(static_cast<uint8_t*>(layer.data) + page_bytes * shared, 7, page_bytes);
  }
  const SequenceId child = cache.fork(parent);
  CHECK(cache.length(child) == 6 && cache.free_pages() == 6);
  tables.append(&cache, {{child, 1}});
  const int32_t copied = tables.values[1];
  CHECK(copied != shared && cache.free_pages() == 5);
  for (const Span& layer : cache.layers()) {
    const uint8_t* base = static_cast<const uint8_t*>(layer.data);
    CHECK(std::memcmp(base + page_bytes * copied, base + page_bytes * shared, page_bytes) == 0);
  }
  tables.append(&cache, {{parent, 1}});  // alone again: no second copy
  CHECK(tables.values[1] == shared && cache.free_pages() == 5);
  cache.remove(parent);
  CHECK(cache.free_pages() == 6);  // the full page is still the child's
  cache.remove(child);
  CHECK(cache.free_pages() == 8);
}

void test_kv_pop() {
  KvCache cache(small_kv(), 4);
  Tables tables;
  const SequenceId a = cache.add();
  tables.append(&cache, {{a, 13}});
  const SequenceId b = cache.fork(a);
  cache.pop(a, 7);
  CHECK(cache.length(a) == 6 && cache.free_pages() == 0);
  cache.pop(b, 13);
  CHECK(cache.free_pages() == 2);
  tables.append(&cache, {{a, 1}});  // no longer shared
  CHECK(tables.positions[0] == 6 && cache.free_pages() == 2);
  CHECK(status_of([&] { cache.pop(a, 8); }) == MLCB_ERROR_INTERNAL);
}

void test_kv_exhaustion_changes_nothing() {
  KvCache cache(small_kv(), 3);
  Tables tables;
  const SequenceId a = cache.add(), b = cache.add();
  tables.append(&cache, {{a, 5}});
  CHECK(status_of([&] { tables.append(&cache, {{b, 4}, {a, 8}}); }) == MLCB_ERROR_MEMORY);
  CHECK(cache.length(a) == 5 && cache.length(b) == 0 && cache.free_pages() == 1);
  tables.append(&cache, {{b, 4}});
  CHECK(cache.free_pages() == 0);
  CHECK(status_of([] { KvCache(small_kv(), 0); }) == MLCB_ERROR_ARGUMENT);
}

// ---- rope, variants, expressions
// --------------------------------------------------------

void test_rope_table() {
  PlanRope rope;
  rope.present = true;
  rope.rotary_dim = 4;
  rope.inv_freq = {1.0f, 0.3f};
  rope.attention_factor = 2;
  RopeTable table(rope, 100);
  table.extend_to(3);
  table.extend_to(500);
  const float* row = static_cast<const float*>(table.span().data) + 99 * 4;
  const float angle = 99.0f * 0.3f;
  CHECK(row[0] == static_cast<float>(std::cos(99.0)) * 2);
  CHECK(row[3] == static_cast<float>(std::sin(static_cast<double>(angle))) * 2);
  CHECK(table.span().bytes == 100 * 4 * sizeof(float));
}

// ---- sliding window, prefix cache, scheduler
// --------------------------------------------------------

void test_kv_window() {
  PlanKv kv = small_kv();
  kv.window = 6;
  kv.sinks = 3;
  KvCache cache(kv, 8);
  Tables tables;
  const SequenceId a = cache.add();
  tables.append(&cache, {{a, 12}});
  cache.drop_unseen(a);  // the row at 12 sees 0..2 and 7..12: page 1 (4..7) still
  CHECK(cache.dropped_pages(a) == 0 && cache.free_pages() == 5);
  tables.append(&cache, {{a, 1}});
  cache.drop_unseen(a);  // the row at 13 sees 8..13
  CHECK(cache.dropped_pages(a) == 1 && cache.free_pages() == 5);
  tables.append(&cache, {{a, 2}});
  CHECK(tables.positions[0] == 13 && tables.page_skip[0] == 1 && tables.page_skip[1] == 1);
  CHECK(cache.page_ids_after({{a, 1}}) == 3 && cache.page_ids_after({{a, 2}}) == 4);
  CHECK(tables.slots[1] == tables.values[2] * 4 + 2);
  cache.pop(a, 2);
  CHECK(cache.length(a) == 13 && cache.pages(a).size() == 3);
  for (int i = 0; i < 20; ++i) {
    tables.append(&cache, {{a, 2}});
    cache.drop_unseen(a);
    CHECK(static_cast<int64_t>(cache.pages(a).size()) <= cache.most_pages_for(1000, 2));
  }
  CHECK(status_of([&] { cache.pop(a, 50); }) == MLCB_ERROR_INTERNAL);
  cache.remove(a);
  CHECK(cache.free_pages() == 8);
}

std::vector<int32_t> count_up(int32_t first, size_t count) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i) tokens.push_back(first + static_cast<int32_t>(i));
  return tokens;
}

// A sequence of these tokens whose whole pages the prefix cache knows.
SequenceId add_known(KvCache* cache, PrefixCache* prefixes, const std::vector<int32_t>& tokens) {
  Tables tables;
  const SequenceId id =
      cache->add(prefixes->match(tokens.data(), static_cast<int64_t>(tokens.size())));
  const int64_t rows = static_cast<int64_t>(tokens.size()) - cache->length(id);
  if (rows > 0) tables.append(cache, {{id, rows}});
  int32_t node = PrefixCache::kRoot;
  for (size_t page = 0; (page + 1) * 4 <= tokens.size(); ++page) {
    node = prefixes->insert(node, tokens.data() + page * 4, id, page);
  }
  return id;
}

void test_prefix_cache() {
  KvCache cache(small_kv(), 8);
  PrefixCache prefixes(&cache, true);
  const std::vector<int32_t> text = count_up(0, 10);
  const SequenceId a = add_known(&cache, &prefixes, text);
  CHECK(prefixes.nodes() == 2 && cache.idle_pages() == 0 && cache.free_pages() == 5);
  CHECK(prefixes.match(text.data(), 7).size() == 1);
  CHECK(prefixes.match(text.data(), 10).size() == 2);
  CHECK(prefixes.match(text.data() + 1, 9).empty());
  cache.remove(a);
  CHECK(cache.idle_pages() == 2 && cache.free_pages() == 6);
  // The same beginning, then something else: one page shared, one of its own.
  std::vector<int32_t> other = text;
  other[5] = 99;
  const SequenceId b = add_known(&cache, &prefixes, other);
  CHECK(prefixes.nodes() == 3 && cache.idle_pages() == 1);
  CHECK(cache.pages(b)[0] == prefixes.match(text.data(), 8)[0]);
  // Computed twice at the same time: the second gives its page back.
  const SequenceId c = cache.add();
  Tables tables;
  tables.append(&cache, {{c, 4}});
  const int64_t free_before = cache.free_pages();
  CHECK(prefixes.insert(PrefixCache::kRoot, text.data(), c, 0) == cache.pages(b)[0]);
  CHECK(cache.pages(c)[0] == cache.pages(b)[0] && cache.free_pages() == free_before + 1);
  // What is in use stays, whatever is asked for.
  CHECK(prefixes.evict(100) == 1 && prefixes.nodes() == 2);
  CHECK(prefixes.match(text.data(), 8).size() == 1 && prefixes.evictions() == 1);
  cache.remove(b);
  cache.remove(c);
  CHECK(prefixes.evict(1) == 1);  // the leaf, not the page that it follows
  CHECK(prefixes.match(text.data(), 8).size() == 1);
  prefixes.clear();
  CHECK(prefixes.nodes() == 0 && cache.free_pages() == 8 && cache.idle_pages() == 0);
}

void test_prefix_cache_gives_back_the_oldest() {
  KvCache cache(small_kv(), 8);
  PrefixCache prefixes(&cache, true);
  std::vector<std::vector<int32_t>> texts;
  for (int32_t i = 0; i < 4; ++i) texts.push_back(count_up(100 * i, 8));
  for (const auto& text : texts) cache.remove(add_known(&cache, &prefixes, text));
  CHECK(cache.idle_pages() == 8);
  prefixes.match(texts[0].data(), 8);  // used again
  CHECK(prefixes.evict(3) == 3);
  CHECK(prefixes.match(texts[0].data(), 8).size() == 2);
  CHECK(prefixes.match(texts[1].data(), 8).empty());
  CHECK(prefixes.match(texts[2].data(), 8).size() == 1);
  CHECK(prefixes.match(texts[3].data(), 8).size() == 2);
  PrefixCache off(&cache, false);
  const SequenceId a = cache.add();
  Tables tables;
  tables.append(&cache, {{a, 4}});
  CHECK(off.insert(PrefixCache::kRoot, texts[0].data(), a, 0) == PrefixCache::kRoot);
  CHECK(off.match(texts[0].data(), 8).empty() && off.evict(5) == 0);
}

std::unique_ptr<Choice> make_choice(uint64_t id, int prompt, int limit) {
  auto request = std::make_shared<Request>();
  request->id = id;
  request->prompt_tokens = prompt;
  request->token_limit = limit;
  const std::vector<int32_t> tokens =
      count_up(static_cast<int32_t>(1000 * id), static_cast<size_t>(prompt));
  return std::make_unique<Choice>(request, 0, tokens);
}

// A scheduler over small caches, and what a step does to its choices.
struct SmallScheduler {
  KvCache cache;
  PrefixCache prefixes;
  std::vector<uint64_t> forgotten;
  Scheduler scheduler;

  SmallScheduler(int64_t pages, const SchedulerLimits& limits)
      : cache(small_kv(), pages),
        prefixes(&cache, true),
        scheduler(limits, &cache, &prefixes,
                  [this](const Choice& choice) { forgotten.push_back(choice.request->id); }) {}

  std::vector<ScheduledSlice> step() {
    scheduler.admit();
    const std::vector<ScheduledSlice> slices = scheduler.next();
    Tables tables;
    std::vector<KvAppend> appends;
    for (const ScheduledSlice& slice : slices)
      appends.push_back({slice.choice->sequence, slice.rows});
    tables.append(&cache, appends);
    for (const ScheduledSlice& slice : slices) {
      Choice& choice = *slice.choice;
      choice.cached += slice.rows - slice.drafts;
      cache.pop(choice.sequence, slice.drafts);
      for (; choice.tree_pages < choice.cached / 4; ++choice.tree_pages) {
        choice.tree_node =
            prefixes.insert(choice.tree_node, choice.tokens.data() + choice.tree_pages * 4,
                            choice.sequence, static_cast<size_t>(choice.tree_pages));
      }
      if (slice.needs_logits) choice.tokens.push_back(7);
    }
    return slices;
  }
};

void test_scheduler_shares_rows() {
  SmallScheduler small(32, {8, 4, 3, 32});
  CHECK(small.step().empty());
  small.scheduler.add(make_choice(1, 20, 30));
  small.scheduler.add(make_choice(2, 3, 30));
  small.scheduler.add(make_choice(3, 9, 30));
  small.scheduler.add(make_choice(4, 1, 30));  // there are three places
  std::vector<ScheduledSlice> step = small.step();
  // Rows 8: the short one takes its 3, the others share what is left.
  CHECK(step.size() == 3 && small.scheduler.waiting().size() == 1);
  CHECK(step[0].choice->request->id == 2 && step[0].rows == 3 && step[0].needs_logits);
  CHECK(step[1].choice->request->id == 3 && step[1].rows == 3 && !step[1].needs_logits);
  CHECK(step[2].choice->request->id == 1 && step[2].rows == 2);
  step = small.step();
  CHECK(step[0].choice->request->id == 2 && step[0].rows == 1);  // decodes
  CHECK(step.size() == 3 && step[1].rows + step[2].rows == 7);
  Choice* second = small.scheduler.choices_of(2).front();
  CHECK(small.scheduler.remove(second) != nullptr && small.scheduler.choices_of(2).empty());
  CHECK(small.forgotten == std::vector<uint64_t>{2});
  step = small.step();
  CHECK(step.size() == 3 && small.scheduler.waiting().empty());
  small.scheduler.check_fits(129, 1);
  CHECK(status_of([&] { small.scheduler.check_fits(130, 1); }) == MLCB_ERROR_TOO_LONG);
}

void test_scheduler_guesses() {
  SmallScheduler small(32, {8, 5, 3, 32});
  for (uint64_t id : {1, 2}) small.scheduler.add(make_choice(id, 2, 8));
  small.step();
  for (const auto& choice : small.scheduler.running()) choice->draft = {5, 6, 7};
  const std::vector<ScheduledSlice> step = small.step();
  // Five rows of logits: one for each, and three guesses.
  CHECK(step.size() == 2 && step[0].drafts == 3 && step[0].rows == 4);
  CHECK(step[1].drafts == 0 && step[1].rows == 1);
  // Not more than can still be part of the text.
  for (const auto& choice : small.scheduler.running()) choice->draft = {5, 6, 7, 8};
  small.scheduler.running()[0]->request->token_limit = 6;
  CHECK(small.step()[0].drafts == 1);
}

void test_scheduler_preempts_the_last() {
  SmallScheduler small(6, {16, 4, 3, 6});
  small.scheduler.add(make_choice(1, 7, 24));
  small.scheduler.add(make_choice(2, 7, 24));
  small.step();
  small.scheduler.add(make_choice(3, 6, 24));  // two pages and two to spare: they are not there
  small.step();
  CHECK(small.scheduler.running().size() == 2 && small.scheduler.waiting().size() == 1);
  for (int i = 0; i < 40 && small.scheduler.preemptions() == 0; ++i) small.step();
  CHECK(small.scheduler.preemptions() == 1 && small.scheduler.running().size() == 1);
  CHECK(small.forgotten == std::vector<uint64_t>{2});
  CHECK(small.scheduler.running()[0]->request->id == 1);
  // The one that came earlier waits in front; it keeps its text.
  CHECK(small.scheduler.waiting()[0]->request->id == 2);
  CHECK(small.scheduler.waiting()[0]->size() > 7 && small.scheduler.waiting()[0]->cached == 0);
  small.scheduler.remove(small.scheduler.choices_of(1).front());
  small.scheduler.admit();
  CHECK(small.scheduler.running()[0]->request->id == 2);
  CHECK(small.scheduler.running()[0]->cached >= 4);  // found again
  for (Choice* choice : small.scheduler.all()) small.scheduler.remove(choice);
  small.prefixes.clear();
  CHECK(small.scheduler.idle() && small.cache.free_pages() == 6);
}

int sleeping_kernel(void*, const PackedArg*, int32_t, PackedArg*) {
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return 0;
}

int idle_kernel(void*, const PackedArg*, int32_t, PackedArg*) { return 0; }

int failing_kernel(void*, const PackedArg*, int32_t, PackedArg*) { return -1; }

void test_profile() {
  Plan plan;
  plan.kernels = {"idle", "sleeping", "failing"};
  PlanFunction function, broken;
  function.name = broken.name = "f";
  function.calls = {{0, {}}, {1, {}}, {0, {}}};
  broken.calls = {{1, {}}, {2, {}}};
  const std::vector<KernelFn> kernels = {idle_kernel, sleeping_kernel, failing_kernel};
  const Bindings bindings;
  Profile profile;
  Function good(plan, function, kernels, bindings, {});
  Function bad(plan, broken, kernels, bindings, {});
  good.run({}, {});  // not timed
  good.set_profile(&profile);
  bad.set_profile(&profile);
  for (int i = 0; i < 5; ++i) good.run({}, {});
  CHECK(status_of([&] { bad.run({}, {}); }) == MLCB_ERROR_KERNEL);
  good.set_profile(nullptr);
  good.run({}, {});
  const Json found = Json::parse(profile.json(), "profile");
  CHECK(found.size() == 2);  // a run that fails counts nowhere
  const Json &slow = found.items()[0], &fast = found.items()[1];
  CHECK(slow.at("name").as_string() == "sleeping" && slow.at("calls").as_int() == 5);
  CHECK(fast.at("name").as_string() == "idle" && fast.at("calls").as_int() == 10);
  CHECK(slow.at("seconds").as_double() >= 0.01);
  CHECK(fast.at("seconds").as_double() < slow.at("seconds").as_double());
  CHECK(Json::parse(profile.functions_json(), "profile").items()[0].at("runs").as_int() == 5);
}

void test_choose_variant() {
  const std::vector<BundleVariant> variants = {{"best", "int8", {"a", "b"}, "", ""},
                                               {"good", "int8", {"a"}, "", ""},
                                               {"exact", "float", {"a"}, "", ""}};
  auto has_a = [](std::string_view flag) { return flag == "a"; };
  auto has_none = [](std::string_view) { return false; };
  CHECK(choose_variant(variants, "", "", has_a).name == "good");
  CHECK(choose_variant(variants, "", "float", has_a).name == "exact");
  CHECK(choose_variant(variants, "exact", "", has_a).name == "exact");
  auto choose = [&](const char* name, const char* activations, bool (*has)(std::string_view)) {
    return status_of([&] { choose_variant(variants, name, activations, has); });
  };
  CHECK(choose("best", "", has_a) == MLCB_ERROR_DEVICE);
  CHECK(choose("", "", has_none) == MLCB_ERROR_DEVICE);
  CHECK(choose("none", "", has_a) == MLCB_ERROR_UNSUPPORTED);
  CHECK(choose("exact", "int8", has_a) == MLCB_ERROR_UNSUPPORTED);
  try {
    choose_variant(variants, "", "int8", has_none);
    CHECK(false);
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("best needs a b,") != std::string::npos);
    CHECK(std::string(error.what()).find("good needs a,") != std::string::npos);
  }
}

int64_t evaluate_one(const std::vector<PlanExpr::Token>& tokens, int64_t seq_len) {
  PlanFunction function;
  function.vars = {kSeqLen};
  function.exprs.push_back({tokens});
  ShapeValues values{};
  values[kSeqLen] = seq_len;
  std::vector<int64_t> out;
  evaluate(function, values, "test", &out);
  return out[0];
}

void test_expressions() {
  using Op = PlanExpr::Op;
  const PlanExpr::Token var{Op::kVar, 0};
  auto constant = [](int64_t value) { return PlanExpr::Token{Op::kConst, value}; };
  auto binary = [&](Op op, int64_t b, int64_t a) {
    return evaluate_one({var, constant(b), {op, 0}}, a);
  };
  CHECK(binary(Op::kAdd, 3, 5) == 8 && binary(Op::kSub, 3, 5) == 2 && binary(Op::kMul, 3, 5) == 15);
  CHECK(binary(Op::kDiv, 3, -7) == -3 && binary(Op::kMod, 3, -7) == 2);
  CHECK(binary(Op::kDiv, -3, 7) == -3 && binary(Op::kMod, -3, 7) == -2);
  CHECK(binary(Op::kDiv, -1, 7) == -7 && binary(Op::kMod, -1, INT64_MIN) == 0);
  CHECK(binary(Op::kMax, 3, 5) == 5 && binary(Op::kMin, 3, 5) == 3);
  for (Op op : {Op::kDiv, Op::kMod}) {
    CHECK(status_of([&] { binary(op, 0, 5); }) == MLCB_ERROR_BUNDLE);
  }
  CHECK(status_of([&] { binary(Op::kMul, INT64_MAX, 2); }) == MLCB_ERROR_BUNDLE);
  CHECK(status_of([&] { binary(Op::kAdd, INT64_MAX, 2); }) == MLCB_ERROR_BUNDLE);
  CHECK(status_of([&] { binary(Op::kDiv, -1, INT64_MIN); }) == MLCB_ERROR_BUNDLE);
}

}  // namespace
}  // namespace mlcb

int main() {
  using namespace mlcb;
  test_sha256();
  test_machine();
  for (int threads : {1, 2, 4}) test_thread_pool(threads);
  for (int threads : {2, 3, 4}) test_growing_jobs(threads);
  test_two_pools();
  test_kv_tables();
  test_kv_fork_copies_on_write();
  test_kv_pop();
  test_kv_exhaustion_changes_nothing();
  test_rope_table();
  test_kv_window();
  test_prefix_cache();
  test_prefix_cache_gives_back_the_oldest();
  test_scheduler_shares_rows();
  test_scheduler_guesses();
  test_scheduler_preempts_the_last();
  test_profile();
  test_choose_variant();
  test_expressions();
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
