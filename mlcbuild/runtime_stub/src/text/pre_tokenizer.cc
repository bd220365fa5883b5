#include "text/pre_tokenizer.h"

#include <algorithm>

#include "core/error.h"
#include "text/unicode.h"

namespace mlcb {
namespace {

// What ByteLevel splits by when use_regex is set: the pattern of GPT-2.
constexpr char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[noreturn]] void unsupported(const std::string& what) {
  throw Error(MLCB_ERROR_UNSUPPORTED, "tokenizer: " + what);
}

bool flag(const Json& json, std::string_view key, bool fallback) {
  const Json* value = json.find(key);
  return value == nullptr || value->is_null() ? fallback : value->as_bool();
}

}  // namespace

PreTokenizer PreTokenizer::from_json(const Json* json) {
  if (json == nullptr || json->is_null()) {
    unsupported("no pre_tokenizer: only byte-level tokenizers (ByteLevel) are supported");
  }
  PreTokenizer result;
  bool has_byte_level = false;
  result.add(*json, &has_byte_level);
  if (!has_byte_level) {
    unsupported("pre_tokenizer without ByteLevel: only byte-level tokenizers are supported");
  }
  return result;
}

void PreTokenizer::add(const Json& json, bool* has_byte_level) {
  const std::string& type = json.at("type").as_string();
  // ByteLevel rewrites the text into stand-ins for bytes; what follows would see those.
  if (*has_byte_level) unsupported("pre_tokenizer '" + type + "' behind ByteLevel");
  if (type == "Sequence") {
    for (const Json& step : json.at("pretokenizers").items()) add(step, has_byte_level);
  } else if (type == "ByteLevel") {
    *has_byte_level = true;
    if (flag(json, "add_prefix_space", true)) {
      Step step;
      step.kind = StepKind::kPrefixSpace;
      steps_.push_back(std::move(step));
    }
    if (flag(json, "use_regex", true)) {
      Step step;
      step.regex = Regex::compile(kGpt2Pattern);
      steps_.push_back(std::move(step));
    }
  } else if (type == "Digits") {
    Step step;
    step.kind = StepKind::kDigits;
    step.behavior =
        flag(json, "individual_digits", false) ? Behavior::kIsolated : Behavior::kContiguous;
    steps_.push_back(std::move(step));
  } else if (type == "Split") {
    Step step;
    const Json& pattern = json.at("pattern");
    if (const Json* regex = pattern.find("Regex")) {
      step.regex = Regex::compile(regex->as_string());
    } else if (const Json* literal = pattern.find("String")) {
      step.regex = Regex::literal(literal->as_string());
    } else {
      unsupported("pre_tokenizer Split with a pattern that is neither Regex nor String");
    }
    static constexpr struct {
      const char* name;
      Behavior behavior;
    } kBehaviors[] = {{"Removed", Behavior::kRemoved},
                      {"Isolated", Behavior::kIsolated},
                      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
                      {"MergedWithNext", Behavior::kMergedWithNext},
                      {"Contiguous", Behavior::kContiguous}};
    const std::string& name = json.at("behavior").as_string();
    const auto* found = std::find_if(std::begin(kBehaviors), std::end(kBehaviors),
                                     [&](const auto& entry) { return name == entry.name; });
    if (found == std::end(kBehaviors)) unsupported("pre_tokenizer Split behavior '" + name + "'");
    step.behavior = found->behavior;
    step.invert = flag(json, "invert", false);
    steps_.push_back(std::move(step));
  } else {
    unsupported("pre_tokenizer '" + type + "' is not supported");
  }
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

void PreTokenizer::split(std::vector<RegexChar>* text, std::vector<Piece>* pieces,
                         Matchers* matchers) const {
  pieces->clear();
  if (!text->empty()) pieces->push_back({0, text->size()});
  std::vector<Piece> result;
  std::vector<Span> spans;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    result.clear();
    if (step.kind == StepKind::kPrefixSpace) {
      std::vector<RegexChar> prefixed;
      prefixed.reserve(text->size() + pieces->size());
      for (const Piece& piece : *pieces) {
        const size_t begin = prefixed.size();
        if (code_of((*text)[piece.begin]) != ' ') prefixed.push_back(make_regex_char(' ', kZs));
        prefixed.insert(prefixed.end(), text->begin() + static_cast<ptrdiff_t>(piece.begin),
                        text->begin() + static_cast<ptrdiff_t>(piece.end));
        result.push_back({begin, prefixed.size()});
      }
      text->swap(prefixed);
      pieces->swap(result);
      continue;
    }
    for (const Piece& piece : *pieces) {
      spans.clear();
      size_t done = piece.begin;
      auto add_match = [&](size_t begin, size_t end) {
        if (begin != done) spans.push_back({done, begin, step.invert});
        spans.push_back({begin, end, !step.invert});
        done = end;
      };
      if (step.kind == StepKind::kDigits) {
        for (size_t at = piece.begin; at < piece.end; ++at) {
          if (kCategoriesNumber >> category_of((*text)[at]) & 1) add_match(at, at + 1);
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
