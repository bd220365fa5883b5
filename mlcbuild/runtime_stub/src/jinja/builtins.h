// Filters, tests and methods, by name.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace mlcb::jinja {

class Interpreter;

struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

// The arguments of a call, by the names of its parameters; those that are not given are kMissing.
// Fails for one too many, an unknown one, one given twice and a required one that is missing.
template <size_t count>
struct Parameters {
  Value values[count > 0 ? count : 1];
  Parameters(const char* function, const CallArguments& arguments,
             const char* const (&names)[count], size_t required);
  const Value& operator[](size_t index) const { return values[index]; }
};

void bind_arguments(const char* function, const CallArguments& arguments, const char* const* names,
                    size_t count, size_t required, Value* values);

template <size_t count>
Parameters<count>::Parameters(const char* function, const CallArguments& arguments,
                              const char* const (&names)[count], size_t required) {
  bind_arguments(function, arguments, names, count, required, values);
}

void require_no_arguments(const char* function, const CallArguments& arguments);

struct Filter {
  const char* name;
  Value (*run)(Interpreter& interpreter, const Value& value, const CallArguments& arguments);
};

struct Test {
  const char* name;
  bool (*run)(Interpreter& interpreter, const Value& value, const CallArguments& arguments);
};

struct Method {
  const char* name;
  Value (*run)(Interpreter& interpreter, const Value& self, const CallArguments& arguments);
};

// nullptr: there is none.
const Filter* find_filter(std::string_view name);
const Test* find_test(std::string_view name);
// A method of the value's type. *unsafe: it would change the value, so that templates may not call
// it.
const Method* find_method(const Value& value, std::string_view name, bool* unsafe);

}  // namespace mlcb::jinja
