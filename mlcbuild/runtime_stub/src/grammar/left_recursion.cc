// Rules that begin with themselves. Each is rewritten as what such a text begins with (a byte, or a
// rule of another kind) followed by what may be put behind it, rule by rule, until it is whole.
#include <algorithm>

#include "grammar/automaton.h"
#include "grammar/grammar_error.h"

namespace mlcb {
namespace {

class LeftRecursion {
 public:
  LeftRecursion(RuleSet* rules, const std::vector<char>& used, std::vector<char>* nullable)
      : rules_(*rules), used_(used), nullable_(*nullable) {}

  void remove() {
    const uint32_t count = static_cast<uint32_t>(rules_.rules.size());
    first_edges_.resize(count);
    marks_.assign(rules_.states.size(), 0);
    for (uint32_t rule = 0; rule < count; ++rule) {
      if (used_[rule]) first_edges_[rule] = find_first_edges(rules_.rules[rule].start);
    }
    find_components();
    for (const std::vector<uint32_t>& component : components_) rewrite(component);
  }

 private:
  // Transitions of all states that are reached from a state without a byte.
  std::vector<uint32_t> find_first_edges(uint32_t start) {
    std::vector<uint32_t> work = {start}, result;
    ++mark_;
    while (!work.empty()) {
      const uint32_t state = work.back();
      work.pop_back();
      if (marks_[state] == mark_) continue;
      marks_[state] = mark_;
      for (uint32_t e = rules_.states[state]; e != RuleSet::kNone; e = rules_.edges[e].next) {
        const RuleEdge& edge = rules_.edges[e];
        if (edge.kind != RuleEdge::kEmpty) result.push_back(e);
        if (edge.kind == RuleEdge::kEmpty ||
            (edge.kind == RuleEdge::kCall && nullable_[edge.value])) {
          work.push_back(edge.to);
        }
      }
    }
    return result;
  }

  // Tarjan's algorithm, without recursion: components of rules that begin with one another.
  void find_components() {
    const uint32_t count = static_cast<uint32_t>(rules_.rules.size());
    std::vector<uint32_t> number(count, 0), low(count, 0), open;
    std::vector<char> is_open(count, 0);
    uint32_t next = 0;
    struct Frame {
      uint32_t rule;
      size_t edge;
    };
    for (uint32_t root = 0; root < count; ++root) {
      if (!used_[root] || number[root] != 0) continue;
      std::vector<Frame> stack = {{root, 0}};
      while (!stack.empty()) {
        const uint32_t rule = stack.back().rule;
        if (number[rule] == 0) {
          number[rule] = low[rule] = ++next;
          open.push_back(rule);
          is_open[rule] = 1;
        }
        const auto& edges = first_edges_[rule];
        bool entered = false;
        while (stack.back().edge < edges.size()) {
          const RuleEdge& edge = rules_.edges[edges[stack.back().edge++]];
          if (edge.kind != RuleEdge::kCall || !used_[edge.value]) continue;
          if (number[edge.value] == 0) {
            stack.push_back({edge.value, 0});
            entered = true;
            break;
          }
          if (is_open[edge.value]) low[rule] = std::min(low[rule], number[edge.value]);
        }
        if (entered) continue;
        stack.pop_back();
        if (!stack.empty()) {
          low[stack.back().rule] = std::min(low[stack.back().rule], low[rule]);
        }
        if (low[rule] == number[rule]) close_component(rule, &open, &is_open);
      }
    }
  }

  void close_component(uint32_t rule, std::vector<uint32_t>* open, std::vector<char>* is_open) {
    std::vector<uint32_t> component;
    uint32_t member = RuleSet::kNone;
    while (member != rule) {
      member = open->back();
      open->pop_back();
      (*is_open)[member] = 0;
      component.push_back(member);
    }
    bool recursive = component.size() > 1;
    for (const uint32_t e : first_edges_[rule]) {
      recursive |= rules_.edges[e].kind == RuleEdge::kCall && rules_.edges[e].value == rule;
    }
    if (recursive) components_.push_back(std::move(component));
  }

  void rewrite(const std::vector<uint32_t>& component) {
    std::vector<std::pair<uint32_t, uint32_t>> begin_end;  // of each rule, before
    for (const uint32_t rule : component) {
      const GrammarRule& source = rules_.rules[rule];
      if (source.counted) {
        fail_grammar("rule " + source.name +
                     " begins with itself in a counted repetition, which is not supported");
      }
      begin_end.emplace_back(source.start, source.finish);
    }
    // Every rule of the component gets copies of all of them.
    for (const uint32_t target : component) {
      std::vector<uint32_t> copy(rules_.states.size(), RuleSet::kNone), work;
      auto copy_of = [&](uint32_t state) {
        if (copy[state] == RuleSet::kNone) {
          copy[state] = rules_.add_state();
          work.push_back(state);
        }
        return copy[state];
      };
      const uint32_t start = rules_.add_state();
      uint32_t finish = 0;
      for (size_t i = 0; i < component.size(); ++i) {
        const uint32_t rule = component[i];
        if (rule == target) finish = begin_end[i].second;
        for (const uint32_t e : first_edges_[rule]) {
          const RuleEdge edge = rules_.edges[e];
          const auto called = edge.kind == RuleEdge::kCall
                                  ? std::find(component.begin(), component.end(), edge.value)
                                  : component.end();
          if (called == component.end()) {
            if (edge.kind == RuleEdge::kCall && !used_[edge.value]) continue;
            // What follows an empty rule here is among the first edges already.
            copy_edge(start, edge, copy_of(edge.to), RuleEdge::kTextCall);
          } else {
            const size_t index = static_cast<size_t>(called - component.begin());
            rules_.add_empty(copy_of(begin_end[index].second), copy_of(edge.to));
          }
        }
      }
      const uint32_t new_finish = copy_of(finish);
      if (nullable_[target]) rules_.add_empty(start, new_finish);
      while (!work.empty()) {
        const uint32_t state = work.back();
        work.pop_back();
        for (uint32_t e = rules_.states[state]; e != RuleSet::kNone; e = rules_.edges[e].next) {
          const RuleEdge edge = rules_.edges[e];
          copy_edge(copy[state], edge, copy_of(edge.to), edge.kind);
        }
      }
      rules_.rules[target].start = start;
      rules_.rules[target].finish = new_finish;
    }
  }

  void copy_edge(uint32_t from, const RuleEdge& edge, uint32_t to, RuleEdge::Kind call) {
    if (edge.kind == RuleEdge::kEmpty) {
      rules_.add_empty(from, to);
    } else if (edge.kind == RuleEdge::kBytes) {
      rules_.add_bytes(from, edge.value & 255, edge.value >> 8, to);
    } else {
      rules_.add_call(from, edge.value, to, call);
    }
  }

  RuleSet& rules_;
  const std::vector<char>& used_;
  std::vector<char>& nullable_;
  std::vector<uint32_t> marks_;
  uint32_t mark_ = 0;
  std::vector<std::vector<uint32_t>> first_edges_;  // by rule
  std::vector<std::vector<uint32_t>> components_;
};

}  // namespace

void remove_left_recursion(RuleSet* rules, const std::vector<char>& used,
                           std::vector<char>* nullable) {
  LeftRecursion(rules, used, nullable).remove();
}

}  // namespace mlcb
