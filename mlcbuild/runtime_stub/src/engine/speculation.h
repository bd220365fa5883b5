// Guesses the tokens that follow, so that one step can check several.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/model.h"
#include "engine/request.h"

namespace mlcb {

// A guess never changes a text: the step computes the logits behind every guessed token, the
// sampler picks from them as it would anyway, and the guesses that agree with it are tokens won.
class Speculator {
 public:
  virtual ~Speculator() = default;
  // Fills `draft` of each choice, all of which decode, with at most `count` tokens.
  virtual void propose(const std::vector<Choice*>& choices, int64_t count) = 0;
  virtual void forget(const Choice&) {}
  virtual uint64_t memory_bytes() const { return 0; }  // weights and KV cache of its own
};

// Prompt lookup: when the last tokens occurred before, what followed then is the guess.
class NgramSpeculator : public Speculator {
 public:
  void propose(const std::vector<Choice*>& choices, int64_t count) override;
};

// Asks a small model with the same vocabulary; its guesses are greedy.
class DraftSpeculator : public Speculator {
 public:
  // The bundle must outlive it; kv_pages: of the draft's own cache.
  DraftSpeculator(const Bundle& bundle, const BundleVariant& variant, int threads,
                  int64_t kv_pages);
  void propose(const std::vector<Choice*>& choices, int64_t count) override;
  void forget(const Choice& choice) override;
  uint64_t memory_bytes() const override;

 private:
  struct State {
    SequenceId sequence = 0;
    std::vector<int32_t> tokens;  // in the draft's cache
  };
  // A choice that takes part in this round, with its tokens and guesses.
  struct Turn {
    Choice* choice;
    State* state;
    std::vector<int32_t> text;
  };

  std::vector<Turn> take_turns(const std::vector<Choice*>& choices, int64_t count);
  void catch_up(const Choice& choice, State* state);
  bool advance(std::vector<Turn>* turns);
  int32_t best(const float* logits) const;

  Model model_;
  int64_t context_;
  size_t valid_size_;
  uint64_t weights_bytes_;
  std::unordered_map<const Choice*, State> states_;
};

}  // namespace mlcb
