// bin/mlcb: answers one prompt with the bundle it sits in.
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "core/os.h"
#include "main/options.h"
#include "mlcb.h"

namespace mlcb {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kExitUsage = 2;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int exit_code(mlcb_status status) {
  switch (status) {
    case MLCB_OK:
      return 0;
    case MLCB_ERROR_ARGUMENT:
    case MLCB_ERROR_TOO_LONG:
    case MLCB_ERROR_UNSUPPORTED:
      return kExitUsage;
    case MLCB_ERROR_BUNDLE:
    case MLCB_ERROR_VERSION:
    case MLCB_ERROR_HASH:
      return 6;
    case MLCB_ERROR_DEVICE:
    case MLCB_ERROR_MEMORY:
    case MLCB_ERROR_IO:
      return 7;
    default:
      return 1;
  }
}

void check(mlcb_status status) {
  if (status != MLCB_OK) throw Error(status, mlcb_last_error());
}

// The folder above the one that the executable lies in.
std::string own_bundle() {
  const std::string path = executable_path();
  const size_t file = path.rfind('/');
  const size_t folder = file == std::string::npos || file == 0 ? file : path.rfind('/', file - 1);
  if (folder == std::string::npos) {
    throw UsageError("the system does not tell where this program lies: give the bundle's path");
  }
  return folder == 0 ? "/" : path.substr(0, folder);
}

struct CloseBundle {
  void operator()(mlcb_bundle* bundle) const { mlcb_bundle_close(bundle); }
};
struct DestroyEngine {
  void operator()(mlcb_engine* engine) const { mlcb_engine_destroy(engine); }
};
using BundlePtr = std::unique_ptr<mlcb_bundle, CloseBundle>;
using EnginePtr = std::unique_ptr<mlcb_engine, DestroyEngine>;

BundlePtr open_bundle(const MainOptions& options) {
  mlcb_bundle_options wishes = {};
  wishes.struct_size = sizeof(wishes);
  wishes.verify_full = options.verify_full ? 1 : 0;
  const std::string path = options.bundle.empty() ? own_bundle() : options.bundle;
  mlcb_bundle* bundle = nullptr;
  check(mlcb_bundle_open(path.c_str(), &wishes, &bundle));
  return BundlePtr(bundle);
}

EnginePtr create_engine(mlcb_bundle* bundle, const MainOptions& options) {
  mlcb_engine_options wishes = {};
  wishes.struct_size = sizeof(wishes);
  wishes.threads = options.threads;
  wishes.max_batch_size = 1;
  if (!options.activations.empty()) wishes.activations = options.activations.c_str();
  mlcb_engine* engine = nullptr;
  check(mlcb_engine_create(bundle, &wishes, &engine));
  return EnginePtr(engine);
}

std::string render_chat(const mlcb_bundle* bundle, const MainOptions& options) {
  std::string messages = "[";
  if (options.has_system) {
    messages += "{\"role\":\"system\",\"content\":" + json_quote(options.system) + "},";
  }
  messages += "{\"role\":\"user\",\"content\":" + json_quote(options.prompt) + "}]";
  size_t size = 0;
  mlcb_status status = mlcb_apply_chat_template(bundle, messages.c_str(), nullptr, 0, &size);
  if (status != MLCB_ERROR_TOO_SMALL) check(status);
  std::string text(size, '\0');
  check(mlcb_apply_chat_template(bundle, messages.c_str(), &text[0], size, &size));
  return text;
}

std::vector<int32_t> prompt_tokens(const mlcb_bundle* bundle, const MainOptions& options) {
  const std::string text = options.raw ? options.prompt : render_chat(bundle, options);
  const uint32_t flags = options.raw ? MLCB_TOKENIZE_BOS : MLCB_TOKENIZE_SPECIAL;
  size_t count = 0;
  mlcb_status status = mlcb_tokenize(bundle, text.data(), text.size(), flags, nullptr, 0, &count);
  if (status != MLCB_ERROR_TOO_SMALL) check(status);
  std::vector<int32_t> ids(count);
  check(mlcb_tokenize(bundle, text.data(), text.size(), flags, ids.data(), count, &count));
  return ids;
}

void write_text(const char* text, size_t size) {
  if (size == 0) return;
  if (std::fwrite(text, 1, size, stdout) == size && std::fflush(stdout) == 0) return;
  throw Error(MLCB_ERROR_IO, std::string("cannot write to stdout\nwhy: ") + std::strerror(errno));
}

struct Timing {
  double prefill_s = 0;
  double decode_s = 0;
  int generated = 0;
};

Timing generate(mlcb_engine* engine, const std::vector<int32_t>& tokens,
                const MainOptions& options) {
  mlcb_request_params params = {};
  params.struct_size = sizeof(params);
  params.token_ids = tokens.data();
  params.token_count = tokens.size();
  params.max_tokens = options.max_tokens;
  params.temperature = options.temperature;
  params.top_p = options.top_p;
  params.top_k = options.top_k;
  params.seed = options.seed;
  uint64_t id = 0;
  check(mlcb_request_submit(engine, &params, &id));
  Timing timing;
  Clock::time_point start = Clock::now();
  for (int32_t busy = 1; busy != 0;) {
    check(mlcb_engine_step(engine, &busy));
    for (;;) {
      mlcb_event event = {};
      event.struct_size = sizeof(event);
      check(mlcb_engine_poll(engine, &event, 0));
      if (event.kind == MLCB_EVENT_NONE) break;
      if (event.kind == MLCB_EVENT_ERROR) {
        throw Error(static_cast<mlcb_status>(event.status), event.text);
      }
      if (event.kind == MLCB_EVENT_TOKEN && timing.generated++ == 0) {
        timing.prefill_s = seconds_since(start);
        start = Clock::now();
      }
      write_text(event.text, event.text_size);
    }
  }
  timing.decode_s = seconds_since(start);
  write_text("\n", 1);
  return timing;
}

void print_stats(const mlcb_engine* engine, size_t prompt, double load_s, const Timing& timing) {
  std::fprintf(stderr, "load: %.3f s\n", load_s);
  if (timing.prefill_s > 0) {
    std::fprintf(stderr, "prefill: %zu tokens, %.1f tokens/s\n", prompt,
                 static_cast<double>(prompt) / timing.prefill_s);
  }
  if (timing.generated > 1 && timing.decode_s > 0) {
    std::fprintf(stderr, "decode: %d tokens, %.1f tokens/s\n", timing.generated,
                 (timing.generated - 1) / timing.decode_s);
  }
  std::fprintf(stderr, "engine: %s\n", mlcb_engine_info(engine));
}

void run(const MainOptions& options) {
  const Clock::time_point start = Clock::now();
  const BundlePtr bundle = open_bundle(options);
  const EnginePtr engine = create_engine(bundle.get(), options);
  const double load_s = seconds_since(start);
  const std::vector<int32_t> tokens = prompt_tokens(bundle.get(), options);
  const Timing timing = generate(engine.get(), tokens, options);
  if (options.stats) print_stats(engine.get(), tokens.size(), load_s, timing);
}

int main_with_errors(int argc, char** argv) {
  try {
    const MainOptions options = parse_command_line(argc, argv);
    if (options.help) {
      std::fputs(kUsage, stdout);
      return 0;
    }
    run(options);
    return 0;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "error: %s\nhint: mlcb --help lists the options\n", error.what());
    return kExitUsage;
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return exit_code(error.status());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace mlcb

int main(int argc, char** argv) { return mlcb::main_with_errors(argc, argv); }
