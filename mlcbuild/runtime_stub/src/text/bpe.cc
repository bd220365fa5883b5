#include "text/bpe.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/utf8.h"

namespace mlcb {
namespace {

constexpr int64_t kMaxId = (1 << 24) - 1;

// Byte-level vocabularies spell each byte as a printable character: the printable ones of Latin-1
// as themselves, the other 68, in order, as U+0100 and up.
struct ByteSpelling {
  uint16_t of_byte[256];
  int16_t to_byte[256 + 68];
  ByteSpelling() {
    std::fill(std::begin(to_byte), std::end(to_byte), static_cast<int16_t>(-1));
    uint16_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      of_byte[byte] = printable ? static_cast<uint16_t>(byte) : next++;
      to_byte[of_byte[byte]] = static_cast<int16_t>(byte);
    }
  }
};

const ByteSpelling& byte_spelling() {
  static const ByteSpelling spelling;
  return spelling;
}

// Appends the bytes that a spelling stands for; false if it has a character that stands for none.
bool append_bytes(std::string_view spelling, std::string* out) {
  const ByteSpelling& table = byte_spelling();
  const size_t start = out->size();
  const char* p = spelling.data();
  const char* end = p + spelling.size();
  while (p != end) {
    const Utf8Char c = utf8_decode(p, end);
    if (c.size == 0 || c.code >= 256 + 68 || table.to_byte[c.code] < 0) {
      out->resize(start);
      return false;
    }
    out->push_back(static_cast<char>(table.to_byte[c.code]));
    p += c.size;
  }
  return true;
}

uint64_t hash_bytes(std::string_view bytes, bool raw) {
  // Tokens are short: eight bytes at a time, multiplied and folded.
  uint64_t hash = bytes.size() * 2 + (raw ? 1 : 0);
  const char* p = bytes.data();
  for (size_t left = bytes.size(); left > 0;) {
    const size_t size = std::min<size_t>(left, 8);
    uint64_t word = 0;
    std::memcpy(&word, p, size);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
    p += size;
    left -= size;
  }
  hash *= 0xBF58476D1CE4E5B9u;
  return hash ^ hash >> 32;
}

uint64_t hash_pair(int32_t left, int32_t right) {
  uint64_t hash = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  hash *= 0x9E3779B97F4A7C15u;
  hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93u;
  return hash ^ hash >> 32;
}

uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }

size_t table_capacity(size_t count) {
  size_t capacity = 64;
  while (capacity < count + count / 2) capacity *= 2;
  return capacity;
}

void refuse_text(const Json& model, const char* key) {
  const Json* value = model.find(key);
  if (value != nullptr && !value->is_null() && !value->as_string().empty()) {
    throw Error(MLCB_ERROR_UNSUPPORTED,
                std::string("tokenizer: BPE option ") + key + " is not supported");
  }
}

bool flag(const Json& model, const char* key) {
  const Json* value = model.find(key);
  return value != nullptr && !value->is_null() && value->as_bool();
}

}  // namespace

BpeModel BpeModel::from_json(const Json& json) {
  refuse_text(json, "continuing_subword_prefix");
  refuse_text(json, "end_of_word_suffix");
  const Json* dropout = json.find("dropout");
  if (dropout != nullptr && !dropout->is_null() && dropout->as_double() != 0) {
    throw Error(MLCB_ERROR_UNSUPPORTED, "tokenizer: BPE option dropout is not supported");
  }
  BpeModel model;
  model.load_vocab(json.at("vocab"));
  model.load_merges(json.at("merges"));
  model.ignore_merges_ = flag(json, "ignore_merges");
  model.fuse_unknown_ = flag(json, "fuse_unk");
  const Json* unknown = json.find("unk_token");
  if (unknown != nullptr && !unknown->is_null()) {
    model.unknown_ = model.find(unknown->as_string());
    if (model.unknown_ < 0) {
      throw Error(MLCB_ERROR_BUNDLE, "tokenizer: unk_token " + json_quote(unknown->as_string()) +
                                         " is not in the vocabulary");
    }
  }
  bool complete = true;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    model.byte_ids_[byte] = model.find_bytes(std::string_view(&c, 1), false);
    complete = complete && model.byte_ids_[byte] >= 0;
  }
  // With a token for every byte there is nothing to fall back from.
  if (!complete && flag(json, "byte_fallback")) {
    throw Error(MLCB_ERROR_UNSUPPORTED,
                "tokenizer: BPE option byte_fallback is not supported in a byte-level vocabulary "
                "that lacks bytes");
  }
  return model;
}

