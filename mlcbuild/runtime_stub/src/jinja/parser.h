// A template's source as a tree.
#pragma once
#include <string_view>

#include "jinja/ast.h"

namespace mlcb::jinja {

// Throws Error: _BUNDLE for what is not valid Jinja, _UNSUPPORTED for what this runtime lacks; both
// name the line.
Template parse(std::string_view source);

}  // namespace mlcb::jinja
