// Finds added tokens (special ones and others) in text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mlcb {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false, single_word = false, lstrip = false, rstrip = false, normalized = false;
};

class AddedTokenMatcher {
 public:
  // Spelled content, which may differ from token->content; token must outlive the matcher.
  void add(const AddedToken* token, std::string_view content);
  bool empty() const { return nodes_.size() == 1; }

  struct Span {
    size_t begin, end;
    const AddedToken* token;  // nullptr: text between tokens
  };
  // Cuts text at the leftmost, longest tokens. special: whether special tokens count.
  void split(std::string_view text, bool special, std::vector<Span>* spans) const;

 private:
  struct Node {
    uint32_t child = 0, sibling = 0;
    const AddedToken* token = nullptr;
    char byte = 0;
  };
  uint32_t find_child(uint32_t node, char byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  uint32_t roots_[256] = {};  // children of node 0 by byte
};

}  // namespace mlcb
