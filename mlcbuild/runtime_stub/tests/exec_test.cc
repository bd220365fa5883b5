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
#include "engine/rope_table.h"
#include "engine/scheduler.h"
#include "engine/variant.h"
#include "exec/plan.h"
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

  void append(KvCache* cache, const std::vector<KvAppend>& appends) {
    cache->append(appends, positions.data(), slots.data(), page_begin.data(), values.data());
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

// ---- rope, scheduler, variants, expressions
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

std::unique_ptr<Request> make_request(uint64_t id, int prompt, int limit) {
  auto request = std::make_unique<Request>(SamplingParams(), std::vector<std::string>());
  request->id = id;
  request->tokens.assign(static_cast<size_t>(prompt), 1);
  request->token_limit = limit;
  return request;
}

void test_scheduler() {
  KvCache cache(small_kv(), 10);
  Scheduler scheduler({8, 3, 10});
  CHECK(scheduler.next(&cache).empty());
  scheduler.add(make_request(1, 5, 17));  // 16 tokens: 4 pages
  scheduler.add(make_request(2, 9, 13));  // 3 pages
  scheduler.add(make_request(3, 9, 17));  // 4 pages: must wait
  scheduler.add(make_request(4, 1, 2));   // must not overtake
  std::vector<ScheduledSlice> step = scheduler.next(&cache);
  CHECK(step.size() == 2 && scheduler.reserved_pages() == 7);
  CHECK(step[0].rows == 5 && step[0].needs_logits);
  CHECK(step[1].rows == 3 && !step[1].needs_logits);
  step[0].request->cached = 5;
  step[0].request->tokens.push_back(2);
  step[1].request->cached = 3;
  step = scheduler.next(&cache);
  CHECK(step.size() == 2 && step[0].request->id == 1 && step[0].rows == 1);
  CHECK(step[1].request->id == 2 && step[1].rows == 6 && step[1].needs_logits);
  CHECK(scheduler.remove(1, &cache) != nullptr && scheduler.remove(1, &cache) == nullptr);
  step = scheduler.next(&cache);
  CHECK(step.size() == 3);  // one row for 4, six that are left of 2, and 3 gets the last
  CHECK(step[0].request->id == 4 && step[1].request->id == 2 && step[1].rows == 6);
  CHECK(step[2].request->id == 3 && step[2].rows == 1 && !step[2].needs_logits);
  CHECK(scheduler.ids() == (std::vector<uint64_t>{2, 3, 4}));
  scheduler.check_fits(41, 1, cache);
  CHECK(status_of([&] { scheduler.check_fits(42, 1, cache); }) == MLCB_ERROR_MEMORY);
  for (uint64_t id : {2, 3, 4}) scheduler.remove(id, &cache);
  CHECK(scheduler.idle() && scheduler.reserved_pages() == 0 && cache.free_pages() == 10);
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
  test_scheduler();
  test_choose_variant();
  test_expressions();
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
