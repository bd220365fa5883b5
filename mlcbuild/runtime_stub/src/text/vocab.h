// The tokens of a model: their contents by id, and ids by content.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mlcb {

// The highest id that a token may have.
constexpr int64_t kMaxTokenId = (1 << 24) - 1;

// Appends the bytes that a byte-level spelling stands for. Returns false, and appends nothing, if
// it has a character that stands for no byte.
bool append_spelled_bytes(std::string_view spelling, std::string* out);
// The inverse: appends the spelling of bytes.
void append_spelling(std::string_view bytes, std::string* out);

class Vocab {
 public:
  struct Entry {
    std::string_view content;  // as the file spells it
    int32_t id;
  };
  // byte_level: contents spell bytes, and are kept as those bytes. Of entries with the same content
  // the last is the one found. Throws Error(MLCB_ERROR_BUNDLE) for an id that is out of range or
  // given twice.
  void load(const std::vector<Entry>& entries, bool byte_level);

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }  // highest id + 1
  size_t count() const { return count_; }
  bool byte_level() const { return byte_level_; }
  bool has(int32_t id) const { return id >= 0 && id < size() && tokens_[index(id)].present; }
  // Byte-level: its spelling is not made of stand-ins for bytes, so no text ever yields it.
  bool is_raw(int32_t id) const { return tokens_[index(id)].raw; }
  // What the token stands for: the bytes, or the content if not byte_level or raw. has(id) holds.
  std::string_view bytes(int32_t id) const {
    const Token& token = tokens_[index(id)];
    return std::string_view(arena_).substr(token.offset, token.size);
  }
  std::string content(int32_t id) const;         // as the file spells it
  int32_t find(std::string_view content) const;  // the same spelling; -1: none
  int32_t find_bytes(std::string_view bytes) const { return find_entry(bytes, false); }

 private:
  struct Token {
    uint32_t offset = 0, size = 0;
    bool present = false, raw = false;
  };
  // Of an open-addressed table. The tag, more bits of the hash, spares most looks at the token.
  struct Bucket {
    uint32_t tag = 0;
    uint32_t entry = 0;  // id + 1; 0: empty
  };
  static size_t index(int32_t id) { return static_cast<size_t>(id); }
  int32_t find_entry(std::string_view bytes, bool raw) const;
  void insert(int32_t id, uint64_t hash);

  std::string arena_;          // bytes of all tokens
  std::vector<Token> tokens_;  // by id
  std::vector<Bucket> buckets_ = std::vector<Bucket>(1);
  size_t count_ = 0;
  size_t longest_probe_ = 0;
  bool byte_level_ = false;
};

}  // namespace mlcb
