#include "text/added_tokens.h"

#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"
#include "text/unicode.h"

namespace mlcb {
namespace {

// The character that ends at end, with its size.
Utf8Char last_char(const char* begin, const char* end) {
  const char* p = end - 1;
  while (p != begin && end - p < 4 && (static_cast<uint8_t>(*p) & 0xC0) == 0x80) --p;
  Utf8Char c = utf8_decode(p, end);
  if (c.size != static_cast<size_t>(end - p)) {
    c = Utf8Char();
    c.code = kInvalidByte;
    c.size = 1;
  }
  return c;
}

size_t skip_space(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Utf8Char c = utf8_decode(text.data() + at, text.data() + text.size());
    if (c.size == 0 || !unicode_is_white_space(c.code)) break;
    at += c.size;
  }
  return at;
}

size_t skip_space_back(std::string_view text, size_t floor, size_t at) {
  while (at > floor) {
    const Utf8Char c = last_char(text.data() + floor, text.data() + at);
    if (!unicode_is_white_space(c.code)) break;
    at -= c.size;
  }
  return at;
}

bool inside_word(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && unicode_is_word_or_joiner(last_char(text.data(), text.data() + begin).code)) {
    return true;
  }
  if (end == text.size()) return false;
  const Utf8Char c = utf8_decode(text.data() + end, text.data() + text.size());
  return c.size != 0 && unicode_is_word_or_joiner(c.code);
}

}  // namespace

AddedTokens::AddedTokens(const Json* json, const Vocab& vocab, const Normalizer& normalizer) {
  if (json == nullptr || json->is_null()) return;
  const auto& items = json->items();
  Normalizer::Scratch scratch;
  tokens_.reserve(items.size());  // maps and matchers point into it
  for (const Json& item : items) {
    AddedToken token;
    const int64_t id = item.at("id").as_int();
    token.content = item.at("content").as_string();
    if (id < 0 || id > kMaxTokenId) {
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
    token.normal = token.content;
    if (token.normalized) token.normal = normalizer.apply(token.content, &scratch);
    add(std::move(token), vocab);
  }
}

void AddedTokens::add(AddedToken token, const Vocab& vocab) {
  const int32_t known = vocab.find(token.content);
  const bool taken = known != token.id && vocab.has(token.id);
  const bool doubled = by_id_.count(token.id) != 0 || by_content_.count(token.content) != 0;
  if (taken || doubled || (known >= 0 && known != token.id)) {
    throw Error(MLCB_ERROR_BUNDLE, "tokenizer: added token " + json_quote(token.content) +
                                       " with id " + std::to_string(token.id) +
                                       " contradicts another token of this content or id");
  }
  // Tokens that the model lacks are numbered on, whatever the file says.
  const int64_t next = std::max<int64_t>(size_, static_cast<int64_t>(vocab.count()));
  if (known < 0 && token.id != next) {
    throw Error(MLCB_ERROR_BUNDLE,
                "tokenizer: added token " + json_quote(token.content) + " has the id " +
                    std::to_string(token.id) + " in the file\nwhy: the ids have a gap there; " +
                    "Hugging Face tokenizers would number it " + std::to_string(next));
  }
  size_ = std::max(size_, token.id + 1);
  tokens_.push_back(std::move(token));
  const AddedToken* stored = &tokens_.back();
  by_content_.emplace(stored->content, stored->id);
  by_id_.emplace(stored->id, stored);
}

const AddedToken* AddedTokens::find(int32_t id) const {
  const auto found = by_id_.find(id);
  return found != by_id_.end() ? found->second : nullptr;
}

int32_t AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(content);
  return found != by_content_.end() ? found->second : -1;
}

void AddedTokenMatcher::add(const AddedToken* token) {
  if (token->content.empty()) return;
  if (token->normal.empty()) {
    throw Error(MLCB_ERROR_UNSUPPORTED, "tokenizer: added token " + json_quote(token->content) +
                                            ", of which the normalizer leaves nothing, is not "
                                            "supported");
  }
  if (token->normal.size() > ByteTrie::kMaxKey) {
    throw Error(MLCB_ERROR_UNSUPPORTED,
                "tokenizer: an added token of " + std::to_string(token->normal.size()) +
                    " bytes is not supported, the limit is " + std::to_string(ByteTrie::kMaxKey));
  }
  tokens_.push_back(token);
}

void AddedTokenMatcher::finish() {
  std::vector<ByteTrie::Entry> entries;
  std::unordered_map<std::string_view, const AddedToken*> seen;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const auto [other, is_new] = seen.emplace(tokens_[i]->normal, tokens_[i]);
    if (!is_new) {  // which one the reference finds changes from run to run
      throw Error(MLCB_ERROR_UNSUPPORTED, "tokenizer: added tokens " +
                                              json_quote(other->second->content) + " and " +
                                              json_quote(tokens_[i]->content) +
                                              ", the same once normalized, are not " + "supported");
    }
    entries.push_back({tokens_[i]->normal, static_cast<int32_t>(i)});
  }
  trie_ = ByteTrie(std::move(entries));
}

void AddedTokenMatcher::split(std::string_view text, bool special, std::vector<Span>* spans) const {
  spans->clear();
  size_t done = 0;
  size_t space_begin = 0, space_end = 0;  // a stretch of white space that was skipped last
  for (size_t at = 0; at < text.size();) {
    if (!trie_.may_begin(text[at])) {
      ++at;
      continue;
    }
    size_t size = 0;
    int32_t longest = -1;
    trie_.prefixes(text.substr(at), [&](size_t found_size, int32_t index) {
      size = found_size;
      longest = index;
    });
    if (longest < 0) {
      ++at;
      continue;
    }
    const AddedToken* token = tokens_[static_cast<size_t>(longest)];
    const size_t token_end = at + size;
    const bool passed =
        (token->special && !special) || (token->single_word && inside_word(text, at, token_end));
    if (passed) {
      at = token_end;
      continue;
    }
    size_t begin = at;
    if (token->lstrip) begin = std::max(skip_space_back(text, std::min(done, at), at), done);
    size_t end = token_end;
    if (token->rstrip) {
      if (token_end < space_begin || token_end > space_end) {
        space_begin = token_end;
        space_end = skip_space(text, token_end);
      }
      end = space_end;
    }
    // White space that one token has stripped may itself hold tokens: as in the reference, they
    // are found again, unless they would strip it too.
    if (begin > done) spans->push_back({done, begin, nullptr});
    if (begin < end) spans->push_back({begin, end, token});
    done = end;
    at = token_end;
  }
  if (done != text.size()) spans->push_back({done, text.size(), nullptr});
}

}  // namespace mlcb
