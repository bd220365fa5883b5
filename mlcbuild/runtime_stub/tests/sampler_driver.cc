// Runs the sampler on commands, one JSON object a line on stdin, one JSON value a line on stdout.
// For tests. Rows of logits and masks come from files of float32 and uint32, which "load" reads.
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "driver_loop.h"
#include "text/logit_row.h"
#include "text/sampler.h"

namespace mlcb {
namespace {

template <typename Value>
std::vector<Value> read_array(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw Error(MLCB_ERROR_IO, "cannot read " + path);
  std::vector<Value> values(static_cast<size_t>(file.tellg()) / sizeof(Value));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(Value)));
  return values;
}

double number(const Json& command, const char* key, double fallback) {
  const Json* value = command.find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) return value->as_double();
  return std::stod(value->as_string());  // "nan", "inf"
}

std::vector<int32_t> integers(const Json& command, const char* key) {
  std::vector<int32_t> values;
  if (const Json* list = command.find(key)) {
    for (const Json& item : list->items()) values.push_back(static_cast<int32_t>(item.as_int()));
  }
  return values;
}

SamplingParams read_params(const Json& command) {
  SamplingParams params;
  params.temperature = static_cast<float>(number(command, "temperature", 0));
  params.top_p = static_cast<float>(number(command, "top_p", 1));
  params.top_k = static_cast<int32_t>(number(command, "top_k", 0));
  params.min_p = static_cast<float>(number(command, "min_p", 0));
  params.repetition_penalty = static_cast<float>(number(command, "repetition_penalty", 1));
  params.presence_penalty = static_cast<float>(number(command, "presence_penalty", 0));
  params.frequency_penalty = static_cast<float>(number(command, "frequency_penalty", 0));
  params.seed = static_cast<uint64_t>(number(command, "seed", 0));
  params.stream = static_cast<uint64_t>(number(command, "stream", 0));
  params.top_logprobs = static_cast<int32_t>(number(command, "top_logprobs", -1));
  if (const Json* list = command.find("logit_bias")) {
    for (const Json& item : list->items()) {
      LogitBias bias;
      bias.token = static_cast<int32_t>(item.at("token").as_int());
      bias.bias = static_cast<float>(number(item, "bias", 0));
      params.logit_bias.push_back(bias);
    }
  }
  return params;
}

std::string print(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

class Driver {
 public:
  std::string run(const Json& command) {
    const std::string& op = command.at("op").as_string();
    if (op == "load") {
      logits_ = read_array<float>(command.at("logits").as_string());
      masks_ = read_array<uint32_t>(command.at("masks").as_string());
      return "true";
    }
    if (op == "check") {
      check_sampling_params(read_params(command),
                            static_cast<size_t>(command.at("vocab").as_int()));
      return "true";
    }
    if (op == "weights") return weights(command);
    if (op == "sample") return sample(command);
    if (op == "bench") return bench(command);
    throw Error(MLCB_ERROR_ARGUMENT, "no such op");
  }

 private:
  struct Row {
    const float* logits;
    const uint32_t* allowed;
    size_t vocab, valid;
  };

  Row row_of(const Json& command) const {
    Row row{};
    row.vocab = static_cast<size_t>(command.at("vocab").as_int());
    row.valid = static_cast<size_t>(number(command, "valid", static_cast<double>(row.vocab)));
    row.logits = logits_.data() + command.at("at").as_int();
    const Json* mask = command.find("mask");
    if (mask != nullptr) row.allowed = masks_.data() + mask->as_int();
    return row;
  }

  // A token for each of `draws` positions over the same row; after "accepted", each of them is
  // accepted too. Every token is sampled twice: it must be the same one.
  std::string sample(const Json& command) {
    const Row row = row_of(command);
    Sampler sampler(read_params(command), integers(command, "prompt"));
    for (const int32_t token : integers(command, "accepted")) sampler.accept(token);
    std::string tokens, logprobs, top;
    for (int64_t i = 0; i < static_cast<int64_t>(number(command, "draws", 1)); ++i) {
      const SampledToken found = sampler.sample(row.logits, row.vocab, row.valid, row.allowed);
      Sampler copy = sampler;
      if (copy.sample(row.logits, row.vocab, row.valid, row.allowed).token != found.token) {
        throw Error(MLCB_ERROR_INTERNAL, "a second call for one position gave another token");
      }
      const char* comma = i > 0 ? "," : "";
      tokens += comma + std::to_string(found.token);
      logprobs += comma + print(static_cast<double>(found.logprob));
      top += std::string(comma) + "[";
      for (size_t j = 0; j < found.top.size(); ++j) {
        top += (j > 0 ? ",[" : "[") + std::to_string(found.top[j].token) + "," +
               print(static_cast<double>(found.top[j].logprob)) + "]";
      }
      top += "]";
      sampler.accept(found.token);
    }
    return "{\"tokens\":[" + tokens + "],\"logprobs\":[" + logprobs + "],\"top\":[" + top + "]}";
  }

  // The weights of all loaded logits, in chunks, relative to "greatest".
  std::string weights(const Json& command) {
    const float greatest = static_cast<float>(number(command, "greatest", 0));
    const float scale = static_cast<float>(number(command, "scale", 1));
    const float least = static_cast<float>(number(command, "least", 0));
    std::vector<uint64_t> found(logits_.size());
    for (size_t i = 0; i < logits_.size(); i += LogitRow::kChunk) {
      weigh_chunk(logits_.data() + i, greatest, scale, least, found.data() + i);
    }
    std::ofstream file(command.at("out").as_string(), std::ios::binary);
    file.write(reinterpret_cast<const char*>(found.data()),
               static_cast<std::streamsize>(found.size() * sizeof(uint64_t)));
    return "true";
  }

  // Nanoseconds of this process' time for a token, the best of five rounds.
  std::string bench(const Json& command) {
    const Row row = row_of(command);
    const int64_t draws = command.at("draws").as_int();
    double best = 0;
    for (int round = 0; round < 5; ++round) {
      Sampler sampler(read_params(command), integers(command, "prompt"));
      const std::clock_t begin = std::clock();
      for (int64_t i = 0; i < draws; ++i) {
        sampler.accept(sampler.sample(row.logits, row.vocab, row.valid, row.allowed).token);
      }
      const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
      if (round == 0 || seconds < best) best = seconds;
    }
    return print(best * 1e9 / static_cast<double>(draws));
  }

  std::vector<float> logits_;
  std::vector<uint32_t> masks_;
};

}  // namespace
}  // namespace mlcb

int main() {
  mlcb::Driver driver;
  return mlcb::answer_commands(&driver);
}
