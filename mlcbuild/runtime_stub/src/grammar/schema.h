// Compiles JSON schemas to rules. See docs/structured-output.md for what is supported and how.
#pragma once
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/json.h"
#include "grammar/char_dfa.h"
#include "grammar/json_rules.h"
#include "grammar/number_dfa.h"
#include "grammar/rule_set.h"

namespace mlcb {

// A schema that a value must satisfy, and which of its parts have been seen to.
struct SchemaPart {
  const Json* node;
  uint32_t done;
  bool operator<(const SchemaPart& other) const {
    return node != other.node ? node < other.node : done < other.done;
  }
};
// All of them hold for the value; the order is that of the schema.
using SchemaGoal = std::vector<SchemaPart>;

// Finds schemas by reference, and names the places of all that were come by.
class SchemaDocument {
 public:
  SchemaDocument(const Json& root, std::string where);

  [[noreturn]] void fail(const Json& node, const std::string& what) const;
  // The error for a keyword that restricts and is not supported.
  [[noreturn]] void fail_keyword(const Json& node, const std::string& keyword,
                                 const std::string& why) const;
  std::string path(const Json& node) const;
  std::string where(const Json& node) const;  // the path as errors begin

  // A member of an object, or nullptr; with its place noted.
  const Json* find(const Json& node, const char* key);
  const Json* note(const Json& node, const std::string& key, const Json& child);
  const Json& resolve(const Json& node, const std::string& reference);

  // Checks of a keyword's value; nullptr or false if it is absent.
  const Json* find_array(const Json& node, const char* key);
  const Json* find_object(const Json& node, const char* key);
  bool find_count(const Json& node, const char* key, uint32_t* out);
  bool find_number(const Json& node, const char* key, double* out);

 private:
  void find_anchors(const Json& node, const std::string& path);

  const Json& root_;
  std::string where_;
  std::unordered_map<const Json*, std::string> paths_;
  std::map<std::string, const Json*> anchors_;
  bool anchors_known_ = false;
};

class SchemaCompiler {
 public:
  SchemaCompiler(RuleSet* rules, JsonRules* json, const Json& root, const std::string& where)
      : rules_(*rules), json_(*json), root_(root), document_(root, where) {}

  uint32_t compile();

 private:
  enum Done : uint32_t { kReferences = 1, kAnyOf = 2, kOneOf = 4 };
  enum Type : uint32_t {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kFraction = 8,  // numbers that are no integers
    kString = 16,
    kArray = 32,
    kObject = 64,
    kAnyType = 127
  };

  // Keywords that say something about values of some types.
  struct TypedKeyword {
    const char* name;
    uint32_t types;
  };
  static const std::vector<TypedKeyword>& typed_keywords();

  // The rule of what satisfies all parts; it is built later.
  uint32_t rule_for(const SchemaGoal& goal);
  uint32_t rule_for(const std::vector<const Json*>& nodes);
  void build(uint32_t rule, const SchemaGoal& goal);
  bool expand(const SchemaGoal& goal, SchemaGoal* flat);
  bool split(uint32_t rule, const SchemaGoal& flat);
  void check(const Json& node);
  void check_cycle(const Json& node, int depth);
  uint32_t types_of(const SchemaGoal& flat);
  static bool restricts(const SchemaPart& part);

  bool add_enum(uint32_t rule, const SchemaGoal& flat, uint32_t types);
  bool admits(const SchemaGoal& flat, uint32_t types, const Json& value);
  NumberRange number_range(const SchemaGoal& flat, uint32_t types);
  void add_number(uint32_t from, const SchemaGoal& flat, uint32_t types, uint32_t to);

  struct StringLimits {
    uint32_t min = 0, max = kUnlimited;
    std::vector<std::pair<const Json*, ExprPtr>> patterns;  // with the schema of each
    std::vector<bool> search;                               // not the whole text
    bool escapes = false;  // characters may be written as escape sequences
  };
  StringLimits string_limits(const SchemaGoal& flat);
  CharDfa pattern_dfa(const StringLimits& limits);
  void add_string(uint32_t from, const SchemaGoal& flat, uint32_t to);
  void add_array(uint32_t from, const SchemaGoal& flat, uint32_t to);

  struct Property {
    std::string name;
    std::vector<const Json*> schemas;
    bool required = false;
  };
  struct KeyPattern {
    const Json* node;
    const Json* schema;
    CharDfa dfa;
  };
  // Keys that are not listed, and what their values must satisfy.
  struct OtherKeys {
    uint32_t key;
    uint32_t value;
  };
  void add_object(uint32_t from, const SchemaGoal& flat, uint32_t to);
  std::vector<Property> list_properties(const SchemaGoal& flat,
                                        const std::vector<KeyPattern>& patterns);
  std::vector<KeyPattern> list_key_patterns(const SchemaGoal& flat);
  std::vector<OtherKeys> list_other_keys(const SchemaGoal& flat,
                                         const std::vector<KeyPattern>& patterns,
                                         const std::vector<Property>& properties);
  bool is_closed(const SchemaGoal& flat);
  void emit_object(uint32_t from, const std::vector<Property>& properties,
                   const std::vector<OtherKeys>& others, uint32_t min, uint32_t max, uint32_t to);
  bool name_dfa(const SchemaGoal& flat, CharDfa* out);
  bool name_dfa_of(const Json& schema, CharDfa* out);

  RuleSet& rules_;
  JsonRules& json_;
  const Json& root_;
  SchemaDocument document_;
  std::map<SchemaGoal, uint32_t> known_;
  std::vector<std::pair<uint32_t, SchemaGoal>> waiting_;
  std::unordered_map<const Json*, bool> acyclic_;
};

}  // namespace mlcb
