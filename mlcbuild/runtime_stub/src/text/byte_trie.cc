#include "text/byte_trie.h"

#include <algorithm>

namespace mlcb {

ByteTrie::ByteTrie(std::vector<Entry> entries) {
  std::fill(std::begin(roots_), std::end(roots_), -1);
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.key < b.key; });
  struct Range {
    size_t begin, end;  // of the entries below a node
  };
  std::vector<Range> ranges;
  // Appends the nodes that follow the first `depth` bytes of the entries in a range.
  auto add_level = [&](Range range, size_t depth) {
    for (size_t i = range.begin; i < range.end;) {
      if (entries[i].key.size() <= depth) {
        ++i;
        continue;
      }
      const char byte = entries[i].key[depth];
      Node node;
      node.byte = static_cast<uint8_t>(byte);
      Range below{i, i};
      for (; i < range.end && entries[i].key[depth] == byte; ++i) {
        if (entries[i].key.size() == depth + 1) node.value = entries[i].value;
      }
      below.end = i;
      nodes_.push_back(node);
      ranges.push_back(below);
    }
  };
  add_level({0, entries.size()}, 0);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    roots_[nodes_[i].byte] = static_cast<int32_t>(i);
  }
  // Breadth first: the nodes of one depth follow those of the depth before.
  size_t level_end = nodes_.size();
  for (size_t i = 0, depth = 1; i < nodes_.size(); ++i) {
    if (i == level_end) {
      ++depth;
      level_end = nodes_.size();
    }
    const size_t first = nodes_.size();
    add_level(ranges[i], depth);
    nodes_[i].first = static_cast<uint32_t>(first);
    nodes_[i].count = static_cast<uint16_t>(nodes_.size() - first);
  }
}

}  // namespace mlcb
