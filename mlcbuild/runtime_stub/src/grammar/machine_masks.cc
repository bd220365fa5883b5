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

size_t bytes_of(const NodeMask& mask) {
  return 128 + 4 * (mask.bits.size() + mask.tokens.size() + mask.ends->nodes.size());
}

}  // namespace

template <typename Value>
void CountedProfile::Levels<Value>::sort(const std::vector<uint32_t>& levels) {
  for (const uint32_t level : levels) {
    if (level >= totals.size()) totals.resize(level + 1);
    ++totals[level];
  }
  for (size_t i = 1; i < totals.size(); ++i) totals[i] += totals[i - 1];
  std::vector<uint32_t> next = totals;
  std::vector<Value> sorted(values.size());
  for (size_t i = values.size(); i-- > 0;) sorted[--next[levels[i]]] = values[i];
  values.swap(sorted);
}

std::shared_ptr<NodeMask> NodeMasks::find(const Key& key) {
  const auto found = masks_.find(key);
  if (found == masks_.end()) return nullptr;
  found->second->last_used = ++tick_;
  return found->second;
}

void NodeMasks::add(const Key& key, std::shared_ptr<NodeMask> mask) {
  mask->last_used = ++tick_;
  bytes_ += bytes_of(*mask);
  masks_[key] = std::move(mask);
  if (bytes_ > kMaxNodeMaskBytes) shrink();
}

