// Numbers as text, the same in every locale.
#pragma once
#include <cmath>
#include <cstdint>
#include <string>

namespace mlcb {

// A number with up to nine decimals, trailing zeros left out: "0.25", "3", "-0.000000001". What is
// not finite, or too large for nine decimals, is cut to +-9e9.
inline std::string decimal(double value) {
  constexpr double kLimit = 9e9;
  if (std::isnan(value)) value = 0;
  const double size = std::fmin(std::fabs(value), kLimit);
  const uint64_t billionths = static_cast<uint64_t>(std::llround(size * 1e9));
  std::string digits = std::to_string(billionths % 1000000000);
  digits.insert(0, 9 - digits.size(), '0');
  digits.erase(digits.find_last_not_of('0') + 1);
  std::string out = value < 0 && billionths > 0 ? "-" : "";
  out += std::to_string(billionths / 1000000000);
  if (!digits.empty()) out += "." + digits;
  return out;
}

}  // namespace mlcb
