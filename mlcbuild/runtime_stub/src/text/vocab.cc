#include "text/vocab.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/json.h"
#include "core/utf8.h"
#include "text/hash_table.h"

namespace mlcb {
namespace {

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

uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }

}  // namespace

bool append_spelled_bytes(std::string_view spelling, std::string* out) {
  const ByteSpelling& table = byte_spelling();
  const size_t start = out->size();
  const char* p = spelling.data();
  const char* end = p + spelling.size();
  while (p != end) {
    uint32_t code = static_cast<uint8_t>(*p);
    uint32_t size = 1;
    if (code >= 0x80) {
      const Utf8Char c = utf8_decode(p, end);
      code = c.size != 0 ? c.code : UINT32_MAX;
      size = c.size;
    }
    if (code >= 256 + 68 || table.to_byte[code] < 0) {
      out->resize(start);
      return false;
    }
    out->push_back(static_cast<char>(table.to_byte[code]));
    p += size;
  }
  return true;
}

void append_spelling(std::string_view bytes, std::string* out) {
  const ByteSpelling& table = byte_spelling();
  for (const char byte : bytes) utf8_append(table.of_byte[static_cast<uint8_t>(byte)], out);
}

void Vocab::load(const std::vector<Entry>& entries, bool byte_level) {
  byte_level_ = byte_level;
  count_ = entries.size();
  int64_t highest = -1;
  size_t bytes = 0;
  for (const Entry& entry : entries) {
    if (entry.id < 0 || entry.id > kMaxTokenId) {
      throw Error(MLCB_ERROR_BUNDLE, "tokenizer: token " + json_quote(entry.content) +
                                         " has the id " + std::to_string(entry.id) +
                                         ", which is out of range");
    }
    highest = std::max<int64_t>(highest, entry.id);
    bytes += entry.content.size();
  }
  if (bytes > INT32_MAX) {
    throw Error(MLCB_ERROR_BUNDLE, "tokenizer: the vocabulary has more than 2^31 bytes");
  }
  tokens_.assign(static_cast<size_t>(highest + 1), Token());
  buckets_.assign(hash_capacity(entries.size()), Bucket());
  arena_.clear();
  arena_.reserve(bytes);
  std::vector<uint64_t> hashes(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    Token& token = tokens_[index(entry.id)];
    if (token.present) {
      throw Error(MLCB_ERROR_BUNDLE, "tokenizer: the id of token " + json_quote(entry.content) +
                                         ", " + std::to_string(entry.id) +
                                         ", belongs to another token too");
    }
    token.present = true;
    token.offset = static_cast<uint32_t>(arena_.size());
    token.raw = byte_level && !append_spelled_bytes(entry.content, &arena_);
    if (!byte_level || token.raw) arena_ += entry.content;
    token.size = static_cast<uint32_t>(arena_.size() - token.offset);
    hashes[i] = hash_bytes(this->bytes(entry.id), token.raw);
  }
  const size_t mask = buckets_.size() - 1;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i + kPrefetchAhead < entries.size()) {
      prefetch(&buckets_[hashes[i + kPrefetchAhead] & mask]);
    }
    insert(entries[i].id, hashes[i]);
  }
}

void Vocab::insert(int32_t id, uint64_t hash) {
  const size_t mask = buckets_.size() - 1;
  const uint32_t tag = tag_of(hash);
  size_t slot = hash & mask;
  size_t probes = 0;
  for (; buckets_[slot].entry != 0; slot = (slot + 1) & mask, ++probes) {
    if (probes >= kMaxProbes) fail_collisions();
    if (buckets_[slot].tag != tag) continue;
    const int32_t other = static_cast<int32_t>(buckets_[slot].entry - 1);
    if (is_raw(other) == is_raw(id) && bytes(other) == bytes(id)) break;
  }
  longest_probe_ = std::max(longest_probe_, probes);
  buckets_[slot] = {tag, static_cast<uint32_t>(id) + 1};
}

int32_t Vocab::find_entry(std::string_view bytes, bool raw) const {
  const size_t mask = buckets_.size() - 1;
  const uint64_t hash = hash_bytes(bytes, raw);
  const uint32_t tag = tag_of(hash);
  size_t slot = hash & mask;
  for (size_t probes = 0; probes <= longest_probe_; ++probes, slot = (slot + 1) & mask) {
    const Bucket& bucket = buckets_[slot];
    if (bucket.entry == 0) return -1;
    if (bucket.tag != tag) continue;
    const Token& token = tokens_[bucket.entry - 1];
    if (token.raw == raw && std::string_view(arena_).substr(token.offset, token.size) == bytes) {
      return static_cast<int32_t>(bucket.entry - 1);
    }
  }
  return -1;
}

std::string Vocab::content(int32_t id) const {
  const std::string_view stored = bytes(id);
  if (!byte_level_ || is_raw(id)) return std::string(stored);
  std::string spelling;
  append_spelling(stored, &spelling);
  return spelling;
}

int32_t Vocab::find(std::string_view content) const {
  if (!byte_level_) return find_entry(content, false);
  std::string bytes;
  return append_spelled_bytes(content, &bytes) ? find_entry(bytes, false)
                                               : find_entry(content, true);
}

}  // namespace mlcb
