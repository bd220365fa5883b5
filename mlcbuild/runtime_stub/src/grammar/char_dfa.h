// Deterministic automata over characters: patterns that are combined, counted or looked up.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/expr.h"
#include "grammar/rule_set.h"

namespace mlcb {

struct CharDfa {
  struct Arc {
    uint32_t first, last;  // characters, inclusive; a state's arcs are ascending
    uint32_t to;
    bool operator<(const Arc& other) const { return first < other.first; }
  };
  struct State {
    bool accepts = false;
    std::vector<Arc> arcs;
  };
  std::vector<State> states;  // the first is the start

  static constexpr size_t kMaxStates = 20000;

  // The texts that match; search: a match anywhere in them will do. false if it would take more
  // than kMaxStates.
  static bool from_expr(const Expr& expr, bool search, CharDfa* out);
  static CharDfa any_text();
  static CharDfa any_of(const std::vector<std::string>& texts);
  // Texts with min to max characters. Throws beyond kMaxStates, naming where.
  static CharDfa lengths(uint32_t min, uint32_t max, const std::string& where);

  CharDfa complement() const;
  // The texts of both. Throws beyond kMaxStates, naming where.
  CharDfa intersect(const CharDfa& other, const std::string& where) const;
  bool matches(std::string_view text) const;  // UTF-8
  // Drops what leads to no text; is_empty is whether nothing is left.
  void trim();
  bool is_empty() const;  // after trim

  void add_to(RuleSet* rules, uint32_t from, TextEncoding encoding, uint32_t to) const;
};

}  // namespace mlcb
