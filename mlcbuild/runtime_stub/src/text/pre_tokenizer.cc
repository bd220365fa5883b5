#include "text/pre_tokenizer.h"

#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"
#include "text/unicode.h"

namespace mlcb {
namespace {

// What ByteLevel splits by when use_regex is set: the pattern of GPT-2.
constexpr char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[noreturn]] void unsupported(const std::string& what) {
  throw Error(MLCB_ERROR_UNSUPPORTED, "tokenizer: pre_tokenizer " + what);
}

bool flag(const Json& json, std::string_view key, bool fallback) {
  const Json* value = json.find(key);
  return value == nullptr || value->is_null() ? fallback : value->as_bool();
}

}  // namespace

PreTokenizer PreTokenizer::from_json(const Json* json) {
  PreTokenizer result;
  if (json != nullptr && !json->is_null()) result.add(*json);
  return result;
}

void PreTokenizer::add(const Json& json) {
  const std::string& type = json.at("type").as_string();
  // ByteLevel rewrites the text into stand-ins for bytes; what follows would see those.
  if (byte_level_) unsupported("'" + type + "' behind ByteLevel is not supported");
  Step step;
  if (type == "Sequence") {
    for (const Json& item : json.at("pretokenizers").items()) add(item);
    return;
  }
  if (type == "Split") return add_split(json);
  if (type == "Metaspace") return add_metaspace(json);
  if (type == "ByteLevel") {
    byte_level_ = true;
    if (flag(json, "add_prefix_space", true)) {
      step.kind = StepKind::kPrefix;
      steps_.push_back(step);
    }
    if (!flag(json, "use_regex", true)) return;
    step.kind = StepKind::kRegex;
    step.regex = Regex::compile(kGpt2Pattern);
  } else if (type == "Digits") {
    step.kind = StepKind::kChars;
    step.behavior =
        flag(json, "individual_digits", false) ? Behavior::kIsolated : Behavior::kContiguous;
  } else if (type == "Punctuation") {
    step.kind = StepKind::kChars;
    step.chars = CharKind::kPunctuation;
    step.behavior = behavior_of(json.find("behavior"), Behavior::kIsolated, type);
  } else if (type == "WhitespaceSplit") {
    step.kind = StepKind::kChars;
    step.chars = CharKind::kSpace;
    step.behavior = Behavior::kRemoved;
  } else if (type == "Whitespace") {
    step.kind = StepKind::kWhitespace;
  } else {
    unsupported("'" + type + "' is not supported");
  }
  steps_.push_back(std::move(step));
}

void PreTokenizer::add_split(const Json& json) {
  Step step;
  const Json& pattern = json.at("pattern");
  if (const Json* regex = pattern.find("Regex")) {
    step.regex = Regex::compile(regex->as_string());
  } else if (const Json* literal = pattern.find("String")) {
    step.kind = StepKind::kLiteral;
    step.literal = literal->as_string();
    if (step.literal.empty()) unsupported("Split with an empty pattern is not supported");
    step.regex = Regex::literal(step.literal);
  } else {
    unsupported("Split with a pattern that is neither Regex nor String");
  }
  step.behavior = behavior_of(&json.at("behavior"), Behavior::kIsolated, "Split");
  step.invert = flag(json, "invert", false);
  steps_.push_back(std::move(step));
}

void PreTokenizer::add_metaspace(const Json& json) {
  Step step;
  step.kind = StepKind::kPrefix;
  const std::string& text = json.at("replacement").as_string();
  const Utf8Char c =
      text.empty() ? Utf8Char() : utf8_decode(text.data(), text.data() + text.size());
  if (c.size == 0 || c.size != text.size()) {
    unsupported("Metaspace with a replacement that is not one character");
  }
  step.space = c.code;
  const Json* scheme = json.find("prepend_scheme");
  const std::string name = scheme == nullptr ? "always" : scheme->as_string();
  if (name != "always" && name != "first" && name != "never") {
    unsupported("Metaspace with prepend_scheme '" + name + "'");
  }
  step.prefix = name == "always"  ? Prefix::kAlways
                : name == "first" ? Prefix::kFirst
                                  : Prefix::kNever;
  if (!flag(json, "add_prefix_space", true) && step.prefix != Prefix::kNever) {
    unsupported("Metaspace whose add_prefix_space contradicts its prepend_scheme");
  }
  steps_.push_back(step);
  if (!flag(json, "split", true)) return;
  Step split;
  split.kind = StepKind::kLiteral;
  split.literal = text;
  split.regex = Regex::literal(text);
  split.behavior = Behavior::kMergedWithNext;
  steps_.push_back(std::move(split));
}

PreTokenizer::Behavior PreTokenizer::behavior_of(const Json* name, Behavior fallback,
                                                 const std::string& type) {
  if (name == nullptr || name->is_null()) return fallback;
  static constexpr struct {
    const char* name;
    Behavior behavior;
  } kBehaviors[] = {{"Removed", Behavior::kRemoved},
                    {"Isolated", Behavior::kIsolated},
                    {"MergedWithPrevious", Behavior::kMergedWithPrevious},
                    {"MergedWithNext", Behavior::kMergedWithNext},
                    {"Contiguous", Behavior::kContiguous}};
  for (const auto& entry : kBehaviors) {
    if (name->as_string() == entry.name) return entry.behavior;
  }
  unsupported(type + " behavior '" + name->as_string() + "'");
}

bool PreTokenizer::keeps(std::string_view text) const {
  for (const Step& step : steps_) {
    const bool removed = step.behavior == Behavior::kRemoved && step.invert;
    if (step.kind != StepKind::kLiteral || removed) return false;
    if (text.find(step.literal) != std::string_view::npos) return false;
  }
  return true;
}

