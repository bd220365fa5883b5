#include "grammar/machine.h"

#include <algorithm>
#include <functional>

#include "grammar/grammar_error.h"

namespace mlcb {
namespace {

// Items that a call may look at: a second or so. Ordinary grammars need a hundredth.
constexpr uint64_t kMaxWork = 4000000;
constexpr size_t kMaxPoolItems = size_t{1} << 23;
constexpr size_t kMaxRows = size_t{1} << 24;  // transitions

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 29;
}

}  // namespace

Machine::Machine(const Automaton& automaton, const GrammarVocabulary& vocabulary)
    : automaton_(automaton), vocabulary_(vocabulary) {
  states_.resize(2);
  rows_.resize(1);
  rule_starts_.resize(automaton.rules.size());
  for (const AutomatonRule& rule : automaton.rules) rule_starts_[rule.rank] = rule.start;
  path_.resize(vocabulary.max_bytes() + 1);
  unknown_caller_ = intern_context({{kUnknownCaller, 0, 0}});
  const uint32_t end = intern_context({{kTextEnd, 0, 0}});
  std::vector<Item> items = {{automaton.rules[automaton.root].start, 0, end}};
  start_ = close(&items);
}

bool Machine::accepts(const Item& item) const {
  const AutomatonState& state = automaton_.states[item.state];
  return state.accepts && (!state.head || item.count >= automaton_.rules[state.rule].min);
}

bool Machine::can_move(const Item& item) const {
  const AutomatonState& state = automaton_.states[item.state];
  if (state.bytes_begin == state.bytes_end && state.calls_begin == state.calls_end) return false;
  const AutomatonRule& rule = automaton_.rules[state.rule];
  return !state.head || rule.has_tail || item.count < rule.max;
}

// Whether the count lets this transition through.
bool Machine::may_take(const Item& item, const ByteTransition& edge) const {
  const AutomatonState& from = automaton_.states[item.state];
  if (!from.head) return true;
  const AutomatonRule& rule = automaton_.rules[from.rule];
  return automaton_.states[edge.to].tail ? item.count >= rule.min : item.count < rule.max;
}

// Adds what follows when rules end, and gives the state of all that.
Machine::StateId Machine::close(std::vector<Item>* items) {
  uint8_t flags = 0;
  popped_.clear();
  std::sort(items->begin(), items->end());
  items->erase(std::unique(items->begin(), items->end()), items->end());
  for (size_t i = 0; i < items->size(); ++i) {
    const Item item = (*items)[i];
    if (!accepts(item)) continue;
    if (std::find(popped_.begin(), popped_.end(), item.context) != popped_.end()) continue;
    popped_.push_back(item.context);
    work_ += 1 + popped_.size() / 8;
    const Context context = contexts_[item.context];
    work_ += context.count;
    for (uint32_t e = context.begin; e < context.begin + context.count; ++e) {
      if (entries_[e].state == kTextEnd) {
        flags |= kTextEnds;
      } else if (entries_[e].state == kUnknownCaller) {
        flags |= kRuleEnds;
      } else {
        items->push_back(entries_[e]);
      }
    }
  }
  items->erase(std::remove_if(items->begin(), items->end(),
                              [&](const Item& item) { return !can_move(item); }),
               items->end());
  std::sort(items->begin(), items->end());
  items->erase(std::unique(items->begin(), items->end()), items->end());
  if (items->empty() && flags == 0) return kDead;
  return intern_state(*items, flags);
}

Machine::StateId Machine::intern_state(const std::vector<Item>& items, uint8_t flags) {
  uint64_t hash = flags;
  for (const Item& item : items) {
    hash = mix(mix(hash, item.state), uint64_t{item.count} << 32 | item.context);
  }
  const uint32_t known = state_table_.find(hash, [&](uint32_t id) {
    const State& state = states_[id];
    return state.count == items.size() && (state.flags & (kTextEnds | kRuleEnds)) == flags &&
           std::equal(items.begin(), items.end(), items_.begin() + state.begin);
  });
  if (known != UINT32_MAX) return known;
  State state;
  state.begin = static_cast<uint32_t>(items_.size());
  state.count = static_cast<uint32_t>(items.size());
  state.flags = flags;
  for (const Item& item : items) state.depth = std::max(state.depth, contexts_[item.context].depth);
  items_.insert(items_.end(), items.begin(), items.end());
  const StateId id = static_cast<StateId>(states_.size());
  states_.push_back(state);
  state_table_.add(hash, id);
  return id;
}

