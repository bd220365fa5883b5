// From a schema to goals (all schemas that one value must satisfy), and from goals to rules.
#include <algorithm>

#include "grammar/compile.h"
#include "grammar/grammar_error.h"
#include "grammar/schema.h"

namespace mlcb {
namespace {

constexpr int kMaxReferenceDepth = 200;
constexpr size_t kMaxGoals = 4000;

constexpr const char* kUnsupported[] = {
    "not",          "if",          "contains",     "dependentRequired", "dependentSchemas",
    "dependencies", "$dynamicRef", "$recursiveRef"};

}  // namespace

const std::vector<SchemaCompiler::TypedKeyword>& SchemaCompiler::typed_keywords() {
  static const std::vector<TypedKeyword> kKeywords = {
      {"pattern", kString},
      {"minLength", kString},
      {"maxLength", kString},
      {"format", kString},
      {"minimum", kInteger | kFraction},
      {"maximum", kInteger | kFraction},
      {"exclusiveMinimum", kInteger | kFraction},
      {"exclusiveMaximum", kInteger | kFraction},
      {"multipleOf", kInteger | kFraction},
      {"items", kArray},
      {"prefixItems", kArray},
      {"additionalItems", kArray},
      {"minItems", kArray},
      {"maxItems", kArray},
      {"unevaluatedItems", kArray},
      {"properties", kObject},
      {"required", kObject},
      {"additionalProperties", kObject},
      {"patternProperties", kObject},
      {"propertyNames", kObject},
      {"minProperties", kObject},
      {"maxProperties", kObject},
      {"unevaluatedProperties", kObject},
  };
  return kKeywords;
}

uint32_t add_json_schema(RuleSet* rules, JsonRules* json, const Json& schema,
                         const std::string& where) {
  return SchemaCompiler(rules, json, schema, where).compile();
}

uint32_t SchemaCompiler::compile() {
  const uint32_t rule = rule_for(std::vector<const Json*>{&root_});
  while (!waiting_.empty()) {
    const auto next = std::move(waiting_.back());
    waiting_.pop_back();
    build(next.first, next.second);
  }
  return rule;
}

uint32_t SchemaCompiler::rule_for(const std::vector<const Json*>& nodes) {
  SchemaGoal goal;
  for (const Json* node : nodes) {
    bool known = false;
    for (const SchemaPart& part : goal) known |= part.node == node;
    if (!known) goal.push_back({node, 0});
  }
  return rule_for(goal);
}

uint32_t SchemaCompiler::rule_for(const SchemaGoal& goal) {
  if (goal.empty()) return json_.value();
  const auto added = known_.emplace(goal, 0);
  if (added.second) {
    if (known_.size() > kMaxGoals) {
      document_.fail(*goal[0].node, "the schema has more than " + std::to_string(kMaxGoals) +
                                        " combinations of its alternatives");
    }
    const std::string path = document_.path(*goal[0].node);
    added.first->second = rules_.add_rule(path.empty() ? "the top" : path);
    waiting_.emplace_back(added.first->second, goal);
  }
  return added.first->second;
}

void SchemaCompiler::check(const Json& node) {
  for (const char* keyword : kUnsupported) {
    if (node.find(keyword) != nullptr) {
      document_.fail_keyword(node, keyword, "is not supported");
    }
  }
  const Json* unique = node.find("uniqueItems");
  if (unique != nullptr && !(unique->is_bool() && !unique->as_bool())) {
    document_.fail_keyword(node, "uniqueItems",
                           "is not supported\nwhy: a grammar cannot compare items\nhint: leave it "
                           "out, and check the text when it is whole");
  }
  for (const char* keyword : {"unevaluatedProperties", "unevaluatedItems"}) {
    const Json* value = node.find(keyword);
    if (value != nullptr && !value->is_bool()) {
      document_.fail_keyword(node, keyword, "is supported as true or false only");
    }
  }
  for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
    const Json* value = document_.find_array(node, keyword);
    if (value != nullptr && value->size() == 0) document_.fail(*value, "must not be empty");
  }
  const Json* reference = document_.find(node, "$ref");
  if (reference != nullptr && !reference->is_string())
    document_.fail(*reference, "must be a string");
}

// A value must not have to satisfy a schema because it has to satisfy that schema.
void SchemaCompiler::check_cycle(const Json& node, int depth) {
  if (!node.is_object()) return;
  const auto added = acyclic_.emplace(&node, false);
  if (!added.second) {
    if (!added.first->second) {
      document_.fail(node, "the schema refers to itself without going down into the value");
    }
    return;
  }
  if (depth > kMaxReferenceDepth) document_.fail(node, "references lead too far");
  const Json* reference = document_.find(node, "$ref");
  if (reference != nullptr && reference->is_string()) {
    check_cycle(document_.resolve(node, reference->as_string()), depth + 1);
  }
  for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
    const Json* list = document_.find_array(node, keyword);
    if (list == nullptr) continue;
    for (size_t i = 0; i < list->size(); ++i) {
      check_cycle(*document_.note(*list, std::to_string(i), list->items()[i]), depth + 1);
    }
  }
  acyclic_[&node] = true;
}

