#include "grammar/json_rules.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "grammar/grammar_error.h"

namespace mlcb {

uint32_t JsonRules::white_space() {
  if (white_space_ == kNone) {
    CharSet set;
    for (const char c : {'\t', ' '}) set.add(static_cast<uint32_t>(c), static_cast<uint32_t>(c));
    set.finish();
    const uint32_t blanks = rules_.add_counted_class(set, TextEncoding::kUtf8, 0, kMaxBlanks);
    white_space_ = rules_.add_rule("white space");
    const uint32_t finish = rules_.rules[white_space_].finish;
    const uint32_t behind = rules_.then_call(rules_.rules[white_space_].start, blanks);
    rules_.add_empty(behind, finish);
    const uint32_t line = rules_.add_state();
    rules_.add_literal(behind, "\n", line);
    rules_.add_literal(behind, "\r\n", line);
    rules_.add_call(line, blanks, finish);
  }
  return white_space_;
}

uint32_t JsonRules::string() {
  if (string_ == kNone) {
    string_ = rules_.add_rule("string");
    const uint32_t body = rules_.then_literal(rules_.rules[string_].start, "\"");
    rules_.add_class(body, CharSet::all(), TextEncoding::kJsonString, body);
    rules_.add_literal(body, "\"", rules_.rules[string_].finish);
  }
  return string_;
}

uint32_t JsonRules::integer() {
  if (integer_ == kNone) {
    integer_ = rules_.add_rule("integer");
    const uint32_t start = rules_.rules[integer_].start, finish = rules_.rules[integer_].finish;
    const uint32_t first = rules_.then_literal(start, "-"), more = rules_.add_state();
    rules_.add_empty(start, first);
    rules_.add_literal(first, "0", finish);
    rules_.add_bytes(first, '1', '9', more);
    rules_.add_bytes(more, '0', '9', more);
    rules_.add_empty(more, finish);
  }
  return integer_;
}

uint32_t JsonRules::number() {
  if (number_ == kNone) {
    number_ = rules_.add_rule("number");
    const uint32_t start = rules_.rules[number_].start, finish = rules_.rules[number_].finish;
    const uint32_t first = rules_.then_literal(start, "-"), more = rules_.add_state();
    rules_.add_empty(start, first);
    const uint32_t whole = rules_.then_literal(first, "0");
    rules_.add_bytes(first, '1', '9', more);
    rules_.add_bytes(more, '0', '9', more);
    rules_.add_empty(more, whole);
    const uint32_t point = rules_.then_literal(whole, "."), fraction = rules_.add_state();
    rules_.add_bytes(point, '0', '9', fraction);
    rules_.add_bytes(fraction, '0', '9', fraction);
    const uint32_t before_exponent = rules_.add_state(), exponent = rules_.add_state();
    rules_.add_empty(whole, before_exponent);
    rules_.add_empty(fraction, before_exponent);
    const uint32_t sign = rules_.add_state(), digits = rules_.add_state();
    rules_.add_literal(before_exponent, "e", sign);
    rules_.add_literal(before_exponent, "E", sign);
    rules_.add_literal(sign, "+", digits);
    rules_.add_literal(sign, "-", digits);
    rules_.add_empty(sign, digits);
    rules_.add_bytes(digits, '0', '9', exponent);
    rules_.add_bytes(exponent, '0', '9', exponent);
    rules_.add_empty(exponent, finish);
    rules_.add_empty(before_exponent, finish);
  }
  return number_;
}

uint32_t JsonRules::then_separator(uint32_t from, std::string_view text) {
  return then_space(rules_.then_literal(then_space(from), text));
}

void JsonRules::make_values() {
  if (value_ != kNone) return;
  value_ = rules_.add_rule("value");
  object_ = rules_.add_rule("object");
  array_ = rules_.add_rule("array");
  object_or_array_ = rules_.add_rule("object or array");
  const uint32_t start = rules_.rules[value_].start, finish = rules_.rules[value_].finish;
  for (const char* word : {"null", "true", "false"}) rules_.add_literal(start, word, finish);
  for (const uint32_t rule : {object_, array_, string(), number()}) {
    rules_.add_call(start, rule, finish);
  }
  for (const uint32_t rule : {object_, array_}) {
    rules_.add_call(rules_.rules[object_or_array_].start, rule,
                    rules_.rules[object_or_array_].finish);
  }
  for (const uint32_t rule : {object_, array_}) {
    const bool object = rule == object_;
    const uint32_t open =
        then_space(rules_.then_literal(rules_.rules[rule].start, object ? "{" : "["));
    const uint32_t item = rules_.add_state(), before_value = object ? rules_.add_state() : item;
    rules_.add_empty(open, item);
    if (object) {
      rules_.add_empty(then_separator(rules_.then_call(item, string()), ":"), before_value);
    }
    const uint32_t behind = then_space(rules_.then_call(before_value, value_));
    rules_.add_empty(then_space(rules_.then_literal(behind, ",")), item);
    const uint32_t close = rules_.add_state();
    rules_.add_empty(open, close);
    rules_.add_empty(behind, close);
    rules_.add_literal(close, object ? "}" : "]", rules_.rules[rule].finish);
  }
}

uint32_t JsonRules::value() {
  make_values();
  return value_;
}
uint32_t JsonRules::object() {
  make_values();
  return object_;
}
uint32_t JsonRules::array() {
  make_values();
  return array_;
}
uint32_t JsonRules::object_or_array() {
  make_values();
  return object_or_array_;
}

void JsonRules::add_constant(uint32_t from, const Json& value, uint32_t to) {
  switch (value.kind()) {
    case Json::Kind::kNull:
      return rules_.add_literal(from, "null", to);
    case Json::Kind::kBool:
      return rules_.add_literal(from, value.as_bool() ? "true" : "false", to);
    case Json::Kind::kNumber:
      return rules_.add_literal(from, number_text(value.as_double(), "a constant"), to);
    case Json::Kind::kString:
      return rules_.add_literal(from, json_quote(value.as_string()), to);
    case Json::Kind::kArray: {
      uint32_t at = then_space(rules_.then_literal(from, "["));
      for (size_t i = 0; i < value.size(); ++i) {
        if (i > 0) at = then_separator(at, ",");
        const uint32_t next = rules_.add_state();
        add_constant(at, value.items()[i], next);
        at = next;
      }
      return rules_.add_literal(value.size() == 0 ? at : then_space(at), "]", to);
    }
    case Json::Kind::kObject: {
      uint32_t at = then_space(rules_.then_literal(from, "{"));
      for (size_t i = 0; i < value.size(); ++i) {
        if (i > 0) at = then_separator(at, ",");
        at = rules_.then_literal(at, json_quote(value.members()[i].first));
        at = then_separator(at, ":");
        const uint32_t next = rules_.add_state();
        add_constant(at, value.members()[i].second, next);
        at = next;
      }
      return rules_.add_literal(value.size() == 0 ? at : then_space(at), "}", to);
    }
  }
}

std::string decimal_digits(double value, int* exponent) {
  *exponent = 0;
  value = std::fabs(value);
  if (value == 0) return "";
  char buffer[40];
  for (int precision = 0; precision <= 17; ++precision) {
    std::snprintf(buffer, sizeof(buffer), "%.*e", precision, value);
    if (std::strtod(buffer, nullptr) == value) break;
  }
  std::string digits;
  const char* p = buffer;
  for (; *p != 'e'; ++p) {
    if (*p >= '0' && *p <= '9') digits.push_back(*p);  // not the point, whatever it looks like
  }
  *exponent = static_cast<int>(std::strtol(p + 1, nullptr, 10)) + 1;
  while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
  return digits;
}

std::string number_text(double value, const std::string& where) {
  constexpr double kLimit = 9007199254740992.0;  // 2^53
  if (value == std::floor(value) && std::fabs(value) > kLimit && std::fabs(value) < 1e21) {
    fail_grammar(where + ": the integer is beyond 2^53, where not every digit is kept");
  }
  int exponent = 0;
  const std::string digits = decimal_digits(value, &exponent);
  if (digits.empty()) return "0";
  const std::string sign = value < 0 ? "-" : "";
  const int size = static_cast<int>(digits.size());
  if (exponent > 21 || exponent < -6) {
    const std::string tail = size > 1 ? "." + digits.substr(1) : "";
    return sign + digits[0] + tail + "e" + std::to_string(exponent - 1);
  }
  if (exponent <= 0) return sign + "0." + std::string(static_cast<size_t>(-exponent), '0') + digits;
  if (size <= exponent)
    return sign + digits + std::string(static_cast<size_t>(exponent - size), '0');
  return sign + digits.substr(0, static_cast<size_t>(exponent)) + "." +
         digits.substr(static_cast<size_t>(exponent));
}

}  // namespace mlcb
