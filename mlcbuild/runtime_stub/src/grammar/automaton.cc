// From a RuleSet to an Automaton: drops what leads nowhere, makes each rule deterministic where
// that does not make it much larger, and joins states that are equal.
#include "grammar/automaton.h"

#include <algorithm>

#include "grammar/grammar_error.h"
#include "grammar/local_rule.h"
#include "grammar/vector_ids.h"

namespace mlcb {
namespace {

constexpr size_t kMaxAutomatonStates = 500000;
// Of the subset construction, over all rules; twice as many without sets.
constexpr uint64_t kMaxSteps = 5000000;

// Which rules can be finished from their start; with empty, without any byte.
std::vector<char> finishable(const RuleSet& rules, bool empty) {
  std::vector<char> result(rules.rules.size(), 0), reached(rules.states.size(), 0);
  std::vector<std::vector<uint32_t>> waiting(rules.rules.size());
  std::vector<uint32_t> work;
  std::vector<uint32_t> rule_of(rules.states.size(), RuleSet::kNone);  // by finish
  auto reach = [&](uint32_t state) {
    if (reached[state]) return;
    reached[state] = 1;
    work.push_back(state);
  };
  auto finish = [&](uint32_t rule) {
    if (result[rule]) return;
    result[rule] = 1;
    for (const uint32_t state : waiting[rule]) reach(state);
  };
  for (uint32_t i = 0; i < rules.rules.size(); ++i) {
    const GrammarRule& rule = rules.rules[i];
    rule_of[rule.finish] = i;
    reach(rule.start);
    if (rule.counted && rule.min == 0 && (!empty || rule.tail < 0)) finish(i);
  }
  while (!work.empty()) {
    const uint32_t state = work.back();
    work.pop_back();
    if (rule_of[state] != RuleSet::kNone) finish(rule_of[state]);
    for (uint32_t e = rules.states[state]; e != RuleSet::kNone; e = rules.edges[e].next) {
      const RuleEdge& edge = rules.edges[e];
      if (edge.kind == RuleEdge::kCall && !result[edge.value]) {
        waiting[edge.value].push_back(edge.to);
      } else if (edge.kind != RuleEdge::kBytes || !empty) {
        reach(edge.to);
      }
    }
  }
  return result;
}

// The name of a rule that no text fits, whatever the rules may be that it calls; empty if there is
// none, as where rules call themselves without an end.
std::string first_empty(const RuleSet& rules, const std::vector<char>& useful) {
  for (uint32_t i = 0; i < rules.rules.size(); ++i) {
    const GrammarRule& rule = rules.rules[i];
    if (useful[i] || rule.counted) continue;
    std::vector<char> reached(rules.states.size(), 0);
    std::vector<uint32_t> work = {rule.start};
    while (!work.empty() && !reached[rule.finish]) {
      const uint32_t state = work.back();
      work.pop_back();
      if (reached[state]) continue;
      reached[state] = 1;
      for (uint32_t e = rules.states[state]; e != RuleSet::kNone; e = rules.edges[e].next) {
        work.push_back(rules.edges[e].to);
      }
    }
    if (!reached[rule.finish]) return rule.name;
  }
  return {};
}

// Rules that root needs, over calls of rules that have a text.
std::vector<char> reachable(const RuleSet& rules, uint32_t root, const std::vector<char>& useful) {
  std::vector<char> used(rules.rules.size(), 0), seen(rules.states.size(), 0);
  std::vector<uint32_t> work;
  auto use = [&](uint32_t rule) {
    if (used[rule]) return;
    used[rule] = 1;
    work.push_back(rules.rules[rule].start);
  };
  use(root);
  while (!work.empty()) {
    const uint32_t state = work.back();
    work.pop_back();
    if (seen[state]) continue;
    seen[state] = 1;
    for (uint32_t e = rules.states[state]; e != RuleSet::kNone; e = rules.edges[e].next) {
      const RuleEdge& edge = rules.edges[e];
      if (edge.is_call()) {
        if (!useful[edge.value]) continue;
        use(edge.value);
      }
      work.push_back(edge.to);
    }
  }
  return used;
}

class AutomatonBuilder {
 public:
  AutomatonBuilder(RuleSet* rules, uint32_t root) : rules_(*rules), root_(root) {}