// All schemas that the value must satisfy, over references and allOf; false if one is `false`.
bool SchemaCompiler::expand(const SchemaGoal& goal, SchemaGoal* flat) {
  std::vector<SchemaPart> work(goal.rbegin(), goal.rend());
  while (!work.empty()) {
    const SchemaPart part = work.back();
    work.pop_back();
    const Json& node = *part.node;
    if (node.is_bool()) {
      if (!node.as_bool()) return false;
      continue;
    }
    if (!node.is_object()) document_.fail(node, "a schema must be an object, true or false");
    const auto known = std::find_if(flat->begin(), flat->end(),
                                    [&](const SchemaPart& other) { return other.node == &node; });
    if (known != flat->end()) {
      known->done |= part.done;
      continue;
    }
    flat->push_back({&node, part.done | kReferences});
    if ((part.done & kReferences) != 0) continue;
    check(node);
    check_cycle(node, 0);
    if (const Json* all = document_.find_array(node, "allOf")) {
      for (size_t i = all->size(); i-- > 0;) {
        work.push_back({document_.note(*all, std::to_string(i), all->items()[i]), 0});
      }
    }
    if (const Json* reference = document_.find(node, "$ref")) {
      work.push_back({&document_.resolve(node, reference->as_string()), 0});
    }
  }
  return true;
}

// Whether a part with its references and finished choices taken out still says anything.
bool SchemaCompiler::restricts(const SchemaPart& part) {
  const Json& node = *part.node;
  if ((part.done & kAnyOf) == 0 && node.find("anyOf") != nullptr) return true;
  if ((part.done & kOneOf) == 0 && node.find("oneOf") != nullptr) return true;
  for (const char* keyword : {"type", "enum", "const"}) {
    if (node.find(keyword) != nullptr) return true;
  }
  for (const TypedKeyword& keyword : typed_keywords()) {
    if (node.find(keyword.name) != nullptr) return true;
  }
  return false;
}

// If there is a choice of schemas, makes the rule a choice of rules.
bool SchemaCompiler::split(uint32_t rule, const SchemaGoal& flat) {
  for (size_t i = 0; i < flat.size(); ++i) {
    for (const auto& choice : {std::make_pair("anyOf", kAnyOf), std::make_pair("oneOf", kOneOf)}) {
      if ((flat[i].done & choice.second) != 0) continue;
      const Json* options = document_.find_array(*flat[i].node, choice.first);
      if (options == nullptr) continue;
      for (size_t option = 0; option < options->size(); ++option) {
        SchemaGoal goal;
        for (size_t j = 0; j < flat.size(); ++j) {
          SchemaPart part = flat[j];
          if (j == i) part.done |= choice.second;
          if (restricts(part)) goal.push_back(part);
          if (j == i) {
            goal.push_back(
                {document_.note(*options, std::to_string(option), options->items()[option]), 0});
          }
        }
        rules_.add_call(rules_.rules[rule].start, rule_for(goal), rules_.rules[rule].finish);
      }
      return true;
    }
  }
  return false;
}

void SchemaCompiler::build(uint32_t rule, const SchemaGoal& goal) {
  SchemaGoal flat;
  if (!expand(goal, &flat)) return;  // nothing satisfies it
  if (split(rule, flat)) return;
  const uint32_t start = rules_.rules[rule].start, finish = rules_.rules[rule].finish;
  const uint32_t types = types_of(flat);
  if (add_enum(rule, flat, types)) return;
  bool restricted = false;
  for (const SchemaPart& part : flat) restricted |= restricts(part);
  if (!restricted) return rules_.add_call(start, json_.value(), finish);
  if ((types & kNull) != 0) rules_.add_literal(start, "null", finish);
  if ((types & kBoolean) != 0) {
    rules_.add_literal(start, "true", finish);
    rules_.add_literal(start, "false", finish);
  }
  if ((types & (kInteger | kFraction)) != 0) add_number(start, flat, types, finish);
  if ((types & kString) != 0) add_string(start, flat, finish);
  if ((types & kArray) != 0) add_array(start, flat, finish);
  if ((types & kObject) != 0) add_object(start, flat, finish);
}

uint32_t SchemaCompiler::types_of(const SchemaGoal& flat) {
  static const std::pair<const char*, uint32_t> kNames[] = {
      {"null", kNull},       {"boolean", kBoolean},
      {"integer", kInteger}, {"number", kInteger | kFraction},
      {"string", kString},   {"array", kArray},
      {"object", kObject}};
  uint32_t types = kAnyType, implied = 0;
  bool typed = false;
  for (const SchemaPart& part : flat) {
    const Json& node = *part.node;
    typed |= node.find("enum") != nullptr || node.find("const") != nullptr;
    for (const TypedKeyword& keyword : typed_keywords()) {
      if (node.find(keyword.name) != nullptr) implied |= keyword.types;
    }
    const Json* type = document_.find(node, "type");
    if (type == nullptr) continue;
    typed = true;
    uint32_t own = 0;
    auto add_name = [&](const Json& name) {
      uint32_t bits = 0;
      for (const auto& known : kNames) {
        if (name.is_string() && name.as_string() == known.first) bits = known.second;
      }
      if (bits == 0) document_.fail(*type, "no such type");
      own |= bits;
    };
    if (type->is_array()) {
      for (const Json& name : type->items()) add_name(name);
    } else {
      add_name(*type);
    }
    const Json* nullable = node.find("nullable");
    if (nullable != nullptr && nullable->is_bool() && nullable->as_bool()) own |= kNull;
    types &= own;
  }
  // Keywords of some types only: values of those types are meant.
  return typed || implied == 0 ? types : implied;
}

}  // namespace mlcb
