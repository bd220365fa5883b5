// A small JSON reader: immutable values, strict (RFC 8259), depth-limited, safe on hostile input.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace mlcb {

class Json {
 public:
  enum class Kind : uint8_t { kNull, kBool, kNumber, kString, kArray, kObject };

  // Throws Error(MLCB_ERROR_BUNDLE) naming `where` (a file name) and the byte offset. Refused, as
  // well as what RFC 8259 refuses: a key given twice in one object, lone surrogates, invalid UTF-8,
  // numbers beyond a double's range, nesting deeper than 128.
  static Json parse(std::string_view text, const std::string& where);

  Kind kind() const { return static_cast<Kind>(value_.index()); }
  bool is_null() const { return kind() == Kind::kNull; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_array() const { return kind() == Kind::kArray; }
  bool is_object() const { return kind() == Kind::kObject; }
  bool is_number() const { return kind() == Kind::kNumber; }
  bool is_bool() const { return kind() == Kind::kBool; }

  // Typed access; each throws Error(MLCB_ERROR_BUNDLE) naming what was expected.
  bool as_bool() const;
  double as_double() const;
  int64_t as_int() const;  // refuses fractions and values beyond 2^53
  const std::string& as_string() const;
  const std::vector<Json>& items() const;                            // of an array
  const std::vector<std::pair<std::string, Json>>& members() const;  // of an object, in file order

  const Json* find(std::string_view key) const;  // nullptr if absent or not an object; O(members)
  const Json& at(std::string_view key) const;    // throws if absent
  size_t size() const;                           // of an array or object

 private:
  friend class JsonParser;
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;
  // In the order of Kind.
  std::variant<std::monostate, bool, double, std::string, Array, Object> value_;
};

// `text` as a JSON string literal, quotes included; bytes that are not UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);

}  // namespace mlcb
