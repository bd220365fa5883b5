// Objects of JSON schemas: listed properties in their order, then others.
#include <algorithm>

#include "grammar/compile.h"
#include "grammar/grammar_error.h"
#include "grammar/schema.h"

namespace mlcb {
namespace {

constexpr size_t kMaxKeyPatterns = 4;
constexpr size_t kMaxObjectStates = 20000;

}  // namespace

std::vector<SchemaCompiler::KeyPattern> SchemaCompiler::list_key_patterns(const SchemaGoal& flat) {
  std::vector<KeyPattern> patterns;
  for (const SchemaPart& part : flat) {
    const Json* members = document_.find_object(*part.node, "patternProperties");
    if (members == nullptr) continue;
    for (const auto& member : members->members()) {
      const Json* schema = document_.note(*members, member.first, member.second);
      KeyPattern pattern{part.node, schema, {}};
      const ExprPtr expr = parse_regex(member.first, document_.where(*schema));
      if (!CharDfa::from_expr(*expr, true, &pattern.dfa)) {
        document_.fail(*schema, "the pattern takes too many states");
      }
      patterns.push_back(std::move(pattern));
      if (patterns.size() > kMaxKeyPatterns) {
        document_.fail_keyword(
            *part.node, "patternProperties",
            "with more than " + std::to_string(kMaxKeyPatterns) + " patterns is not supported");
      }
    }
  }
  return patterns;
}

// The listed and the required properties, each with all schemas that hold for it.
std::vector<SchemaCompiler::Property> SchemaCompiler::list_properties(
    const SchemaGoal& flat, const std::vector<KeyPattern>& patterns) {
  std::vector<Property> properties;
  std::map<std::string, size_t> places;
  auto place_of = [&](const std::string& name) -> Property& {
    const auto added = places.emplace(name, properties.size());
    if (added.second) {
      properties.emplace_back();
      properties.back().name = name;
    }
    return properties[added.first->second];
  };
  for (const SchemaPart& part : flat) {
    const Json* members = document_.find_object(*part.node, "properties");
    if (members == nullptr) continue;
    for (const auto& member : members->members()) place_of(member.first);
  }
  for (const SchemaPart& part : flat) {
    const Json* names = document_.find(*part.node, "required");
    if (names == nullptr || names->is_bool()) continue;  // a flag in draft 3
    if (!names->is_array()) document_.fail(*names, "must be an array");
    for (const Json& name : names->items()) {
      if (!name.is_string()) document_.fail(*names, "must be an array of strings");
      place_of(name.as_string()).required = true;
    }
  }
  std::vector<char> matched(patterns.size());
  for (Property& property : properties) {
    for (size_t i = 0; i < patterns.size(); ++i) {
      matched[i] = patterns[i].dfa.matches(property.name);
    }
    for (const SchemaPart& part : flat) {
      bool own = false;
      const Json* members = document_.find_object(*part.node, "properties");
      if (members != nullptr) {
        if (const Json* schema = members->find(property.name)) {
          property.schemas.push_back(document_.note(*members, property.name, *schema));
          own = true;
        }
      }
      for (size_t i = 0; i < patterns.size(); ++i) {
        if (patterns[i].node != part.node || !matched[i]) continue;
        property.schemas.push_back(patterns[i].schema);
        own = true;
      }
      const Json* additional = document_.find(*part.node, "additionalProperties");
      if (!own && additional != nullptr) property.schemas.push_back(additional);
    }
  }
  return properties;
}

// Whether keys that no keyword speaks of are out.
bool SchemaCompiler::is_closed(const SchemaGoal& flat) {
  bool lists = false, open = false;
  for (const SchemaPart& part : flat) {
    const Json& node = *part.node;
    const Json* properties = node.find("properties");
    lists |= properties != nullptr && properties->is_object() && properties->size() > 0;
    lists |= node.find("patternProperties") != nullptr;
    open |= node.find("additionalProperties") != nullptr;
    const Json* unevaluated = node.find("unevaluatedProperties");
    if (unevaluated != nullptr) {
      if (!unevaluated->as_bool()) return true;
      open = true;
    }
  }
  return lists && !open;
}

std::vector<SchemaCompiler::OtherKeys> SchemaCompiler::list_other_keys(
    const SchemaGoal& flat, const std::vector<KeyPattern>& patterns,
    const std::vector<Property>& properties) {
  std::vector<OtherKeys> others;
  CharDfa names;
  const bool named = name_dfa(flat, &names);
  const bool closed = is_closed(flat);
  const std::string where = document_.where(*flat[0].node);
  for (size_t subset = 0; subset < size_t{1} << patterns.size(); ++subset) {
    if (subset == 0 && closed) continue;
    std::vector<const Json*> schemas;
    bool impossible = false;
    for (const SchemaPart& part : flat) {
      bool own = false;
      for (size_t i = 0; i < patterns.size(); ++i) {
        if (patterns[i].node != part.node || (subset >> i & 1) == 0) continue;
        schemas.push_back(patterns[i].schema);
        own = true;
      }
      const Json* additional = document_.find(*part.node, "additionalProperties");
      if (own || additional == nullptr) continue;
      if (additional->is_bool() && !additional->as_bool()) impossible = true;
      schemas.push_back(additional);
    }
    if (impossible) continue;
    OtherKeys keys{json_.string(), rule_for(schemas)};
    if (!properties.empty() || !patterns.empty() || named) {
      std::vector<std::string> listed;
      for (const Property& property : properties) listed.push_back(property.name);
      CharDfa dfa = CharDfa::any_of(listed).complement();
      for (size_t i = 0; i < patterns.size(); ++i) {
        const bool in = (subset >> i & 1) != 0;
        dfa = dfa.intersect(in ? patterns[i].dfa : patterns[i].dfa.complement(), where);
      }
      if (named) dfa = dfa.intersect(names, where);
      if (dfa.is_empty()) continue;
      keys.key = rules_.add_rule("key");
      const uint32_t body = rules_.then_literal(rules_.rules[keys.key].start, "\"");
      const uint32_t behind = rules_.add_state();
      dfa.add_to(&rules_, body, TextEncoding::kJsonString, behind);
      rules_.add_literal(behind, "\"", rules_.rules[keys.key].finish);
    }
    others.push_back(keys);
  }
  return others;
}

// The names that propertyNames allows; false if it is not there.
bool SchemaCompiler::name_dfa(const SchemaGoal& flat, CharDfa* out) {
  bool found = false;
  for (const SchemaPart& part : flat) {
    const Json* schema = document_.find(*part.node, "propertyNames");
    if (schema == nullptr) continue;
    CharDfa dfa;
    if (!name_dfa_of(*schema, &dfa)) {
      document_.fail_keyword(*part.node, "propertyNames",
                             "is supported with type, pattern, format, minLength, maxLength, enum, "
                             "const, allOf and $ref only");
    }
    *out = found ? out->intersect(dfa, document_.where(*schema)) : std::move(dfa);
    found = true;
  }
  return found;
}

bool SchemaCompiler::name_dfa_of(const Json& schema, CharDfa* out) {
  SchemaGoal flat;
  *out = CharDfa::any_text();
  if (!expand({{&schema, 0}}, &flat)) {
    *out = out->complement();
    return true;
  }
  for (const SchemaPart& part : flat) {
    if (part.node->find("anyOf") != nullptr || part.node->find("oneOf") != nullptr) return false;
  }
  const std::string where = document_.where(schema);
  if ((types_of(flat) & kString) == 0) {
    *out = out->complement();
    return true;
  }
  const StringLimits limits = string_limits(flat);
  if (!limits.patterns.empty()) *out = pattern_dfa(limits);
  if (limits.min > limits.max) {
    *out = CharDfa::any_text().complement();
    return true;
  }
  if (limits.min > 0 || limits.max != kUnlimited) {
    *out = out->intersect(CharDfa::lengths(limits.min, limits.max, where), where);
  }
  for (const SchemaPart& part : flat) {
    std::vector<std::string> texts;
    const Json* values = document_.find_array(*part.node, "enum");
    const Json* value = part.node->find("const");
    if (values == nullptr && value == nullptr) continue;
    if (values != nullptr) {
      for (const Json& text : values->items()) {
        if (text.is_string()) texts.push_back(text.as_string());
      }
    }
    if (value != nullptr && value->is_string()) texts.push_back(value->as_string());
    *out = out->intersect(CharDfa::any_of(texts), where);
  }
  return true;
}

void SchemaCompiler::add_object(uint32_t from, const SchemaGoal& flat, uint32_t to) {
  uint32_t min = 0, max = kUnlimited;
  for (const SchemaPart& part : flat) {
    uint32_t count = 0;
    if (document_.find_count(*part.node, "minProperties", &count)) min = std::max(min, count);
    if (document_.find_count(*part.node, "maxProperties", &count)) max = std::min(max, count);
  }
  if (min > max) return;
  const std::vector<KeyPattern> patterns = list_key_patterns(flat);
  std::vector<Property> properties = list_properties(flat, patterns);
  const std::vector<OtherKeys> others = list_other_keys(flat, patterns, properties);
  CharDfa names;
  if (name_dfa(flat, &names)) {
    for (const Property& property : properties) {
      if (property.required && !names.matches(property.name)) return;  // nothing satisfies it
    }
    properties.erase(std::remove_if(properties.begin(), properties.end(),
                                    [&](const Property& p) { return !names.matches(p.name); }),
                     properties.end());
  }
  uint32_t required = 0;
  for (const Property& property : properties) required += property.required;
  if (max < required) return;
  if (min <= required) min = 0;  // it comes by itself
  const uint64_t counts = uint64_t{max == kUnlimited ? min : max} + 2;
  if (counts * (properties.size() + 1) > kMaxObjectStates) {
    document_.fail(*flat[0].node,
                   "minProperties or maxProperties is too large: counting takes more "
                   "than " +
                       std::to_string(kMaxObjectStates) + " states");
  }
  emit_object(from, properties, others, min, max, to);
}

// States: (i, c) behind a value: the properties before i are done, c have been written (as far as
// that matters); and the same behind a comma.
void SchemaCompiler::emit_object(uint32_t from, const std::vector<Property>& properties,
                                 const std::vector<OtherKeys>& others, uint32_t min, uint32_t max,
                                 uint32_t to) {
  const size_t count = properties.size();
  // Written: none, then as many as must be told apart; with no maximum, the last stands for more.
  const uint32_t top = max == kUnlimited ? std::max(min, 1u) : std::max(max, 1u);
  std::vector<uint32_t> values(count + 1), keys((count + 1) * (top + 1));
  for (uint32_t& key : keys) key = rules_.add_state();
  auto key_state = [&](size_t i, uint32_t written) -> uint32_t& {
    return keys[i * (top + 1) + written];
  };
  const uint32_t close = rules_.add_state();
  rules_.add_literal(close, "}", to);
  rules_.add_empty(json_.then_space(rules_.then_literal(from, "{")), key_state(0, 0));
  size_t last_required = 0;  // behind it, the object may be closed
  for (size_t i = 0; i < count; ++i) {
    if (properties[i].required) last_required = i + 1;
  }
  for (size_t i = 0; i < count; ++i) {
    values[i] = rule_for(properties[i].schemas);
  }
  if (min == 0 && last_required == 0) rules_.add_empty(key_state(0, 0), close);
  auto next_count = [&](uint32_t written) {
    return max == kUnlimited ? std::min(written + 1, top) : written + 1;
  };
  // Behind the value of property i - 1 (or of another key, at i = count).
  std::map<std::pair<size_t, uint32_t>, uint32_t> behind;
  auto behind_value = [&](size_t i, uint32_t written) {
    const auto added = behind.emplace(std::make_pair(i, written), 0);
    if (added.second) {
      added.first->second = rules_.add_state();
      const uint32_t space = json_.then_space(added.first->second);
      if (written >= min && i >= last_required) rules_.add_empty(space, close);
      if (max == kUnlimited || written < max) {
        rules_.add_empty(json_.then_space(rules_.then_literal(space, ",")), key_state(i, written));
      }
    }
    return added.first->second;
  };
  for (uint32_t written = 0; written <= top; ++written) {
    if (max != kUnlimited && written >= max) break;
    for (size_t i = 0; i <= count; ++i) {
      const uint32_t state = key_state(i, written);
      if (i == count) {
        for (const OtherKeys& other : others) {
          const uint32_t value = json_.then_separator(rules_.then_call(state, other.key), ":");
          rules_.add_call(value, other.value, behind_value(count, next_count(written)));
        }
        break;
      }
      if (!properties[i].required) rules_.add_empty(state, key_state(i + 1, written));
      const uint32_t key = rules_.then_literal(state, json_quote(properties[i].name));
      rules_.add_call(json_.then_separator(key, ":"), values[i],
                      behind_value(i + 1, next_count(written)));
    }
  }
}

}  // namespace mlcb
