#include "grammar/vocabulary.h"

#include <algorithm>

namespace mlcb {
namespace {

constexpr size_t kMaxTokenBytes = 0xFFFF;

size_t common_prefix(std::string_view a, std::string_view b) {
  size_t i = 0;
  while (i < a.size() && i < b.size() && a[i] == b[i]) ++i;
  return i;
}

}  // namespace

GrammarVocabulary::GrammarVocabulary(const Tokenizer& tokenizer, int32_t valid_size,
                                     const std::vector<int32_t>& stop_ids,
                                     const std::vector<int32_t>& kept_ids)
    : valid_size_(std::max(0, valid_size)) {
  for (const int32_t id : stop_ids) {
    if (id >= 0 && id < valid_size_ && !is_stop(id)) stop_ids_.push_back(id);
  }
  std::sort(stop_ids_.begin(), stop_ids_.end());
  offsets_.push_back(0);
  std::vector<int32_t> order;
  for (int32_t id = 0; id < valid_size_; ++id) {
    const bool kept = std::find(kept_ids.begin(), kept_ids.end(), id) != kept_ids.end();
    if (id < tokenizer.vocab_size() && (kept || !tokenizer.is_special(id)) && !is_stop(id)) {
      const std::string text = tokenizer.token_bytes(id, kept);
      if (!text.empty() && text.size() <= kMaxTokenBytes) {
        bytes_ += text;
        order.push_back(id);
        max_bytes_ = std::max(max_bytes_, text.size());
      }
    }
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
  }
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const int compared = token_bytes(a).compare(token_bytes(b));
    return compared != 0 ? compared < 0 : a < b;
  });
  same_bytes_.assign(static_cast<size_t>(valid_size_), -1);
  std::vector<uint32_t> path;  // the nodes on the way to the token before
  std::string_view before;
  int32_t before_id = -1;
  for (const int32_t id : order) {
    const std::string_view text = token_bytes(id);
    if (text == before) {
      same_bytes_[static_cast<size_t>(before_id)] = id;
      before_id = id;
      continue;
    }
    const size_t shared = common_prefix(before, text);
    for (size_t depth = shared; depth < path.size(); ++depth) {
      trie_[path[depth]].end = static_cast<uint32_t>(trie_.size());
    }
    path.resize(shared);
    for (size_t depth = shared; depth < text.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(trie_.size()));
      trie_.push_back({0, -1, static_cast<uint16_t>(depth + 1), static_cast<uint8_t>(text[depth])});
    }
    trie_.back().token = id;
    before = text;
    before_id = id;
  }
  for (const uint32_t node : path) trie_[node].end = static_cast<uint32_t>(trie_.size());
}

bool GrammarVocabulary::is_stop(int32_t token) const {
  return std::find(stop_ids_.begin(), stop_ids_.end(), token) != stop_ids_.end();
}

std::string_view GrammarVocabulary::token_bytes(int32_t token) const {
  if (token < 0 || token >= valid_size_) return {};
  const size_t i = static_cast<size_t>(token);
  return std::string_view(bytes_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
}

}  // namespace mlcb
