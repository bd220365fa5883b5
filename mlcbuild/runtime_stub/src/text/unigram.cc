#include "text/unigram.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/utf8.h"

namespace mlcb {
namespace {

constexpr double kUnknownPenalty = 10;
constexpr uint32_t kUnreached = UINT32_MAX;

}  // namespace

UnigramModel::UnigramModel(const Json& options, const Vocab& vocab, std::vector<double> scores)
    : vocab_(&vocab), scores_(std::move(scores)) {
  if (vocab.byte_level()) {
    throw Error(MLCB_ERROR_UNSUPPORTED,
                "tokenizer: a unigram model behind the pre_tokenizer 'ByteLevel' is not supported");
  }
  if (scores_.size() != static_cast<size_t>(vocab.size()) || vocab.size() == 0) {
    throw Error(MLCB_ERROR_BUNDLE, "tokenizer: a unigram model needs one score for each token");
  }
  double lowest = std::numeric_limits<double>::infinity();
  std::vector<ByteTrie::Entry> entries;
  entries.reserve(scores_.size());
  for (int32_t id = 0; id < vocab.size(); ++id) {
    const double score = scores_[static_cast<size_t>(id)];
    const std::string_view bytes = vocab.bytes(id);
    if (!std::isfinite(score)) {
      throw Error(MLCB_ERROR_BUNDLE,
                  "tokenizer: the score of token " + json_quote(bytes) + " is not a finite number");
    }
    lowest = std::min(lowest, score);
    if (bytes.size() > ByteTrie::kMaxKey) {
      throw Error(MLCB_ERROR_UNSUPPORTED,
                  "tokenizer: a unigram token of " + std::to_string(bytes.size()) +
                      " bytes is not supported, the limit is " + std::to_string(ByteTrie::kMaxKey));
    }
    if (!bytes.empty()) entries.push_back({bytes, id});
  }
  unknown_score_ = lowest - kUnknownPenalty;
  trie_ = ByteTrie(std::move(entries));

  const Json* unknown = options.find("unk_id");
  if (unknown != nullptr && !unknown->is_null()) {
    const int64_t id = unknown->as_int();
    if (id < 0 || id >= vocab.size()) {
      throw Error(MLCB_ERROR_BUNDLE,
                  "tokenizer: unk_id " + std::to_string(id) + " is not in the vocabulary");
    }
    unknown_ = static_cast<int32_t>(id);
  }
  const Json* fallback = options.find("byte_fallback");
  byte_fallback_ = fallback != nullptr && !fallback->is_null() && fallback->as_bool();
  static const char kHex[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    const char spelled[] = {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
    byte_ids_[byte] = vocab.find(std::string_view(spelled, 6));
  }
}

void UnigramModel::encode(std::string_view word, Scratch* scratch,
                          std::vector<int32_t>* ids) const {
  auto& nodes = scratch->nodes;
  nodes.assign(word.size() + 1, {0, -1, kUnreached});
  const char* const text = word.data();
  auto offer = [&](size_t end, double score, int32_t id, size_t begin) {
    Scratch::Node& node = nodes[end];
    if (node.begin == kUnreached || score > node.score) {
      node = {score, id, static_cast<uint32_t>(begin)};
    }
  };
  for (size_t at = 0; at < word.size();) {
    const Utf8Char c = utf8_decode(text + at, text + word.size());
    const size_t char_size = c.size != 0 ? c.size : 1;
    // A byte that is not UTF-8 is reached from the one before it, as a character would be.
    const double here = nodes[at].score;
    bool single = false;
    trie_.prefixes(word.substr(at), [&](size_t size, int32_t id) {
      offer(at + size, here + scores_[static_cast<size_t>(id)], id, at);
      single = single || size == char_size;
    });
    if (!single) offer(at + char_size, here + unknown_score_, unknown_, at);
    at += char_size;
  }
  // Back from the end; neighbouring unknown characters make one piece.
  auto& ends = scratch->ends;
  ends.clear();
  for (size_t end = word.size(); end > 0;) {
    ends.push_back(static_cast<uint32_t>(end));
    while (end > 0 && nodes[end].id == unknown_) end = nodes[end].begin;
    if (end == ends.back()) end = nodes[end].begin;
  }
  size_t begin = 0;
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    append_piece(word.substr(begin, *end - begin), ids);
    begin = *end;
  }
}

void UnigramModel::append_piece(std::string_view piece, std::vector<int32_t>* ids) const {
  const int32_t id = vocab_->find_bytes(piece);
  if (id >= 0) {
    ids->push_back(id);
    return;
  }
  if (byte_fallback_) {
    bool complete = true;
    for (const char byte : piece) {
      complete = complete && byte_ids_[static_cast<uint8_t>(byte)] >= 0;
    }
    if (complete) {
      for (const char byte : piece) ids->push_back(byte_ids_[static_cast<uint8_t>(byte)]);
      return;
    }
  }
  if (unknown_ < 0) {
    throw Error(MLCB_ERROR_ARGUMENT, "tokenizer: the model has no token for " +
                                         json_quote(piece.substr(0, 40)) + ", and no unk_id");
  }
  ids->push_back(unknown_);
}

}  // namespace mlcb
