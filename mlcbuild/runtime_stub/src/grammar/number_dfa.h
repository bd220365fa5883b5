// JSON numbers within bounds, as automata over their digits.
#pragma once
#include <string>
#include <vector>

#include "grammar/char_dfa.h"

namespace mlcb {

struct NumberRange {
  bool integer = false;  // no point in the text
  bool has_low = false, has_high = false;
  bool low_open = false, high_open = false;  // the bound itself is out
  double low = 0, high = 0;
  std::vector<double> multiples_of;  // each > 0

  bool is_free() const { return !has_low && !has_high && multiples_of.empty(); }
  void raise_low(double bound, bool open);
  void lower_high(double bound, bool open);
  bool contains(double value) const;
};

// The numbers of the range that are written without an exponent. Throws Error(MLCB_ERROR_GRAMMAR)
// naming where, if it takes too many states.
CharDfa number_dfa(const NumberRange& range, const std::string& where);

}  // namespace mlcb
