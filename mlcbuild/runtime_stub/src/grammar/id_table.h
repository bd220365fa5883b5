// A hash table of ids; what the ids stand for is stored elsewhere.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace mlcb {

class IdTable {
 public:
  // The id under this hash for which equal(id) holds, or UINT32_MAX.
  template <typename Equal>
  uint32_t find(uint64_t hash, const Equal& equal) const {
    if (slots_.empty()) return UINT32_MAX;
    const size_t mask = slots_.size() - 1;
    for (size_t i = static_cast<size_t>(hash) & mask; slots_[i].second != UINT32_MAX;
         i = (i + 1) & mask) {
      if (slots_[i].first == hash && equal(slots_[i].second)) return slots_[i].second;
    }
    return UINT32_MAX;
  }
  void add(uint64_t hash, uint32_t id) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    put(hash, id);
    ++count_;
  }
  size_t bytes() const { return slots_.size() * sizeof(slots_[0]); }

 private:
  void put(uint64_t hash, uint32_t id) {
    const size_t mask = slots_.size() - 1;
    size_t i = static_cast<size_t>(hash) & mask;
    while (slots_[i].second != UINT32_MAX) i = (i + 1) & mask;
    slots_[i] = {hash, id};
  }
  void grow() {
    std::vector<std::pair<uint64_t, uint32_t>> old(std::move(slots_));
    slots_.assign(old.empty() ? 64 : 2 * old.size(), {0, UINT32_MAX});
    for (const auto& slot : old) {
      if (slot.second != UINT32_MAX) put(slot.first, slot.second);
    }
  }

  std::vector<std::pair<uint64_t, uint32_t>> slots_;
  size_t count_ = 0;
};

}  // namespace mlcb
