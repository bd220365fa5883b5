// What JSON schemas say of constants, numbers, strings and arrays.
#include <algorithm>
#include <cmath>

#include "grammar/compile.h"
#include "grammar/schema.h"
#include "grammar/schema_format.h"

namespace mlcb {
namespace {

bool equal(const Json& a, const Json& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Json::Kind::kNull:
      return true;
    case Json::Kind::kBool:
      return a.as_bool() == b.as_bool();
    case Json::Kind::kNumber:
      return a.as_double() == b.as_double();
    case Json::Kind::kString:
      return a.as_string() == b.as_string();
    case Json::Kind::kArray:
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                        equal);
    case Json::Kind::kObject:
      break;
  }
  if (a.size() != b.size()) return false;
  for (const auto& member : a.members()) {
    const Json* other = b.find(member.first);
    if (other == nullptr || !equal(member.second, *other)) return false;
  }
  return true;
}

}  // namespace

// ---- enum and const ---------------------------------------------------------------------------

bool SchemaCompiler::add_enum(uint32_t rule, const SchemaGoal& flat, uint32_t types) {
  std::vector<std::vector<const Json*>> lists;
  for (const SchemaPart& part : flat) {
    if (const Json* values = document_.find_array(*part.node, "enum")) {
      lists.emplace_back();
      for (const Json& value : values->items()) lists.back().push_back(&value);
    }
    if (const Json* value = document_.find(*part.node, "const")) lists.push_back({value});
  }
  if (lists.empty()) return false;
  for (const Json* value : lists[0]) {
    bool everywhere = true;
    for (size_t i = 1; i < lists.size() && everywhere; ++i) {
      everywhere = std::any_of(lists[i].begin(), lists[i].end(),
                               [&](const Json* other) { return equal(*value, *other); });
    }
    if (!everywhere || !admits(flat, types, *value)) continue;
    const uint32_t first = rules_.add_state();
    rules_.add_empty(rules_.rules[rule].start, first);
    json_.add_constant(first, *value, rules_.rules[rule].finish);
  }
  return true;
}

bool SchemaCompiler::admits(const SchemaGoal& flat, uint32_t types, const Json& value) {
  uint32_t type = 0;
  switch (value.kind()) {
    case Json::Kind::kNull:
      return (types & kNull) != 0;
    case Json::Kind::kBool:
      return (types & kBoolean) != 0;
    case Json::Kind::kNumber:
      if (value.as_double() == std::floor(value.as_double())) {
        return (types & kInteger) != 0 && number_range(flat, types).contains(value.as_double());
      }
      return (types & kFraction) != 0 && number_range(flat, types).contains(value.as_double());
    case Json::Kind::kString: {
      if ((types & kString) == 0) return false;
      const StringLimits limits = string_limits(flat);
      uint32_t length = 0;
      for (const char c : value.as_string()) length += (c & 0xC0) != 0x80;
      return length >= limits.min && length <= limits.max &&
             (limits.patterns.empty() || pattern_dfa(limits).matches(value.as_string()));
    }
    case Json::Kind::kArray:
      type = kArray;
      break;
    case Json::Kind::kObject:
      type = kObject;
      break;
  }
  if ((types & type) == 0) return false;
  for (const SchemaPart& part : flat) {
    for (const TypedKeyword& keyword : typed_keywords()) {
      if ((keyword.types & type) != 0 && part.node->find(keyword.name) != nullptr) {
        document_.fail_keyword(*part.node, keyword.name,
                               "beside an enum or const with arrays or objects is not supported");
      }
    }
  }
  return true;
}

// ---- numbers ----------------------------------------------------------------------------------

