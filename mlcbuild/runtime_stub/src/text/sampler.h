// Picks a token from a row of logits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace mlcb {

struct SamplingParams {
  float temperature = 0;  // 0: greedy (lowest id wins a tie)
  float top_p = 1;
  int32_t top_k = 0;  // 0: off
  uint64_t seed = 0;
};

// A stream of uniform numbers that depends on the seed and the draw's index only, so a request's
// text does not depend on what runs beside it. (A counter-based generator.)
class Sampler {
 public:
  explicit Sampler(const SamplingParams& params) : params_(params) {}
  // logits: float32 [vocab_size]; ids >= valid_size (rows padded beyond the tokenizer) are never
  // picked, nor are logits that are NaN or infinite. Temperature, then top_k (ties with the last
  // one kept stay in), then top_p (at least one token stays; 0 is off, as is 1), in the order of
  // Hugging Face transformers. Equal logits rank by id. Throws Error(MLCB_ERROR_KERNEL) if no logit
  // is finite.
  int32_t sample(const float* logits, size_t vocab_size, size_t valid_size);

 private:
  SamplingParams params_;
  uint64_t draws_ = 0;
  std::vector<float> weights_;  // by rank in order_, relative to the greatest
  std::vector<int32_t> order_;
};

}  // namespace mlcb