  Automaton build() {
    useful_ = finishable(rules_, false);
    if (!useful_[root_]) {
      const std::string place = first_empty(rules_, useful_);
      fail_grammar("no text at all fits the grammar" + (place.empty() ? "" : ": see " + place));
    }
    nullable_ = finishable(rules_, true);
    used_ = reachable(rules_, root_, useful_);
    remove_left_recursion(&rules_, used_, &nullable_);
    useful_.resize(rules_.rules.size(), 1);
    used_ = reachable(rules_, root_, useful_);
    number_rules();
    find_byte_classes();
    marks_.assign(rules_.states.size(), 0);
    for (uint32_t rule = 0; rule < rules_.rules.size(); ++rule) {
      if (used_[rule]) build_rule(rule);
    }
    set_ranks();
    return std::move(out_);
  }

 private:
  void number_rules() {
    index_.assign(rules_.rules.size(), RuleSet::kNone);
    for (uint32_t i = 0; i < rules_.rules.size(); ++i) {
      if (!used_[i]) continue;
      index_[i] = static_cast<uint32_t>(out_.rules.size());
      AutomatonRule rule;
      rule.counted = rules_.rules[i].counted;
      rule.min = rules_.rules[i].min;
      rule.max = rules_.rules[i].max;
      rule.has_tail = rules_.rules[i].tail >= 0;
      out_.rules.push_back(rule);
    }
    out_.root = index_[root_];
  }

  void find_byte_classes() {
    bool starts[257] = {true};
    for (const RuleEdge& edge : rules_.edges) {
      if (edge.kind != RuleEdge::kBytes) continue;
      starts[edge.value & 255] = true;
      starts[(edge.value >> 8) + 1] = true;
    }
    for (const GrammarRule& rule : rules_.rules) {
      if (rule.tail >= 0) starts[rule.tail] = starts[rule.tail + 1] = true;
    }
    uint32_t current = 0;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      if (starts[byte] && byte > 0) ++current;
      if (out_.class_size[current]++ == 0) out_.class_first[current] = static_cast<uint8_t>(byte);
      out_.class_of[byte] = static_cast<uint8_t>(current);
    }
    out_.class_count = current + 1;
  }

  // Adds to *set what can be reached without a byte; sorts it.
  void close(std::vector<uint32_t>* set) {
    ++mark_;
    size_t kept = 0;
    for (const uint32_t state : *set) {
      if (marks_[state] != mark_) (*set)[kept++] = state;
      marks_[state] = mark_;
    }
    set->resize(kept);
    for (size_t i = 0; i < set->size(); ++i) {
      for (uint32_t e = rules_.states[(*set)[i]]; e != RuleSet::kNone; e = rules_.edges[e].next) {
        const RuleEdge& edge = rules_.edges[e];
        const bool passes = edge.kind == RuleEdge::kEmpty ||
                            (edge.kind == RuleEdge::kCall && nullable_[edge.value]);
        if (!passes || marks_[edge.to] == mark_) continue;
        marks_[edge.to] = mark_;
        set->push_back(edge.to);
      }
    }
    steps_ += set->size();
    std::sort(set->begin(), set->end());
  }

  // Drops states of a closed set that have no transition: only finish counts.
  void reduce(std::vector<uint32_t>* set, uint32_t finish) const {
    set->erase(std::remove_if(set->begin(), set->end(),
                              [&](uint32_t state) {
                                if (state == finish) return false;
                                for (uint32_t e = rules_.states[state]; e != RuleSet::kNone;
                                     e = rules_.edges[e].next) {
                                  if (rules_.edges[e].kind != RuleEdge::kEmpty) return false;
                                }
                                return true;
                              }),
               set->end());
  }

  void build_rule(uint32_t rule) {
    // Twice as many states as the rule was written with, and some more, are worth determinism.
    local_ = LocalRule();
    if (!subset_construction(rule, true, 2 * count_states(rule) + 64)) {
      local_ = LocalRule();
      subset_construction(rule, false, SIZE_MAX);
    }
    const GrammarRule& source = rules_.rules[rule];
    if (source.counted) local_.close_loop();
    if (source.tail >= 0) local_.add_tail(out_.class_of[source.tail]);
    local_.trim();
    local_.merge_equal();
    place(rule);
  }

