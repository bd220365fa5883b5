// The byte-level BPE tokenizer: added tokens, normalization, splitting into words, merging.
#include "text/tokenizer.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "core/error.h"
#include "core/utf8.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"
#include "text/unicode.h"

namespace mlcb {
namespace {

[[noreturn]] void unsupported(const std::string& what) {
  throw Error(MLCB_ERROR_UNSUPPORTED, "tokenizer: " + what + " is not supported");
}

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
    const uint64_t hash = std::hash<std::string_view>()(word) * 0x9E3779B97F4A7C15u;
    return entries_[static_cast<size_t>(hash >> 40) & (kEntries - 1)];
  }

 private:
  static constexpr size_t kEntries = 8192;
  std::vector<Entry> entries_;
};

bool is_nfc(const Json* json) {
  if (json == nullptr || json->is_null()) return false;
  const std::string& type = json->at("type").as_string();
  if (type == "NFC") return true;
  if (type != "Sequence") unsupported("normalizer '" + type + "'");
  bool nfc = false;
  for (const Json& step : json->at("normalizers").items()) nfc = is_nfc(&step) || nfc;
  return nfc;
}

void check_decoder(const Json* json) {
  if (json == nullptr || json->is_null()) unsupported("a byte-level model without a decoder");
  const std::string& type = json->at("type").as_string();
  if (type == "ByteLevel") return;
  if (type == "Sequence" && json->at("decoders").size() == 1) {
    return check_decoder(&json->at("decoders").items()[0]);
  }
  unsupported("decoder '" + type + "'");
}

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(const Json& json) {
    const Json& model = json.at("model");
    const Json* type = model.find("type");
    if (type != nullptr && type->as_string() != "BPE") {
      unsupported("model '" + type->as_string() + "'");
    }
    nfc_ = is_nfc(json.find("normalizer"));
    pre_tokenizer_ = PreTokenizer::from_json(json.find("pre_tokenizer"));
    check_decoder(json.find("decoder"));
    bpe_ = BpeModel::from_json(model);
    vocab_size_ = bpe_.size();
    if (const Json* added = json.find("added_tokens")) load_added(*added);
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
        encode_between(text.substr(span.begin, span.end - span.begin), special, &call, &ids);
      }
    }
    return ids;
  }

  std::string token_bytes(int32_t id, bool keep_special) const override {
    if (id < 0 || id >= vocab_size_) {
      throw Error(MLCB_ERROR_ARGUMENT, "token id " + std::to_string(id) +
                                           " is out of range: the vocabulary has " +
                                           std::to_string(vocab_size_) + " ids");
    }
    if (const AddedToken* token = find_added(id)) {
      return token->special && !keep_special ? std::string() : token->content;
    }
    return id < bpe_.size() ? std::string(bpe_.bytes(id)) : std::string();
  }

  bool is_special(int32_t id) const override {
    const AddedToken* token = find_added(id);
    return token != nullptr && token->special;
  }

  int32_t find(std::string_view content) const override {
    const auto found = added_by_content_.find(content);
    return found != added_by_content_.end() ? found->second : bpe_.find(content);
  }

  int32_t vocab_size() const override { return vocab_size_; }

 private:
  // Buffers of one call. Only one call at a time has the cache; others do without.
  struct Call {
    explicit Call(const BpeTokenizer& tokenizer)
        : matchers(tokenizer.pre_tokenizer_.make_matchers()),
          lock(tokenizer.cache_mutex_, std::try_to_lock),
          cache(lock.owns_lock() ? &tokenizer.cache_ : nullptr) {}
    PreTokenizer::Matchers matchers;
    std::unique_lock<std::mutex> lock;
    WordCache* cache;
    std::vector<RegexChar> chars;
    std::vector<Piece> pieces;
    std::vector<AddedTokenMatcher::Span> spans;
    BpeModel::Scratch scratch;
    std::string word, normalized;
  };

  void load_added(const Json& json) {
    const auto& items = json.items();
    added_.reserve(items.size());  // matchers and maps point into it
    for (const Json& item : items) {
      AddedToken token;
      const int64_t id = item.at("id").as_int();
      token.content = item.at("content").as_string();
      if (id < 0 || id >= 1 << 24) {
        throw Error(MLCB_ERROR_BUNDLE, "tokenizer: added token " + json_quote(token.content) +
                                           " has the id " + std::to_string(id) +
                                           ", which is out of range");
      }
      token.id = static_cast<int32_t>(id);
      auto flag = [&](const char* key, bool fallback) {
        const Json* value = item.find(key);
        return value == nullptr ? fallback : value->as_bool();
      };
      token.special = flag("special", false);
      token.single_word = flag("single_word", false);
      token.lstrip = flag("lstrip", false);
      token.rstrip = flag("rstrip", false);
      token.normalized = flag("normalized", !token.special);
      add_token(std::move(token));
    }
    for (const AddedToken& token : added_) vocab_size_ = std::max(vocab_size_, token.id + 1);
  }

  void add_token(AddedToken token) {
    const int32_t known = bpe_.find(token.content);
    const bool taken = token.id < bpe_.size() && bpe_.has(token.id) && known != token.id;
    const bool doubled = by_id_.count(token.id) != 0 || added_by_content_.count(token.content) != 0;
    if (taken || doubled || (known >= 0 && known != token.id)) {
      throw Error(MLCB_ERROR_BUNDLE, "tokenizer: added token " + json_quote(token.content) +
                                         " with id " + std::to_string(token.id) +
                                         " contradicts another token of this content or id");
    }
    added_.push_back(std::move(token));
    const AddedToken* stored = &added_.back();
    added_by_content_.emplace(stored->content, stored->id);
    by_id_.emplace(stored->id, stored);
    if (stored->normalized) {
      std::string content;
      if (!nfc_ || !unicode_nfc(stored->content, &content)) content = stored->content;
      normalized_matcher_.add(stored, content);
    } else {
      matcher_.add(stored, stored->content);
    }
  }

  const AddedToken* find_added(int32_t id) const {
    const auto found = by_id_.find(id);
    return found != by_id_.end() ? found->second : nullptr;
  }

  void encode_between(std::string_view text, bool special, Call* call,
                      std::vector<int32_t>* ids) const {
    if (nfc_ && unicode_nfc(text, &call->normalized)) text = call->normalized;
    if (normalized_matcher_.empty()) return encode_plain(text, call, ids);
    normalized_matcher_.split(text, special, &call->spans);
    for (const auto& span : call->spans) {
      if (span.token != nullptr) {
        ids->push_back(span.token->id);
      } else {
        encode_plain(text.substr(span.begin, span.end - span.begin), call, ids);
      }
    }
  }

  void encode_plain(std::string_view text, Call* call, std::vector<int32_t>* ids) const {
    auto& chars = call->chars;
    chars.clear();
    chars.reserve(text.size());
    const char* p = text.data();
    const char* end = p + text.size();
    while (p != end) {
      const Utf8Char c = utf8_decode(p, end);
      const uint32_t code = c.size != 0 ? c.code : kInvalidByte + static_cast<uint8_t>(*p);
      chars.push_back(make_regex_char(code, unicode_category(code)));
      p += c.size != 0 ? c.size : 1;
    }
    pre_tokenizer_.split(&chars, &call->pieces, &call->matchers);
    for (const Piece& piece : call->pieces) {
      std::string& word = call->word;
      word.clear();
      for (size_t i = piece.begin; i < piece.end; ++i) {
        const uint32_t code = code_of(chars[i]);
        if (code >= kInvalidByte) {
          word.push_back(static_cast<char>(code - kInvalidByte));
        } else {
          utf8_append(code, &word);
        }
      }
      encode_word(word, call, ids);
    }
  }

  void encode_word(std::string_view word, Call* call, std::vector<int32_t>* ids) const {
    if (call->cache == nullptr || word.size() > WordCache::kMaxBytes) {
      return bpe_.encode(word, &call->scratch, ids);
    }
    WordCache::Entry& entry = call->cache->at(word);
    if (entry.size == word.size() && std::memcmp(entry.bytes, word.data(), word.size()) == 0) {
      ids->insert(ids->end(), entry.ids, entry.ids + entry.count);
      return;
    }
    const size_t first = ids->size();
    bpe_.encode(word, &call->scratch, ids);
    const size_t count = ids->size() - first;
    if (count > WordCache::kMaxIds) return;
    entry.size = static_cast<uint8_t>(word.size());
    entry.count = static_cast<uint8_t>(count);
    std::memcpy(entry.bytes, word.data(), word.size());
    std::copy(ids->begin() + static_cast<ptrdiff_t>(first), ids->end(), entry.ids);
  }

  bool nfc_ = false;
  PreTokenizer pre_tokenizer_;
  BpeModel bpe_;
  std::vector<AddedToken> added_;
  std::unordered_map<int32_t, const AddedToken*> by_id_;
  std::unordered_map<std::string_view, int32_t> added_by_content_;
  AddedTokenMatcher matcher_, normalized_matcher_;
  int32_t vocab_size_ = 0;
  mutable std::mutex cache_mutex_;
  mutable WordCache cache_;
};

}  // namespace

std::unique_ptr<Tokenizer> Tokenizer::from_json(const Json& tokenizer_json) {
  return std::make_unique<BpeTokenizer>(tokenizer_json);
}

}  // namespace mlcb
