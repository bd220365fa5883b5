#include "text/stream.h"

#include <algorithm>

#include "core/utf8.h"

namespace mlcb {
namespace {

// Length of the longest end of text that is a proper beginning of stop.
size_t partial_stop(std::string_view text, std::string_view stop) {
  const size_t longest = std::min(text.size(), stop.size() - 1);
  for (size_t size = longest; size > 0; --size) {
    if (text.substr(text.size() - size) == stop.substr(0, size)) return size;
  }
  return 0;
}

}  // namespace

TextStream::TextStream(std::vector<std::string> stop_strings) : stops_(std::move(stop_strings)) {
  stops_.erase(std::remove(stops_.begin(), stops_.end(), std::string()), stops_.end());
}

// Moves the whole characters of tail_ to pending_; at the end an unfinished one too.
void TextStream::take_characters(bool at_end) {
  const char* p = tail_.data();
  const char* end = p + tail_.size();
  while (p != end) {
    const Utf8Char c = utf8_decode(p, end);
    if (c.size != 0) {
      pending_.append(p, c.size);
      p += c.size;
      continue;
    }
    if (c.truncated && !at_end) break;
    utf8_append(0xFFFD, &pending_);
    p += c.bad_size;
  }
  tail_.erase(0, static_cast<size_t>(p - tail_.data()));
}

std::string TextStream::push(std::string_view bytes) {
  if (stopped_) return std::string();
  tail_ += bytes;
  take_characters(false);
  return take_final(false);
}

std::string TextStream::finish() {
  if (stopped_) return std::string();
  take_characters(true);
  return take_final(true);
}

std::string TextStream::take_final(bool at_end) {
  // The stop string that is complete first ends the text (of two, the one that began first), so the
  // cut does not depend on how the text is split into tokens.
  size_t cut = std::string::npos, cut_end = std::string::npos;
  const std::string* met = nullptr;
  for (const std::string& stop : stops_) {
    const size_t begin = pending_.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < cut_end || (end == cut_end && begin < cut)) {
      cut = begin;
      cut_end = end;
      met = &stop;
    }
  }
  std::string result;
  if (cut != std::string::npos) {
    stopped_ = true;
    met_ = *met;
    result = pending_.substr(0, cut);
    pending_.clear();
    tail_.clear();
    return result;
  }
  size_t held = 0;
  if (!at_end) {
    for (const std::string& stop : stops_) held = std::max(held, partial_stop(pending_, stop));
  }
  result = pending_.substr(0, pending_.size() - held);
  pending_.erase(0, result.size());
  return result;
}

}  // namespace mlcb
