// Methods of texts, lists and dicts.
#include <algorithm>

#include "core/utf8.h"
#include "jinja/builtins.h"
#include "jinja/format.h"
#include "jinja/interpreter.h"
#include "jinja/python.h"
#include "jinja/python_text.h"
#include "text/unicode.h"

namespace mlcb::jinja {

void bind_arguments(const char* function, const CallArguments& arguments, const char* const* names,
                    size_t count, size_t required, Value* values) {
  if (arguments.positional.size() > count) {
    fail(std::string(function) + " takes " + std::to_string(count) + " arguments at most, " +
         std::to_string(arguments.positional.size()) + " are given");
  }
  std::copy(arguments.positional.begin(), arguments.positional.end(), values);
  for (const auto& [name, value] : arguments.keywords) {
    size_t index = 0;
    while (index < count && (name.empty() || name != names[index])) ++index;
    if (index == count) fail(std::string(function) + " takes no argument '" + name + "'");
    if (values[index].given()) {
      fail(std::string(function) + ": the argument '" + name + "' is given twice");
    }
    values[index] = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!values[i].given()) fail(std::string(function) + " lacks an argument");
  }
}

void require_no_arguments(const char* function, const CallArguments& arguments) {
  if (!arguments.positional.empty() || !arguments.keywords.empty()) {
    fail(std::string(function) + " takes no arguments");
  }
}

namespace {

const std::string& text_argument(const Value& value, const char* function) {
  if (value.is(Kind::kUndefined)) fail_undefined(value);
  if (!value.is_string()) {
    fail(std::string(function) + " takes a text, not " + type_name(value));
  }
  return value.text();
}

int64_t count_argument(const Value& value, const char* function, int64_t fallback) {
  return value.given() ? integer_of(value, function) : fallback;
}

Value to_list(Interpreter& interpreter, const std::vector<std::string_view>& parts) {
  interpreter.heap().expect(parts.size() * (sizeof(StringObject) + sizeof(Value)));
  interpreter.heap().work(2 * parts.size());
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) {
    items.push_back(interpreter.heap().string(std::string(part)));
  }
  return interpreter.heap().list(std::move(items));
}

// Steps for reading a text once.
void read(Interpreter& interpreter, const std::string& text) {
  interpreter.heap().work(text.size() / 16);
}

// ---- stripping and splitting ----

template <bool left, bool right>
Value strip_method(Interpreter& interpreter, const Value& self, const CallArguments& arguments) {
  const Parameters<1> given("strip", arguments, {""}, 0);
  const std::string& text = self.text();
  if (!given[0].given() || given[0].is(Kind::kNone)) {
    return interpreter.heap().string(std::string(strip(text, left, right)));
  }
  const std::string& chars = text_argument(given[0], "strip");
  interpreter.heap().work((text.size() / 64 + 1) * (chars.size() / 4 + 1));
  return interpreter.heap().string(std::string(strip(text, chars, left, right)));
}

template <bool from_right>
Value split_method(Interpreter& interpreter, const Value& self, const CallArguments& arguments) {
  const Parameters<2> given("split", arguments, {"sep", "maxsplit"}, 0);
  const int64_t limit = count_argument(given[1], "maxsplit", -1);
  read(interpreter, self.text());
  if (!given[0].given() || given[0].is(Kind::kNone)) {
    return to_list(interpreter, split_white_space(self.text(), limit, from_right));
  }
  const std::string& separator = text_argument(given[0], "split");
  if (separator.empty()) fail("split takes no empty separator");
  return to_list(interpreter, split(self.text(), separator, limit, from_right));
}

Value splitlines_method(Interpreter& interpreter, const Value& self,
                        const CallArguments& arguments) {
  const Parameters<1> given("splitlines", arguments, {"keepends"}, 0);
  read(interpreter, self.text());
  return to_list(interpreter, split_lines(self.text(), truth(given[0])));
}

