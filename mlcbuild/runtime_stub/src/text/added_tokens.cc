#include "text/added_tokens.h"

#include <algorithm>

#include "core/utf8.h"
#include "text/unicode.h"

namespace mlcb {
namespace {

// The word characters of Rust's regular expressions, with the two joiners.
bool is_word(uint32_t code) { return unicode_is_word(code) || code == 0x200C || code == 0x200D; }

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
  if (begin > 0 && is_word(last_char(text.data(), text.data() + begin).code)) return true;
  if (end == text.size()) return false;
  const Utf8Char c = utf8_decode(text.data() + end, text.data() + text.size());
  return c.size != 0 && is_word(c.code);
}

}  // namespace

uint32_t AddedTokenMatcher::find_child(uint32_t node, char byte) const {
  if (node == 0) return roots_[static_cast<uint8_t>(byte)];
  uint32_t child = nodes_[node].child;
  while (child != 0 && nodes_[child].byte != byte) child = nodes_[child].sibling;
  return child;
}

void AddedTokenMatcher::add(const AddedToken* token, std::string_view content) {
  if (content.empty()) return;
  uint32_t node = 0;
  for (const char byte : content) {
    uint32_t child = find_child(node, byte);
    if (child == 0) {
      child = static_cast<uint32_t>(nodes_.size());
      Node added;
      added.byte = byte;
      if (node == 0) {
        roots_[static_cast<uint8_t>(byte)] = child;
      } else {
        added.sibling = nodes_[node].child;
        nodes_[node].child = child;
      }
      nodes_.push_back(added);
    }
    node = child;
  }
  nodes_[node].token = token;
}

void AddedTokenMatcher::split(std::string_view text, bool special, std::vector<Span>* spans) const {
  spans->clear();
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = nullptr;
    size_t token_end = at;
    uint32_t node = roots_[static_cast<uint8_t>(text[at])];
    for (size_t p = at + 1; node != 0; ++p) {
      const AddedToken* found = nodes_[node].token;
      if (found != nullptr && (special || !found->special)) {
        token = found;
        token_end = p;
      }
      node = p < text.size() ? find_child(node, text[p]) : 0;
    }
    if (token == nullptr) {
      ++at;
      continue;
    }
    if (token->single_word && inside_word(text, at, token_end)) {
      at = token_end;
      continue;
    }
    const size_t begin = token->lstrip ? skip_space_back(text, done, at) : at;
    const size_t end = token->rstrip ? skip_space(text, token_end) : token_end;
    if (begin != done) spans->push_back({done, begin, nullptr});
    spans->push_back({begin, end, token});
    done = at = end;
  }
  if (done != text.size()) spans->push_back({done, text.size(), nullptr});
}

}  // namespace mlcb
