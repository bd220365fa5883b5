// Two engines over one bundle, each on its own thread, with four requests, cancellations and logits
// from other threads at the same time. Prints what differs from a quiet run. Meant for
// -fsanitize=thread too.
//
//   exec_stress BUNDLE
#include <atomic>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "mlcb.h"

namespace {

std::atomic<int> failures{0};

void check(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s: %s\n", what, mlcb_last_error());
  ++failures;
}

uint64_t submit(mlcb_engine* engine, int number, int max_tokens) {
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
  uint64_t id = 0;
  check(mlcb_request_submit(engine, &params, &id) == MLCB_OK, "submit");
  return id;
}

// Takes events until `wanted` requests are done; the tokens by request.
std::map<uint64_t, std::vector<int32_t>> collect(mlcb_engine* engine, int wanted) {
  std::map<uint64_t, std::vector<int32_t>> tokens;
  while (wanted > 0) {
    mlcb_event event = {};
    event.struct_size = sizeof(event);
    if (mlcb_engine_poll(engine, &event, 30000) != MLCB_OK || event.kind == MLCB_EVENT_NONE) {
      check(false, "poll");
      break;
    }
    check(event.kind != MLCB_EVENT_ERROR, "a request");
    if (event.kind == MLCB_EVENT_TOKEN) {
      tokens[event.request_id].push_back(event.token_id);
    } else {
      --wanted;
    }
  }
  return tokens;
}

void run_engine(mlcb_bundle* bundle) {
  constexpr int kRequests = 4, kTokens = 24, kVocab = 264;
  mlcb_engine_options options = {};
  options.struct_size = sizeof(options);
  options.threads = 3;
  mlcb_engine* engine = nullptr;
  check(mlcb_engine_create(bundle, &options, &engine) == MLCB_OK, "create");
  check(mlcb_engine_start(engine) == MLCB_OK, "start");
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < kRequests; ++i) {
    const uint64_t id = submit(engine, i, kTokens);
    alone.push_back(collect(engine, 1)[id]);
    check(alone.back().size() == kTokens, "length");
  }
  for (int round = 0; round < 4; ++round) {
    std::vector<uint64_t> ids;
    for (int i = 0; i < kRequests; ++i) ids.push_back(submit(engine, i, kTokens));
    const uint64_t extra = submit(engine, 1, 60);
    std::thread other([&] {
      const int32_t tokens[] = {1, 2, 3, 4, 5};
      std::vector<float> logits(5 * kVocab);
      mlcb_status status = mlcb_engine_logits(engine, tokens, 5, logits.data(), logits.size());
      check(status == MLCB_OK || status == MLCB_ERROR_MEMORY, "logits");
      status = mlcb_request_cancel(engine, extra);
      check(status == MLCB_OK || status == MLCB_ERROR_NOT_FOUND, "cancel");
    });
    auto tokens = collect(engine, kRequests + 1);
    other.join();
    for (int i = 0; i < kRequests; ++i) check(tokens[ids[i]] == alone[i], "same tokens");
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
  std::thread second(run_engine, bundle);
  run_engine(bundle);
  second.join();
  mlcb_bundle_close(bundle);
  std::printf("%d failures\n", failures.load());
  return failures == 0 ? 0 : 1;
}