template <bool last>
Value partition_method(Interpreter& interpreter, const Value& self,
                       const CallArguments& arguments) {
  const Parameters<1> given("partition", arguments, {""}, 1);
  const std::string& separator = text_argument(given[0], "partition");
  if (separator.empty()) fail("partition takes no empty separator");
  const std::string_view text = self.text();
  read(interpreter, self.text());
  const size_t at = last ? find_last_text(text, separator) : find_text(text, separator, 0);
  std::string_view parts[3] = {last ? "" : text, "", last ? text : ""};
  if (at != std::string_view::npos) {
    parts[0] = text.substr(0, at);
    parts[1] = separator;
    parts[2] = text.substr(at + separator.size());
  }
  std::vector<Value> items;
  for (const std::string_view part : parts) {
    items.push_back(interpreter.heap().string(std::string(part)));
  }
  return interpreter.heap().list(std::move(items), Flavor::kTuple);
}

template <bool prefix>
Value remove_method(Interpreter& interpreter, const Value& self, const CallArguments& arguments) {
  const Parameters<1> given("removeprefix", arguments, {""}, 1);
  const std::string& part = text_argument(given[0], "removeprefix");
  std::string_view text = self.text();
  if (text.size() >= part.size()) {
    const size_t rest = text.size() - part.size();
    if (prefix && text.substr(0, part.size()) == part) text.remove_prefix(part.size());
    if (!prefix && text.substr(rest) == part) text.remove_suffix(part.size());
  }
  return interpreter.heap().string(std::string(text));
}

// ---- finding ----

// self[start:end], whose bytes begin at *offset and whose characters at *index; false if start lies
// behind the end.
bool part_of(const Value& self, const Value& start, const Value& end, std::string_view* part,
             int64_t* index) {
  const std::string_view text = self.text();
  const int64_t size = character_count(text);
  const auto clamp = [&](const Value& value, int64_t fallback) {
    if (!value.given() || value.is(Kind::kNone)) return fallback;
    const int64_t at = integer_of(value, "a position");
    return at < 0 ? std::max<int64_t>(0, at < -size ? 0 : at + size) : at;
  };
  const int64_t from = clamp(start, 0);
  const int64_t to = std::min(clamp(end, size), size);
  *index = from;
  if (from > size || from > to) return false;
  const size_t begin = character_offset(text, from);
  *part = text.substr(begin, character_offset(text.substr(begin), to - from));
  return true;
}

template <bool last, bool must>
Value find_method_of_text(Interpreter& interpreter, const Value& self,
                          const CallArguments& arguments) {
  const Parameters<3> given("find", arguments, {"", "", ""}, 1);
  const std::string& wanted = text_argument(given[0], "find");
  std::string_view part;
  int64_t index = 0;
  read(interpreter, self.text());
  size_t at = std::string_view::npos;
  if (part_of(self, given[1], given[2], &part, &index)) {
    at = last ? find_last_text(part, wanted) : find_text(part, wanted, 0);
  }
  if (at == std::string_view::npos) {
    if (must) fail("the text to find is not there");
    return Value::integer(-1);
  }
  return Value::integer(index + character_count(part.substr(0, at)));
}

Value count_method(Interpreter& interpreter, const Value& self, const CallArguments& arguments) {
  const Parameters<3> given("count", arguments, {"", "", ""}, 1);
  const std::string& wanted = text_argument(given[0], "count");
  std::string_view part;
  int64_t index = 0, count = 0;
  read(interpreter, self.text());
  if (!part_of(self, given[1], given[2], &part, &index)) return Value::integer(0);
  if (wanted.empty()) return Value::integer(character_count(part) + 1);
  for (size_t at = 0; (at = find_text(part, wanted, at)) != std::string_view::npos;
       at += wanted.size()) {
    ++count;
  }
  return Value::integer(count);
}

template <bool start>
Value starts_method(Interpreter&, const Value& self, const CallArguments& arguments) {
  const char* function = start ? "startswith" : "endswith";
  const Parameters<3> given(function, arguments, {"", "", ""}, 1);
  std::string_view part;
  int64_t index = 0;
  const bool inside = part_of(self, given[1], given[2], &part, &index);
  const auto matches = [&](const Value& wanted) {
    const std::string& text = text_argument(wanted, function);
    if (!inside || text.size() > part.size()) return false;
    return part.substr(start ? 0 : part.size() - text.size(), text.size()) == text;
  };
  if (!given[0].is_sequence(Flavor::kTuple)) return Value::boolean(matches(given[0]));
  const std::vector<Value>& all = given[0].sequence().items;
  return Value::boolean(std::any_of(all.begin(), all.end(), matches));
}

