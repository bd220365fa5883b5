// The languages that grammars are written in; each adds its rules to a RuleSet.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "core/json.h"
#include "grammar/json_rules.h"
#include "grammar/rule_set.h"

namespace mlcb {

// Each returns the rule of the whole text, and throws Error(MLCB_ERROR_GRAMMAR).
uint32_t add_regex(RuleSet* rules, std::string_view pattern, const std::string& where);
uint32_t add_ebnf(RuleSet* rules, std::string_view text, const std::string& where);
// where: a JSON pointer to schema, "" for a schema that stands alone.
uint32_t add_json_schema(RuleSet* rules, JsonRules* json, const Json& schema,
                         const std::string& where);
uint32_t add_structure(RuleSet* rules, JsonRules* json, const Json& structure);

// Json::parse, with its errors as MLCB_ERROR_GRAMMAR.
Json parse_grammar_json(std::string_view text, const std::string& where);

}  // namespace mlcb