  size_t count_states(uint32_t rule) {
    ++mark_;
    std::vector<uint32_t> work = {rules_.rules[rule].start};
    size_t count = 0;
    while (!work.empty()) {
      const uint32_t state = work.back();
      work.pop_back();
      if (marks_[state] == mark_) continue;
      marks_[state] = mark_;
      ++count;
      for (uint32_t e = rules_.states[state]; e != RuleSet::kNone; e = rules_.edges[e].next) {
        work.push_back(rules_.edges[e].to);
      }
    }
    return count;
  }

  // With sets: the deterministic automaton; false beyond the limit. Else states keep apart what
  // the same byte leads to.
  bool subset_construction(uint32_t rule, bool sets, size_t limit) {
    VectorIds ids;
    const uint32_t finish = rules_.rules[rule].finish;
    bool fits = true;
    auto id_of = [&](std::vector<uint32_t> set) {
      close(&set);
      reduce(&set, finish);
      bool added = false;
      const uint32_t id = ids.add(set, &added);
      if (ids.size() > limit) fits = false;
      if (ids.size() + out_.states.size() > kMaxAutomatonStates) {
        fail_grammar("the grammar is too large: more than " + std::to_string(kMaxAutomatonStates) +
                     " states");
      }
      return id;
    };
    id_of({rules_.rules[rule].start});
    std::vector<ByteTransition> edges;
    std::vector<std::pair<uint32_t, uint32_t>> calls;
    for (uint32_t i = 0; i < ids.size() && fits; ++i) {
      if (sets && steps_ > kMaxSteps) return false;
      if (steps_ > 2 * kMaxSteps) {
        fail_grammar("the grammar is too large: its rules take too many steps to prepare");
      }
      edges.clear();
      calls.clear();
      LocalState local;
      for (const uint32_t state : ids.get(i)) {
        if (state == finish) local.accepts = true;
        for (uint32_t e = rules_.states[state]; e != RuleSet::kNone; e = rules_.edges[e].next) {
          const RuleEdge& edge = rules_.edges[e];
          if (edge.kind == RuleEdge::kBytes) {
            edges.push_back(
                {out_.class_of[edge.value & 255], out_.class_of[edge.value >> 8], edge.to});
          } else if (edge.is_call() && useful_[edge.value]) {
            calls.emplace_back(index_[edge.value], edge.to);
          }
        }
      }
      if (sets) {
        add_byte_sets(edges, &local, id_of);
      } else {
        for (const ByteTransition& edge : edges) {
          local.bytes.push_back({edge.first, edge.last, id_of({edge.to})});
        }
      }
      std::sort(calls.begin(), calls.end());
      for (size_t from = 0; from < calls.size();) {
        size_t to = from;
        std::vector<uint32_t> targets;
        for (; to < calls.size() && calls[to].first == calls[from].first; ++to) {
          targets.push_back(calls[to].second);
          if (!sets) break;
        }
        if (!sets) ++to;
        local.calls.push_back({calls[from].first, id_of(std::move(targets))});
        from = to;
      }
      local_.states.push_back(std::move(local));
    }
    return fits;
  }

  template <typename IdOf>
  void add_byte_sets(const std::vector<ByteTransition>& edges, LocalState* local,
                     const IdOf& id_of) {
    std::vector<uint32_t> cuts;
    for (const ByteTransition& edge : edges) {
      cuts.push_back(edge.first);
      cuts.push_back(edge.last + 1);
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      std::vector<uint32_t> targets;
      for (const ByteTransition& edge : edges) {
        if (edge.first <= cuts[i] && cuts[i] <= edge.last) targets.push_back(edge.to);
      }
      steps_ += edges.size();
      if (targets.empty()) continue;
      const uint32_t to = id_of(std::move(targets));
      if (!local->bytes.empty() && local->bytes.back().to == to &&
          local->bytes.back().last + 1 == cuts[i]) {
        local->bytes.back().last = cuts[i + 1] - 1;
      } else {
        local->bytes.push_back({cuts[i], cuts[i + 1] - 1, to});
      }
    }
  }