Value replace_method(Interpreter& interpreter, const Value& self, const CallArguments& arguments) {
  const Parameters<3> given("replace", arguments, {"", "", "count"}, 2);
  const std::string& old = text_argument(given[0], "replace");
  const std::string& with = text_argument(given[1], "replace");
  const int64_t limit = count_argument(given[2], "count", -1);
  const size_t places = self.text().size() / std::max<size_t>(1, old.size()) + 1;
  if (with.size() > old.size() && places * with.size() > (size_t{1} << 20)) {
    // Only what is really there counts.
    size_t found = 0;
    if (old.empty()) {
      found = places;
    } else {
      for (size_t at = 0; (at = find_text(self.text(), old, at)) != std::string_view::npos;
           at += old.size()) {
        ++found;
      }
    }
    interpreter.heap().expect(self.text().size() + found * with.size());
  }
  std::string text = replace(self.text(), old, with, limit);
  interpreter.heap().work((self.text().size() + text.size()) / 16);
  return interpreter.heap().string(std::move(text));
}

Value join_method(Interpreter& interpreter, const Value& self, const CallArguments& arguments) {
  const Parameters<1> given("join", arguments, {""}, 1);
  const Value items = iterate(interpreter.heap(), given[0]);
  std::string text;
  bool first = true;
  for (const Value& item : items.sequence().items) {
    interpreter.heap().expect(text.size() + self.text().size() +
                              text_argument(item, "join").size());
    if (!first) text += self.text();
    first = false;
    text += item.text();
    interpreter.heap().work(1 + (self.text().size() + item.text().size()) / 64);
  }
  return interpreter.heap().string(std::move(text));
}

// ---- case and width ----

template <std::string (*convert)(std::string_view)>
Value convert_method(Interpreter& interpreter, const Value& self, const CallArguments& arguments) {
  require_no_arguments("this method", arguments);
  interpreter.heap().work(self.text().size() / 8);
  return interpreter.heap().string(convert(self.text()));
}

std::string swap_case(std::string_view text) {
  std::string out;
  for (const std::string_view one : characters(text))
    out += is_upper(one) ? to_lower(one) : to_upper(one);
  return out;
}

Value pad_method(Interpreter& interpreter, const Value& self, const CallArguments& arguments,
                 char align) {
  const Parameters<2> given("ljust", arguments, {"", ""}, 1);
  const int64_t width = integer_of(given[0], "a width");
  const std::string fill = given[1].given() ? text_argument(given[1], "ljust") : " ";
  if (character_count(fill) != 1) fail("a text is filled up with one character");
  const int64_t missing = width - character_count(self.text());
  if (missing <= 0) return self;
  interpreter.heap().expect(self.text().size() + static_cast<size_t>(missing) * fill.size());
  const int64_t left = align == '<'   ? 0
                       : align == '>' ? missing
                                      : missing / 2 + (missing & width & 1);
  std::string before, behind;
  for (int64_t i = 0; i < missing; ++i) (i < left ? before : behind) += fill;
  return interpreter.heap().string(before + self.text() + behind);
}

template <char align>
Value align_method(Interpreter& interpreter, const Value& self, const CallArguments& arguments) {
  return pad_method(interpreter, self, arguments, align);
}

Value zfill_method(Interpreter& interpreter, const Value& self, const CallArguments& arguments) {
  const Parameters<1> given("zfill", arguments, {""}, 1);
  const int64_t missing = integer_of(given[0], "a width") - character_count(self.text());
  if (missing <= 0) return self;
  interpreter.heap().expect(self.text().size() + static_cast<size_t>(missing));
  const bool sign = !self.text().empty() && (self.text()[0] == '-' || self.text()[0] == '+');
  return interpreter.heap().string(self.text().substr(0, sign ? 1 : 0) +
                                   std::string(static_cast<size_t>(missing), '0') +
                                   self.text().substr(sign ? 1 : 0));
}

