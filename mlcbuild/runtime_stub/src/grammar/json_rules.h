// Rules for JSON texts of any content.
#pragma once
#include <cstdint>

#include "core/json.h"
#include "grammar/rule_set.h"

namespace mlcb {

// Between tokens: at most one line break, with up to so many blanks and tabs before and behind it.
// Models that may go on with white space do, some of them for ever.
constexpr uint32_t kMaxBlanks = 64;

class JsonRules {
 public:
  explicit JsonRules(RuleSet* rules) : rules_(*rules) {}

  // Each rule is made when it is asked for first.
  uint32_t white_space();
  uint32_t string();  // with its quotes
  uint32_t integer();
  uint32_t number();
  uint32_t value();
  uint32_t object();
  uint32_t array();
  uint32_t object_or_array();

  // White space, text, white space; returns the state behind them.
  uint32_t then_separator(uint32_t from, std::string_view text);
  uint32_t then_space(uint32_t from) { return rules_.then_call(from, white_space()); }
  // One way to write the value (white space aside).
  void add_constant(uint32_t from, const Json& value, uint32_t to);

 private:
  void make_values();

  RuleSet& rules_;
  static constexpr uint32_t kNone = RuleSet::kNone;
  uint32_t white_space_ = kNone, string_ = kNone, integer_ = kNone, number_ = kNone;
  uint32_t value_ = kNone, object_ = kNone, array_ = kNone, object_or_array_ = kNone;
};

// A number as JSON text: no exponent if it has at most 21 digits before and 7 zeros behind the
// point. Throws Error(MLCB_ERROR_GRAMMAR) for integers beyond 2^53, whose digits are not known.
std::string number_text(double value, const std::string& where);

// Decimal digits of |value|, without zeros at the ends: 0.digits * 10^*exponent; "" for 0.
std::string decimal_digits(double value, int* exponent);

}  // namespace mlcb
