// A grammar under construction: rules as networks of states over bytes.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/expr.h"
#include "grammar/vector_ids.h"

namespace mlcb {

// How the characters of a text stand in the bytes.
enum class TextEncoding : uint8_t {
  kUtf8,
  kJsonString  // inside the quotes of a JSON string; a character may be an escape sequence
};

struct RuleEdge {
  // kTextCall: a call that is not passed by without any text, though the rule may be empty.
  enum Kind : uint8_t { kEmpty, kBytes, kCall, kTextCall };
  uint32_t to = 0;
  uint32_t next = 0;   // of the same state, or kNone
  uint32_t value = 0;  // kBytes: first | last << 8; calls: the rule
  Kind kind = kEmpty;

  bool is_call() const { return kind == kCall || kind == kTextCall; }
};

// A rule is what leads from start to finish. A counted rule is that path min to max times; nothing
// else may lead into start or out of finish. Then comes the byte tail, if it is one.
struct GrammarRule {
  std::string name;
  uint32_t start = 0, finish = 0;
  bool counted = false;
  uint32_t min = 1, max = 1;
  int tail = -1;
};

class RuleSet {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  uint32_t add_rule(std::string name);
  // A rule that is item, min to max times.
  uint32_t add_counted(uint32_t item, uint32_t min, uint32_t max);
  // The same for one character of set, and then the byte tail, which no character of set begins
  // with (-1: none). Equal calls give the same rule.
  uint32_t add_counted_class(const CharSet& set, TextEncoding encoding, uint32_t min, uint32_t max,
                             int tail = -1);
  uint32_t add_state();

  void add_empty(uint32_t from, uint32_t to) { add_edge(from, RuleEdge::kEmpty, 0, to); }
  void add_bytes(uint32_t from, uint32_t first, uint32_t last, uint32_t to) {
    add_edge(from, RuleEdge::kBytes, first | last << 8, to);
  }
  void add_call(uint32_t from, uint32_t rule, uint32_t to, RuleEdge::Kind kind = RuleEdge::kCall) {
    add_edge(from, kind, rule, to);
  }
  // The bytes of text, as they are.
  void add_literal(uint32_t from, std::string_view text, uint32_t to);
  void add_class(uint32_t from, const CharSet& set, TextEncoding encoding, uint32_t to);
  void add_expr(uint32_t from, const Expr& expr, TextEncoding encoding, uint32_t to);
  // Calls rule min to max times.
  void add_repeat(uint32_t from, uint32_t rule, uint32_t min, uint32_t max, uint32_t to);

  // Like those, from a new state that is returned.
  uint32_t then_literal(uint32_t from, std::string_view text);
  uint32_t then_call(uint32_t from, uint32_t rule);

  // References to rules with an entry here become a copy of it (see Ebnf).
  std::map<uint32_t, const Expr*> inlined;

  std::vector<GrammarRule> rules;
  std::vector<uint32_t> states;  // the first edge, or kNone
  std::vector<RuleEdge> edges;

 private:
  void add_edge(uint32_t from, RuleEdge::Kind kind, uint32_t value, uint32_t to);
  void add_json_escapes(uint32_t from, const CharSet& set, uint32_t to);

  VectorIds class_keys_;
  std::vector<uint32_t> counted_classes_;  // rules, by id of their key
};

}  // namespace mlcb
