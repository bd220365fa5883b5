// Python's text formatting: "..." % values and "...".format(values).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "jinja/value.h"

namespace mlcb::jinja {

struct CallArguments;

// text % values: values is a tuple, a dict or the one value.
Value format_percent(Heap& heap, const Value& text, const Value& values);
// text.format(...).
std::string format_braces(Heap& heap, std::string_view text, const CallArguments& arguments);
std::string escape_html(std::string_view text);

}  // namespace mlcb::jinja
