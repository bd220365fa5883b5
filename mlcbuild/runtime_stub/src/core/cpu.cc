#include "core/cpu.h"

#include <algorithm>
#include <cstdint>

#include "core/linked_kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace mlcb {
namespace {

#if defined(__x86_64__)

enum Register { kEax, kEbx, kEcx, kEdx };
// What the operating system must save on a context switch for a flag to be usable (XCR0 bits).
enum State : uint64_t { kNoState = 0, kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000 };

struct Flag {
  const char* name;
  uint32_t leaf, subleaf;
  Register reg;
  int bit;
  State needs;
};

constexpr Flag kFlags[] = {
    {"sse2", 1, 0, kEdx, 26, kNoState},      {"pni", 1, 0, kEcx, 0, kNoState},
    {"pclmulqdq", 1, 0, kEcx, 1, kNoState},  {"ssse3", 1, 0, kEcx, 9, kNoState},
    {"fma", 1, 0, kEcx, 12, kYmm},           {"sse4_1", 1, 0, kEcx, 19, kNoState},
    {"sse4_2", 1, 0, kEcx, 20, kNoState},    {"movbe", 1, 0, kEcx, 22, kNoState},
    {"popcnt", 1, 0, kEcx, 23, kNoState},    {"avx", 1, 0, kEcx, 28, kYmm},
    {"f16c", 1, 0, kEcx, 29, kYmm},          {"abm", 0x80000001, 0, kEcx, 5, kNoState},
    {"bmi1", 7, 0, kEbx, 3, kNoState},       {"avx2", 7, 0, kEbx, 5, kYmm},
    {"bmi2", 7, 0, kEbx, 8, kNoState},       {"avx512f", 7, 0, kEbx, 16, kZmm},
    {"avx512dq", 7, 0, kEbx, 17, kZmm},      {"avx512ifma", 7, 0, kEbx, 21, kZmm},
    {"avx512cd", 7, 0, kEbx, 28, kZmm},      {"sha_ni", 7, 0, kEbx, 29, kNoState},
    {"avx512bw", 7, 0, kEbx, 30, kZmm},      {"avx512vl", 7, 0, kEbx, 31, kZmm},
    {"avx512vbmi", 7, 0, kEcx, 1, kZmm},     {"avx512_vbmi2", 7, 0, kEcx, 6, kZmm},
    {"gfni", 7, 0, kEcx, 8, kNoState},       {"avx512_vnni", 7, 0, kEcx, 11, kZmm},
    {"avx512_bitalg", 7, 0, kEcx, 12, kZmm}, {"avx512_vpopcntdq", 7, 0, kEcx, 14, kZmm},
    {"avx512_fp16", 7, 0, kEdx, 23, kZmm},   {"amx_bf16", 7, 0, kEdx, 22, kTiles},
    {"amx_tile", 7, 0, kEdx, 24, kTiles},    {"amx_int8", 7, 0, kEdx, 25, kTiles},
    {"avx_vnni", 7, 1, kEax, 4, kYmm},       {"avx512_bf16", 7, 1, kEax, 5, kZmm},
};

uint64_t enabled_state() {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0;  // OSXSAVE
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

// Linux gives a process the use of tile registers when it asks for them, and may say no: signal
// frames become larger than an alternate signal stack of the process.
bool ask_for_tiles() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return true;
#endif
}

std::vector<std::string> detect() {
  std::vector<std::string> flags;
  const uint64_t state = enabled_state();
  for (const Flag& flag : kFlags) {
    uint32_t reg[4] = {};
    if (!__get_cpuid_count(flag.leaf, flag.subleaf, &reg[0], &reg[1], &reg[2], &reg[3])) continue;
    if ((state & flag.needs) == flag.needs && (reg[flag.reg] >> flag.bit & 1)) {
      flags.push_back(flag.name);
    }
  }
  return flags;
}

#else

bool ask_for_tiles() { return false; }

std::vector<std::string> detect() {
  std::vector<std::string> flags;
#if defined(__wasm__)
  const std::string_view features = mlcb_module_features;
  for (size_t begin = 0; begin < features.size();) {
    const size_t end = std::min(features.find(' ', begin), features.size());
    flags.emplace_back(features.substr(begin, end - begin));
    begin = end + 1;
  }
#endif
  return flags;
}

#endif

}  // namespace

const std::vector<std::string>& cpu_flags() {
  static const std::vector<std::string> flags = detect();
  return flags;
}

bool cpu_has(std::string_view flag) {
  const std::vector<std::string>& flags = cpu_flags();
  if (std::find(flags.begin(), flags.end(), flag) == flags.end()) return false;
  if (flag.substr(0, 4) != "amx_") return true;
  static const bool permitted = ask_for_tiles();
  return permitted;
}

}  // namespace mlcb