// entries: sorted, each once.
uint32_t Machine::intern_context(const std::vector<Item>& entries) {
  uint64_t hash = entries.size();
  for (const Item& entry : entries) {
    hash = mix(mix(hash, entry.state), uint64_t{entry.count} << 32 | entry.context);
  }
  const uint32_t known = context_table_.find(hash, [&](uint32_t id) {
    const Context& context = contexts_[id];
    return context.count == entries.size() &&
           std::equal(entries.begin(), entries.end(), entries_.begin() + context.begin);
  });
  if (known != UINT32_MAX) return known;
  Context context;
  context.begin = static_cast<uint32_t>(entries_.size());
  context.count = static_cast<uint32_t>(entries.size());
  for (const Item& entry : entries) {
    if (entry.state >= kUnknownCaller) continue;
    context.depth = std::max(context.depth, contexts_[entry.context].depth + 1);
  }
  entries_.insert(entries_.end(), entries.begin(), entries.end());
  const uint32_t id = static_cast<uint32_t>(contexts_.size());
  contexts_.push_back(context);
  context_table_.add(hash, id);
  return id;
}

void Machine::push_call(uint32_t rank, const Item& entry) {
  calls_.emplace_back(rank, entry);
  std::push_heap(calls_.begin(), calls_.end(), std::greater<>());
}

// Notes an item that can take a byte, and the rules that it calls.
void Machine::add_moves(const Item& item, std::vector<Item>* moves) {
  if (!can_move(item)) return;
  const AutomatonState& state = automaton_.states[item.state];
  if (state.bytes_begin != state.bytes_end) moves->push_back(item);
  const AutomatonRule& rule = automaton_.rules[state.rule];
  for (uint32_t c = state.calls_begin; c < state.calls_end; ++c) {
    const CallTransition& call = automaton_.calls[c];
    const uint32_t rank = automaton_.rules[call.rule].rank;
    const AutomatonState& target = automaton_.states[call.to];
    Item entry = {call.to, item.count, item.context};
    if (target.head) entry.count = automaton_.next_count(rule, item.count);
    // Where nothing but the end of the rule follows, its callers are told at once: the stack of
    // a list that is written as "item list" stays flat.
    if (!can_move(entry) && accepts(entry)) {
      const Context& context = contexts_[item.context];
      for (uint32_t e = context.begin; e < context.begin + context.count; ++e) {
        push_call(rank, entries_[e]);
      }
      work_ += context.count;
    } else {
      push_call(rank, entry);
    }
  }
}

// Finds the items of a state that can take a byte: its own, and those at the starts of the rules
// that they call. A rule is entered once, with all of its callers.
void Machine::expand(StateId id) {
  calls_.clear();
  std::vector<Item> moves;
  const State state = states_[id];
  for (uint32_t i = state.begin; i < state.begin + state.count; ++i) {
    add_moves(Item(items_[i]), &moves);
  }
  uint32_t depth = state.depth;
  std::vector<Item> entries;
  while (!calls_.empty()) {
    const uint32_t rank = calls_.front().first;
    entries.clear();
    while (!calls_.empty() && calls_.front().first == rank) {
      entries.push_back(calls_.front().second);
      std::pop_heap(calls_.begin(), calls_.end(), std::greater<>());
      calls_.pop_back();
    }
    std::sort(entries.begin(), entries.end());
    entries.erase(std::unique(entries.begin(), entries.end()), entries.end());
    work_ += entries.size();
    const uint32_t context = intern_context(entries);
    if (contexts_[context].depth > kMaxDepth) continue;
    depth = std::max(depth, contexts_[context].depth);
    add_moves({rule_starts_[rank], 0, context}, &moves);
  }
  State& target = states_[id];
  target.moves_begin = static_cast<uint32_t>(moves_.size());
  target.moves_count = static_cast<uint32_t>(moves.size());
  target.depth = depth;
  target.flags |= kExpanded;
  moves_.insert(moves_.end(), moves.begin(), moves.end());
}

