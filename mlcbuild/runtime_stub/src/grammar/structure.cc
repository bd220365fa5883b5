// Texts that are put together from literals and other grammars.
#include "grammar/compile.h"
#include "grammar/grammar_error.h"

namespace mlcb {
namespace {

class StructureCompiler {
 public:
  StructureCompiler(RuleSet* rules, JsonRules* json) : rules_(*rules), json_(*json) {}

  uint32_t compile(const Json& structure) {
    const uint32_t rule = rules_.add_rule("structure");
    add(rules_.rules[rule].start, structure, "", rules_.rules[rule].finish);
    return rule;
  }

 private:
  [[noreturn]] static void fail(const std::string& where, const std::string& what) {
    fail_grammar("structure: " + (where.empty() ? "the top" : where) + ": " + what);
  }

  // The member of this kind; fails if it is not there.
  static const Json& get(const Json& part, const char* key, Json::Kind kind, const char* kind_name,
                         const std::string& where) {
    const Json* value = part.find(key);
    if (value == nullptr || value->kind() != kind) {
      fail(where, std::string("key \"") + key + "\" must be " + kind_name);
    }
    return *value;
  }
  static const std::string& get_string(const Json& part, const char* key,
                                       const std::string& where) {
    return get(part, key, Json::Kind::kString, "a string", where).as_string();
  }

  static void check_keys(const Json& part, std::initializer_list<const char*> known,
                         const std::string& where) {
    for (const auto& member : part.members()) {
      bool found = member.first == "type";
      for (const char* key : known) found |= member.first == key;
      if (!found) fail(where, "unknown key " + json_quote(member.first));
    }
  }

  void add(uint32_t from, const Json& part, const std::string& where, uint32_t to) {
    if (!part.is_object()) fail(where, "expected an object with a \"type\"");
    const std::string& type = get_string(part, "type", where);
    if (type == "literal") {
      check_keys(part, {"text"}, where);
      rules_.add_literal(from, get_string(part, "text", where), to);
    } else if (type == "json_schema") {
      check_keys(part, {"schema"}, where);
      const Json* schema = part.find("schema");
      if (schema == nullptr) fail(where, "key \"schema\" is missing");
      rules_.add_call(from, add_json_schema(&rules_, &json_, *schema, where + "/schema"), to);
    } else if (type == "json") {
      check_keys(part, {}, where);
      rules_.add_call(from, json_.object_or_array(), to);
    } else if (type == "regex") {
      check_keys(part, {"pattern"}, where);
      const std::string& pattern = get_string(part, "pattern", where);
      rules_.add_call(from, add_regex(&rules_, pattern, "structure: " + where + "/pattern"), to);
    } else if (type == "ebnf") {
      check_keys(part, {"grammar"}, where);
      const std::string& grammar = get_string(part, "grammar", where);
      rules_.add_call(from, add_ebnf(&rules_, grammar, "structure: " + where + "/grammar"), to);
    } else if (type == "any_text") {
      check_keys(part, {}, where);
      const uint32_t loop = rules_.add_state();
      rules_.add_empty(from, loop);
      rules_.add_class(loop, CharSet::all(), TextEncoding::kUtf8, loop);
      rules_.add_empty(loop, to);
    } else if (type == "sequence") {
      check_keys(part, {"parts"}, where);
      const auto& parts = get(part, "parts", Json::Kind::kArray, "an array", where).items();
      for (size_t i = 0; i < parts.size(); ++i) {
        const uint32_t next = rules_.add_state();
        add(from, parts[i], where + "/parts/" + std::to_string(i), next);
        from = next;
      }
      rules_.add_empty(from, to);
    } else if (type == "choice") {
      check_keys(part, {"options"}, where);
      const auto& options = get(part, "options", Json::Kind::kArray, "an array", where).items();
      if (options.empty()) fail(where, "a choice needs options");
      for (size_t i = 0; i < options.size(); ++i) {
        const uint32_t first = rules_.add_state();
        rules_.add_empty(from, first);
        add(first, options[i], where + "/options/" + std::to_string(i), to);
      }
    } else if (type == "repeat") {
      add_repeat(from, part, where, to);
    } else {
      fail(where, "unknown type " + json_quote(type) +
                      "\nhint: literal, json_schema, json, regex, ebnf, any_text, sequence, choice "
                      "or repeat");
    }
  }

  static uint32_t get_count(const Json& part, const char* key, uint32_t otherwise,
                            const std::string& where) {
    const Json* value = part.find(key);
    if (value == nullptr || (otherwise == kUnlimited && value->is_null())) return otherwise;
    if (value->is_number()) {
      const double number = value->as_double();
      if (number >= 0 && number <= kMaxGrammarRepeat &&
          number == static_cast<double>(static_cast<uint32_t>(number))) {
        return static_cast<uint32_t>(number);
      }
    }
    fail(where, std::string("key \"") + key + "\" must be a whole number from 0 to " +
                    std::to_string(kMaxGrammarRepeat));
  }

  void add_repeat(uint32_t from, const Json& part, const std::string& where, uint32_t to) {
    check_keys(part, {"item", "min", "max", "separator"}, where);
    const uint32_t min = get_count(part, "min", 0, where);
    const uint32_t max = get_count(part, "max", kUnlimited, where);
    if (max < min) fail(where, "max is less than min");
    const Json* item = part.find("item");
    if (item == nullptr) fail(where, "key \"item\" is missing");
    const uint32_t rule = rules_.add_rule("item of " + where);
    add(rules_.rules[rule].start, *item, where + "/item", rules_.rules[rule].finish);
    const Json* separator = part.find("separator");
    if (separator == nullptr || separator->is_null()) {
      return rules_.add_repeat(from, rule, min, max, to);
    }
    if (min == 0) rules_.add_empty(from, to);
    if (max == 0) return;
    const uint32_t more = rules_.add_rule("separator and item of " + where);
    const uint32_t behind = rules_.add_state();
    add(rules_.rules[more].start, *separator, where + "/separator", behind);
    rules_.add_call(behind, rule, rules_.rules[more].finish);
    const uint32_t less = max == kUnlimited ? max : max - 1;
    rules_.add_repeat(rules_.then_call(from, rule), more, min == 0 ? 0 : min - 1, less, to);
  }

  RuleSet& rules_;
  JsonRules& json_;
};

}  // namespace

uint32_t add_structure(RuleSet* rules, JsonRules* json, const Json& structure) {
  return StructureCompiler(rules, json).compile(structure);
}

Json parse_grammar_json(std::string_view text, const std::string& where) {
  if (text.size() > kMaxGrammarText) {
    fail_grammar(where + ": longer than " + std::to_string(kMaxGrammarText) + " bytes");
  }
  try {
    return Json::parse(text, where);
  } catch (const Error& error) {
    fail_grammar(error.what());
  }
}

}  // namespace mlcb
