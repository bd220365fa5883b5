// Runs an automaton: sets of stacks, with everything found out so far kept.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/id_table.h"
#include "grammar/vocabulary.h"

namespace mlcb {

// Trie nodes at which a rule may end inside a token: what follows is up to the caller.
struct RuleEnds {
  std::vector<uint32_t> nodes;
  uint64_t serial = 0;  // never used twice in a grammar
};

// The tokens that a text in one automaton state may go on with, whatever called its rule.
struct NodeMask {
  std::vector<uint32_t> bits;   // a full mask, or empty
  std::vector<int32_t> tokens;  // or few tokens
  std::shared_ptr<const RuleEnds> ends;
  uint32_t depth = 0;  // how much deeper the stack gets inside a token
  uint64_t last_used = 0;
};

// What tokens do in a state of a counted rule, whatever the count: from it the masks for each count
// are made without walking the trie again.
struct CountedProfile {
  // Values in the order of their levels, and how many have at most a level.
  template <typename Value>
  struct Levels {
    std::vector<Value> values;
    std::vector<uint32_t> totals = {0};

    uint32_t last() const { return static_cast<uint32_t>(totals.size() - 1); }
    // Where the values of the levels up to this one end.
    size_t end(uint32_t level) const { return totals[level < last() ? level : last()]; }
    size_t begin(uint32_t level) const { return level == 0 ? 0 : end(level - 1); }
    void sort(const std::vector<uint32_t>& levels);
  };
  Levels<int32_t> inner;  // tokens, by the number of items that they begin
  Levels<int32_t> whole;  // tokens that go on behind the rule's last byte, by the items before
  Levels<uint32_t> ends;  // trie nodes at which the rule may end, by the items before
  std::map<std::pair<uint32_t, uint32_t>, std::shared_ptr<const RuleEnds>> known_ends;
};

// The masks of one grammar, those used last. Belongs to the grammar's lock.
class NodeMasks {
 public:
  struct Key {
    uint32_t state, need, room;  // of a counted rule: items that are missing, and may follow
    bool operator<(const Key& other) const {
      if (state != other.state) return state < other.state;
      return need != other.need ? need < other.need : room < other.room;
    }
  };
  std::shared_ptr<NodeMask> find(const Key& key);
  void add(const Key& key, std::shared_ptr<NodeMask> mask);
  std::shared_ptr<CountedProfile>& profile(uint32_t state) { return profiles_[state]; }
  void profile_added(size_t bytes) { bytes_ += bytes; }
  uint64_t next_serial() { return ++tick_; }

 private:
  void shrink();

  std::map<Key, std::shared_ptr<NodeMask>> masks_;
  std::map<uint32_t, std::shared_ptr<CountedProfile>> profiles_;
  size_t bytes_ = 0;
  uint64_t tick_ = 0;
};

// A place in a text: every way in which the text so far can be read. A state is a set of items
// (automaton state, count, context); a context is the set of places to go on at when the item's
// rule ends, and so the rest of all stacks. Both are kept by content: equal ones have equal ids.
class Machine {
 public:
  using StateId = uint32_t;
  static constexpr StateId kDead = 1;
  static constexpr uint32_t kMaxDepth = 1000;  // of the stack

  Machine(const Automaton& automaton, const GrammarVocabulary& vocabulary);

  StateId start() const { return start_; }
  // Throws Error(MLCB_ERROR_GRAMMAR) if the grammar is so ambiguous that it takes too long.
  StateId step(StateId state, uint8_t byte) { return step_class(state, automaton_.class_of[byte]); }
  bool can_end(StateId state) const { return (states_[state].flags & kTextEnds) != 0; }
  bool can_go_on(StateId state) const { return states_[state].count > 0; }
  // The byte that must come next; -1 if there is a choice.
  int forced_byte(StateId state);
  // Sets the bits of the tokens that may follow.
  void add_allowed(StateId state, NodeMasks* masks, uint32_t* words);

  // A state of another machine over the same automaton.
  StateId import(const Machine& other, StateId state);
  size_t bytes() const;
  // Starts the count of steps for the next call anew.
  void start_work() { work_ = 0; }

