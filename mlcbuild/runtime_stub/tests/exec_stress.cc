// Engines over one bundle, two at a time, each on its own thread, with four requests for two texts
// each, cancellations, time limits, logits, metrics and clearing of the cache from other threads at
// the same time. Prints what differs from a quiet run. Meant for -fsanitize=thread too.
//
//   exec_stress BUNDLE
#include <atomic>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mlcb.h"

namespace {

std::atomic<int> failures{0};

void check(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s: %s\n", what, mlcb_last_error());
  ++failures;
}

constexpr int kChoices = 2;

uint64_t submit(mlcb_engine* engine, int number, int max_tokens, int timeout_ms = 0) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < 3 + 9 * number; ++i) prompt.push_back((i * 37 + number) % 256);
  mlcb_request_params params = {};
  params.struct_size = sizeof(params);
  params.token_ids = prompt.data();
  params.token_count = prompt.size();
  params.max_tokens = max_tokens;
  params.temperature = 2;
  params.seed = static_cast<uint64_t>(number);
  params.ignore_eos = 1;
  params.n = kChoices;
  params.timeout_ms = timeout_ms;
  if (number == 3) {
    params.grammar_kind = MLCB_GRAMMAR_REGEX;
    params.grammar = "[a-z]{200}";
  }
  uint64_t id = 0;
  check(mlcb_request_submit(engine, &params, &id) == MLCB_OK, "submit");
  return id;
}

using Texts = std::map<std::pair<uint64_t, int32_t>, std::vector<int32_t>>;

// Takes events until `wanted` requests are done; the tokens by request and choice. A request may
// fail only if its time runs out.
Texts collect(mlcb_engine* engine, int wanted) {
  Texts texts;
  std::map<uint64_t, int> ended;
  while (wanted > 0) {
    mlcb_event event = {};
    event.struct_size = sizeof(event);
    if (mlcb_engine_poll(engine, &event, 60000) != MLCB_OK || event.kind == MLCB_EVENT_NONE) {
      check(false, "poll");
      break;
    }
    if (event.kind == MLCB_EVENT_TOKEN) {
      texts[{event.request_id, event.choice}].push_back(event.token_id);
    } else if (event.kind == MLCB_EVENT_ERROR) {
      check(event.status == MLCB_ERROR_DEADLINE, event.text);
      --wanted;
    } else if (++ended[event.request_id] == kChoices) {
      --wanted;
    }
  }
  return texts;
}

void read_metrics(mlcb_engine* engine) {
  std::vector<char> text(1 << 16);
  size_t size = 0;
  for (const char* format : {"json", "prometheus"}) {
    check(mlcb_engine_metrics(engine, format, text.data(), text.size(), &size) == MLCB_OK,
          "metrics");
  }
}

void run_engine(mlcb_bundle* bundle, const mlcb_engine_options& options) {
  constexpr int kRequests = 4, kTokens = 24, kVocab = 264;
  mlcb_engine* engine = nullptr;
  check(mlcb_engine_create(bundle, &options, &engine) == MLCB_OK, "create");
  check(mlcb_engine_start(engine) == MLCB_OK, "start");
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < kRequests; ++i) {
    const uint64_t id = submit(engine, i, kTokens);
    Texts texts = collect(engine, 1);
    for (int choice = 0; choice < kChoices; ++choice) {
      alone.push_back(texts[{id, choice}]);
      check(alone.back().size() == kTokens, "length");
    }
  }
  for (int round = 0; round < 4; ++round) {
    std::vector<uint64_t> ids;
    for (int i = 0; i < kRequests; ++i) ids.push_back(submit(engine, i, kTokens));
    const uint64_t extra = submit(engine, 1, 60);
    submit(engine, 2, 60, 1 + 3 * round);
    std::thread other([&] {
      const int32_t tokens[] = {1, 2, 3, 4, 5};
      std::vector<float> logits(5 * kVocab);
      mlcb_status status = mlcb_engine_logits(engine, tokens, 5, logits.data(), logits.size());
      check(status == MLCB_OK || status == MLCB_ERROR_MEMORY, "logits");
      status = mlcb_request_cancel(engine, extra);
      check(status == MLCB_OK || status == MLCB_ERROR_NOT_FOUND, "cancel");
      check(mlcb_engine_clear_cache(engine) == MLCB_OK, "clear_cache");
      read_metrics(engine);
    });
    Texts texts = collect(engine, kRequests + 2);
    other.join();
    for (int i = 0; i < kRequests * kChoices; ++i) {
      check(texts[{ids[i / kChoices], i % kChoices}] == alone[i], "same tokens");
    }
  }
  submit(engine, 2, 0);  // still running when the engine goes
  mlcb_engine_destroy(engine);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  mlcb_bundle* bundle = nullptr;
  if (mlcb_bundle_open(argv[1], nullptr, &bundle) != MLCB_OK) {
    std::printf("open: %s\n", mlcb_last_error());
    return 1;
  }
  mlcb_engine_options plain = {};
  plain.struct_size = sizeof(plain);
  plain.threads = 3;
  mlcb_engine_options tight = plain;  // texts are preempted, pages given back
  tight.kv_tokens = 100;
  tight.profile = 1;
  mlcb_engine_options guessing = plain;
  guessing.speculation = "ngram";
  mlcb_engine_options drafting = tight;
  drafting.speculation = "draft";
  drafting.draft = bundle;
  for (const auto& pair : {std::make_pair(plain, tight), std::make_pair(guessing, drafting)}) {
    std::thread second([&] { run_engine(bundle, pair.second); });
    run_engine(bundle, pair.first);
    second.join();
  }
  mlcb_bundle_close(bundle);
  std::printf("%d failures\n", failures.load());
  return failures == 0 ? 0 : 1;
}
