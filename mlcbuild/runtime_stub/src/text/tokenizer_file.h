// The parts of a tokenizer as its file gives them: a tokenizer.json, or a packed tokenizer, which
// the build makes of one so that it loads fast.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/bpe.h"
#include "text/vocab.h"

namespace mlcb {

// The large tables of a model. Contents point into what they were read from.
struct ModelTables {
  bool unigram = false;  // or BPE
  std::vector<Vocab::Entry> vocab;
  std::vector<double> scores;           // unigram: by position in vocab
  const Json* merges = nullptr;         // BPE: either pairs of contents
  std::vector<BpeModel::Merge> ranked;  // or ids
};

// Throws Error(MLCB_ERROR_BUNDLE). json must outlive the tables.
ModelTables read_model_tables(const Json& model);

// The merges as ids. Throws Error(MLCB_ERROR_BUNDLE).
std::vector<BpeModel::Merge> resolve_merges(const Json& merges, const Vocab& vocab);

struct PackedTokenizer {
  Json config;  // the tokenizer.json without vocab and merges
  ModelTables tables;
};

bool is_packed_tokenizer(std::string_view bytes);
// The sha256, in hexadecimal, of the tokenizer.json that it was made of; empty if it is none.
std::string packed_tokenizer_source(std::string_view bytes);
// bytes must outlive the tables; where names the file in errors. Throws Error(MLCB_ERROR_BUNDLE or
// _VERSION).
PackedTokenizer read_packed_tokenizer(std::string_view bytes, const std::string& where);

}  // namespace mlcb
