// Finds the end of a JSON object or array in text that comes piece by piece.
#pragma once
#include <cstddef>
#include <string_view>

namespace mlcb {

class JsonScanner {
 public:
  // Reads on in text, which holds what it held before and more. text starts with '{' or '['.
  // Returns where the value ends, or 0 if it has not ended yet. Only brackets and strings are
  // looked at: what lies between them may be no JSON.
  size_t scan(std::string_view text) {
    for (; at_ < text.size(); ++at_) {
      const char c = text[at_];
      if (in_string_) {
        if (escaped_) {
          escaped_ = false;
        } else if (c == '\\') {
          escaped_ = true;
        } else if (c == '"') {
          in_string_ = false;
        }
      } else if (c == '"') {
        in_string_ = true;
      } else if (c == '{' || c == '[') {
        ++depth_;
      } else if ((c == '}' || c == ']') && --depth_ == 0) {
        return ++at_;
      }
    }
    return 0;
  }
  size_t at() const { return at_; }

 private:
  size_t at_ = 0;
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false;
};

}  // namespace mlcb
