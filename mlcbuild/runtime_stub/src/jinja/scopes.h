// Which variables a scope hides.
#pragma once
#include "jinja/ast.h"

namespace mlcb::jinja {

// Jinja decides before it renders where a name is looked up. One that a scope only ever sets, never
// reads first and never sets under a condition, is undefined there until it is set, even if the
// caller gave a variable of that name. Fills in the hidden names of every scope.
void find_hidden_names(Template* program);

}  // namespace mlcb::jinja
