// The steps of a tokenizer: added tokens, normalization, splitting into words, the model; and back.
#include "text/tokenizer.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>

#include "core/error.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_file.h"
#include "text/unigram.h"
#include "text/vocab.h"

namespace mlcb {
namespace {

// Remembers the ids of short words. Of fixed size: a word displaces another with the same hash.
class WordCache {
 public:
  static constexpr size_t kMaxBytes = 24, kMaxIds = 8;

  struct Entry {
    uint8_t size = 0, count = 0;  // size 0: empty
    char bytes[kMaxBytes];
    int32_t ids[kMaxIds];
  };
  Entry& at(std::string_view word) {
    if (entries_.empty()) entries_.resize(kEntries);
    uint64_t parts[3] = {0, 0, 0};
    std::memcpy(parts, word.data(), word.size());
    const uint64_t mixed = (parts[0] * 0x9E3779B97F4A7C15u) ^ (parts[1] * 0xBF58476D1CE4E5B9u) ^
                           (parts[2] * 0x94D049BB133111EBu);
    const uint64_t hash = (mixed ^ mixed >> 32) * 0x9E3779B97F4A7C15u + word.size();
    return entries_[static_cast<size_t>(hash >> 40) & (kEntries - 1)];
  }

 private:
  static constexpr size_t kEntries = 16384;
  std::vector<Entry> entries_;
};

void check_model(const Json& model, const ModelTables* tables) {
  const Json* type = model.find("type");
  if (type == nullptr || type->is_null()) return;  // old files: told by the vocabulary's shape
  const std::string& name = type->as_string();
  if (name != "BPE" && name != "Unigram") {
    throw Error(MLCB_ERROR_UNSUPPORTED, "tokenizer: model '" + name + "' is not supported");
  }
  if (tables != nullptr && tables->unigram != (name == "Unigram")) {
    throw Error(MLCB_ERROR_BUNDLE,
                "tokenizer: model '" + name + "' has a vocabulary of the wrong shape");
  }
}

class FileTokenizer : public Tokenizer {
 public:
  // config: the tokenizer.json, whose vocabulary and merges are not read.
  FileTokenizer(const Json& config, ModelTables tables)
      : normalizer_(Normalizer::from_json(config.find("normalizer"))),
        pre_tokenizer_(PreTokenizer::from_json(config.find("pre_tokenizer"))),
        decoder_(Decoder::from_json(config.find("decoder"))),
        vocab_(load_vocab(tables, pre_tokenizer_.byte_level())),
        added_(config.find("added_tokens"), vocab_, normalizer_) {
    const Json& model = config.at("model");
    check_model(model, &tables);
    if (!tables.unigram) {
      if (tables.merges != nullptr) tables.ranked = resolve_merges(*tables.merges, vocab_);
      bpe_.emplace(model, vocab_, tables.ranked);
    } else {
      unigram_.emplace(model, vocab_, std::move(tables.scores));
    }
    load_matchers();
  }

  std::vector<int32_t> encode(std::string_view text, bool special) const override {
    if (text.size() > INT32_MAX) {
      throw Error(MLCB_ERROR_ARGUMENT, "tokenizer: the text has more than 2^31 bytes");
    }
    std::vector<int32_t> ids;
    Call call(*this);
    std::vector<AddedTokenMatcher::Span> spans;
    matcher_.split(text, special, &spans);
    for (const auto& span : spans) {
      if (span.token != nullptr) {
        ids.push_back(span.token->id);
      } else {
        encode_between(text.substr(span.begin, span.end - span.begin), special, span.begin == 0,
                       &call, &ids);
      }
    }
    return ids;
  }

  std::string token_bytes(int32_t id, bool keep_special) const override {
    if (id < 0 || id >= vocab_size()) {
      throw Error(MLCB_ERROR_ARGUMENT, "token id " + std::to_string(id) +
                                           " is out of range: the vocabulary has " +
                                           std::to_string(vocab_size()) + " ids");
    }
    const AddedToken* token = added_.find(id);
    if (token != nullptr && token->special && !keep_special) return std::string();
    if (token != nullptr) return decoder_.decode_inside(token->normal);
    if (!vocab_.has(id)) return std::string();
    if (joins_bytes()) return std::string(vocab_.bytes(id));
    return decoder_.decode_inside(vocab_.content(id));
  }

  std::string decode(const int32_t* ids, size_t count, bool keep_special) const override {
    std::vector<std::string> tokens;
    std::string bytes;
    for (size_t i = 0; i < count; ++i) {
      const AddedToken* token = added_.find(ids[i]);
      if (token != nullptr && token->special && !keep_special) continue;
      if (token == nullptr && !vocab_.has(ids[i])) continue;  // an id without a token
      if (joins_bytes()) {
        if (token != nullptr) {
          bytes += decoder_.decode_inside(token->normal);
        } else {
          bytes += vocab_.bytes(ids[i]);
        }
      } else {
        tokens.push_back(token != nullptr ? token->normal : vocab_.content(ids[i]));
      }
    }
    return joins_bytes() ? bytes : decoder_.decode(std::move(tokens));
  }

  bool is_special(int32_t id) const override {
    const AddedToken* token = added_.find(id);
    return token != nullptr && token->special;
  }

  int32_t find(std::string_view content) const override {
    const int32_t id = added_.find(content);
    return id >= 0 ? id : vocab_.find(content);
  }

