#include "grammar/char_dfa.h"

#include <algorithm>

#include "core/utf8.h"
#include "grammar/grammar_error.h"
#include "grammar/vector_ids.h"

namespace mlcb {
namespace {

[[noreturn]] void fail_size(const std::string& where) {
  fail_grammar(where + ": too large: more than " + std::to_string(CharDfa::kMaxStates) +
               " states\nhint: make its lengths or repetitions smaller");
}

void add_arc(CharDfa::State* state, uint32_t first, uint32_t last, uint32_t to) {
  if (!state->arcs.empty() && state->arcs.back().to == to && state->arcs.back().last + 1 == first) {
    state->arcs.back().last = last;
  } else {
    state->arcs.push_back({first, last, to});
  }
}

// Thompson's construction, then the subset construction.
class DfaBuilder {
 public:
  // The nodes that the expression takes written out; false beyond the limit.
  bool add(const Expr& expr, uint32_t from, uint32_t to) {
    if (nodes_.size() > 2 * CharDfa::kMaxStates || arcs_ > kMaxArcs) return false;
    switch (expr.kind) {
      case ExprKind::kEmpty:
        nodes_[from].empty.push_back(to);
        return true;
      case ExprKind::kTextBegin:
        nodes_[from].begins.push_back(to);
        return true;
      case ExprKind::kTextEnd:
        nodes_[from].ends.push_back(to);
        return true;
      case ExprKind::kLiteral:
        for (const char *p = expr.text.data(), *end = p + expr.text.size(); p != end;) {
          const Utf8Char c = utf8_decode(p, end);
          p += c.size;
          const uint32_t next = p == end ? to : add_node();
          nodes_[from].arcs.push_back({c.code, c.code, next});
          from = next;
        }
        if (expr.text.empty()) nodes_[from].empty.push_back(to);
        return true;
      case ExprKind::kClass:
        arcs_ += expr.set.ranges().size();
        for (const CharRange& range : expr.set.ranges()) {
          nodes_[from].arcs.push_back({range.first, range.last, to});
        }
        return true;
      case ExprKind::kSequence:
        for (const ExprPtr& child : expr.children) {
          const uint32_t next = add_node();
          if (!add(*child, from, next)) return false;
          from = next;
        }
        nodes_[from].empty.push_back(to);
        return true;
      case ExprKind::kChoice:
        for (const ExprPtr& child : expr.children) {
          const uint32_t first = add_node();
          nodes_[from].empty.push_back(first);
          if (!add(*child, first, to)) return false;
        }
        return true;
      case ExprKind::kRepeat:
        return add_repeat(expr, from, to);
      case ExprKind::kRule:
        break;
    }
    return false;
  }

  bool build(const Expr& expr, bool search, CharDfa* out) {
    const uint32_t start = add_node();
    finish_ = add_node();
    if (!add(expr, start, finish_)) return false;
    if (search) {
      nodes_[finish_].arcs.push_back({0, kLastChar, finish_});
    }
    marks_.assign(nodes_.size(), 0);
    uint32_t first = start;
    if (search) {  // a state before the match that is never come back to from inside it
      first = add_node();
      marks_.push_back(0);
      nodes_[first].arcs.push_back({0, kLastChar, first});
      nodes_[first].empty.push_back(start);
    }
    return subsets(first, out);
  }

 private:
  struct Node {
    std::vector<CharDfa::Arc> arcs;
    std::vector<uint32_t> empty, begins, ends;
  };

  uint32_t add_node() {
    nodes_.emplace_back();
    return static_cast<uint32_t>(nodes_.size() - 1);
  }

  bool add_repeat(const Expr& expr, uint32_t from, uint32_t to) {
    const Expr& item = *expr.children[0];
    const bool unlimited = expr.max == kUnlimited;
    // Of an unlimited repetition, the last that must be there is the loop.
    const uint32_t copies = !unlimited ? expr.max : expr.min > 0 ? expr.min - 1 : 0;
    if (copies > 2 * CharDfa::kMaxStates) return false;
    for (uint32_t i = 0; i < copies; ++i) {
      if (i >= expr.min) nodes_[from].empty.push_back(to);
      const uint32_t next = add_node();
      if (!add(item, from, next)) return false;
      from = next;
    }
    if (unlimited) {
      const uint32_t loop = add_node(), back = add_node();
      nodes_[from].empty.push_back(loop);
      if (!add(item, loop, back)) return false;
      nodes_[back].empty.push_back(loop);
      from = expr.min > 0 ? back : loop;
    }
    nodes_[from].empty.push_back(to);
    return true;
  }