Machine::StateId Machine::compute_step(StateId id, uint32_t byte_class) {
  if (id == kDead) return kDead;
  if ((states_[id].flags & kExpanded) == 0) expand(id);
  if (states_[id].row == 0) {
    states_[id].row = static_cast<uint32_t>(rows_.size());
    rows_.resize(rows_.size() + automaton_.class_count);
  }
  const State state = states_[id];
  scratch_.clear();
  for (uint32_t i = state.moves_begin; i < state.moves_begin + state.moves_count; ++i) {
    const Item& item = moves_[i];
    const AutomatonState& from = automaton_.states[item.state];
    for (uint32_t b = from.bytes_begin; b < from.bytes_end; ++b) {
      const ByteTransition& edge = automaton_.bytes[b];
      if (byte_class < edge.first || byte_class > edge.last || !may_take(item, edge)) continue;
      const AutomatonState& target = automaton_.states[edge.to];
      Item next = {edge.to, item.count, item.context};
      if (target.head) {
        next.count = automaton_.next_count(automaton_.rules[from.rule], item.count);
      } else if (target.tail) {
        next.count = 0;  // it does not matter any more
      }
      scratch_.push_back(next);
    }
  }
  work_ += 1 + state.moves_count + scratch_.size();
  if (work_ > kMaxWork || items_.size() + moves_.size() + entries_.size() > kMaxPoolItems ||
      rows_.size() > kMaxRows) {
    fail_grammar(
        "the grammar is too ambiguous here\nwhy: too many ways to read the text so far have to be "
        "followed\nhint: rewrite repetitions of what can be split in many ways");
  }
  const StateId next = close(&scratch_);
  rows_[states_[id].row + byte_class] = next;
  return next;
}

int Machine::forced_byte(StateId id) {
  if (id == kDead || can_end(id)) return -1;
  if ((states_[id].flags & kExpanded) == 0) expand(id);
  const State& state = states_[id];
  int forced = -1;
  for (uint32_t i = state.moves_begin; i < state.moves_begin + state.moves_count; ++i) {
    const AutomatonState& from = automaton_.states[moves_[i].state];
    for (uint32_t b = from.bytes_begin; b < from.bytes_end; ++b) {
      const ByteTransition& edge = automaton_.bytes[b];
      if (!may_take(moves_[i], edge)) continue;
      if (edge.first != edge.last || automaton_.class_size[edge.first] != 1) return -1;
      if (forced >= 0 && forced != static_cast<int>(edge.first)) return -1;
      forced = static_cast<int>(edge.first);
    }
  }
  return forced < 0 ? -1 : automaton_.class_first[forced];
}

size_t Machine::bytes() const {
  return states_.size() * sizeof(State) + contexts_.size() * sizeof(Context) +
         (items_.size() + moves_.size() + entries_.size()) * sizeof(Item) +
         rows_.size() * sizeof(StateId) + state_table_.bytes() + context_table_.bytes() +
         after_ends_bytes_;
}

uint32_t Machine::import_context(const Machine& other, uint32_t context,
                                 std::unordered_map<uint32_t, uint32_t>* known) {
  // Contexts refer to older ones only, so depth bounds the recursion.
  const auto found = known->find(context);
  if (found != known->end()) return found->second;
  const Context source = other.contexts_[context];
  std::vector<Item> entries;
  for (uint32_t e = source.begin; e < source.begin + source.count; ++e) {
    Item entry = other.entries_[e];
    if (entry.state < kUnknownCaller) entry.context = import_context(other, entry.context, known);
    entries.push_back(entry);
  }
  std::sort(entries.begin(), entries.end());
  const uint32_t id = intern_context(entries);
  known->emplace(context, id);
  return id;
}

Machine::StateId Machine::import(const Machine& other, StateId id) {
  if (id == kDead) return kDead;
  std::unordered_map<uint32_t, uint32_t> known;
  const State& source = other.states_[id];
  std::vector<Item> items;
  for (uint32_t i = source.begin; i < source.begin + source.count; ++i) {
    Item item = other.items_[i];
    item.context = import_context(other, item.context, &known);
    items.push_back(item);
  }
  std::sort(items.begin(), items.end());
  return intern_state(items, source.flags & (kTextEnds | kRuleEnds));
}

}  // namespace mlcb
