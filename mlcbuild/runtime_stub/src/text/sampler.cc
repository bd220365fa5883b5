#include "text/sampler.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/decimal.h"
#include "core/error.h"
#include "text/candidates.h"
#include "text/logit_row.h"

namespace mlcb {
namespace {

// The output function of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
// generators, 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

// Number `index` of a stream of a seed, uniform in [0, 1). Seed and stream are mixed first, or
// those of neighbours would be the same numbers, shifted.
double uniform(uint64_t seed, uint64_t stream, uint64_t index) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
  const uint64_t start = mix(mix(seed + kGolden) + (stream + 1) * kGolden);
  const uint64_t bits = mix(start + (index + 1) * kGolden);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// What a row is worked on with. One for each thread, so that it is allocated once and not for every
// request.
struct Scratch {
  std::vector<float> changed;  // the row with biases and penalties
  Candidates candidates;
};
thread_local Scratch thread_scratch;

int32_t pick(const SamplingParams& params, size_t count, float greatest, double share,
             Candidates* candidates) {
  if (!(params.temperature > 0)) return candidates->first();
  Weighing weighing;
  weighing.greatest = greatest;
  weighing.scale = std::min(1 / params.temperature, kGreatestLogit);  // 0 * infinity would be NaN
  const size_t top_k = static_cast<size_t>(params.top_k);
  const bool cuts_k = top_k > 0 && top_k < count;
  const bool cuts_p = params.top_p > 0 && params.top_p < 1;
  if (cuts_k) candidates->keep_top_k(top_k);
  if (cuts_p && cuts_k) candidates->keep_top_p(weighing, params.top_p);
  if (cuts_p && !cuts_k) candidates->keep_top_p_of_row(weighing, params.top_p);
  weighing.least = params.min_p;
  return cuts_k || cuts_p ? candidates->draw(weighing, share)
                          : candidates->draw_from_row(weighing, share);
}

// Log probabilities of the model's own logits: of one token, and of the likeliest ones.
void add_logprobs(const LogitRow& raw, size_t top, Candidates* candidates, SampledToken* sampled) {
  Weighing weighing;
  weighing.greatest = candidates->start(raw);
  const double total = static_cast<double>(candidates->weigh_row(weighing)) / kWeightOne;
  const double log_total = std::log(total);
  auto logprob = [&](float logit) {
    const double below = static_cast<double>(logit) - static_cast<double>(weighing.greatest);
    return static_cast<float>(below - log_total);
  };
  sampled->logprob = logprob(raw.values[sampled->token]);
  if (top == 0) return;
  for (const Candidates::Token& token : candidates->first(top)) {
    sampled->top.push_back({token.id, logprob(token.logit)});
  }
}

// Why there is no token to pick.
Error no_token(const LogitRow& raw) {
  size_t allowed = 0, finite = 0, both = 0;
  for (size_t id = 0; id < raw.count; ++id) {
    const bool is_finite = std::isfinite(raw.values[id]);
    allowed += raw.allows(id) ? 1 : 0;
    finite += is_finite ? 1 : 0;
    both += is_finite && raw.allows(id) ? 1 : 0;
  }
  if (allowed == 0 && raw.count > 0) {
    return Error(MLCB_ERROR_GRAMMAR,
                 "no token may come next\nwhy: the grammar has no token of the vocabulary that "
                 "leads on from the text so far");
  }
  if (both == 0) {
    const std::string what = finite == 0 ? "" : "allowed token's ";
    return Error(MLCB_ERROR_KERNEL, "no " + what + "logit of " +
                                        std::to_string(finite == 0 ? raw.count : allowed) +
                                        " is a finite number: the model's output is broken");
  }
  return Error(MLCB_ERROR_ARGUMENT,
               "logit_bias forbids each of the " + std::to_string(both) +
                   " tokens that may come next\nhint: allow one of them, or change the grammar");
}

}  // namespace

void check_sampling_params(const SamplingParams& params, size_t vocab_size) {
  auto require = [](bool holds, const char* name, double value, const char* range) {
    if (holds) return;
    const std::string given = std::isfinite(value) ? decimal(value)
                              : std::isnan(value)  ? "not a number"
                              : value > 0          ? "infinite"
                                                   : "minus infinite";
    throw Error(MLCB_ERROR_ARGUMENT, std::string(name) + " is " + given + ", it must " + range);
  };
  auto share = [&](const char* name, float value) {
    require(value >= 0 && value <= 1, name, value, "lie between 0 and 1");
  };
  auto finite = [&](const char* name, float value) {
    require(std::isfinite(value), name, value, "be a finite number");
  };
  require(std::isfinite(params.temperature) && params.temperature >= 0, "temperature",
          params.temperature, "be 0 (greedy) or a positive number");
  share("top_p", params.top_p);
  share("min_p", params.min_p);
  require(params.top_k >= 0, "top_k", params.top_k, "be 0 (off) or positive");
  require(std::isfinite(params.repetition_penalty) && params.repetition_penalty > 0,
          "repetition_penalty", params.repetition_penalty, "be a positive number (1: off)");
  finite("presence_penalty", params.presence_penalty);
  finite("frequency_penalty", params.frequency_penalty);
  require(params.top_logprobs >= -1 && params.top_logprobs <= 20, "top_logprobs",
          params.top_logprobs, "lie between 0 and 20");
  for (const LogitBias& bias : params.logit_bias) {
    if (bias.token < 0 || static_cast<size_t>(bias.token) >= vocab_size) {
      throw Error(MLCB_ERROR_ARGUMENT, "logit_bias names the token " + std::to_string(bias.token) +
                                           ", not in 0.." + std::to_string(vocab_size - 1));
    }
    require(std::isfinite(bias.bias) || bias.bias == kNoLogit, "a logit_bias", bias.bias,
            "be a finite number, or minus infinity");
  }
}

Sampler::Sampler(const SamplingParams& params, const std::vector<int32_t>& prompt)
    : params_(params),
      counts_tokens_(params.repetition_penalty != 1 || params.presence_penalty != 0 ||
                     params.frequency_penalty != 0) {
  if (params_.repetition_penalty == 1) return;
  for (const int32_t token : prompt) see(token, 0);
}

void Sampler::see(int32_t token, int32_t generated) {
  const auto found = seen_at_.emplace(token, seen_.size());
  if (found.second) seen_.push_back({token, 0});
  seen_[found.first->second].generated += generated;
}

void Sampler::accept(int32_t token) {
  ++accepted_;
  if (counts_tokens_) see(token, 1);
}

// Finite logits stay finite, but for those that a bias forbids.
void Sampler::change_logits(float* logits, size_t count) const {
  auto clamp = [](float value) {
    return std::min(std::max(value, -kGreatestLogit), kGreatestLogit);
  };
  for (const LogitBias& bias : params_.logit_bias) {
    const size_t id = static_cast<size_t>(bias.token);
    if (id >= count || !std::isfinite(logits[id])) continue;
    logits[id] = bias.bias == kNoLogit ? kNoLogit : clamp(logits[id] + bias.bias);
  }
  const float repetition = params_.repetition_penalty;
  for (const SeenToken& seen : seen_) {
    const size_t id = static_cast<size_t>(seen.token);
    if (id >= count || !std::isfinite(logits[id])) continue;
    float logit = logits[id];
    logit = clamp(logit > 0 ? logit / repetition : logit * repetition);
    if (seen.generated > 0) {
      logit = clamp(logit - params_.frequency_penalty * static_cast<float>(seen.generated));
      logit = clamp(logit - params_.presence_penalty);
    }
    logits[id] = logit;
  }
}

SampledToken Sampler::sample(const float* logits, size_t vocab_size, size_t valid_size,
                             const uint32_t* allowed) {
  const size_t count = std::min(vocab_size, valid_size);
  Scratch& scratch = thread_scratch;
  LogitRow row{logits, count, allowed};
  if (changes_logits()) {
    scratch.changed.assign(logits, logits + count);
    change_logits(scratch.changed.data(), count);
    row.values = scratch.changed.data();
  }
  const float greatest = scratch.candidates.start(row);
  if (greatest == kNoLogit) throw no_token({logits, count, allowed});
  SampledToken sampled;
  const double share = uniform(params_.seed, params_.stream, accepted_);
  sampled.token = pick(params_, count, greatest, share, &scratch.candidates);
  if (params_.top_logprobs >= 0) {
    add_logprobs({logits, count, nullptr}, static_cast<size_t>(params_.top_logprobs),
                 &scratch.candidates, &sampled);
  }
  return sampled;
}

}  // namespace mlcb