  // Appends the states that can be reached to the automaton.
  void place(uint32_t rule) {
    std::vector<uint32_t> order;
    local_.post_order(&order);
    std::reverse(order.begin(), order.end());
    std::vector<uint32_t> place(local_.states.size(), RuleSet::kNone);
    const uint32_t base = static_cast<uint32_t>(out_.states.size());
    for (uint32_t i = 0; i < order.size(); ++i) place[order[i]] = base + i;
    for (const uint32_t id : order) {
      const LocalState& local = local_.states[id];
      AutomatonState state;
      state.rule = index_[rule];
      state.accepts = local.accepts;
      state.head = rules_.rules[rule].counted && id == 0;
      state.tail = id == local_.tail_state;
      state.bytes_begin = static_cast<uint32_t>(out_.bytes.size());
      for (const ByteTransition& edge : local.bytes) {
        out_.bytes.push_back({edge.first, edge.last, place[edge.to]});
      }
      state.bytes_end = static_cast<uint32_t>(out_.bytes.size());
      state.calls_begin = static_cast<uint32_t>(out_.calls.size());
      for (const CallTransition& call : local.calls) {
        out_.calls.push_back({call.rule, place[call.to]});
      }
      state.calls_end = static_cast<uint32_t>(out_.calls.size());
      out_.states.push_back(state);
    }
    AutomatonRule& placed = out_.rules[index_[rule]];
    placed.start = place[0];
    placed.base = base;
    // A count of what may be empty is reached at once.
    if (placed.counted && nullable_[rule]) placed.min = 0;
    if (placed.counted) find_twin(&placed);
  }

  void find_twin(AutomatonRule* rule) {
    std::vector<uint32_t> shape;
    for (size_t i = rule->base; i < out_.states.size(); ++i) {
      const AutomatonState& state = out_.states[i];
      if (state.calls_begin != state.calls_end) return;
      for (uint32_t b = state.bytes_begin; b < state.bytes_end; ++b) {
        const ByteTransition& edge = out_.bytes[b];
        if (b > state.bytes_begin && edge.first <= out_.bytes[b - 1].last) return;
        shape.insert(shape.end(), {edge.first, edge.last, edge.to - rule->base});
      }
      shape.push_back(RuleSet::kNone - state.tail);
    }
    rule->flat = true;
    bool added = false;
    const uint32_t id = twins_.add(shape, &added);
    if (added) twin_bases_.push_back(rule->base);
    rule->twin_base = twin_bases_[id];
  }

  // Orders the rules so that one comes before those that its start calls.
  void set_ranks() {
    const size_t count = out_.rules.size();
    std::vector<uint8_t> seen(count, 0);
    uint32_t rank = static_cast<uint32_t>(count);
    for (uint32_t root = 0; root < count; ++root) {
      if (seen[root]) continue;
      seen[root] = 1;
      std::vector<std::pair<uint32_t, uint32_t>> stack = {{root, first_call(root)}};
      while (!stack.empty()) {
        const uint32_t rule = stack.back().first;
        const AutomatonState& start = out_.states[out_.rules[rule].start];
        if (stack.back().second == start.calls_end) {
          out_.rules[rule].rank = --rank;
          seen[rule] = 2;
          stack.pop_back();
          continue;
        }
        const uint32_t called = out_.calls[stack.back().second++].rule;
        if (seen[called] == 1) {
          fail_grammar("a rule calls itself before it takes any text, in a counted repetition");
        }
        if (seen[called] == 0) {
          seen[called] = 1;
          stack.emplace_back(called, first_call(called));
        }
      }
    }
  }
  uint32_t first_call(uint32_t rule) const {
    return out_.states[out_.rules[rule].start].calls_begin;
  }

  RuleSet& rules_;
  uint32_t root_;
  std::vector<char> useful_, nullable_, used_;
  std::vector<uint32_t> index_;  // of a rule in the automaton
  std::vector<uint32_t> marks_;
  uint32_t mark_ = 0;
  uint64_t steps_ = 0;
  LocalRule local_;
  VectorIds twins_;
  std::vector<uint32_t> twin_bases_;
  Automaton out_;
};

}  // namespace

Automaton build_automaton(RuleSet* rules, uint32_t root) {
  return AutomatonBuilder(rules, root).build();
}

}  // namespace mlcb
