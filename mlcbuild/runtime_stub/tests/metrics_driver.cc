// Runs metrics, histograms and the profile of kernels on commands, one JSON object a line on stdin,
// one JSON value a line on stdout. For tests; the clock is the driver's own.
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/decimal.h"
#include "core/error.h"
#include "core/json.h"
#include "driver_loop.h"
#include "engine/histogram.h"
#include "engine/metrics.h"
#include "exec/profile.h"

namespace mlcb {
namespace {

double now = 1000;
double fake_clock() { return now; }

class Driver {
 public:
  std::string run(const Json& command) {
    const std::string& op = command.at("op").as_string();
    if (op == "new") {
      now = 1000;
      metrics_ = std::make_unique<EngineMetrics>(integer(command, "limit"), 4096, fake_clock);
      return "true";
    }
    if (op == "wait") {
      now += command.at("seconds").as_double();
      return "true";
    }
    if (op == "json") return metrics_->json(nullptr);
    if (op == "prometheus") return json_quote(metrics_->prometheus());
    if (op == "profile") return profile(command);
    if (op == "decimal") return json_quote(decimal(std::stod(command.at("value").as_string())));
    if (op == "histogram") return histogram(command);
    if (op == "bench") return bench();
    if (op == "threads") {
      std::vector<std::thread> threads;
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([this] {
          for (int j = 0; j < 5000; ++j) {
            metrics_->submitted();
            metrics_->first_token(0.5);
            metrics_->step({0.01, 1, 2, 1});
            metrics_->failed(MLCB_ERROR_KERNEL);
            if (j % 500 == 0) metrics_->json(nullptr);
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      return "true";
    }
    return call(op, command);
  }

 private:
  static int64_t integer(const Json& command, const char* key) { return command.at(key).as_int(); }

  std::string call(const std::string& op, const Json& command) {
    auto number = [&](const char* key) { return integer(command, key); };
    auto status = [&] { return static_cast<mlcb_status>(number("status")); };
    auto seconds = [&] { return command.at("seconds").as_double(); };
    if (op == "submitted") {
      metrics_->submitted(number("texts"));
    } else if (op == "rejected") {
      metrics_->rejected(status());
    } else if (op == "started") {
      metrics_->started(seconds(), number("prompt"), number("cached"));
    } else if (op == "first_token") {
      metrics_->first_token(seconds(), number("tokens"));
    } else if (op == "next_token") {
      metrics_->next_token(seconds(), number("tokens"));
    } else if (op == "finished") {
      metrics_->finished(static_cast<mlcb_finish_reason>(number("reason")), seconds());
    } else if (op == "failed") {
      metrics_->failed(status(), number("texts"));
    } else if (op == "step") {
      metrics_->step({seconds(), number("prefill"), number("decode"), number("sequences")});
    } else if (op == "load") {
      metrics_->load({number("running"), number("waiting"), number("pages"), number("used"),
                      number("cached")});
    } else if (op == "evicted") {
      metrics_->evicted(number("pages"));
    } else if (op == "preempted") {
      metrics_->preempted();
    } else if (op == "speculated") {
      metrics_->speculated(number("proposed"), number("accepted"));
    } else if (op == "grammar_mask") {
      metrics_->grammar_mask(seconds());
    } else if (op == "jumped_ahead") {
      metrics_->jumped_ahead(number("tokens"));
    } else {
      throw Error(MLCB_ERROR_ARGUMENT, "no such op: " + op);
    }
    return "true";
  }

  static std::string histogram(const Json& command) {
    Histogram found;
    for (const Json& value : command.at("values").items()) found.add(value.as_double());
    std::string out = "[";
    for (const Json& share : command.at("shares").items()) {
      out += (out.size() > 1 ? "," : "") + decimal(found.quantile(share.as_double()));
    }
    return out + "]";
  }

  // Runs of a function, by kernel: [[name, seconds], ...].
  static std::string profile(const Json& command) {
    Profile profile;
    const size_t unused = profile.kernel_slot("unused");
    const size_t function = profile.function_slot("batch_prefill");
    for (const Json& run : command.at("runs").items()) {
      std::vector<Profile::Call> calls;
      for (const Json& call : run.items()) {
        const size_t slot = profile.kernel_slot(call.items()[0].as_string());
        if (slot == unused) throw Error(MLCB_ERROR_INTERNAL, "two names share a slot");
        calls.push_back({slot, call.items()[1].as_double()});
      }
      profile.add_run(function, calls);
    }
    const std::string metrics = EngineMetrics(1, 1).json(&profile);
    profile.reset();
    return "[" + metrics + "," + profile.json() + "," + profile.functions_json() + "]";
  }

  // Nanoseconds that the metrics of a step of 8 decoding sequences take.
  static std::string bench() {
    EngineMetrics metrics(8, 1);
    constexpr int kSteps = 20000;
    const double begin = monotonic_seconds();
    for (int i = 0; i < kSteps; ++i) {
      for (int j = 0; j < 8; ++j) metrics.next_token(0.03);
      metrics.step({0.03, 0, 8, 8});
      metrics.load({8, 0, 100, 50, 20});
    }
    return decimal((monotonic_seconds() - begin) / kSteps * 1e9);
  }

  std::unique_ptr<EngineMetrics> metrics_;
};

}  // namespace
}  // namespace mlcb

int main() {
  mlcb::Driver driver;
  return mlcb::answer_commands(&driver);
}
