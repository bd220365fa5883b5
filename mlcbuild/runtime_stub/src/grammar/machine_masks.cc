// Which tokens may follow a state. A token is looked at in three parts: what it does inside the
// rule of an item is the same for every caller and is found once (NodeMask); what follows the
// rule's end inside the token is found for each set of callers once (after_ends); the mask of a
// state is both, for all of its items.
#include <algorithm>

#include "grammar/machine.h"

namespace mlcb {
namespace {

constexpr size_t kMaxNodeMaskBytes = 8 << 20;  // of one grammar

void set_tokens(const std::vector<int32_t>& tokens, uint32_t* words) {
  for (const int32_t token : tokens) words[token >> 5] |= 1u << (token & 31);
}

}  // namespace

std::shared_ptr<NodeMask> NodeMasks::find(const Key& key) {
  const auto found = masks_.find(key);
  if (found == masks_.end()) return nullptr;
  found->second->last_used = ++tick_;
  return found->second;
}

void NodeMasks::add(const Key& key, std::shared_ptr<NodeMask> mask) {
  mask->last_used = mask->serial = ++tick_;
  bytes_ += mask->bytes();
  masks_[key] = std::move(mask);
  if (bytes_ <= kMaxNodeMaskBytes) return;
  // Forget the half that was not used for the longest time.
  std::vector<uint64_t> ticks;
  for (const auto& entry : masks_) ticks.push_back(entry.second->last_used);
  std::nth_element(ticks.begin(), ticks.begin() + static_cast<ptrdiff_t>(ticks.size() / 2),
                   ticks.end());
  const uint64_t middle = ticks[ticks.size() / 2];
  for (auto entry = masks_.begin(); entry != masks_.end();) {
    if (entry->second->last_used < middle) {
      bytes_ -= entry->second->bytes();
      entry = masks_.erase(entry);
    } else {
      ++entry;
    }
  }
}

NodeMasks::Key Machine::key_of(const Item& item) const {
  const AutomatonRule& rule = automaton_.rules[automaton_.states[item.state].rule];
  if (!rule.counted) return {item.state, 0, kUnlimited};
  // Farther away than the longest token reaches is all the same.
  const uint32_t reach = static_cast<uint32_t>(vocabulary_.max_bytes()) + 1;
  const uint32_t need = item.count < rule.min ? rule.min - item.count : 0;
  const uint32_t room = rule.max == kUnlimited ? reach : rule.max - item.count;
  return {item.state, std::min(need, reach), std::min(room, reach)};
}

void Machine::walk(StateId state, uint32_t from, uint32_t to, uint32_t depth, Found* found) {
  const std::vector<GrammarVocabulary::Node>& trie = vocabulary_.trie();
  path_[depth] = state;
  for (uint32_t i = from; i < to;) {
    const GrammarVocabulary::Node& node = trie[i];
    const StateId last = path_[node.depth - 1];
    const StateId next = step_class(last, automaton_.class_of[node.byte]);
    found->depth = std::max(found->depth, states_[last].depth);
    if (next == kDead) {
      i = node.end;
      continue;
    }
    for (int32_t token = node.token; token >= 0; token = vocabulary_.same_bytes(token)) {
      found->tokens.push_back(token);
    }
    const State& reached = states_[next];
    if (node.end == ++i) continue;
    if ((reached.flags & kRuleEnds) != 0 && found->ends != nullptr) found->ends->push_back(i - 1);
    if (reached.count == 0) {
      i = node.end;
    } else {
      path_[node.depth] = next;
    }
  }
}

std::shared_ptr<NodeMask> Machine::node_mask(const Item& item, NodeMasks* masks) {
  const NodeMasks::Key key = key_of(item);
  std::shared_ptr<NodeMask> mask = masks->find(key);
  if (mask) return mask;
  mask = std::make_shared<NodeMask>();
  Found found;
  found.ends = &mask->ends;
  // The item alone, without what follows when its rule ends here: the state has that already.
  const StateId state = intern_state({{item.state, item.count, unknown_caller_}}, 0);
  walk(state, 0, static_cast<uint32_t>(vocabulary_.trie().size()), 0, &found);
  mask->depth = found.depth;
  mask->ends.shrink_to_fit();
  const size_t words = vocabulary_.mask_words();
  if (found.tokens.size() > words / 2) {
    mask->bits.assign(words, 0);
    set_tokens(found.tokens, mask->bits.data());
  } else {
    mask->tokens.assign(found.tokens.begin(), found.tokens.end());
  }
  masks->add(key, mask);
  return mask;
}

const std::vector<int32_t>& Machine::after_ends(const NodeMask& mask, uint32_t context) {
  const std::pair<uint64_t, uint32_t> key(mask.serial, context);
  const auto known = after_ends_.find(key);
  if (known != after_ends_.end()) return known->second;
  std::vector<Item> items;
  const Context callers = contexts_[context];
  for (uint32_t e = callers.begin; e < callers.begin + callers.count; ++e) {
    if (entries_[e].state < kUnknownCaller) items.push_back(entries_[e]);
  }
  Found found;
  if (!items.empty()) {
    const StateId state = close(&items);
    for (const uint32_t end : mask.ends) {
      const GrammarVocabulary::Node& node = vocabulary_.trie()[end];
      walk(state, end + 1, node.end, node.depth, &found);
    }
  }
  std::sort(found.tokens.begin(), found.tokens.end());
  found.tokens.erase(std::unique(found.tokens.begin(), found.tokens.end()), found.tokens.end());
  found.tokens.shrink_to_fit();
  after_ends_bytes_ += 64 + 4 * found.tokens.size();
  return after_ends_.emplace(key, std::move(found.tokens)).first->second;
}

void Machine::add_allowed(StateId id, NodeMasks* masks, uint32_t* words) {
  const State state = states_[id];
  for (uint32_t i = state.begin; i < state.begin + state.count; ++i) {
    const Item item = items_[i];
    const std::shared_ptr<NodeMask> mask = node_mask(item, masks);
    if (contexts_[item.context].depth + mask->depth > kMaxDepth) {
      // So deep that a token might not fit any more: look at every token in full.
      Found found;
      walk(id, 0, static_cast<uint32_t>(vocabulary_.trie().size()), 0, &found);
      set_tokens(found.tokens, words);
      return;
    }
    for (size_t w = 0; w < mask->bits.size(); ++w) words[w] |= mask->bits[w];
    set_tokens(mask->tokens, words);
    if (!mask->ends.empty()) set_tokens(after_ends(*mask, item.context), words);
  }
}

}  // namespace mlcb
