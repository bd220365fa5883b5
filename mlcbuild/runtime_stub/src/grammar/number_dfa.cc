#include "grammar/number_dfa.h"

#include <algorithm>
#include <cmath>

#include "grammar/grammar_error.h"
#include "grammar/json_rules.h"
#include "grammar/vector_ids.h"

namespace mlcb {
namespace {

constexpr uint32_t kMaxModulus = 20000;
constexpr double kExactLimit = 9007199254740992.0;  // 2^53

// |bound| as digits before and behind the point, without zeros at the ends.
struct Decimal {
  std::string whole, fraction;
  bool negative = false, zero = false;
};

Decimal to_decimal(double bound) {
  Decimal decimal;
  int exponent = 0;
  const std::string digits = decimal_digits(bound, &exponent);
  decimal.negative = bound < 0;
  decimal.zero = digits.empty();
  const int size = static_cast<int>(digits.size());
  if (exponent <= 0) {
    if (!decimal.zero) decimal.fraction = std::string(static_cast<size_t>(-exponent), '0') + digits;
  } else if (exponent >= size) {
    decimal.whole = digits + std::string(static_cast<size_t>(exponent - size), '0');
  } else {
    decimal.whole = digits.substr(0, static_cast<size_t>(exponent));
    decimal.fraction = digits.substr(static_cast<size_t>(exponent));
  }
  return decimal;
}

// A multiple as a whole number of steps of 10^-places.
struct Multiple {
  uint32_t modulus = 1;
  int places = 0;
};

// How far a number has been read, and what of it still matters.
struct Place {
  enum Phase : int { kStart, kSign, kZero, kWhole, kPoint, kFraction };
  int phase = kStart;
  int negative = 0;
  int nonzero = 0;
  int digits = 0;         // before the point, no more than matter
  int places = 0;         // behind the point, likewise
  int low = 0, high = 0;  // -1, 0, 1: |digits so far| against as many of |bound|
  std::vector<uint32_t> remainders;

  std::vector<uint32_t> key() const {
    std::vector<uint32_t> values = remainders;
    for (const int value : {phase, negative, nonzero, digits, places, low, high}) {
      values.push_back(static_cast<uint32_t>(value));
    }
    return values;
  }
};

class NumberDfa {
 public:
  NumberDfa(const NumberRange& range, const std::string& where) : range_(range), where_(where) {
    if (range.has_low) low_ = to_decimal(range.low);
    if (range.has_high) high_ = to_decimal(range.high);
    max_digits_ = static_cast<int>(std::max(low_.whole.size(), high_.whole.size())) + 1;
    max_places_ = static_cast<int>(std::max(low_.fraction.size(), high_.fraction.size())) + 1;
    for (const double multiple : range.multiples_of) multiples_.push_back(to_multiple(multiple));
    for (const Multiple& multiple : multiples_) {
      max_places_ = std::max(max_places_, multiple.places + 1);
    }
  }

  CharDfa build() {
    Place start;
    start.remainders.assign(multiples_.size(), 0);
    id_of(start);
    for (uint32_t i = 0; i < places_.size(); ++i) {
      const Place place = places_[i];
      dfa_.states[i].accepts = accepts(place);
      add(place, '-', i);  // in the order of their codes
      if (!range_.integer) add(place, '.', i);
      for (char digit = '0'; digit <= '9'; ++digit) add(place, digit, i);
    }
    dfa_.trim();
    return std::move(dfa_);
  }

 private:
  Multiple to_multiple(double value) const {
    const Decimal decimal = to_decimal(value);
    Multiple multiple;
    multiple.places = static_cast<int>(decimal.fraction.size());
    uint64_t modulus = 0;
    for (const char c : decimal.whole + decimal.fraction) {
      modulus = modulus * 10 + static_cast<uint64_t>(c - '0');
      if (modulus > kMaxModulus) {
        fail_grammar(where_ + ": multipleOf with more than " + std::to_string(kMaxModulus) +
                     " steps is not supported");
      }
    }
    multiple.modulus = static_cast<uint32_t>(modulus);
    return multiple;
  }

  uint32_t id_of(const Place& place) {
    bool added = false;
    const uint32_t id = ids_.add(place.key(), &added);
    if (added) {
      places_.push_back(place);
      dfa_.states.emplace_back();
      if (places_.size() > CharDfa::kMaxStates) {
        fail_grammar(where_ + ": the bounds and multiples of this number take more than " +
                     std::to_string(CharDfa::kMaxStates) + " states");
      }
    }
    return id;
  }

  void add(Place place, char c, uint32_t from) {
    if (!take(&place, c)) return;
    const uint32_t code = static_cast<uint8_t>(c);
    const uint32_t to = id_of(place);  // may move the states
    dfa_.states[from].arcs.push_back({code, code, to});
  }