// Forgets the half of the masks that was not used for the longest time, and the profiles.
void NodeMasks::shrink() {
  std::vector<uint64_t> ticks;
  for (const auto& entry : masks_) ticks.push_back(entry.second->last_used);
  std::sort(ticks.begin(), ticks.end());
  const uint64_t middle = ticks[ticks.size() / 2];
  profiles_.clear();
  bytes_ = 0;
  for (auto entry = masks_.begin(); entry != masks_.end();) {
    if (entry->second->last_used < middle) {
      entry = masks_.erase(entry);
    } else {
      bytes_ += bytes_of(*entry->second);
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

void Machine::set_mask_tokens(const std::vector<int32_t>& tokens, NodeMask* mask) const {
  const size_t words = vocabulary_.mask_words();
  if (tokens.size() <= words / 2) {
    mask->tokens.assign(tokens.begin(), tokens.end());
  } else {
    mask->bits.assign(words, 0);
    set_tokens(tokens, mask->bits.data());
  }
}

std::shared_ptr<NodeMask> Machine::node_mask(const Item& item, NodeMasks* masks) {
  if (automaton_.rules[automaton_.states[item.state].rule].flat) return counted_mask(item, masks);
  const NodeMasks::Key key = key_of(item);
  std::shared_ptr<NodeMask> mask = masks->find(key);
  if (mask) return mask;
  mask = std::make_shared<NodeMask>();
  const auto ends = std::make_shared<RuleEnds>();
  ends->serial = masks->next_serial();
  Found found;
  found.ends = &ends->nodes;
  // The item alone, without what follows when its rule ends here: the state has that already.
  const StateId state = intern_state({{item.state, item.count, unknown_caller_}}, 0);
  walk(state, 0, static_cast<uint32_t>(vocabulary_.trie().size()), 0, &found);
  ends->nodes.shrink_to_fit();
  mask->ends = ends;
  mask->depth = found.depth;
  set_mask_tokens(found.tokens, mask.get());
  masks->add(key, mask);
  return mask;
}

std::shared_ptr<NodeMask> Machine::counted_mask(const Item& item, NodeMasks* masks) {
  const AutomatonRule& rule = automaton_.rules[automaton_.states[item.state].rule];
  NodeMasks::Key key = key_of(item);
  key.state = item.state - rule.base + rule.twin_base;
  std::shared_ptr<CountedProfile>& known = masks->profile(key.state);
  if (!known) {
    known = make_profile(item.state);
    masks->profile_added(
        4 * (known->inner.values.size() + known->whole.values.size() + known->ends.values.size()));
  }
  const std::shared_ptr<CountedProfile> profile = known;
  // More items than any token has are as good as infinitely many.
  const uint32_t most_ends = std::max(profile->ends.last(), profile->whole.last());
  key.need = std::min(key.need, most_ends + 1);
  key.room = std::min(key.room, std::max(most_ends, profile->inner.last()));
  std::shared_ptr<NodeMask> mask = masks->find(key);
  if (mask) return mask;
  mask = std::make_shared<NodeMask>();
  std::vector<int32_t> tokens;
  const size_t inner = profile->inner.end(key.room);
  const size_t first = profile->whole.begin(key.need), last = profile->whole.end(key.room);
  tokens.reserve(inner + (last > first ? last - first : 0));
  tokens.assign(profile->inner.values.data(), profile->inner.values.data() + inner);
  for (size_t i = first; i < last; ++i) tokens.push_back(profile->whole.values[i]);
  set_mask_tokens(tokens, mask.get());
  std::shared_ptr<const RuleEnds>& ends =
      profile->known_ends[{key.need, std::min(key.room, most_ends)}];
  if (!ends) {
    const auto made = std::make_shared<RuleEnds>();
    made->serial = masks->next_serial();
    for (size_t i = profile->ends.begin(key.need); i < profile->ends.end(key.room); ++i) {
      made->nodes.push_back(profile->ends.values[i]);
    }
    ends = made;
  }
  mask->ends = ends;
  masks->add(key, mask);
  return mask;
}

std::shared_ptr<CountedProfile> Machine::make_profile(uint32_t start) const {
  struct Place {
    uint32_t state, items;
  };
  const auto profile = std::make_shared<CountedProfile>();
  const std::vector<GrammarVocabulary::Node>& trie = vocabulary_.trie();
  std::vector<Place> path(vocabulary_.max_bytes() + 1);
  std::vector<uint32_t> inner_levels, whole_levels, end_levels;
  const bool has_tail = automaton_.rules[automaton_.states[start].rule].has_tail;
  path[0] = {start, 0};
  for (uint32_t i = 0; i < trie.size();) {
    const GrammarVocabulary::Node& node = trie[i];
    Place place = path[node.depth - 1];
    const AutomatonState& from = automaton_.states[place.state];
    const uint32_t byte_class = automaton_.class_of[node.byte];
    uint32_t b = from.bytes_begin;
    while (b < from.bytes_end && automaton_.bytes[b].last < byte_class) ++b;
    if (b == from.bytes_end || automaton_.bytes[b].first > byte_class) {
      i = node.end;
      continue;
    }
    place.state = automaton_.bytes[b].to;
    const AutomatonState& state = automaton_.states[place.state];
    place.items += state.head;
    path[node.depth] = place;
    for (int32_t token = node.token; token >= 0; token = vocabulary_.same_bytes(token)) {
      if (state.tail) {
        profile->whole.values.push_back(token);
        whole_levels.push_back(place.items);
      } else {
        profile->inner.values.push_back(token);
        inner_levels.push_back(place.items + !state.head);
      }
    }
    ++i;
    if ((has_tail ? state.tail : state.head) && node.end != i) {
      profile->ends.values.push_back(i - 1);
      end_levels.push_back(place.items);
    }
  }
  profile->inner.sort(inner_levels);
  profile->whole.sort(whole_levels);
  profile->ends.sort(end_levels);
  return profile;
}

const std::vector<int32_t>& Machine::after_ends(const RuleEnds& ends, uint32_t context) {
  const std::pair<uint64_t, uint32_t> key(ends.serial, context);
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
    for (const uint32_t end : ends.nodes) {
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
    if (!mask->ends->nodes.empty()) set_tokens(after_ends(*mask->ends, item.context), words);
  }
}

}  // namespace mlcb
