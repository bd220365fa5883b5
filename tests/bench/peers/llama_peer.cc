// llama.cpp as a peer for the benches, through its C API.
//
//   llama_peer bench BACKENDS MODEL.gguf THREADS REPEATS SPEC...
//       SPEC is prefill:TOKENS or decode:BATCH:DEPTH:TOKENS; prints one JSON object in the shape of
//       `mlcbuild bench --json`, tok_s being the median of REPEATS runs after one that warms up.
//   llama_peer quantize BACKENDS MODEL.gguf THREADS FTYPE OUT.gguf
//       FTYPE is a number of enum llama_ftype (15: Q4_K_M); MODEL may be quantized already.
//   llama_peer logits BACKENDS MODEL.gguf THREADS CHUNK IDS OUT
//       IDS holds int32 token ids; every CHUNK of them is a fresh sequence; OUT receives the logits
//       of every position, float32 [tokens, vocab].
//
// BACKENDS is the folder of the ggml-cpu libraries, of which the best for this CPU is loaded.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

namespace {

constexpr int kBatchTokens = 512;

double Seconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// A field of /proc/self/status in bytes.
long long ProcessBytes(const char* field) {
  long long kibibytes = 0;
  char line[256];
  if (FILE* status = std::fopen("/proc/self/status", "r")) {
    while (std::fgets(line, sizeof line, status)) {
      if (std::strncmp(line, field, std::strlen(field)) == 0) {
        kibibytes = std::atoll(line + std::strlen(field) + 1);
      }
    }
    std::fclose(status);
  }
  return kibibytes * 1024;
}

void KeepErrors(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

// The structs are passed by value, so headers of another version shift their fields; the documented
// defaults of late fields show it.
[[noreturn]] void ThrowMismatch() {
  throw std::runtime_error("the headers do not belong to this libllama");
}

struct Spec {
  bool decode = false;
  int batch = 1;
  int depth = 0;
  int tokens = 0;
};

Spec ParseSpec(const std::string& text) {
  Spec spec;
  if (std::sscanf(text.c_str(), "prefill:%d", &spec.tokens) == 1) return spec;
  spec.decode = true;
  if (std::sscanf(text.c_str(), "decode:%d:%d:%d", &spec.batch, &spec.depth, &spec.tokens) == 3) {
    return spec;
  }
  throw std::runtime_error("not a measurement: " + text);
}

class Peer {
 public:
  Peer(const char* backends, const char* model_path, int threads) : threads_(threads) {
    llama_log_set(KeepErrors, nullptr);
    ggml_backend_load_all_from_path(backends);
    llama_backend_init();
    llama_model_params params = llama_model_default_params();
    if (!params.use_extra_bufts || params.vocab_only) ThrowMismatch();
    params.n_gpu_layers = 0;
    const double start = Seconds();
    model_ = llama_model_load_from_file(model_path, params);
    if (model_ == nullptr) throw std::runtime_error(std::string("cannot load ") + model_path);
    load_seconds_ = Seconds() - start;
    vocab_size_ = llama_vocab_n_tokens(llama_model_get_vocab(model_));
  }

  ~Peer() {
    FreeContext();
    llama_model_free(model_);
    llama_backend_free();
  }

  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  double load_seconds() const { return load_seconds_; }
  int vocab_size() const { return vocab_size_; }

  // A context with room for `tokens` in each of `sequences`.
  void NewContext(int tokens, int sequences) {
    FreeContext();
    llama_context_params params = llama_context_default_params();
    if (params.n_ubatch != 512 || params.type_v != GGML_TYPE_F16 || !params.no_perf)
      ThrowMismatch();
    params.n_ctx = static_cast<uint32_t>((tokens + 255) / 256 * 256 * sequences);
    params.n_batch = kBatchTokens;
    params.n_ubatch = kBatchTokens;
    params.n_seq_max = static_cast<uint32_t>(sequences);
    params.n_threads = threads_;
    params.n_threads_batch = threads_;
    context_ = llama_init_from_model(model_, params);
    if (context_ == nullptr) throw std::runtime_error("cannot create a context");
  }

  // Drops every sequence.
  void Clear() { llama_memory_clear(llama_get_memory(context_), true); }

  // Runs `count` tokens of one sequence from position `start`; logits at the last one or at all.
  void Prefill(const int32_t* ids, int count, int start, int sequence, bool all_logits) {
    for (int done = 0; done < count; done += kBatchTokens) {
      const int rows = std::min(kBatchTokens, count - done);
      llama_batch batch = llama_batch_init(rows, 0, 1);
      for (int row = 0; row < rows; ++row) {
        const bool wanted = all_logits || done + row == count - 1;
        Add(&batch, ids[done + row], start + done + row, sequence, wanted);
      }
      Run(batch);
    }
  }

  // One token for each of `batch_size` sequences at `position`.
  void DecodeStep(const std::vector<int32_t>& ids, int position) {
    llama_batch batch = llama_batch_init(static_cast<int>(ids.size()), 0, 1);
    for (size_t sequence = 0; sequence < ids.size(); ++sequence) {
      Add(&batch, ids[sequence], position, static_cast<int>(sequence), true);
    }
    Run(batch);
  }

  const float* Logits(int row) { return llama_get_logits_ith(context_, row); }

  std::vector<int32_t> RandomIds(int count) {
    std::uniform_int_distribution<int32_t> pick(300, vocab_size_ - 1);
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (int32_t& id : ids) id = pick(random_);
    return ids;
  }

 private:
  static void Add(llama_batch* batch, int32_t id, int position, int sequence, bool logits) {
    const int row = batch->n_tokens++;
    batch->token[row] = id;
    batch->pos[row] = position;
    batch->n_seq_id[row] = 1;
    batch->seq_id[row][0] = sequence;
    batch->logits[row] = logits ? 1 : 0;
  }

  void Run(llama_batch batch) {
    const int status = llama_decode(context_, batch);
    llama_synchronize(context_);
    llama_batch_free(batch);
    if (status != 0) throw std::runtime_error("llama_decode: " + std::to_string(status));
  }

  void FreeContext() {
    if (context_ != nullptr) llama_free(context_);
    context_ = nullptr;
  }

  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
  int threads_;
  int vocab_size_ = 0;
  double load_seconds_ = 0;
  std::mt19937 random_{1};
};

// Tokens per second of one run; the context is warm and empty.
double Measure(Peer* peer, const Spec& spec) {
  peer->Clear();
  if (!spec.decode) {
    const std::vector<int32_t> ids = peer->RandomIds(spec.tokens);
    const double start = Seconds();
    peer->Prefill(ids.data(), spec.tokens, 0, 0, false);
    return spec.tokens / (Seconds() - start);
  }
  for (int sequence = 0; spec.depth > 0 && sequence < spec.batch; ++sequence) {
    const std::vector<int32_t> ids = peer->RandomIds(spec.depth);
    peer->Prefill(ids.data(), spec.depth, 0, sequence, false);
  }
  const double start = Seconds();
  for (int step = 0; step < spec.tokens; ++step) {
    const std::vector<int32_t> ids = peer->RandomIds(spec.batch);
    peer->DecodeStep(ids, spec.depth + step);
  }
  return spec.tokens * spec.batch / (Seconds() - start);
}

// Seconds since `begin` until the logits of a prompt of one token are there.
double FirstToken(Peer* peer, double begin) {
  peer->NewContext(1, 1);
  const std::vector<int32_t> ids = peer->RandomIds(1);
  peer->Prefill(ids.data(), 1, 0, 0, true);
  return Seconds() - begin;
}

int Bench(Peer* peer, double begin, int repeats, const std::vector<Spec>& specs) {
  const double first_token = FirstToken(peer, begin);
  std::printf("{\"results\": [");
  const char* separator = "";
  for (const Spec& spec : specs) {
    peer->NewContext(spec.depth + spec.tokens, spec.batch);
    Measure(peer, spec);
    std::vector<double> rates;
    for (int repeat = 0; repeat < repeats; ++repeat) rates.push_back(Measure(peer, spec));
    const double rate = Median(rates);
    if (spec.decode) {
      std::printf("%s{\"kind\": \"decode\", \"batch\": %d, \"depth\": %d, \"tokens\": %d, ",
                  separator, spec.batch, spec.depth, spec.tokens);
    } else {
      std::printf("%s{\"kind\": \"prefill\", \"tokens\": %d, ", separator, spec.tokens);
    }
    std::printf("\"tok_s\": %.3f}", rate);
    separator = ", ";
  }
  std::printf("], \"rss_peak_bytes\": %lld, \"load_s\": %.4f, \"first_token_s\": %.4f}\n",
              ProcessBytes("VmHWM"), peer->load_seconds(), first_token);
  return 0;
}

int WriteLogits(Peer* peer, int chunk, const char* ids_path, const char* out_path) {
  FILE* in = std::fopen(ids_path, "rb");
  FILE* out = std::fopen(out_path, "wb");
  if (in == nullptr || out == nullptr) throw std::runtime_error("cannot open IDS or OUT");
  if (chunk < 1 || chunk > kBatchTokens) throw std::runtime_error("CHUNK must be 1..512");
  peer->NewContext(chunk, 1);
  std::vector<int32_t> ids(static_cast<size_t>(chunk));
  const size_t columns = static_cast<size_t>(peer->vocab_size());
  bool written = true;
  while (const size_t count = std::fread(ids.data(), sizeof ids[0], ids.size(), in)) {
    peer->Clear();
    peer->Prefill(ids.data(), static_cast<int>(count), 0, 0, true);
    for (size_t row = 0; row < count; ++row) {
      const float* logits = peer->Logits(static_cast<int>(row));
      written = written && std::fwrite(logits, sizeof(float), columns, out) == columns;
    }
  }
  std::fclose(in);
  if (std::fclose(out) != 0 || !written) throw std::runtime_error("cannot write OUT");
  return 0;
}

int Quantize(const char* model, int threads, int type, const char* out) {
  llama_log_set(KeepErrors, nullptr);
  llama_model_quantize_params params = llama_model_quantize_default_params();
  if (!params.quantize_output_tensor || params.pure || params.dry_run) ThrowMismatch();
  params.nthread = threads;
  params.ftype = static_cast<llama_ftype>(type);
  params.allow_requantize = true;
  const uint32_t status = llama_model_quantize(model, out, &params);
  if (status != 0) throw std::runtime_error("llama_model_quantize: " + std::to_string(status));
  return 0;
}

int Main(int count, char** arguments) {
  const double begin = Seconds();
  const std::string mode = count > 1 ? arguments[1] : "";
  const bool bench = mode == "bench" && count > 6;
  if (mode == "quantize" && count == 7) {
    ggml_backend_load_all_from_path(arguments[2]);
    return Quantize(arguments[3], std::atoi(arguments[4]), std::atoi(arguments[5]), arguments[6]);
  }
  if (!bench && !(mode == "logits" && count == 8)) {
    std::fputs(
        "usage: llama_peer bench BACKENDS MODEL THREADS REPEATS SPEC...\n"
        "       llama_peer quantize BACKENDS MODEL THREADS FTYPE OUT\n"
        "       llama_peer logits BACKENDS MODEL THREADS CHUNK IDS OUT\n",
        stderr);
    return 2;
  }
  std::vector<Spec> specs;
  for (int index = 6; bench && index < count; ++index) specs.push_back(ParseSpec(arguments[index]));
  Peer peer(arguments[2], arguments[3], std::atoi(arguments[4]));
  const int number = std::atoi(arguments[5]);
  return bench ? Bench(&peer, begin, number, specs)
               : WriteLogits(&peer, number, arguments[6], arguments[7]);
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return Main(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "llama_peer: %s\n", error.what());
    return 1;
  }
}
