#include "text/normalizer.h"

#include "core/error.h"
#include "core/utf8.h"

namespace mlcb {
namespace {

[[noreturn]] void unsupported_normalizer(const std::string& what) {
  throw Error(MLCB_ERROR_UNSUPPORTED, "tokenizer: normalizer " + what + " is not supported");
}

// Calls visit(bytes, code) for each character; code is kInvalidByte + byte for a stray byte.
template <typename Visit>
void for_each_char(std::string_view text, Visit visit) {
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p != end;) {
    const Utf8Char c = utf8_decode(p, end);
    const size_t size = c.size != 0 ? c.size : 1;
    visit(std::string_view(p, size),
          c.size != 0 ? c.code : kInvalidByte + static_cast<uint8_t>(*p));
    p += size;
  }
}

uint32_t first_char(std::string_view text) {
  const Utf8Char c = utf8_decode(text.data(), text.data() + text.size());
  return c.size != 0 ? c.code : kInvalidByte;
}

size_t count_chars(std::string_view text) {
  size_t count = 0;
  for_each_char(text, [&](std::string_view, uint32_t) { ++count; });
  return count;
}

std::string_view strip(std::string_view text, bool left, bool right) {
  size_t begin = 0, end = 0;  // end: behind the last character that stays
  bool started = !left;
  size_t at = 0;
  for_each_char(text, [&](std::string_view bytes, uint32_t code) {
    const bool space = code < kInvalidByte && unicode_is_white_space(code);
    if (!started && !space) {
      started = true;
      begin = at;
    }
    at += bytes.size();
    if (!space) end = at;
  });
  if (!started) return std::string_view();
  if (!right) end = text.size();
  return end > begin ? text.substr(begin, end - begin) : std::string_view();
}

}  // namespace

bool replace_text(std::string_view text, std::string_view pattern, std::string_view content,
                  std::string* out) {
  size_t found = text.find(pattern);
  if (found == std::string_view::npos) return false;
  out->clear();
  out->reserve(text.size() + text.size() / 4);
  size_t done = 0;
  for (; found != std::string_view::npos; found = text.find(pattern, done)) {
    out->append(text.data() + done, found - done);
    out->append(content);
    done = found + pattern.size();
  }
  out->append(text.data() + done, text.size() - done);
  return true;
}

bool replace_matches(const Regex& regex, std::string_view text, std::string_view content,
                     std::vector<RegexChar>* chars, std::string* out, size_t* at_front) {
  if (text.empty()) return false;
  regex_chars(text, chars);
  RegexMatcher matcher(regex);
  matcher.reset(chars->data(), chars->size());
  size_t begin = 0, end = 0, done = 0;
  bool any = false;
  while (matcher.next(&begin, &end)) {
    if (!any) out->clear();
    if (!any && at_front != nullptr) *at_front = begin == 0 ? end : 0;
    any = true;
    append_utf8(chars->data() + done, begin - done, out);
    out->append(content);
    done = end;
  }
  if (any) append_utf8(chars->data() + done, chars->size() - done, out);
  return any;
}

Normalizer Normalizer::from_json(const Json* json) {
  Normalizer result;
  if (json != nullptr && !json->is_null()) result.add(*json);
  return result;
}

void Normalizer::add(const Json& json) {
  const std::string& type = json.at("type").as_string();
  Step step;
  if (type == "Sequence") {
    for (const Json& item : json.at("normalizers").items()) add(item);
    return;
  }
  if (type == "Replace") return add_replace(json);
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.form = type == "NFC"    ? UnicodeForm::kNfc
                : type == "NFD"  ? UnicodeForm::kNfd
                : type == "NFKC" ? UnicodeForm::kNfkc
                                 : UnicodeForm::kNfkd;
  } else if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    step.content = json.at("prepend").as_string();
  } else if (type == "Lowercase") {
    step.kind = Kind::kLowercase;
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    step.left = json.at("strip_left").as_bool();
    step.right = json.at("strip_right").as_bool();
  } else if (type == "StripAccents") {
    step.kind = Kind::kStripAccents;
  } else if (type == "Precompiled") {
    step.kind = Kind::kPrecompiled;
    step.precompiled = Precompiled::from_base64(json.at("precompiled_charsmap").as_string());
  } else {
    unsupported_normalizer("'" + type + "'");
  }
  steps_.push_back(std::move(step));
}

void Normalizer::add_replace(const Json& json) {
  Step step;
  step.kind = Kind::kReplaceText;
  step.content = json.at("content").as_string();
  const Json& pattern = json.at("pattern");
  if (const Json* text = pattern.find("String")) {
    step.pattern = text->as_string();
    if (step.pattern.empty()) unsupported_normalizer("Replace of an empty text");
  } else if (const Json* regex = pattern.find("Regex")) {
    step.kind = Kind::kReplaceRegex;
    step.regex = Regex::compile(regex->as_string());
  } else {
    unsupported_normalizer("Replace with a pattern that is neither Regex nor String");
  }
  steps_.push_back(std::move(step));
}

std::string_view Normalizer::apply(std::string_view text, Scratch* scratch) const {
  scratch->front_lost = false;
  for (const Step& step : steps_) {
    if (!apply_step(step, text, scratch, &scratch->other)) continue;
    scratch->front_lost = loses_front(step, text, *scratch);
    scratch->text.swap(scratch->other);
    text = scratch->text;
  }
  return text;
}

// What becomes of "the first character is the one that the text began with": a pre_tokenizer may
// ask for it.
bool Normalizer::loses_front(const Step& step, std::string_view before, const Scratch& scratch) {
  bool lost = false;
  // The reference counts what replaces several characters as the last of them.
  auto replaced = [&](size_t chars) { return chars > (step.content.empty() ? 0u : 1u); };
  switch (step.kind) {
    case Kind::kPrepend:
      return scratch.front_lost && step.content.empty();
    case Kind::kReplaceText:
      lost = before.substr(0, step.pattern.size()) == step.pattern &&
             replaced(count_chars(step.pattern));
      break;
    case Kind::kReplaceRegex:
      lost = replaced(scratch.front_matched);
      break;
    case Kind::kStrip:
      lost = step.left && !before.empty() && unicode_is_white_space(first_char(before));
      break;
    case Kind::kStripAccents:
      lost = !before.empty() && unicode_is_accent(first_char(before));
      break;
    default:
      break;
  }
  return lost || scratch.front_lost;
}

bool Normalizer::apply_step(const Step& step, std::string_view text, Scratch* scratch,
                            std::string* out) {
  switch (step.kind) {
    case Kind::kForm:
      return unicode_normalize(step.form, text, out);
    case Kind::kPrepend:
      if (text.empty()) return false;
      *out = step.content;
      out->append(text);
      return true;
    case Kind::kReplaceText:
      return replace_text(text, step.pattern, step.content, out);
    case Kind::kReplaceRegex:
      return replace_matches(step.regex, text, step.content, &scratch->chars, out,
                             &scratch->front_matched);
    case Kind::kLowercase:
    case Kind::kStripAccents:
      out->clear();
      for_each_char(text, [&](std::string_view bytes, uint32_t code) {
        if (code >= kInvalidByte) {
          out->append(bytes);
        } else if (step.kind == Kind::kLowercase) {
          unicode_append_lower(code, out);
        } else if (!unicode_is_accent(code)) {
          out->append(bytes);
        }
      });
      return true;
    case Kind::kStrip:
      *out = strip(text, step.left, step.right);
      return true;
    case Kind::kPrecompiled:
      return step.precompiled.apply(text, out);
  }
  return false;
}

}  // namespace mlcb
