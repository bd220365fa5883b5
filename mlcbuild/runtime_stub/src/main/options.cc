#include "main/options.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>

namespace mlcb {

const char kUsage[] =
    "usage: mlcb [BUNDLE] --prompt P [options]\n"
    "\n"
    "Answers a prompt with the model in BUNDLE (default: the bundle that this program sits in).\n"
    "The text goes to stdout, all else to stderr.\n"
    "\n"
    "  --prompt P         what to say to the model\n"
    "  --system S         system message (default: the model's own)\n"
    "  --raw              continue P as it is, without the chat template\n"
    "  --temperature T    0: always the likeliest token (default 0)\n"
    "  --top-p P          sample from the likeliest tokens that make up P (default 1: all)\n"
    "  --top-k K          sample from the K likeliest tokens (default 0: all)\n"
    "  --seed S           seed of the sampler (default 0)\n"
    "  --max-tokens N     most tokens to generate (default 512; 0: all that the context holds)\n"
    "  --threads N        threads (default 0: one for each usable CPU)\n"
    "  --activations A    int8 or float (default: the bundle's best)\n"
    "  --verify           hash the params too before running\n"
    "  --stats            print speed and memory\n"
    "  --help             this text\n"
    "\n"
    "exit codes: 0 done, 1 error, 2 usage, 6 the bundle does not verify, 7 the machine (CPU, "
    "memory,\n"
    "files), 130 interrupted\n";

namespace {

[[noreturn]] void bad_value(const std::string& option, const std::string& value,
                            const char* expected) {
  throw UsageError(option + ": \"" + value + "\" is not " + expected);
}

int64_t parse_integer(const std::string& option, const std::string& value, int64_t low,
                      int64_t high) {
  errno = 0;
  char* end = nullptr;
  const long long number = std::strtoll(value.c_str(), &end, 10);
  if (value.empty() || *end != '\0' || errno != 0 || number < low || number > high) {
    const std::string expected =
        "an integer from " + std::to_string(low) + " to " + std::to_string(high);
    bad_value(option, value, expected.c_str());
  }
  return number;
}

uint64_t parse_seed(const std::string& value) {
  errno = 0;
  char* end = nullptr;
  const unsigned long long number = std::strtoull(value.c_str(), &end, 10);
  if (value.empty() || value[0] == '-' || *end != '\0' || errno != 0) {
    bad_value("--seed", value, "an integer from 0 to 2^64 - 1");
  }
  return number;
}

float parse_number(const std::string& option, const std::string& value, float low, float high,
                   const char* expected) {
  char* end = nullptr;
  const float number = std::strtof(value.c_str(), &end);
  if (value.empty() || *end != '\0' || !(number >= low && number <= high)) {
    bad_value(option, value, expected);
  }
  return number;
}

bool set_flag(MainOptions* options, const std::string& name) {
  if (name == "--raw") {
    options->raw = true;
  } else if (name == "--stats") {
    options->stats = true;
  } else if (name == "--verify") {
    options->verify_full = true;
  } else if (name == "--help" || name == "-h") {
    options->help = true;
  } else {
    return false;
  }
  return true;
}

void set_value(MainOptions* options, const std::string& name, const std::string& value) {
  if (name == "--prompt") {
    options->prompt = value;
    options->has_prompt = true;
  } else if (name == "--system") {
    options->system = value;
    options->has_system = true;
  } else if (name == "--temperature") {
    options->temperature = parse_number(name, value, 0, 1e6f, "a number, 0 or above");
  } else if (name == "--top-p") {
    options->top_p = parse_number(name, value, 1e-6f, 1, "a number above 0, at most 1");
  } else if (name == "--top-k") {
    options->top_k = static_cast<int32_t>(parse_integer(name, value, 0, INT32_MAX));
  } else if (name == "--seed") {
    options->seed = parse_seed(value);
  } else if (name == "--max-tokens") {
    options->max_tokens = static_cast<int32_t>(parse_integer(name, value, 0, INT32_MAX));
  } else if (name == "--threads") {
    options->threads = static_cast<int32_t>(parse_integer(name, value, 0, 1024));
  } else if (name == "--activations") {
    if (value != "int8" && value != "float") bad_value(name, value, "int8 or float");
    options->activations = value;
  } else {
    throw UsageError("unknown option " + name);
  }
}

}  // namespace

MainOptions parse_command_line(int argc, char** argv) {
  MainOptions options;
  bool has_bundle = false;
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i];
    if (name.empty() || name[0] != '-') {
      if (has_bundle) throw UsageError("two bundles are given: " + options.bundle + ", " + name);
      options.bundle = name;
      has_bundle = true;
      continue;
    }
    if (set_flag(&options, name)) continue;
    const size_t equals = name.find('=');
    std::string value;
    if (equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    } else if (i + 1 < argc) {
      value = argv[++i];
    } else {
      throw UsageError(name + " is unknown, or its value is missing");
    }
    set_value(&options, name, value);
  }
  if (has_bundle && options.bundle.empty()) throw UsageError("the path of the bundle is empty");
  if (!options.help && !options.has_prompt) throw UsageError("--prompt is missing");
  if (options.raw && options.has_system)
    throw UsageError("--system has no place in a --raw prompt");
  return options;
}

}  // namespace mlcb