Value format_method(Interpreter& interpreter, const Value& self, const CallArguments& arguments) {
  return interpreter.heap().string(format_braces(interpreter.heap(), self.text(), arguments));
}

// ---- kinds of characters ----

// Whether there are characters, and all are of a kind.
template <bool (*is_kind)(uint32_t)>
Value all_method(Interpreter& interpreter, const Value& self, const CallArguments& arguments) {
  require_no_arguments("this method", arguments);
  const std::string& text = self.text();
  interpreter.heap().work(text.size() / 8);
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p != end;) {
    const Utf8Char c = utf8_decode(p, end);
    if (c.size == 0 || !is_kind(c.code)) return Value::boolean(false);
    p += c.size;
  }
  return Value::boolean(!text.empty());
}

bool is_of(uint32_t code, uint32_t categories) {
  return (category_bit(unicode_category(code)) & categories) != 0;
}

bool is_decimal(uint32_t code) { return is_of(code, category_bit(kNd)); }

// Decimal digits, and those raised, lowered or in circles.
bool is_digit(uint32_t code) {
  return is_decimal(code) || code == 0xB2 || code == 0xB3 || code == 0xB9 || code == 0x2070 ||
         (code >= 0x2074 && code <= 0x2079) || (code >= 0x2080 && code <= 0x2089) ||
         (code >= 0x2460 && code <= 0x2468);
}

bool is_letter(uint32_t code) { return is_of(code, kCategoriesLetter); }
bool is_letter_or_number(uint32_t code) {
  return is_of(code, kCategoriesLetter | kCategoriesNumber);
}

template <bool (*check)(std::string_view)>
Value case_method(Interpreter&, const Value& self, const CallArguments& arguments) {
  require_no_arguments("this method", arguments);
  return Value::boolean(check(self.text()));
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

bool is_all_printable(std::string_view text) {
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p != end;) {
    const Utf8Char c = utf8_decode(p, end);
    if (c.size == 0 || !is_printable(c.code)) return false;
    p += c.size;
  }
  return true;
}

Value missing_method(Interpreter&, const Value& self, const CallArguments&) {
  fail(std::string("a method of ") + type_name(self) + " is called that is not supported");
}

// ---- lists and dicts ----

Value copy_method(Interpreter& interpreter, const Value& self, const CallArguments& arguments) {
  require_no_arguments("copy", arguments);
  if (self.is(Kind::kDict)) return interpreter.heap().dict(self.dict().items);
  return interpreter.heap().list(self.sequence().items);
}

Value count_item_method(Interpreter&, const Value& self, const CallArguments& arguments) {
  const Parameters<1> given("count", arguments, {""}, 1);
  int64_t count = 0;
  for (const Value& item : self.sequence().items) count += equal(item, given[0]) ? 1 : 0;
  return Value::integer(count);
}

Value index_item_method(Interpreter& interpreter, const Value& self,
                        const CallArguments& arguments) {
  const Parameters<1> given("index", arguments, {""}, 1);
  const std::vector<Value>& items = self.sequence().items;
  interpreter.heap().work(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    if (equal(items[i], given[0])) return Value::integer(static_cast<int64_t>(i));
  }
  fail("the value is not in the list");
}

Value get_method(Interpreter& interpreter, const Value& self, const CallArguments& arguments) {
  const Parameters<2> given("get", arguments, {"", ""}, 1);
  require_hashable(given[0]);
  interpreter.heap().work(self.dict().items.size() / 8);
  if (const Value* found = self.dict().find(given[0])) return *found;
  return given[1].given() ? given[1] : Value::none();
}

template <Flavor flavor>
Value view_method(Interpreter& interpreter, const Value& self, const CallArguments& arguments) {
  require_no_arguments("a method of a dict", arguments);
  Heap& heap = interpreter.heap();
  const auto& given = self.dict().items;
  heap.expect(given.size() * (sizeof(SequenceObject) + 3 * sizeof(Value)));
  heap.work(given.size());
  std::vector<Value> items;
  items.reserve(given.size());
  for (const auto& [key, value] : given) {
    if (flavor == Flavor::kItems) {
      items.push_back(heap.list({key, value}, Flavor::kTuple));
    } else {
      items.push_back(flavor == Flavor::kKeys ? key : value);
    }
  }
  return heap.list(std::move(items), flavor);
}

