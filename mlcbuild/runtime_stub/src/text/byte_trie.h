// A set of byte strings with a number each, for finding those that begin a text.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace mlcb {

class ByteTrie {
 public:
  struct Entry {
    std::string_view key;
    int32_t value;  // not negative
  };
  // Longer keys would make every look-up slow on texts that begin like them.
  static constexpr size_t kMaxKey = 512;

  ByteTrie() : ByteTrie(std::vector<Entry>()) {}
  // Keys are not empty and at most kMaxKey long. Of equal keys the last one counts.
  explicit ByteTrie(std::vector<Entry> entries);

  bool empty() const { return nodes_.empty(); }
  bool may_begin(char byte) const { return roots_[static_cast<uint8_t>(byte)] >= 0; }

  // Calls found(size, value) for each key that text begins with, shortest first.
  template <typename Found>
  void prefixes(std::string_view text, Found found) const {
    if (text.empty()) return;
    int32_t node = roots_[static_cast<uint8_t>(text[0])];
    for (size_t size = 1; node >= 0; ++size) {
      const Node& here = nodes_[static_cast<size_t>(node)];
      if (here.value >= 0) found(size, here.value);
      if (size == text.size()) return;
      node = child(here, static_cast<uint8_t>(text[size]));
    }
  }

 private:
  struct Node {
    uint32_t first = 0;  // children lie side by side, ascending by byte
    int32_t value = -1;
    uint16_t count = 0;
    uint8_t byte = 0;
  };
  int32_t child(const Node& node, uint8_t byte) const {
    uint32_t low = node.first, high = node.first + node.count;
    while (low < high) {
      const uint32_t middle = (low + high) / 2;
      if (nodes_[middle].byte < byte) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low < node.first + node.count && nodes_[low].byte == byte ? static_cast<int32_t>(low)
                                                                     : -1;
  }

  std::vector<Node> nodes_;
  int32_t roots_[256];
};

}  // namespace mlcb
