// Grammars for structured output: which tokens may come next.
#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/vocabulary.h"
#include "mlcb.h"

namespace mlcb {

class Machine;

// A compiled grammar over one vocabulary, with its cache of token masks. Thread-safe.
class Grammar {
 public:
  // Throws Error(MLCB_ERROR_GRAMMAR) that says where and why the text is not valid, or which part
  // of it is not supported.
  static std::shared_ptr<const Grammar> compile(
      mlcb_grammar_kind kind, std::string_view text,
      std::shared_ptr<const GrammarVocabulary> vocabulary);
  ~Grammar();

 private:
  friend class GrammarMatcher;
  struct Compiled;
  class Use;
  explicit Grammar(std::unique_ptr<Compiled> compiled);

  std::unique_ptr<Compiled> compiled_;
};

// Keeps the grammars used last, so that requests with the same one share it. Thread-safe.
class GrammarCache {
 public:
  explicit GrammarCache(std::shared_ptr<const GrammarVocabulary> vocabulary);
  std::shared_ptr<const Grammar> get(mlcb_grammar_kind kind, std::string_view text);

 private:
  struct Entry {
    mlcb_grammar_kind kind;
    std::string text;
    std::shared_ptr<const Grammar> grammar;
  };
  std::shared_ptr<const Grammar> find(mlcb_grammar_kind kind, std::string_view text);

  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // the one used last comes first
};

// Follows one text through a grammar. Not thread-safe; copies are independent.
//
// Every call but can_end and must_end may throw Error(MLCB_ERROR_GRAMMAR) for a grammar that is so
// ambiguous that following it takes too long; the matcher stays as it was.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const Grammar> grammar);

  // The tokens that may come next: id i is bit i % 32 of word i / 32, for ids below the
  // vocabulary's valid_size. Stop tokens are set where the text may end. Valid until accept().
  const uint32_t* allowed();
  // Takes a token; false, and nothing changes, if it may not come next.
  bool accept(int32_t token);
  // The same for bytes.
  bool accept_bytes(std::string_view bytes);
  bool can_end() const;   // the text so far is whole
  bool must_end() const;  // and nothing can follow (also after a stop token)
  // The bytes that every continuation begins with; empty if there is a choice. No character is cut
  // off at the end.
  std::string forced_bytes() const;

 private:
  void enter(uint32_t state);
  void move_to(const std::shared_ptr<Machine>& machine) const;

  std::shared_ptr<const Grammar> grammar_;
  mutable std::shared_ptr<Machine> machine_;
  mutable uint32_t state_ = 0;
  bool can_end_ = false, must_end_ = false, stopped_ = false;
  bool has_mask_ = false;
  std::vector<uint32_t> mask_;
};

}  // namespace mlcb
