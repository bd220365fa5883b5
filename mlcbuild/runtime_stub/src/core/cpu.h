// What this CPU can do, in the names of /proc/cpuinfo.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace mlcb {

// Flags that the CPU has and the operating system lets programs use.
const std::vector<std::string>& cpu_flags();
bool cpu_has(std::string_view flag);

}  // namespace mlcb
