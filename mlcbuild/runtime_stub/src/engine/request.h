// One request on its way through the engine.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/kv_cache.h"
#include "text/sampler.h"
#include "text/stream.h"

namespace mlcb {

struct Request {
  uint64_t id = 0;
  std::vector<int32_t> tokens;  // the prompt, then what was generated
  int64_t token_limit = 0;      // generation ends when there are so many tokens
  bool ignore_stops = false;
  Sampler sampler;
  TextStream stream;
  SequenceId sequence = 0;  // while it runs
  int64_t cached = 0;       // tokens that are in the KV cache
  int64_t reserved_pages = 0;

  Request(const SamplingParams& sampling, std::vector<std::string> stop_strings)
      : sampler(sampling), stream(std::move(stop_strings)) {}
  int64_t pending() const { return static_cast<int64_t>(tokens.size()) - cached; }
};

}  // namespace mlcb
