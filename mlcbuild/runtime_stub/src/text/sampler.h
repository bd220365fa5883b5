// Picks a token from a row of logits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace mlcb {

struct LogitBias {
  int32_t token = 0;
  float bias = 0;  // -infinity forbids the token
};

struct SamplingParams {
  float temperature = 0;  // 0: greedy (lowest id wins a tie)
  float top_p = 1;        // 1 or 0: off
  int32_t top_k = 0;      // 0: off
  float min_p = 0;        // 0: off
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  uint64_t seed = 0;
  uint64_t stream = 0;  // choice of the request: each has its own random numbers
  std::vector<LogitBias> logit_bias;
  int32_t top_logprobs = -1;  // -1: no log probabilities at all
};

// Throws Error(MLCB_ERROR_ARGUMENT) that names the first number out of its range; vocab_size
// bounds the ids of logit_bias. Sampler relies on it.
void check_sampling_params(const SamplingParams& params, size_t vocab_size);

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct SampledToken {
  int32_t token = 0;
  float logprob = 0;              // if asked for
  std::vector<TokenLogprob> top;  // likeliest first
};

// A stream of uniform numbers that depends on seed, stream and the number of tokens accepted so far
// only, so a request's text does not depend on what runs beside it, nor on how often sample() is
// called for a position. (A counter-based generator.)
class Sampler {
 public:
  // The prompt counts for the repetition penalty.
  Sampler(const SamplingParams& params, const std::vector<int32_t>& prompt);

  // The token that follows what was accepted. logits: float32 [vocab_size], not changed; ids >=
  // valid_size (rows padded beyond the tokenizer) are never picked, nor are logits that are NaN or
  // infinite. allowed: nullptr, or a bit for each id below valid_size (id i is bit i % 32 of word
  // i / 32). Order: logit_bias, penalties, allowed, temperature, top_k, top_p, min_p. Log
  // probabilities are those of the model: before all of that. Throws Error(MLCB_ERROR_KERNEL) if
  // no logit is finite, MLCB_ERROR_ARGUMENT if logit_bias leaves no allowed token,
  // MLCB_ERROR_GRAMMAR if none is allowed. The same on every CPU for the same logits, log
  // probabilities up to the rounding of the C library's log.
  SampledToken sample(const float* logits, size_t vocab_size, size_t valid_size,
                      const uint32_t* allowed);
  // The token is part of the text now.
  void accept(int32_t token);

  const SamplingParams& params() const { return params_; }

 private:
  struct SeenToken {
    int32_t token;
    int32_t generated;  // times in the text; 0: in the prompt only
  };

  void see(int32_t token, int32_t generated);
  bool changes_logits() const { return !params_.logit_bias.empty() || !seen_.empty(); }
  void change_logits(float* logits, size_t count) const;

  SamplingParams params_;
  bool counts_tokens_;           // whether a penalty is on
  uint64_t accepted_ = 0;        // tokens
  std::vector<SeenToken> seen_;  // each once
  std::unordered_map<int32_t, size_t> seen_at_;
};

}  // namespace mlcb
