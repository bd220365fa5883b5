// The command line of bin/mlcb.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace mlcb {

struct MainOptions {
  std::string bundle;  // empty: the one that the executable sits in
  std::string prompt;
  std::string system;
  std::string activations;
  bool has_prompt = false;
  bool has_system = false;
  bool raw = false;
  bool stats = false;
  bool help = false;
  bool verify_full = false;
  float temperature = 0;
  float top_p = 1;
  int32_t top_k = 0;
  uint64_t seed = 0;
  int32_t max_tokens = 512;
  int32_t threads = 0;
};

class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws UsageError naming the option.
MainOptions parse_command_line(int argc, char** argv);

extern const char kUsage[];

}  // namespace mlcb
