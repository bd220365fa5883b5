// The formats of JSON schema strings that are enforced, as regular expressions.
#pragma once
#include <string>

namespace mlcb {

// nullptr for a format that is not known; *standard then tells whether the JSON schema standard
// defines it.
const char* format_pattern(const std::string& format, bool* standard);

}  // namespace mlcb