NumberRange SchemaCompiler::number_range(const SchemaGoal& flat, uint32_t types) {
  NumberRange range;
  range.integer = (types & kFraction) == 0;
  for (const SchemaPart& part : flat) {
    const Json& node = *part.node;
    double bound = 0;
    // In draft 4 the exclusive ones are flags.
    const Json* low_flag = node.find("exclusiveMinimum");
    const Json* high_flag = node.find("exclusiveMaximum");
    const bool low_open = low_flag != nullptr && low_flag->is_bool() && low_flag->as_bool();
    const bool high_open = high_flag != nullptr && high_flag->is_bool() && high_flag->as_bool();
    if (document_.find_number(node, "minimum", &bound)) range.raise_low(bound, low_open);
    if (document_.find_number(node, "maximum", &bound)) range.lower_high(bound, high_open);
    if (low_flag != nullptr && !low_flag->is_bool() &&
        document_.find_number(node, "exclusiveMinimum", &bound)) {
      range.raise_low(bound, true);
    }
    if (high_flag != nullptr && !high_flag->is_bool() &&
        document_.find_number(node, "exclusiveMaximum", &bound)) {
      range.lower_high(bound, true);
    }
    if (document_.find_number(node, "multipleOf", &bound)) {
      if (bound <= 0) document_.fail(*node.find("multipleOf"), "must be greater than 0");
      range.multiples_of.push_back(bound);
    }
  }
  return range;
}

void SchemaCompiler::add_number(uint32_t from, const SchemaGoal& flat, uint32_t types,
                                uint32_t to) {
  const NumberRange range = number_range(flat, types);
  if (range.is_free()) {
    return rules_.add_call(from, range.integer ? json_.integer() : json_.number(), to);
  }
  const std::string where = document_.where(*flat[0].node);
  number_dfa(range, where).add_to(&rules_, from, TextEncoding::kUtf8, to);
}

// ---- strings ----------------------------------------------------------------------------------

SchemaCompiler::StringLimits SchemaCompiler::string_limits(const SchemaGoal& flat) {
  StringLimits limits;
  for (const SchemaPart& part : flat) {
    const Json& node = *part.node;
    uint32_t count = 0;
    if (document_.find_count(node, "minLength", &count)) limits.min = std::max(limits.min, count);
    if (document_.find_count(node, "maxLength", &count)) limits.max = std::min(limits.max, count);
    if (const Json* pattern = document_.find(node, "pattern")) {
      if (!pattern->is_string()) document_.fail(*pattern, "must be a string");
      const std::string where = document_.where(*pattern);
      limits.patterns.emplace_back(&node, parse_regex(pattern->as_string(), where));
      limits.search.push_back(true);
      limits.escapes = true;
    }
    if (const Json* format = document_.find(node, "format")) {
      bool standard = false;
      if (!format->is_string()) document_.fail(*format, "must be a string");
      const char* pattern = format_pattern(format->as_string(), &standard);
      if (standard && pattern == nullptr) {
        document_.fail_keyword(node, "format",
                               json_quote(format->as_string()) + " is not supported");
      }
      if (pattern != nullptr) {
        limits.patterns.emplace_back(&node, parse_regex(pattern, "format"));
        limits.search.push_back(false);
        limits.escapes |= format->as_string().find("pointer") != std::string::npos;
      }
    }
  }
  return limits;
}

CharDfa SchemaCompiler::pattern_dfa(const StringLimits& limits) {
  CharDfa result;
  for (size_t i = 0; i < limits.patterns.size(); ++i) {
    const Json& node = *limits.patterns[i].first;
    CharDfa dfa;
    if (!CharDfa::from_expr(*limits.patterns[i].second, limits.search[i], &dfa)) {
      document_.fail_keyword(node, limits.search[i] ? "pattern" : "format",
                             "takes more than " + std::to_string(CharDfa::kMaxStates) +
                                 " states\nhint: anchor it with ^ and $, or make it smaller");
    }
    if (i == 0) {
      result = std::move(dfa);
    } else {
      result = result.intersect(dfa, document_.where(node));
    }
  }
  return result;
}

