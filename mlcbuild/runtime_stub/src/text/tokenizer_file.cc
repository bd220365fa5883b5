#include "text/tokenizer_file.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace mlcb {
namespace {

constexpr char kMagic[] = "MLCBTOK";  // with its zero, eight bytes
constexpr uint32_t kPackedVersion = 1;
constexpr size_t kDigestSize = 32;

int32_t to_id(const Json& value, std::string_view content) {
  const int64_t id = value.as_int();
  if (id < 0 || id > kMaxTokenId) {
    throw Error(MLCB_ERROR_BUNDLE, "tokenizer: token " + json_quote(content) + " has the id " +
                                       std::to_string(id) + ", which is out of range");
  }
  return static_cast<int32_t>(id);
}

// The reference reads a number's digits as an integer and divides by a power of ten: two roundings.
// Scores must be off by the same last bit, or ties between two ways to cut a word fall otherwise.
double as_reference_reads(double value) {
  char text[40];
  for (int digits = 15; digits <= 17; ++digits) {
    std::snprintf(text, sizeof(text), "%.*e", digits - 1, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  uint64_t significand = 0;
  int exponent = 0, trailing = 0, count = 0;
  const char* p = text;
  for (; *p != 0 && *p != 'e'; ++p) {
    if (*p < '0' || *p > '9') continue;  // the sign, and the locale's decimal point
    trailing = *p == '0' ? trailing + 1 : 0;
    significand = significand * 10 + static_cast<uint64_t>(*p - '0');
    ++count;
  }
  if (*p == 'e') exponent = std::atoi(p + 1);
  exponent -= count - 1;
  if (significand == 0) return 0;
  for (; trailing > 0; --trailing, ++exponent) significand /= 10;
  double result = static_cast<double>(significand);
  for (; exponent < -308; exponent += 308) result /= 1e308;
  std::snprintf(text, sizeof(text), "1e%d", std::abs(exponent));
  const double power = std::strtod(text, nullptr);
  result = exponent < 0 ? result / power : result * power;
  return value < 0 ? -result : result;
}

// Reads one part after the other, each within the bytes that are left.
class Reader {
 public:
  Reader(std::string_view bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  std::string_view take(uint64_t size) {
    if (size > bytes_.size() - at_) {
      throw Error(MLCB_ERROR_BUNDLE,
                  where_ + ": the packed tokenizer is truncated\nwhy: " + std::to_string(size) +
                      " bytes are expected at byte " + std::to_string(at_) + " of " +
                      std::to_string(bytes_.size()));
    }
    const std::string_view part = bytes_.substr(at_, static_cast<size_t>(size));
    at_ += part.size();
    return part;
  }
  uint32_t u32() {
    uint32_t value = 0;
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }
  template <typename Value>
  std::vector<Value> array(uint64_t count) {
    const std::string_view part = take(count * sizeof(Value));
    std::vector<Value> values(static_cast<size_t>(count));
    if (!part.empty()) std::memcpy(values.data(), part.data(), part.size());
    return values;
  }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  std::string_view bytes_;
  const std::string& where_;
  size_t at_ = 0;
};

}  // namespace

ModelTables read_model_tables(const Json& model) {
  ModelTables tables;
  const Json& vocab = model.at("vocab");
  if (vocab.is_array()) {  // unigram: [content, score], by id
    tables.unigram = true;
    const auto& items = vocab.items();
    tables.vocab.reserve(items.size());
    tables.scores.reserve(items.size());
    for (const Json& item : items) {
      if (item.size() != 2 || !item.is_array()) {
        throw Error(MLCB_ERROR_BUNDLE,
                    "tokenizer: a token of the vocabulary is not a content with "
                    "its score");
      }
      const int32_t id = static_cast<int32_t>(tables.vocab.size());
      if (id > kMaxTokenId) throw Error(MLCB_ERROR_BUNDLE, "tokenizer: too many tokens");
      tables.vocab.push_back({item.items()[0].as_string(), id});
      tables.scores.push_back(as_reference_reads(item.items()[1].as_double()));
    }
    return tables;
  }
  const auto& members = vocab.members();
  tables.vocab.reserve(members.size());
  for (const auto& [content, id] : members) tables.vocab.push_back({content, to_id(id, content)});
  tables.merges = &model.at("merges");
  return tables;
}

std::vector<BpeModel::Merge> resolve_merges(const Json& json, const Vocab& vocab) {
  const auto& list = json.items();
  std::vector<BpeModel::Merge> merges;
  merges.reserve(list.size());
  std::string merged;
  auto refuse = [&](const char* why) {
    throw Error(MLCB_ERROR_BUNDLE,
                "tokenizer: merge " + std::to_string(merges.size()) + " of the model: " + why);
  };
  auto is_token = [&](int32_t id) {
    return vocab.has(id) && !vocab.is_raw(id) && vocab.bytes(id) == merged;
  };
  for (const Json& item : list) {
    std::string_view parts[2];
    if (item.is_array()) {
      const auto& pair = item.items();
      if (pair.size() != 2) refuse("it is not a pair");
      for (size_t i = 0; i < 2; ++i) parts[i] = pair[i].as_string();
    } else {
      const std::string_view text = item.as_string();
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
        refuse("it is not two tokens with a space between");
      }
      parts[0] = text.substr(0, space);
      parts[1] = text.substr(space + 1);
    }
    merged.clear();
    size_t split = 0;
    for (const std::string_view part : parts) {
      split = merged.size();
      if (!vocab.byte_level()) {
        merged += part;
      } else if (!append_spelled_bytes(part, &merged)) {
        refuse("it has characters that no byte is spelled as");
      }
    }
    const std::string_view whole = merged;
    BpeModel::Merge merge{vocab.find_bytes(whole.substr(0, split)),
                          vocab.find_bytes(whole.substr(split)), 0};
    // Tokens are mostly numbered in the order of their merges: look there first.
    merge.merged = merges.empty() ? 0 : merges.back().merged;
    if (!is_token(merge.merged) && !is_token(++merge.merged))
      merge.merged = vocab.find_bytes(whole);
    if (merge.left < 0 || merge.right < 0 || merge.merged < 0) {
      refuse("a token of it is not in the vocabulary");
    }
    merges.push_back(merge);
  }
  return merges;
}

bool is_packed_tokenizer(std::string_view bytes) {
  return bytes.size() >= sizeof(kMagic) && std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) == 0;
}

std::string packed_tokenizer_source(std::string_view bytes) {
  constexpr size_t kBegin = sizeof(kMagic) + 6 * sizeof(uint32_t);
  std::string digest;
  if (!is_packed_tokenizer(bytes) || bytes.size() < kBegin + kDigestSize) return digest;
  static const char kHex[] = "0123456789abcdef";
  for (const char c : bytes.substr(kBegin, kDigestSize)) {
    digest.push_back(kHex[static_cast<uint8_t>(c) >> 4]);
    digest.push_back(kHex[static_cast<uint8_t>(c) & 15]);
  }
  return digest;
}

// docs/formats.md describes the file.
PackedTokenizer read_packed_tokenizer(std::string_view bytes, const std::string& where) {
  Reader reader(bytes, where);
  if (!is_packed_tokenizer(bytes)) {
    throw Error(MLCB_ERROR_BUNDLE, where + ": this is no packed tokenizer");
  }
  reader.take(sizeof(kMagic));
  const uint32_t version = reader.u32();
  if (version != kPackedVersion) {
    throw Error(MLCB_ERROR_VERSION, where + ": version " + std::to_string(version) +
                                        " of a packed tokenizer, this runtime reads version " +
                                        std::to_string(kPackedVersion));
  }
  const uint32_t json_size = reader.u32();
  const uint32_t token_count = reader.u32();
  const uint32_t content_size = reader.u32();
  const uint32_t score_count = reader.u32();
  const uint32_t merge_count = reader.u32();
  reader.take(kDigestSize);
  PackedTokenizer packed;
  packed.config = Json::parse(reader.take(json_size), where);
  packed.tables.unigram = score_count != 0;  // as the vocabulary's shape tells in a tokenizer.json
  const auto ids = reader.array<uint32_t>(token_count);
  const auto ends = reader.array<uint32_t>(token_count);
  packed.tables.scores = reader.array<double>(score_count);
  packed.tables.ranked = reader.array<BpeModel::Merge>(merge_count);
  const std::string_view contents = reader.take(content_size);
  if (!reader.at_end()) {
    throw Error(MLCB_ERROR_BUNDLE, where + ": bytes after the end of the packed tokenizer");
  }
  packed.tables.vocab.reserve(token_count);
  uint32_t begin = 0;
  for (uint32_t i = 0; i < token_count; ++i) {
    if (ends[i] < begin || ends[i] > content_size || ids[i] > kMaxTokenId) {
      throw Error(MLCB_ERROR_BUNDLE, where + ": entry " + std::to_string(i) +
                                         " of the packed vocabulary is out of range");
    }
    packed.tables.vocab.push_back(
        {contents.substr(begin, ends[i] - begin), static_cast<int32_t>(ids[i])});
    begin = ends[i];
  }
  return packed;
}

}  // namespace mlcb