  int32_t vocab_size() const override { return std::max(vocab_.size(), added_.size()); }

 private:
  // Buffers of one call. Only one call at a time has the cache; others do without.
  struct Call {
    explicit Call(const FileTokenizer& tokenizer)
        : matchers(tokenizer.pre_tokenizer_.make_matchers()),
          lock(tokenizer.cache_mutex_, std::try_to_lock),
          cache(lock.owns_lock() ? &tokenizer.cache_ : nullptr) {}
    PreTokenizer::Matchers matchers;
    std::unique_lock<std::mutex> lock;
    WordCache* cache;
    std::vector<RegexChar> chars;
    std::vector<Piece> pieces;
    std::vector<AddedTokenMatcher::Span> spans;
    Normalizer::Scratch normalizer;
    BpeModel::Scratch bpe;
    UnigramModel::Scratch unigram;
    std::string word;
  };

  static Vocab load_vocab(const ModelTables& tables, bool byte_level) {
    Vocab vocab;
    vocab.load(tables.vocab, byte_level);
    return vocab;
  }

  // Whether decoding is nothing but putting the bytes of the tokens together.
  bool joins_bytes() const { return vocab_.byte_level() && decoder_.is_byte_level(); }

  void load_matchers() {
    for (const AddedToken& token : added_.all()) {
      (token.normalized ? normalized_matcher_ : matcher_).add(&token);
    }
    matcher_.finish();
    normalized_matcher_.finish();
  }

  void encode_between(std::string_view text, bool special, bool at_begin, Call* call,
                      std::vector<int32_t>* ids) const {
    text = normalizer_.apply(text, &call->normalizer);
    at_begin = at_begin && !call->normalizer.front_lost;
    if (normalized_matcher_.empty()) return encode_plain(text, at_begin, call, ids);
    normalized_matcher_.split(text, special, &call->spans);
    for (const auto& span : call->spans) {
      if (span.token != nullptr) {
        ids->push_back(span.token->id);
      } else {
        encode_plain(text.substr(span.begin, span.end - span.begin), at_begin && span.begin == 0,
                     call, ids);
      }
    }
  }

  void encode_plain(std::string_view text, bool at_begin, Call* call,
                    std::vector<int32_t>* ids) const {
    if (pre_tokenizer_.keeps(text)) return encode_piece(text, call, ids);
    auto& chars = call->chars;
    regex_chars(text, &chars);
    pre_tokenizer_.split(&chars, &call->pieces, &call->matchers, at_begin);
    for (const Piece& piece : call->pieces) {
      call->word.clear();
      append_utf8(chars.data() + piece.begin, piece.end - piece.begin, &call->word);
      encode_piece(call->word, call, ids);
    }
  }

  void encode_piece(std::string_view piece, Call* call, std::vector<int32_t>* ids) const {
    if (!bpe_) {
      if (!piece.empty()) encode_word(piece, call, ids);
      return;
    }
    for (size_t begin = 0; begin < piece.size();) {
      const size_t end = bpe_->independent_end(piece, begin);
      encode_word(piece.substr(begin, end - begin), call, ids);
      begin = end;
    }
  }

  void encode_word(std::string_view word, Call* call, std::vector<int32_t>* ids) const {
    if (call->cache == nullptr || word.size() > WordCache::kMaxBytes) {
      return encode_new_word(word, call, ids);
    }
    WordCache::Entry& entry = call->cache->at(word);
    if (entry.size == word.size() && std::memcmp(entry.bytes, word.data(), word.size()) == 0) {
      ids->insert(ids->end(), entry.ids, entry.ids + entry.count);
      return;
    }
    const size_t first = ids->size();
    encode_new_word(word, call, ids);
    const size_t count = ids->size() - first;
    if (count > WordCache::kMaxIds) return;
    entry.size = static_cast<uint8_t>(word.size());
    entry.count = static_cast<uint8_t>(count);
    std::memcpy(entry.bytes, word.data(), word.size());
    std::copy(ids->begin() + static_cast<ptrdiff_t>(first), ids->end(), entry.ids);
  }

  void encode_new_word(std::string_view word, Call* call, std::vector<int32_t>* ids) const {
    if (bpe_) {
      bpe_->encode(word, &call->bpe, ids);
    } else {
      unigram_->encode(word, &call->unigram, ids);
    }
  }

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Decoder decoder_;
  Vocab vocab_;
  AddedTokens added_;
  std::optional<BpeModel> bpe_;          // this model
  std::optional<UnigramModel> unigram_;  // or this one
  AddedTokenMatcher matcher_, normalized_matcher_;
  mutable std::mutex cache_mutex_;
  mutable WordCache cache_;
};

}  // namespace

std::unique_ptr<Tokenizer> Tokenizer::from_json(const Json& tokenizer_json) {
  const Json& model = tokenizer_json.at("model");
  check_model(model, nullptr);  // before its tables, which others shape otherwise
  return std::make_unique<FileTokenizer>(tokenizer_json, read_model_tables(model));
}

std::unique_ptr<Tokenizer> Tokenizer::from_file(std::string_view content,
                                                const std::string& where) {
  if (!is_packed_tokenizer(content)) return from_json(Json::parse(content, where));
  PackedTokenizer packed = read_packed_tokenizer(content, where);
  return std::make_unique<FileTokenizer>(packed.config, std::move(packed.tables));
}

}  // namespace mlcb
