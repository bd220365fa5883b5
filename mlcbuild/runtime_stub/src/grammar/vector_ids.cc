#include "grammar/vector_ids.h"

#include <algorithm>

namespace mlcb {

uint32_t VectorIds::add(const List& list, bool* added) {
  uint64_t hash = list.size();
  for (const uint32_t value : list) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  const uint32_t known = table_.find(hash, [&](uint32_t id) {
    const size_t size = ends_[id + 1] - ends_[id];
    return size == list.size() && std::equal(list.begin(), list.end(), values_.begin() + ends_[id]);
  });
  *added = known == UINT32_MAX;
  if (!*added) return known;
  const uint32_t id = size();
  values_.insert(values_.end(), list.begin(), list.end());
  ends_.push_back(static_cast<uint32_t>(values_.size()));
  table_.add(hash, id);
  return id;
}

VectorIds::List VectorIds::get(uint32_t id) const {
  return List(values_.begin() + ends_[id], values_.begin() + ends_[id + 1]);
}

}  // namespace mlcb