void SchemaCompiler::add_string(uint32_t from, const SchemaGoal& flat, uint32_t to) {
  const StringLimits limits = string_limits(flat);
  if (limits.min > limits.max) return;
  const bool counted = limits.min > 0 || limits.max != kUnlimited;
  if (limits.patterns.empty() && !counted) return rules_.add_call(from, json_.string(), to);
  const uint32_t body = rules_.then_literal(from, "\"");
  if (limits.patterns.empty()) {
    const uint32_t rule = rules_.add_counted_class(CharSet::all(), TextEncoding::kJsonString,
                                                   limits.min, limits.max, '"');
    return rules_.add_call(body, rule, to);
  }
  const uint32_t close = rules_.add_state();
  rules_.add_literal(close, "\"", to);
  CharDfa dfa = pattern_dfa(limits);
  if (counted) {
    const std::string where = document_.where(*flat[0].node) + ": a pattern together with lengths";
    dfa = dfa.intersect(CharDfa::lengths(limits.min, limits.max, where), where);
  }
  dfa.add_to(&rules_, body, limits.escapes ? TextEncoding::kJsonString : TextEncoding::kUtf8,
             close);
}

// ---- arrays -----------------------------------------------------------------------------------

void SchemaCompiler::add_array(uint32_t from, const SchemaGoal& flat, uint32_t to) {
  std::vector<std::vector<const Json*>> first;  // the schemas of the first items
  std::vector<const Json*> rest;                // of all others
  uint32_t min = 0, max = kUnlimited;
  std::vector<std::pair<const Json*, const Json*>> lists;  // of each part: first items, others
  for (const SchemaPart& part : flat) {
    const Json& node = *part.node;
    uint32_t count = 0;
    if (document_.find_count(node, "minItems", &count)) min = std::max(min, count);
    if (document_.find_count(node, "maxItems", &count)) max = std::min(max, count);
    const Json* list = document_.find_array(node, "prefixItems");
    const Json* others = document_.find(node, "items");
    if (others != nullptr && others->is_array()) {  // before 2020-12
      list = others;
      others = document_.find(node, "additionalItems");
    }
    const Json* unevaluated = document_.find(node, "unevaluatedItems");
    if (others == nullptr && unevaluated != nullptr) others = unevaluated;
    lists.emplace_back(list, others);
    if (list != nullptr) first.resize(std::max(first.size(), list->size()));
    if (others != nullptr) rest.push_back(others);
  }
  for (size_t i = 0; i < first.size(); ++i) {
    for (const auto& own : lists) {
      if (own.first != nullptr && i < own.first->size()) {
        first[i].push_back(document_.note(*own.first, std::to_string(i), own.first->items()[i]));
      } else if (own.second != nullptr) {
        first[i].push_back(own.second);
      }
    }
  }
  if (first.empty() && rest.empty() && min == 0 && max == kUnlimited) {
    return rules_.add_call(from, json_.array(), to);
  }
  if (min > max) return;
  const uint32_t rest_rule = rule_for(rest);
  const uint32_t open = json_.then_space(rules_.then_literal(from, "["));
  const uint32_t close = rules_.add_state();
  rules_.add_literal(close, "]", to);
  if (min == 0) rules_.add_empty(open, close);
  if (max == 0) return;
  const size_t listed = std::max<size_t>(first.size(), 1);
  uint32_t at = open;
  for (size_t i = 0; i < listed && i < max; ++i) {
    if (i > 0) at = json_.then_separator(at, ",");
    at = rules_.then_call(at, i < first.size() ? rule_for(first[i]) : rest_rule);
    if (i + 1 >= min && i + 1 < listed) rules_.add_empty(json_.then_space(at), close);
  }
  const uint32_t written = static_cast<uint32_t>(std::min<size_t>(listed, max));
  const uint32_t more = rules_.add_rule("more items");
  const uint32_t item = json_.then_separator(rules_.rules[more].start, ",");
  rules_.add_call(item, rest_rule, rules_.rules[more].finish);
  const uint32_t last = rules_.add_state();
  rules_.add_repeat(at, more, min > written ? min - written : 0,
                    max == kUnlimited ? max : max - written, last);
  rules_.add_empty(json_.then_space(last), close);
}

}  // namespace mlcb
