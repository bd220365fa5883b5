#include "engine/speculation.h"

#include <algorithm>

#include "core/error.h"

namespace mlcb {
namespace {

constexpr size_t kLongestNgram = 4, kShortestNgram = 2;

// What followed the latest earlier occurrence of the text's last `size` tokens.
bool look_up(const std::vector<int32_t>& tokens, size_t size, size_t count,
             std::vector<int32_t>* draft) {
  if (tokens.size() <= size) return false;
  const auto tail = tokens.end() - static_cast<ptrdiff_t>(size);
  for (size_t begin = tokens.size() - size; begin-- > 0;) {
    const auto at = tokens.begin() + static_cast<ptrdiff_t>(begin);
    if (!std::equal(tail, tokens.end(), at)) continue;
    const auto follows = at + static_cast<ptrdiff_t>(size);
    const ptrdiff_t available = tokens.end() - follows;
    draft->assign(follows, follows + std::min<ptrdiff_t>(available, static_cast<ptrdiff_t>(count)));
    return true;
  }
  return false;
}

}  // namespace

void NgramSpeculator::propose(const std::vector<Choice*>& choices, int64_t count) {
  for (Choice* choice : choices) {
    choice->draft.clear();
    for (size_t size = kLongestNgram; size >= kShortestNgram; --size) {
      if (look_up(choice->tokens, size, static_cast<size_t>(count), &choice->draft)) break;
    }
  }
}

DraftSpeculator::DraftSpeculator(const Bundle& bundle, const BundleVariant& variant, int threads,
                                 int64_t kv_pages)
    : model_(bundle, variant, threads, [kv_pages](const PlanKv&, int64_t) { return kv_pages; }),
      context_(bundle.limits().context_window_size),
      valid_size_(
          static_cast<size_t>(std::min(bundle.tokenizer_vocab_size(), model_.plan().vocab_size))),
      weights_bytes_(bundle.params().total_bytes()) {
  if (model_.plan().kv.window > 0) {
    throw Error(MLCB_ERROR_UNSUPPORTED,
                "the draft bundle has a sliding window\n"
                "hint: build it without sliding_window_size");
  }
}

uint64_t DraftSpeculator::memory_bytes() const {
  const PlanKv& kv = model_.plan().kv;
  return weights_bytes_ +
         static_cast<uint64_t>(kv.page_bytes * kv.layers * model_.cache().total_pages());
}

void DraftSpeculator::forget(const Choice& choice) {
  auto found = states_.find(&choice);
  if (found == states_.end()) return;
  model_.cache().remove(found->second.sequence);
  states_.erase(found);
}

// Drops what the draft's cache holds beyond the text: guesses that came out wrong.
void DraftSpeculator::catch_up(const Choice& choice, State* state) {
  const size_t most = std::min(state->tokens.size(), choice.tokens.size() - 1);
  size_t same = 0;
  while (same < most && state->tokens[same] == choice.tokens[same]) ++same;
  model_.cache().pop(state->sequence, static_cast<int64_t>(state->tokens.size() - same));
  state->tokens.resize(same);
}

std::vector<DraftSpeculator::Turn> DraftSpeculator::take_turns(const std::vector<Choice*>& choices,
                                                               int64_t count) {
  KvCache& cache = model_.cache();
  const size_t most = static_cast<size_t>(std::min(model_.max_logit_rows(), model_.max_rows()));
  std::vector<Turn> turns;
  int64_t promised = 0;
  for (Choice* choice : choices) {
    choice->draft.clear();
    if (choice->size() + count > context_ || turns.size() == most) continue;
    State& state = states_[choice];
    if (state.sequence == 0) state.sequence = cache.add();
    catch_up(*choice, &state);
    const int64_t held = static_cast<int64_t>(cache.pages(state.sequence).size());
    const int64_t needed = cache.pages_for(choice->size() + count) - held;
    if (promised + needed > cache.free_pages()) continue;
    promised += needed;
    turns.push_back({choice, &state, choice->tokens});
  }
  return turns;
}

int32_t DraftSpeculator::best(const float* logits) const {
  return static_cast<int32_t>(std::max_element(logits, logits + valid_size_) - logits);
}

// One step of the draft: rows of every turn up to what the step holds. A turn whose text is all
// computed gets its next guess. False once every turn has got one.
bool DraftSpeculator::advance(std::vector<Turn>* turns) {
  std::vector<Slice> slices;
  std::vector<int32_t> logit_rows;
  std::vector<Turn*> moved, guessing;
  int64_t rows = 0;
  for (Turn& turn : *turns) {
    const int64_t done = static_cast<int64_t>(turn.state->tokens.size());
    const int64_t pending = static_cast<int64_t>(turn.text.size()) - done;
    const int64_t taken = std::min(pending, model_.max_rows() - rows);
    if (taken <= 0) continue;
    slices.push_back({turn.state->sequence, turn.text.data() + done, taken});
    rows += taken;
    moved.push_back(&turn);
    if (taken == pending) {
      logit_rows.push_back(static_cast<int32_t>(rows - 1));
      guessing.push_back(&turn);
    }
  }
  if (slices.empty()) return false;
  const float* logits = model_.step(slices, logit_rows);
  for (size_t i = 0; i < moved.size(); ++i) {
    moved[i]->state->tokens.insert(moved[i]->state->tokens.end(), slices[i].tokens,
                                   slices[i].tokens + slices[i].rows);
  }
  for (Turn* turn : guessing) {
    turn->choice->draft.push_back(best(logits));
    logits += model_.plan().vocab_size;
  }
  return true;
}

void DraftSpeculator::propose(const std::vector<Choice*>& choices, int64_t count) {
  std::vector<Turn> turns = take_turns(choices, count);
  for (int64_t round = 0; round < count; ++round) {
    while (advance(&turns)) {
    }
    if (round + 1 == count) break;
    for (Turn& turn : turns) turn.text.push_back(turn.choice->draft.back());
  }
}

}  // namespace mlcb