void BpeModel::load_vocab(const Json& vocab) {
  const auto& members = vocab.members();
  int64_t highest = -1;
  for (const auto& [spelling, id] : members) {
    const int64_t value = id.as_int();
    if (value < 0 || value > kMaxId) {
      throw Error(MLCB_ERROR_BUNDLE, "tokenizer: token " + json_quote(spelling) + " has the id " +
                                         std::to_string(value) + ", which is out of range");
    }
    highest = std::max(highest, value);
  }
  tokens_.resize(static_cast<size_t>(highest + 1));
  token_buckets_.assign(table_capacity(members.size()), Bucket());
  const size_t mask = token_buckets_.size() - 1;
  arena_.reserve(members.size() * 8);
  for (const auto& [spelling, id] : members) {
    Token& token = tokens_[static_cast<size_t>(id.as_int())];
    if (token.present) {
      throw Error(MLCB_ERROR_BUNDLE, "tokenizer: the id of token " + json_quote(spelling) + ", " +
                                         std::to_string(id.as_int()) +
                                         ", belongs to another token too");
    }
    token.present = true;
    token.offset = static_cast<uint32_t>(arena_.size());
    token.raw = !append_bytes(spelling, &arena_);
    if (token.raw) arena_ += spelling;
    token.size = static_cast<uint32_t>(arena_.size() - token.offset);
    const uint64_t hash = hash_bytes(std::string_view(arena_).substr(token.offset), token.raw);
    size_t slot = hash & mask;
    while (token_buckets_[slot].entry != 0) slot = (slot + 1) & mask;
    token_buckets_[slot] = {tag_of(hash), static_cast<uint32_t>(id.as_int()) + 1};
  }
  arena_.shrink_to_fit();
}

void BpeModel::load_merges(const Json& json) {
  const auto& list = json.items();
  if (list.size() > INT32_MAX) throw Error(MLCB_ERROR_BUNDLE, "tokenizer: too many merges");
  merges_.reserve(list.size());
  merge_buckets_.assign(table_capacity(list.size()), Bucket());
  std::string left, merged;
  auto refuse = [&](size_t index, const char* why) {
    throw Error(MLCB_ERROR_BUNDLE,
                "tokenizer: merge " + std::to_string(index) + " of the model: " + why);
  };
  for (size_t i = 0; i < list.size(); ++i) {
    std::string_view first, second;
    if (list[i].is_array()) {
      const auto& pair = list[i].items();
      if (pair.size() != 2) refuse(i, "it is not a pair");
      first = pair[0].as_string();
      second = pair[1].as_string();
    } else {
      const std::string_view text = list[i].as_string();
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
        refuse(i, "it is not two tokens with a space between");
      }
      first = text.substr(0, space);
      second = text.substr(space + 1);
    }
    merged.clear();
    const bool first_ok = append_bytes(first, &merged);
    const size_t split = merged.size();
    if (!first_ok || !append_bytes(second, &merged)) {
      refuse(i, "it has characters that no byte is spelled as");
    }
    const std::string_view whole = merged;
    const int32_t left_id = find_bytes(whole.substr(0, split), false);
    const int32_t right_id = find_bytes(whole.substr(split), false);
    // Tokens are mostly numbered in the order of their merges: look there first.
    int32_t merged_id = merges_.empty() ? 0 : merges_.back().merged;
    if (!is_token(merged_id, whole) && !is_token(++merged_id, whole)) {
      merged_id = find_bytes(whole, false);
    }
    if (left_id < 0 || right_id < 0 || merged_id < 0) {
      refuse(i, "a token of it is not in the vocabulary");
    }
    add_merge({left_id, right_id, merged_id});
  }
}

void BpeModel::add_merge(const Merge& merge) {
  merges_.push_back(merge);
  const size_t mask = merge_buckets_.size() - 1;
  const uint64_t hash = hash_pair(merge.left, merge.right);
  const uint32_t tag = tag_of(hash);
  size_t slot = hash & mask;
  for (; merge_buckets_[slot].entry != 0; slot = (slot + 1) & mask) {
    if (merge_buckets_[slot].tag != tag) continue;
    const Merge& other = merges_[merge_buckets_[slot].entry - 1];
    if (other.left == merge.left && other.right == merge.right) break;  // the last one counts
  }
  merge_buckets_[slot] = {tag, static_cast<uint32_t>(merges_.size())};
}