 private:
  struct Item {
    uint32_t state, count, context;
    bool operator<(const Item& other) const {
      if (state != other.state) return state < other.state;
      return context != other.context ? context < other.context : count < other.count;
    }
    bool operator==(const Item& other) const {
      return state == other.state && count == other.count && context == other.context;
    }
  };
  // Ends of the stack instead of an automaton state.
  static constexpr uint32_t kTextEnd = UINT32_MAX, kUnknownCaller = UINT32_MAX - 1;
  enum Flags : uint8_t { kTextEnds = 1, kRuleEnds = 2, kExpanded = 4 };

  struct State {
    uint32_t begin = 0, count = 0;              // in items_
    uint32_t moves_begin = 0, moves_count = 0;  // in moves_: items that can take a byte
    uint32_t row = 0;                           // in rows_, 0: none yet
    uint32_t depth = 0;
    uint8_t flags = 0;
  };
  struct Context {
    uint32_t begin = 0, count = 0;  // in entries_
    uint32_t depth = 0;
  };

  StateId step_class(StateId state, uint32_t byte_class) {
    const uint32_t row = states_[state].row;
    if (row != 0) {
      const StateId known = rows_[row + byte_class];
      if (known != 0) return known;
    }
    return compute_step(state, byte_class);
  }
  StateId compute_step(StateId state, uint32_t byte_class);
  void expand(StateId state);
  void add_moves(const Item& item, std::vector<Item>* moves);
  void push_call(uint32_t rank, const Item& entry);
  StateId close(std::vector<Item>* items);
  StateId intern_state(const std::vector<Item>& items, uint8_t flags);
  uint32_t intern_context(const std::vector<Item>& entries);
  bool accepts(const Item& item) const;
  bool can_move(const Item& item) const;
  bool may_take(const Item& item, const ByteTransition& edge) const;
  NodeMasks::Key key_of(const Item& item) const;

  struct Found {
    std::vector<int32_t> tokens;
    std::vector<uint32_t>* ends = nullptr;
    uint32_t depth = 0;
  };
  // Walks the trie's nodes [from, to) from a state that stands at depth.
  void walk(StateId state, uint32_t from, uint32_t to, uint32_t depth, Found* found);
  std::shared_ptr<NodeMask> node_mask(const Item& item, NodeMasks* masks);
  std::shared_ptr<NodeMask> counted_mask(const Item& item, NodeMasks* masks);
  std::shared_ptr<CountedProfile> make_profile(uint32_t state) const;
  void set_mask_tokens(const std::vector<int32_t>& tokens, NodeMask* mask) const;
  const std::vector<int32_t>& after_ends(const RuleEnds& ends, uint32_t context);
  uint32_t import_context(const Machine& other, uint32_t context,
                          std::unordered_map<uint32_t, uint32_t>* known);

  const Automaton& automaton_;
  const GrammarVocabulary& vocabulary_;
  std::vector<State> states_;  // the first two stand for nothing: unknown, kDead
  std::vector<Item> items_, moves_, entries_;
  std::vector<Context> contexts_;
  std::vector<StateId> rows_;
  IdTable state_table_, context_table_;
  struct PairHash {
    size_t operator()(const std::pair<uint64_t, uint32_t>& key) const {
      return static_cast<size_t>((key.first << 32 ^ key.second) * 0x9E3779B97F4A7C15u);
    }
  };
  std::unordered_map<std::pair<uint64_t, uint32_t>, std::vector<int32_t>, PairHash> after_ends_;
  size_t after_ends_bytes_ = 0;
  std::vector<uint32_t> rule_starts_;  // by rank
  StateId start_ = 0;
  uint32_t unknown_caller_ = 0;  // the context
  uint64_t work_ = 0;
  // Reused by the functions above.
  std::vector<Item> scratch_, closed_;
  std::vector<uint32_t> popped_;
  std::vector<std::pair<uint32_t, Item>> calls_;
  std::vector<StateId> path_;
};

}  // namespace mlcb