  // What is reached without a character; begin, end: at these places of the text.
  void close(std::vector<uint32_t>* set, bool begin, bool end) {
    ++mark_;
    for (const uint32_t node : *set) marks_[node] = mark_;
    auto add_all = [&](const std::vector<uint32_t>& targets) {
      for (const uint32_t target : targets) {
        if (marks_[target] == mark_) continue;
        marks_[target] = mark_;
        set->push_back(target);
      }
    };
    for (size_t i = 0; i < set->size(); ++i) {
      const Node& node = nodes_[(*set)[i]];
      add_all(node.empty);
      if (begin) add_all(node.begins);
      if (end) add_all(node.ends);
    }
    std::sort(set->begin(), set->end());
    steps_ += set->size();
  }

  bool subsets(uint32_t first, CharDfa* out) {
    constexpr uint64_t kMaxSteps = 2000000;
    VectorIds ids;
    auto id_of = [&](std::vector<uint32_t> set, bool begin) {
      std::sort(set.begin(), set.end());
      set.erase(std::unique(set.begin(), set.end()), set.end());
      close(&set, begin, false);
      if (begin) set.push_back(UINT32_MAX);  // never the same as a later set
      bool added = false;
      const uint32_t id = ids.add(set, &added);
      if (added) out->states.emplace_back();
      return id;
    };
    id_of({first}, true);
    for (uint32_t i = 0; i < ids.size(); ++i) {
      if (ids.size() > CharDfa::kMaxStates || steps_ > kMaxSteps) return false;
      std::vector<uint32_t> set = ids.get(i);
      const bool begin = set.back() == UINT32_MAX;
      if (begin) set.pop_back();
      std::vector<CharDfa::Arc> arcs;
      for (const uint32_t node : set) {
        arcs.insert(arcs.end(), nodes_[node].arcs.begin(), nodes_[node].arcs.end());
      }
      close(&set, begin, true);
      out->states[i].accepts = std::binary_search(set.begin(), set.end(), finish_);
      add_arcs(std::move(arcs), i, out, id_of);
    }
    return true;
  }

  template <typename IdOf>
  void add_arcs(std::vector<CharDfa::Arc> arcs, uint32_t state, CharDfa* out, const IdOf& id_of) {
    std::vector<uint32_t> cuts;
    for (const CharDfa::Arc& arc : arcs) {
      cuts.push_back(arc.first);
      cuts.push_back(arc.last + 1);
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::sort(arcs.begin(), arcs.end());
    std::vector<CharDfa::Arc> active;
    size_t next = 0;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      active.erase(std::remove_if(active.begin(), active.end(),
                                  [&](const CharDfa::Arc& arc) { return arc.last < cuts[i]; }),
                   active.end());
      while (next < arcs.size() && arcs[next].first <= cuts[i]) active.push_back(arcs[next++]);
      if (active.empty()) continue;
      std::vector<uint32_t> targets;
      for (const CharDfa::Arc& arc : active) targets.push_back(arc.to);
      steps_ += targets.size();
      const uint32_t to = id_of(std::move(targets), false);
      add_arc(&out->states[state], cuts[i], cuts[i + 1] - 1, to);
    }
  }

  static constexpr size_t kMaxArcs = 1000000;