PreTokenizer::Matchers PreTokenizer::make_matchers() const {
  Matchers matchers;
  for (const Step& step : steps_) matchers.emplace_back(step.regex);
  return matchers;
}

void PreTokenizer::apply_behavior(Behavior behavior, const std::vector<Span>& spans,
                                  std::vector<Piece>* out) {
  const size_t first = out->size();
  auto keep = [&](const Span& span) { out->push_back({span.begin, span.end}); };
  bool previous = false;
  switch (behavior) {
    case Behavior::kIsolated:
      for (const Span& span : spans) keep(span);
      break;
    case Behavior::kRemoved:
      for (const Span& span : spans) {
        if (!span.match) keep(span);
      }
      break;
    case Behavior::kContiguous:
      for (const Span& span : spans) {
        if (span.match == previous && out->size() > first) {
          out->back().end = span.end;
        } else {
          keep(span);
        }
        previous = span.match;
      }
      break;
    case Behavior::kMergedWithPrevious:
      for (const Span& span : spans) {
        if (span.match && !previous && out->size() > first) {
          out->back().end = span.end;
        } else {
          keep(span);
        }
        previous = span.match;
      }
      break;
    case Behavior::kMergedWithNext:
      for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
        if (span->match && !previous && out->size() > first) {
          out->back().begin = span->begin;
        } else {
          keep(*span);
        }
        previous = span->match;
      }
      std::reverse(out->begin() + static_cast<ptrdiff_t>(first), out->end());
      break;
  }
  out->erase(std::remove_if(out->begin() + static_cast<ptrdiff_t>(first), out->end(),
                            [](const Piece& piece) { return piece.begin == piece.end; }),
             out->end());
}

// Replaces spaces, and puts one in front of each piece that lacks it.
void PreTokenizer::apply_prefix(const Step& step, bool at_begin, std::vector<RegexChar>* text,
                                std::vector<Piece>* pieces) {
  const RegexChar space = make_regex_char(step.space, unicode_category(step.space));
  if (step.space != ' ') {
    for (RegexChar& c : *text) {
      if (code_of(c) == ' ') c = space;
    }
  }
  auto lacks = [&](const Piece& piece) {
    if (step.prefix == Prefix::kNever || (*text)[piece.begin] == space) return false;
    return step.prefix == Prefix::kAlways || (at_begin && piece.begin == 0);
  };
  size_t count = 0;
  for (const Piece& piece : *pieces) count += lacks(piece) ? 1 : 0;
  if (count == 0) return;
  std::vector<RegexChar> prefixed;
  prefixed.reserve(text->size() + count);
  for (Piece& piece : *pieces) {
    const size_t begin = prefixed.size();
    if (lacks(piece)) prefixed.push_back(space);
    prefixed.insert(prefixed.end(), text->begin() + static_cast<ptrdiff_t>(piece.begin),
                    text->begin() + static_cast<ptrdiff_t>(piece.end));
    piece = {begin, prefixed.size()};
  }
  text->swap(prefixed);
}

// Runs of word characters, and runs of what is neither a word character nor white space.
void PreTokenizer::find_words(const std::vector<RegexChar>& text, const Piece& piece,
                              std::vector<Piece>* out) {
  int last = 0;  // 0: white space, 1: word, 2: other
  for (size_t at = piece.begin; at < piece.end; ++at) {
    const uint32_t code = code_of(text[at]);
    const bool valid = code < kInvalidByte;
    const int kind = valid && unicode_is_white_space(code)      ? 0
                     : valid && unicode_is_word_or_joiner(code) ? 1
                                                                : 2;
    if (kind != 0 && kind == last) {
      out->back().end = at + 1;
    } else if (kind != 0) {
      out->push_back({at, at + 1});
    }
    last = kind;
  }
}

bool PreTokenizer::matches(CharKind kind, RegexChar c) {
  const uint32_t code = code_of(c);
  if (code >= kInvalidByte) return false;
  switch (kind) {
    case CharKind::kDigit:
      return unicode_is_numeric(code);
    case CharKind::kPunctuation:
      return unicode_is_punctuation(code);
    case CharKind::kSpace:
      return unicode_is_white_space(code);
  }
  return false;
}

void PreTokenizer::split(std::vector<RegexChar>* text, std::vector<Piece>* pieces,
                         Matchers* matchers, bool at_begin) const {
  pieces->clear();
  if (!text->empty()) pieces->push_back({0, text->size()});
  std::vector<Piece> result;
  std::vector<Span> spans;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    if (step.kind == StepKind::kPrefix) {
      apply_prefix(step, at_begin, text, pieces);
      continue;
    }
    result.clear();
    for (const Piece& piece : *pieces) {
      if (step.kind == StepKind::kWhitespace) {
        find_words(*text, piece, &result);
        continue;
      }
      spans.clear();
      size_t done = piece.begin;
      auto add_match = [&](size_t begin, size_t end) {
        if (begin != done) spans.push_back({done, begin, step.invert});
        spans.push_back({begin, end, !step.invert});
        done = end;
      };
      if (step.kind == StepKind::kChars) {
        for (size_t at = piece.begin; at < piece.end; ++at) {
          if (matches(step.chars, (*text)[at])) add_match(at, at + 1);
        }
      } else {
        RegexMatcher& matcher = (*matchers)[i];
        matcher.reset(text->data() + piece.begin, piece.end - piece.begin);
        size_t begin = 0, end = 0;
        while (matcher.next(&begin, &end)) add_match(piece.begin + begin, piece.begin + end);
      }
      if (done != piece.end) spans.push_back({done, piece.end, step.invert});
      apply_behavior(step.behavior, spans, &result);
    }
    pieces->swap(result);
  }
}

}  // namespace mlcb
