// One request on its way through the engine, and the texts that it asks for.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/prefix_cache.h"
#include "grammar/grammar.h"
#include "text/sampler.h"
#include "text/stream.h"

namespace mlcb {

using Clock = std::chrono::steady_clock;

// What the choices of a request share.
struct Request {
  uint64_t id = 0;
  int32_t n = 1;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, found in the prefix cache
  int64_t token_limit = 0;    // generation ends when there are so many tokens
  bool ignore_stops = false;  // of the model
  bool wants_logprobs = false;
  std::vector<int32_t> stop_tokens;  // besides the model's
  std::vector<std::string> stop_strings;
  SamplingParams sampling;
  std::shared_ptr<const Grammar> grammar;  // nullptr: none
  int32_t open_choices = 0;                // not yet reported as done

  Clock::time_point submitted;
  Clock::time_point deadline;  // max(): none
  Clock::time_point started;   // first part of a step; epoch: not yet
  Clock::time_point first_token;
  bool has_started() const { return started != Clock::time_point(); }
  bool has_token() const { return first_token != Clock::time_point(); }
};

// One text of a request. While it waits for a place it has no sequence; when it is admitted, again
// if it was preempted, all its tokens are computed that the prefix cache does not hold.
struct Choice {
  std::shared_ptr<Request> request;
  int32_t index = 0;
  int32_t forks = 0;            // further choices to branch off when the prompt is computed
  std::vector<int32_t> tokens;  // the prompt, then what was generated
  Sampler sampler;
  TextStream stream;
  std::unique_ptr<GrammarMatcher> matcher;  // nullptr: no grammar
  Clock::time_point last_token;

  SequenceId sequence = 0;                 // 0: waits
  int64_t cached = 0;                      // tokens that are in the KV cache
  int32_t tree_node = PrefixCache::kRoot;  // the last page that the prefix cache knows
  int64_t tree_pages = 0;                  // how many it knows; -1: no longer told
  std::vector<int32_t> draft;              // guesses of the tokens that follow

  Choice(std::shared_ptr<Request> of, int32_t choice_index, std::vector<int32_t> prompt)
      : request(std::move(of)),
        index(choice_index),
        tokens(std::move(prompt)),
        sampler(with_stream(request->sampling, choice_index), tokens),
        stream(request->stop_strings) {
    if (request->grammar != nullptr) matcher = std::make_unique<GrammarMatcher>(request->grammar);
  }
  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  int64_t pending() const { return size() - cached; }
  int64_t generated() const { return size() - request->prompt_tokens; }
  bool decodes() const { return sequence != 0 && pending() == 1; }
  // Arrival: the earlier request, then the lower index.
  bool before(const Choice& other) const {
    if (request->id != other.request->id) return request->id < other.request->id;
    return index < other.index;
  }

 private:
  static SamplingParams with_stream(SamplingParams params, int32_t choice_index) {
    params.stream = static_cast<uint64_t>(choice_index);
    return params;
  }
};

}  // namespace mlcb