int32_t BpeModel::find_merge(int32_t left, int32_t right) const {
  const size_t mask = merge_buckets_.size() - 1;
  const uint64_t hash = hash_pair(left, right);
  const uint32_t tag = tag_of(hash);
  for (size_t slot = hash & mask;; slot = (slot + 1) & mask) {
    const Bucket& bucket = merge_buckets_[slot];
    if (bucket.entry == 0) return -1;
    if (bucket.tag != tag) continue;
    const Merge& merge = merges_[bucket.entry - 1];
    if (merge.left == left && merge.right == right) return static_cast<int32_t>(bucket.entry - 1);
  }
}

bool BpeModel::is_token(int32_t id, std::string_view spelled) const {
  if (id >= size()) return false;
  const Token& token = tokens_[static_cast<size_t>(id)];
  return token.present && !token.raw && bytes(id) == spelled;
}

int32_t BpeModel::find_bytes(std::string_view bytes, bool raw) const {
  const size_t mask = token_buckets_.size() - 1;
  const uint64_t hash = hash_bytes(bytes, raw);
  const uint32_t tag = tag_of(hash);
  for (size_t slot = hash & mask;; slot = (slot + 1) & mask) {
    const Bucket& bucket = token_buckets_[slot];
    if (bucket.entry == 0) return -1;
    if (bucket.tag != tag) continue;
    const Token& token = tokens_[bucket.entry - 1];
    if (token.raw == raw && std::string_view(arena_).substr(token.offset, token.size) == bytes) {
      return static_cast<int32_t>(bucket.entry - 1);
    }
  }
}

int32_t BpeModel::find(std::string_view content) const {
  std::string bytes;
  return append_bytes(content, &bytes) ? find_bytes(bytes, false) : find_bytes(content, true);
}

std::string_view BpeModel::bytes(int32_t id) const {
  const Token& token = tokens_[static_cast<size_t>(id)];
  return std::string_view(arena_).substr(token.offset, token.size);
}

void BpeModel::encode(std::string_view word, Scratch* scratch, std::vector<int32_t>* ids) const {
  if (ignore_merges_) {
    const int32_t whole = find_bytes(word, false);
    if (whole >= 0) {
      ids->push_back(whole);
      return;
    }
  }
  auto& symbols = scratch->symbols;
  symbols.clear();
  bool in_unknown = false;
  for (const char c : word) {
    int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    const bool unknown = id < 0;
    if (unknown) {
      if (unknown_ < 0 || (in_unknown && fuse_unknown_)) continue;
      id = unknown_;
    }
    in_unknown = unknown;
    const int32_t index = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, index - 1, index + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  if (symbols.size() > 1) merge_all(scratch);
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    ids->push_back(symbols[static_cast<size_t>(i)].id);
  }
}

// Merges the pair of lowest rank, leftmost first, until none is left.
void BpeModel::merge_all(Scratch* scratch) const {
  auto& symbols = scratch->symbols;
  auto& heap = scratch->heap;
  using Candidate = Scratch::Candidate;
  auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  auto candidate_at = [&](int32_t position, Candidate* out) {
    const auto& left = symbols[static_cast<size_t>(position)];
    if (left.next < 0) return false;
    const int32_t rank = find_merge(left.id, symbols[static_cast<size_t>(left.next)].id);
    *out = {rank, position};
    return rank >= 0;
  };
  heap.clear();
  Candidate candidate;
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    if (candidate_at(static_cast<int32_t>(i), &candidate)) heap.push_back(candidate);
  }
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    const Candidate top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), later);
    heap.pop_back();
    auto& left = symbols[static_cast<size_t>(top.position)];
    // The symbols may have merged otherwise since: the candidate counts only if it would still
    // yield the same token.
    const int32_t merged = merges_[static_cast<size_t>(top.rank)].merged;
    if (left.id < 0 || !candidate_at(top.position, &candidate) ||
        merges_[static_cast<size_t>(candidate.rank)].merged != merged) {
      continue;
    }
    auto& right = symbols[static_cast<size_t>(left.next)];
    left.id = merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = top.position;
    for (const int32_t position : {left.previous, top.position}) {
      if (position >= 0 && candidate_at(position, &candidate)) {
        heap.push_back(candidate);
        std::push_heap(heap.begin(), heap.end(), later);
      }
    }
  }
}

}  // namespace mlcb
