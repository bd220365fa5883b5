// A time as text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace mlcb::jinja {

// seconds since 1970 (UTC) as strftime writes it in the C locale; fails for what it does not know.
std::string strftime_utc(std::string_view format, int64_t seconds);

}  // namespace mlcb::jinja