  std::vector<Node> nodes_;
  size_t arcs_ = 0;
  uint32_t finish_ = 0;
  std::vector<uint32_t> marks_;
  uint32_t mark_ = 0;
  uint64_t steps_ = 0;
};

}  // namespace

bool CharDfa::from_expr(const Expr& expr, bool search, CharDfa* out) {
  out->states.clear();
  if (!DfaBuilder().build(expr, search, out)) return false;
  out->trim();
  return true;
}

CharDfa CharDfa::any_text() {
  CharDfa dfa;
  dfa.states.resize(1);
  dfa.states[0].accepts = true;
  dfa.states[0].arcs.push_back({0, kLastChar, 0});
  return dfa;
}

CharDfa CharDfa::any_of(const std::vector<std::string>& texts) {
  // A trie; its arcs are put in order at the end.
  CharDfa dfa;
  dfa.states.resize(1);
  for (const std::string& text : texts) {
    uint32_t at = 0;
    for (const char *p = text.data(), *end = p + text.size(); p != end;) {
      const Utf8Char c = utf8_decode(p, end);
      p += c.size;
      uint32_t next = UINT32_MAX;
      for (const Arc& arc : dfa.states[at].arcs) {
        if (arc.first == c.code) next = arc.to;
      }
      if (next == UINT32_MAX) {
        next = static_cast<uint32_t>(dfa.states.size());
        dfa.states[at].arcs.push_back({c.code, c.code, next});
        dfa.states.emplace_back();
      }
      at = next;
    }
    dfa.states[at].accepts = true;
  }
  for (State& state : dfa.states) {
    std::sort(state.arcs.begin(), state.arcs.end());
  }
  return dfa;
}

CharDfa CharDfa::lengths(uint32_t min, uint32_t max, const std::string& where) {
  const uint32_t last = max == kUnlimited ? min : max;
  if (last >= kMaxStates) fail_size(where);
  CharDfa dfa;
  dfa.states.resize(last + 1);
  for (uint32_t i = 0; i <= last; ++i) {
    dfa.states[i].accepts = i >= min;
    if (i < last) dfa.states[i].arcs.push_back({0, kLastChar, i + 1});
  }
  if (max == kUnlimited) dfa.states[last].arcs.push_back({0, kLastChar, last});
  return dfa;
}

CharDfa CharDfa::complement() const {
  CharDfa dfa = *this;
  const uint32_t rest = static_cast<uint32_t>(dfa.states.size());
  dfa.states.emplace_back();
  for (State& state : dfa.states) {
    std::vector<Arc> arcs;
    uint32_t next = 0;
    for (const Arc& arc : state.arcs) {
      if (arc.first > next) arcs.push_back({next, arc.first - 1, rest});
      arcs.push_back(arc);
      next = arc.last + 1;
    }
    if (next <= kLastChar) arcs.push_back({next, kLastChar, rest});
    state.arcs = std::move(arcs);
    state.accepts = !state.accepts;
  }
  dfa.trim();
  return dfa;
}

CharDfa CharDfa::intersect(const CharDfa& other, const std::string& where) const {
  CharDfa dfa;
  VectorIds pairs;
  auto id_of = [&](uint32_t a, uint32_t b) {
    bool added = false;
    const uint32_t id = pairs.add({a, b}, &added);
    if (added) dfa.states.emplace_back();
    if (pairs.size() > kMaxStates) fail_size(where);
    return id;
  };
  id_of(0, 0);
  for (uint32_t i = 0; i < pairs.size(); ++i) {
    const std::vector<uint32_t> pair = pairs.get(i);
    const State& a = states[pair[0]];
    const State& b = other.states[pair[1]];
    dfa.states[i].accepts = a.accepts && b.accepts;
    for (size_t x = 0, y = 0; x < a.arcs.size() && y < b.arcs.size();) {
      const uint32_t first = std::max(a.arcs[x].first, b.arcs[y].first);
      const uint32_t last = std::min(a.arcs[x].last, b.arcs[y].last);
      if (first <= last) {
        const uint32_t to = id_of(a.arcs[x].to, b.arcs[y].to);
        add_arc(&dfa.states[i], first, last, to);
      }
      if (a.arcs[x].last < b.arcs[y].last) {
        ++x;
      } else {
        ++y;
      }
    }
  }
  dfa.trim();
  return dfa;
}

bool CharDfa::matches(std::string_view text) const {
  uint32_t at = 0;
  for (const char *p = text.data(), *end = p + text.size(); p != end;) {
    const Utf8Char c = utf8_decode(p, end);
    if (c.size == 0) return false;
    p += c.size;
    const std::vector<Arc>& arcs = states[at].arcs;
    const auto found = std::find_if(arcs.begin(), arcs.end(), [&](const Arc& arc) {
      return arc.first <= c.code && c.code <= arc.last;
    });
    if (found == arcs.end()) return false;
    at = found->to;
  }
  return states[at].accepts;
}

void CharDfa::trim() {
  std::vector<std::vector<uint32_t>> sources(states.size());
  std::vector<uint32_t> work;
  for (uint32_t i = 0; i < states.size(); ++i) {
    for (const Arc& arc : states[i].arcs) sources[arc.to].push_back(i);
    if (states[i].accepts) work.push_back(i);
  }
  std::vector<char> alive(states.size(), 0);
  while (!work.empty()) {
    const uint32_t state = work.back();
    work.pop_back();
    if (alive[state]) continue;
    alive[state] = 1;
    work.insert(work.end(), sources[state].begin(), sources[state].end());
  }
  for (State& state : states) {
    state.arcs.erase(std::remove_if(state.arcs.begin(), state.arcs.end(),
                                    [&](const Arc& arc) { return !alive[arc.to]; }),
                     state.arcs.end());
  }
}

bool CharDfa::is_empty() const { return !states[0].accepts && states[0].arcs.empty(); }

void CharDfa::add_to(RuleSet* rules, uint32_t from, TextEncoding encoding, uint32_t to) const {
  std::vector<uint32_t> places(states.size());
  for (uint32_t& place : places) place = rules->add_state();
  rules->add_empty(from, places[0]);
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i].accepts) rules->add_empty(places[i], to);
    // The characters that lead to one state together.
    std::vector<uint32_t> targets;
    for (const Arc& arc : states[i].arcs) targets.push_back(arc.to);
    std::sort(targets.begin(), targets.end());
    targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
    std::vector<CharSet> sets(targets.size());
    for (const Arc& arc : states[i].arcs) {
      const auto place = std::lower_bound(targets.begin(), targets.end(), arc.to);
      sets[static_cast<size_t>(place - targets.begin())].add(arc.first, arc.last);
    }
    for (size_t t = 0; t < targets.size(); ++t) {
      sets[t].finish();
      rules->add_class(places[i], sets[t], encoding, places[targets[t]]);
    }
  }
}

}  // namespace mlcb
