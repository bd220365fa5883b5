// Parameter structs of mlcb.h from JSON: keys are the names of their fields.
#pragma once
#include <string>
#include <vector>

#include "mlcb.h"

namespace mlcb {

// Throws Error(MLCB_ERROR_ARGUMENT) naming the key for one that is unknown or of a wrong type.
class EngineOptionsJson {
 public:
  explicit EngineOptionsJson(const char* text);  // nullptr: all defaults
  const mlcb_engine_options* get() const { return &options_; }

 private:
  mlcb_engine_options options_{};
  std::string mode_, speculation_, activations_, variant_;
};

// token_ids, stop and stop_token_ids are arrays; logit_bias is an object {"id": bias} or an array
// of pairs [id, bias], where null forbids the token.
class RequestParamsJson {
 public:
  explicit RequestParamsJson(const char* text);
  const mlcb_request_params* get() const { return &params_; }

 private:
  mlcb_request_params params_{};
  std::vector<int32_t> token_ids_, stop_token_ids_;
  std::vector<mlcb_logit_bias> logit_bias_;
  std::vector<std::string> stop_;
  std::vector<const char*> stop_pointers_;
  std::string grammar_;
};

}  // namespace mlcb
