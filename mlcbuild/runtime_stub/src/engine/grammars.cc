#include "engine/grammars.h"

#include <algorithm>

#include "core/error.h"

namespace mlcb {

std::shared_ptr<const Grammar> Grammars::get(int32_t kind, std::string_view text) {
  if (kind == MLCB_GRAMMAR_NONE) return nullptr;
  if (kind < MLCB_GRAMMAR_NONE || kind > MLCB_GRAMMAR_STRUCTURE) {
    throw Error(MLCB_ERROR_ARGUMENT, "there is no grammar kind " + std::to_string(kind));
  }
  std::call_once(once_, [this] {
    const int64_t valid = std::min(bundle_->vocab_size(), bundle_->tokenizer_vocab_size());
    cache_ = std::make_unique<GrammarCache>(std::make_shared<const GrammarVocabulary>(
        bundle_->tokenizer(), static_cast<int32_t>(valid), bundle_->chat().stop_token_ids(),
        bundle_->chat().kept_token_ids()));
  });
  return cache_->get(static_cast<mlcb_grammar_kind>(kind), text);
}

}  // namespace mlcb
