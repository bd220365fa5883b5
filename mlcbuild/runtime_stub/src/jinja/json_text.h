// JSON to values and back, as Python's json module.
#pragma once
#include <string>
#include <string_view>

#include "jinja/value.h"

namespace mlcb::jinja {

// Throws Error(MLCB_ERROR_ARGUMENT) naming `where` and the byte. Integers stay integers.
Value parse_json(Heap& heap, std::string_view text, const char* where);

struct JsonStyle {
  bool ascii = false;
  bool indented = false;
  std::string indent;  // of one level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

// Fails for what JSON has no place for.
std::string dump_json(const Value& value, const JsonStyle& style);

}  // namespace mlcb::jinja
