// The grammars of one bundle: its vocabulary and the cache of compiled ones, made when first used.
#pragma once
#include <memory>
#include <mutex>
#include <string_view>

#include "exec/bundle.h"
#include "grammar/grammar.h"

namespace mlcb {

class Grammars {
 public:
  explicit Grammars(std::shared_ptr<const Bundle> bundle) : bundle_(std::move(bundle)) {}

  // Throws Error(MLCB_ERROR_GRAMMAR), MLCB_ERROR_ARGUMENT for a kind that does not exist. nullptr
  // for MLCB_GRAMMAR_NONE. Thread-safe.
  std::shared_ptr<const Grammar> get(int32_t kind, std::string_view text);

 private:
  std::shared_ptr<const Bundle> bundle_;
  std::once_flag once_;
  std::unique_ptr<GrammarCache> cache_;
};

}  // namespace mlcb