const Method kTextMethods[] = {
    {"capitalize", convert_method<capitalize>},
    {"casefold", missing_method},
    {"center", align_method<'^'>},
    {"count", count_method},
    {"encode", missing_method},
    {"endswith", starts_method<false>},
    {"expandtabs", missing_method},
    {"find", find_method_of_text<false, false>},
    {"format", format_method},
    {"format_map", missing_method},
    {"index", find_method_of_text<false, true>},
    {"isalnum", all_method<is_letter_or_number>},
    {"isalpha", all_method<is_letter>},
    {"isascii", case_method<is_ascii>},
    {"isdecimal", all_method<is_decimal>},
    {"isdigit", all_method<is_digit>},
    {"isidentifier", missing_method},
    {"islower", case_method<is_lower>},
    {"isnumeric", missing_method},
    {"isprintable", case_method<is_all_printable>},
    {"isspace", all_method<is_space>},
    {"istitle", missing_method},
    {"isupper", case_method<is_upper>},
    {"join", join_method},
    {"ljust", align_method<'<'>},
    {"lower", convert_method<to_lower>},
    {"lstrip", strip_method<true, false>},
    {"maketrans", missing_method},
    {"partition", partition_method<false>},
    {"removeprefix", remove_method<true>},
    {"removesuffix", remove_method<false>},
    {"replace", replace_method},
    {"rfind", find_method_of_text<true, false>},
    {"rindex", find_method_of_text<true, true>},
    {"rjust", align_method<'>'>},
    {"rpartition", partition_method<true>},
    {"rsplit", split_method<true>},
    {"rstrip", strip_method<false, true>},
    {"split", split_method<false>},
    {"splitlines", splitlines_method},
    {"startswith", starts_method<true>},
    {"strip", strip_method<true, true>},
    {"swapcase", convert_method<swap_case>},
    {"title", convert_method<to_title>},
    {"translate", missing_method},
    {"upper", convert_method<to_upper>},
    {"zfill", zfill_method},
};

// Without a function: it would change its object.
const Method kListMethods[] = {
    {"append", nullptr},          {"clear", nullptr},  {"copy", copy_method},
    {"count", count_item_method}, {"extend", nullptr}, {"index", index_item_method},
    {"insert", nullptr},          {"pop", nullptr},    {"remove", nullptr},
    {"reverse", nullptr},         {"sort", nullptr},
};

const Method kTupleMethods[] = {
    {"count", count_item_method},
    {"index", index_item_method},
};

const Method kDictMethods[] = {
    {"clear", nullptr},
    {"copy", copy_method},
    {"fromkeys", missing_method},
    {"get", get_method},
    {"items", view_method<Flavor::kItems>},
    {"keys", view_method<Flavor::kKeys>},
    {"pop", nullptr},
    {"popitem", nullptr},
    {"setdefault", nullptr},
    {"update", nullptr},
    {"values", view_method<Flavor::kValues>},
};

template <size_t count>
const Method* find_in(const Method (&methods)[count], std::string_view name) {
  const auto found = std::lower_bound(
      std::begin(methods), std::end(methods), name,
      [](const Method& method, std::string_view wanted) { return method.name < wanted; });
  return found != std::end(methods) && found->name == name ? &*found : nullptr;
}

}  // namespace

const Method* find_method(const Value& value, std::string_view name, bool* unsafe) {
  const Method* found = nullptr;
  if (value.is_string()) {
    found = find_in(kTextMethods, name);
  } else if (value.is(Kind::kDict)) {
    found = find_in(kDictMethods, name);
  } else if (value.is_sequence(Flavor::kList)) {
    found = find_in(kListMethods, name);
  } else if (value.is_sequence(Flavor::kTuple)) {
    found = find_in(kTupleMethods, name);
  }
  *unsafe = found != nullptr && found->run == nullptr;
  return *unsafe ? nullptr : found;
}

}  // namespace mlcb::jinja