  bool take(Place* place, char c) const {
    const bool in_whole = place->phase == Place::kZero || place->phase == Place::kWhole;
    if (c == '-') {
      if (place->phase != Place::kStart) return false;
      place->phase = Place::kSign;
      place->negative = 1;
      return true;
    }
    if (c == '.') {
      if (!in_whole) return false;
      place->low = compare_whole(*place, low_, place->low);
      place->high = compare_whole(*place, high_, place->high);
      place->phase = Place::kPoint;
      place->digits = 0;
      return true;
    }
    const int digit = c - '0';
    place->nonzero |= digit != 0;
    if (place->phase >= Place::kPoint) {
      const size_t at = static_cast<size_t>(place->places);
      place->low = compare_digit(place->low, digit, low_.fraction, at);
      place->high = compare_digit(place->high, digit, high_.fraction, at);
      for (size_t i = 0; i < multiples_.size(); ++i) {
        if (place->places < multiples_[i].places) {
          add_digit(place, i, digit);
        } else if (digit != 0) {
          return false;
        }
      }
      place->places = std::min(place->places + 1, max_places_);
      place->phase = Place::kFraction;
      return true;
    }
    if (place->phase == Place::kZero) return false;
    if (place->phase != Place::kWhole && digit == 0) {
      place->phase = Place::kZero;  // no digit of its own: 0 is shorter than 1
      return true;
    }
    const size_t at = static_cast<size_t>(place->digits);
    place->low = compare_digit(place->low, digit, low_.whole, at);
    place->high = compare_digit(place->high, digit, high_.whole, at);
    for (size_t i = 0; i < multiples_.size(); ++i) add_digit(place, i, digit);
    place->digits = std::min(place->digits + 1, max_digits_);
    place->phase = Place::kWhole;
    return true;
  }

  void add_digit(Place* place, size_t index, int digit) const {
    uint32_t* remainder = &place->remainders[index];
    *remainder = (*remainder * 10 + static_cast<uint32_t>(digit)) % multiples_[index].modulus;
  }

  // The next digit against the bound's; behind the bound's last digit it is a zero's.
  static int compare_digit(int before, int digit, const std::string& bound, size_t at) {
    if (before != 0) return before;
    const int other = at < bound.size() ? bound[at] - '0' : 0;
    return digit < other ? -1 : digit > other ? 1 : 0;
  }

  // At the end of the digits before the point: the longer number is the larger one.
  static int compare_whole(const Place& place, const Decimal& bound, int before) {
    const int size = static_cast<int>(bound.whole.size());
    if (place.digits != size) return place.digits < size ? -1 : 1;
    return before;
  }

  // The whole number, sign and all, against the bound.
  int compare(const Place& place, const Decimal& bound, int before) const {
    if (place.negative && !bound.negative) return -1;
    if (!place.negative && bound.negative) return 1;
    int result = before;
    if (place.phase < Place::kPoint) {
      result = compare_whole(place, bound, before);
      if (result == 0 && !bound.fraction.empty()) result = -1;
    } else if (result == 0 && static_cast<size_t>(place.places) < bound.fraction.size()) {
      result = -1;
    }
    return place.negative ? -result : result;
  }

  bool accepts(const Place& place) const {
    if (place.phase != Place::kZero && place.phase != Place::kWhole &&
        place.phase != Place::kFraction) {
      return false;
    }
    if (place.negative && !place.nonzero) return false;  // -0 is written 0
    if (range_.has_low) {
      const int compared = compare(place, low_, place.low);
      if (compared < 0 || (compared == 0 && range_.low_open)) return false;
    }
    if (range_.has_high) {
      const int compared = compare(place, high_, place.high);
      if (compared > 0 || (compared == 0 && range_.high_open)) return false;
    }
    for (size_t i = 0; i < multiples_.size(); ++i) {
      uint32_t remainder = place.remainders[i];
      for (int p = std::min(place.places, multiples_[i].places); p < multiples_[i].places; ++p) {
        remainder = remainder * 10 % multiples_[i].modulus;
      }
      if (remainder != 0) return false;
    }
    return true;
  }

  const NumberRange& range_;
  const std::string& where_;
  Decimal low_, high_;
  std::vector<Multiple> multiples_;
  int max_digits_ = 0, max_places_ = 0;
  VectorIds ids_;
  std::vector<Place> places_;
  CharDfa dfa_;
};

}  // namespace

// Beyond 2^53 the schema's own digits are not known: the next number on the safe side is taken.
void NumberRange::raise_low(double bound, bool open) {
  if (std::fabs(bound) > kExactLimit) bound = std::nextafter(bound, HUGE_VAL);
  if (has_low && (bound < low || (bound == low && !open))) return;
  has_low = true;
  low = bound;
  low_open = open;
}

void NumberRange::lower_high(double bound, bool open) {
  if (std::fabs(bound) > kExactLimit) bound = std::nextafter(bound, -HUGE_VAL);
  if (has_high && (bound > high || (bound == high && !open))) return;
  has_high = true;
  high = bound;
  high_open = open;
}

bool NumberRange::contains(double value) const {
  if (integer && value != std::floor(value)) return false;
  if (has_low && (value < low || (value == low && low_open))) return false;
  if (has_high && (value > high || (value == high && high_open))) return false;
  for (const double multiple : multiples_of) {
    const double times = value / multiple;
    if (std::fabs(times - std::round(times)) > 1e-9 * std::max(1.0, std::fabs(times))) return false;
  }
  return true;
}

CharDfa number_dfa(const NumberRange& range, const std::string& where) {
  return NumberDfa(range, where).build();
}

}  // namespace mlcb
