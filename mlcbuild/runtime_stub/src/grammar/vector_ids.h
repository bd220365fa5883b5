// Numbers lists of numbers: equal ones get the same id.
#pragma once
#include <cstdint>
#include <vector>

#include "grammar/id_table.h"

namespace mlcb {

class VectorIds {
 public:
  using List = std::vector<uint32_t>;

  // Ids count up from 0; *added tells whether the list is new.
  uint32_t add(const List& list, bool* added);
  List get(uint32_t id) const;
  uint32_t size() const { return static_cast<uint32_t>(ends_.size() - 1); }

 private:
  IdTable table_;
  std::vector<uint32_t> values_, ends_ = {0};
};

}  // namespace mlcb
