// The filters of "value|filter".
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/utf8.h"
#include "jinja/builtins.h"
#include "jinja/format.h"
#include "jinja/interpreter.h"
#include "jinja/json_text.h"
#include "jinja/python.h"
#include "jinja/python_text.h"
#include "text/unicode.h"

namespace mlcb::jinja {
namespace {

using Arguments = const CallArguments&;

Value or_none(const Value& value) { return value.given() ? value : Value::none(); }

// str(value), but a text stays the one that it is.
Value soft_text(Interpreter& interpreter, const Value& value) {
  return value.is_string() ? value : interpreter.heap().string(text_of(value));
}

// ---- text ----

Value string_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  require_no_arguments("string", arguments);
  return soft_text(interpreter, value);
}

template <std::string (*convert)(std::string_view)>
Value convert_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  require_no_arguments("this filter", arguments);
  const Value text = soft_text(interpreter, value);
  interpreter.heap().work(text.text().size() / 8);
  return interpreter.heap().string(convert(text.text()));
}

// A capital letter behind white space and opening brackets, small ones elsewhere.
std::string title(std::string_view text) {
  std::string out, word;
  const auto finish = [&] {
    const size_t first = character_offset(word, 1);
    out += to_upper(std::string_view(word).substr(0, first));
    out += to_lower(std::string_view(word).substr(first));
    word.clear();
  };
  for (const std::string_view one : characters(text)) {
    const bool bracket =
        one.size() == 1 && std::string_view("-({[<").find(one[0]) != std::string::npos;
    if (bracket || strip(one, true, false).empty()) {
      finish();
      out += one;
    } else {
      word += one;
    }
  }
  finish();
  return out;
}

// Calls a method of text on str(value).
Value text_method(Interpreter& interpreter, const char* name, const Value& value,
                  Arguments arguments) {
  bool unsafe = false;
  const Value text = soft_text(interpreter, value);
  return find_method(text, name, &unsafe)->run(interpreter, text, arguments);
}

Value trim_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Parameters<1> given("trim", arguments, {"chars"}, 0);
  return text_method(interpreter, "strip", value, {{or_none(given[0])}, {}});
}

Value replace_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Parameters<3> given("replace", arguments, {"old", "new", "count"}, 2);
  const bool all = !given[2].given() || given[2].is(Kind::kNone);
  const Value limit = all ? Value::integer(-1) : given[2];
  return text_method(
      interpreter, "replace", value,
      {{soft_text(interpreter, given[0]), soft_text(interpreter, given[1]), limit}, {}});
}

Value center_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Parameters<1> given("center", arguments, {"width"}, 0);
  return text_method(interpreter, "center", value,
                     {{given[0].given() ? given[0] : Value::integer(80)}, {}});
}

Value format_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  Heap& heap = interpreter.heap();
  const Value text = soft_text(interpreter, value);
  if (arguments.keywords.empty()) {
    return format_percent(heap, text, heap.list(arguments.positional, Flavor::kTuple));
  }
  if (!arguments.positional.empty()) fail("format takes values by place or by name, not both");
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [name, item] : arguments.keywords) items.emplace_back(heap.string(name), item);
  return format_percent(heap, text, heap.dict(std::move(items)));
}

Value indent_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Parameters<3> given("indent", arguments, {"width", "first", "blank"}, 0);
  if (value.is(Kind::kUndefined)) fail_undefined(value);
  if (!value.is_string()) fail(std::string("indent takes a text, not ") + type_name(value));
  std::string indent(4, ' ');
  if (given[0].is_string()) {
    indent = given[0].text();
  } else if (given[0].given()) {
    const int64_t width = integer_of(given[0], "a width");
    interpreter.heap().expect(width > 0 ? static_cast<size_t>(width) : 0);
    indent.assign(width > 0 ? static_cast<size_t>(width) : 0, ' ');
  }
  const bool blank = truth(given[2]);
  const std::string text = value.text() + "\n";
  const std::vector<std::string_view> lines = split_lines(text, false);
  interpreter.heap().expect(text.size() + lines.size() * indent.size());
  interpreter.heap().work(text.size() / 64 + lines.size());
  std::string out = truth(given[1]) ? indent : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += "\n";
    if (i > 0 && (blank || !lines[i].empty())) out += indent;
    out += lines[i];
  }
  return interpreter.heap().string(std::move(out));
}

Value truncate_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Parameters<4> given("truncate", arguments, {"length", "killwords", "end", "leeway"}, 0);
  const int64_t limit = given[0].given() ? integer_of(given[0], "a length") : 255;
  const std::string end = given[2].given() ? text_of(given[2]) : "...";
  const int64_t leeway =
      given[3].given() && !given[3].is(Kind::kNone) ? integer_of(given[3], "leeway") : 5;
  if (limit < character_count(end)) fail("truncate's length is below that of its end");
  if (leeway < 0) fail("truncate's leeway is below zero");
  if (length(value) <= limit || length(value) - leeway <= limit) return value;
  if (!value.is_string()) fail(std::string("truncate takes a text, not ") + type_name(value));
  const std::string_view text = value.text();
  std::string_view kept = text.substr(0, character_offset(text, limit - character_count(end)));
  if (!truth(given[1])) kept = kept.substr(0, kept.rfind(' '));
  return interpreter.heap().string(std::string(kept) + end);
}

Value word_count_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  require_no_arguments("wordcount", arguments);
  const Value text = soft_text(interpreter, value);
  int64_t count = 0;
  bool inside = false;
  for (const std::string_view one : characters(text.text())) {
    const bool word = unicode_is_word(utf8_decode(one.data(), one.data() + one.size()).code);
    count += word && !inside ? 1 : 0;
    inside = word;
  }
  return Value::integer(count);
}

Value markup(Interpreter& interpreter, std::string text) {
  Value result = interpreter.heap().string(std::move(text));
  result.string().markup = true;
  return result;
}

Value safe_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  require_no_arguments("safe", arguments);
  return markup(interpreter, text_of(value));
}

template <bool force>
Value escape_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  require_no_arguments("escape", arguments);
  if (!force && value.is_string() && value.string().markup) return value;
  return markup(interpreter, escape_html(text_of(value)));
}

Value json_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Parameters<4> given("tojson", arguments,
                            {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  JsonStyle style;
  style.ascii = truth(given[0]);
  style.sort_keys = truth(given[3]);
  if (given[1].given() && !given[1].is(Kind::kNone)) {
    style.indented = true;
    style.item_separator = ",";
    if (given[1].is_string()) {
      style.indent = given[1].text();
    } else {
      const int64_t width = integer_of(given[1], "tojson's indent");
      if (width > 1000) fail("tojson's indent is too large");
      style.indent.assign(width > 0 ? static_cast<size_t>(width) : 0, ' ');
    }
  }
  if (given[2].given() && !given[2].is(Kind::kNone)) {
    const Value both = iterate(interpreter.heap(), given[2]);
    const std::vector<Value>& items = both.sequence().items;
    if (items.size() != 2 || !items[0].is_string() || !items[1].is_string()) {
      fail("tojson's separators are two texts");
    }
    style.item_separator = items[0].text();
    style.key_separator = items[1].text();
  }
  std::string text = dump_json(value, style);
  interpreter.heap().work(text.size() / 64);
  return interpreter.heap().string(std::move(text));
}

// ---- numbers ----

Value int_filter(Interpreter&, const Value& value, Arguments arguments) {
  const Parameters<2> given("int", arguments, {"default", "base"}, 0);
  const Value fallback = given[0].given() ? given[0] : Value::integer(0);
  const int64_t base = given[1].given() ? integer_of(given[1], "a base") : 10;
  if (value.is(Kind::kUndefined)) fail_undefined(value);
  if (value.is_integer()) return Value::integer(value.as_int());
  if (value.is(Kind::kBigInt)) return value;
  double real = 0;
  if (value.is_string()) {
    int64_t integer = 0;
    if (base == 0 || (base >= 2 && base <= 36)) {
      if (parse_integer(value.text(), static_cast<int>(base), &integer)) {
        return Value::integer(integer);
      }
    }
    if (!parse_real(value.text(), &real)) return fallback;
  } else if (value.is(Kind::kFloat)) {
    real = value.as_real();
  } else {
    return fallback;
  }
  if (!std::isfinite(real)) return fallback;
  if (!(std::fabs(real) < 9e18)) fail("an integer beyond 64 bits");
  return Value::integer(static_cast<int64_t>(real));
}

Value float_filter(Interpreter&, const Value& value, Arguments arguments) {
  const Parameters<1> given("float", arguments, {"default"}, 0);
  if (value.is(Kind::kUndefined)) fail_undefined(value);
  if (value.is_number()) return Value::real(value.as_real());
  double real = 0;
  const bool text = value.is_string() || value.is(Kind::kBigInt);
  if (text && parse_real(value.text(), &real)) return Value::real(real);
  return given[0].given() ? given[0] : Value::real(0);
}

Value abs_filter(Interpreter&, const Value& value, Arguments arguments) {
  require_no_arguments("abs", arguments);
  if (value.is(Kind::kFloat)) return Value::real(std::fabs(value.as_real()));
  if (!value.is_integer()) fail(std::string("abs takes a number, not ") + type_name(value));
  return value.as_int() < 0 ? negate(value) : Value::integer(value.as_int());
}

Value round_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Parameters<2> given("round", arguments, {"precision", "method"}, 0);
  const int64_t precision = given[0].given() ? integer_of(given[0], "a precision") : 0;
  const std::string method = given[1].given() ? text_of(given[1]) : "common";
  if (value.is(Kind::kUndefined)) fail_undefined(value);
  if (!value.is_number()) fail(std::string("round takes a number, not ") + type_name(value));
  if (precision < 0 || precision > 300) fail("round's precision is not supported");
  if (method == "common") {
    if (value.is_integer()) return Value::integer(value.as_int());
    double rounded = 0;
    const std::string text = format_real('f', static_cast<int>(precision), false, value.as_real());
    parse_real(text, &rounded);
    return Value::real(rounded);
  }
  if (method != "ceil" && method != "floor") fail("round's method is common, ceil or floor");
  Heap& heap = interpreter.heap();
  const Value scale =
      arithmetic(heap, Operator::kPower, Value::integer(10), Value::integer(precision));
  const double scaled = arithmetic(heap, Operator::kMultiply, value, scale).as_real();
  const double rounded = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
  if (!(std::fabs(rounded) < 9e18)) fail("an integer beyond 64 bits");
  return arithmetic(heap, Operator::kDivide, Value::integer(static_cast<int64_t>(rounded)), scale);
}

// ---- attributes ----

// The parts of a path such as "function.arguments.0".
std::vector<Value> attribute_path(Interpreter& interpreter, const Value& path) {
  std::vector<Value> parts;
  if (!path.given() || path.is(Kind::kNone)) return parts;
  if (!path.is_string()) return {path};
  for (const std::string_view part : split(path.text(), ".", -1, false)) {
    const bool number =
        !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    int64_t index = 0;
    if (number && parse_integer(part, 10, &index)) {
      parts.push_back(Value::integer(index));
    } else {
      parts.push_back(interpreter.heap().string(std::string(part)));
    }
  }
  return parts;
}

Value follow(Interpreter& interpreter, Value value, const std::vector<Value>& path,
             const Value& fallback) {
  for (const Value& part : path) {
    value = interpreter.item(value, part);
    if (value.is(Kind::kUndefined) && fallback.given() && !fallback.is(Kind::kNone)) {
      value = fallback;
    }
  }
  return value;
}

Value lower_case(Interpreter& interpreter, const Value& value) {
  return value.is_string() ? interpreter.heap().string(to_lower(value.text())) : value;
}

Value attr_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Parameters<1> given("attr", arguments, {"name"}, 1);
  if (!given[0].is_string()) fail("attr takes a name");
  if (value.is(Kind::kDict)) {
    bool unsafe = false;
    if (find_method(value, given[0].text(), &unsafe) == nullptr && !unsafe) {
      return interpreter.heap().undefined("dict has no attribute '" + given[0].text() + "'");
    }
  }
  return interpreter.attribute(value, given[0].text());
}

// ---- sequences ----

Value default_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Parameters<2> given("default", arguments, {"default_value", "boolean"}, 0);
  if (value.is(Kind::kUndefined) || (truth(given[1]) && !truth(value))) {
    return given[0].given() ? given[0] : interpreter.heap().string("");
  }
  return value;
}

Value length_filter(Interpreter&, const Value& value, Arguments arguments) {
  require_no_arguments("length", arguments);
  return Value::integer(length(value));
}

Value list_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  require_no_arguments("list", arguments);
  return interpreter.heap().list(iterate(interpreter.heap(), value).sequence().items);
}

Value items_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  require_no_arguments("items", arguments);
  if (value.is(Kind::kUndefined)) return interpreter.heap().list({}, Flavor::kIterator);
  if (!value.is(Kind::kDict)) fail(std::string("items takes a dict, not ") + type_name(value));
  bool unsafe = false;
  const Value view = find_method(value, "items", &unsafe)->run(interpreter, value, {});
  return interpreter.heap().list(view.sequence().items, Flavor::kIterator);
}

Value first_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  require_no_arguments("first", arguments);
  if (value.is_string()) {
    const Value one = find_item(interpreter.heap(), value, Value::integer(0));
    return one.given() ? one : interpreter.heap().undefined("there is no first item");
  }
  const Value items = iterate(interpreter.heap(), value);
  if (items.sequence().items.empty()) return interpreter.heap().undefined("there is no first item");
  return items.sequence().items.front();
}

Value last_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  require_no_arguments("last", arguments);
  if (value.is_string()) {
    const Value one = find_item(interpreter.heap(), value, Value::integer(-1));
    return one.given() ? one : interpreter.heap().undefined("there is no last item");
  }
  if (value.is_sequence(Flavor::kIterator)) fail("an iterator has no last item: make a list of it");
  const Value items = iterate(interpreter.heap(), value);
  if (items.sequence().items.empty()) return interpreter.heap().undefined("there is no last item");
  return items.sequence().items.back();
}

Value reverse_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  require_no_arguments("reverse", arguments);
  if (value.is_string()) {
    const Value none = Value::none();
    return slice(interpreter.heap(), value, none, none, Value::integer(-1));
  }
  const bool iterator = value.is_sequence(Flavor::kIterator);
  std::vector<Value> items = iterate(interpreter.heap(), value).sequence().items;
  std::reverse(items.begin(), items.end());
  return interpreter.heap().list(std::move(items), iterator ? Flavor::kList : Flavor::kIterator);
}

Value join_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Parameters<2> given("join", arguments, {"d", "attribute"}, 0);
  Heap& heap = interpreter.heap();
  const std::string separator = given[0].given() ? text_of(given[0]) : "";
  const std::vector<Value> path = attribute_path(interpreter, given[1]);
  const Value items = iterate(heap, value);
  std::string text;
  bool first = true;
  for (const Value& item : items.sequence().items) {
    if (!first) text += separator;
    first = false;
    const Value part = follow(interpreter, item, path, Value());
    if (part.is_string()) heap.expect(text.size() + part.text().size());
    const size_t before = text.size();
    append_text(part, &text);
    heap.expect(text.size() + separator.size());
    heap.work(1 + (text.size() - before + separator.size()) / 64);
  }
  return heap.string(std::move(text));
}

Value dict_sort_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Parameters<3> given("dictsort", arguments, {"case_sensitive", "by", "reverse"}, 0);
  const std::string by = given[1].given() ? text_of(given[1]) : "key";
  if (by != "key" && by != "value") fail("dictsort sorts by key or value");
  if (value.is(Kind::kUndefined)) fail_undefined(value);
  if (!value.is(Kind::kDict)) fail(std::string("dictsort takes a dict, not ") + type_name(value));
  struct Entry {
    Value key, item;
  };
  std::vector<Entry> entries;
  Heap& heap = interpreter.heap();
  for (const auto& [key, item] : value.dict().items) {
    const Value& chosen = by == "key" ? key : item;
    entries.push_back({truth(given[0]) ? chosen : lower_case(interpreter, chosen),
                       heap.list({key, item}, Flavor::kTuple)});
  }
  heap.work(entries.size() * 8);
  const bool reverse = truth(given[2]);
  std::stable_sort(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) {
    return compare(reverse ? b.key : a.key, reverse ? a.key : b.key, Operator::kLess) < 0;
  });
  std::vector<Value> items;
  for (Entry& entry : entries) items.push_back(std::move(entry.item));
  return heap.list(std::move(items));
}

Value sort_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Parameters<3> given("sort", arguments, {"reverse", "case_sensitive", "attribute"}, 0);
  Heap& heap = interpreter.heap();
  std::vector<std::vector<Value>> paths;
  if (given[2].is_string()) {
    for (const std::string_view part : split(given[2].text(), ",", -1, false)) {
      paths.push_back(attribute_path(interpreter, heap.string(std::string(part))));
    }
  } else {
    paths.push_back(attribute_path(interpreter, given[2]));
  }
  struct Entry {
    std::vector<Value> keys;
    Value item;
  };
  const Value all = iterate(heap, value);
  std::vector<Entry> entries;
  for (const Value& item : all.sequence().items) {
    Entry entry;
    for (const std::vector<Value>& path : paths) {
      const Value key = follow(interpreter, item, path, Value());
      entry.keys.push_back(truth(given[1]) ? key : lower_case(interpreter, key));
    }
    entry.item = item;
    entries.push_back(std::move(entry));
  }
  heap.work(entries.size() * 8);
  const auto less = [](const Entry& a, const Entry& b) {
    for (size_t i = 0; i < a.keys.size(); ++i) {
      if (!equal(a.keys[i], b.keys[i])) return compare(a.keys[i], b.keys[i], Operator::kLess) < 0;
    }
    return false;
  };
  const bool reverse = truth(given[0]);
  std::stable_sort(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) {
    return reverse ? less(b, a) : less(a, b);
  });
  std::vector<Value> items;
  for (Entry& entry : entries) items.push_back(std::move(entry.item));
  return heap.list(std::move(items));
}

Value unique_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Parameters<2> given("unique", arguments, {"case_sensitive", "attribute"}, 0);
  const std::vector<Value> path = attribute_path(interpreter, given[1]);
  const Value all = iterate(interpreter.heap(), value);
  std::vector<Value> keys, items;
  for (const Value& item : all.sequence().items) {
    Value key = follow(interpreter, item, path, Value());
    if (!truth(given[0])) key = lower_case(interpreter, key);
    require_hashable(key);
    interpreter.heap().work(1 + keys.size() / 4);
    const bool known =
        std::any_of(keys.begin(), keys.end(), [&](const Value& old) { return equal(old, key); });
    if (known) continue;
    keys.push_back(std::move(key));
    items.push_back(item);
  }
  return interpreter.heap().list(std::move(items), Flavor::kIterator);
}

template <bool greatest>
Value extreme_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Parameters<2> given("min", arguments, {"case_sensitive", "attribute"}, 0);
  const std::vector<Value> path = attribute_path(interpreter, given[1]);
  const Value all = iterate(interpreter.heap(), value);
  Value best, best_key;
  for (const Value& item : all.sequence().items) {
    Value key = follow(interpreter, item, path, Value());
    if (!truth(given[0])) key = lower_case(interpreter, key);
    interpreter.heap().work(1);
    const Operator op = greatest ? Operator::kGreater : Operator::kLess;
    if (best.given()) {
      const int order = compare(key, best_key, op);
      if (greatest ? order <= 0 : order >= 0) continue;
    }
    best = item;
    best_key = std::move(key);
  }
  return best.given() ? best : interpreter.heap().undefined("the sequence is empty");
}

Value sum_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Parameters<2> given("sum", arguments, {"attribute", "start"}, 0);
  const std::vector<Value> path = attribute_path(interpreter, given[0]);
  Value sum = given[1].given() ? given[1] : Value::integer(0);
  if (sum.is_string()) fail("sum does not add texts");
  const Value all = iterate(interpreter.heap(), value);
  for (const Value& item : all.sequence().items) {
    interpreter.heap().work(1);
    sum = arithmetic(interpreter.heap(), Operator::kAdd, sum,
                     follow(interpreter, item, path, Value()));
  }
  return sum;
}

Value batch_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Parameters<2> given("batch", arguments, {"linecount", "fill_with"}, 1);
  const int64_t size = integer_of(given[0], "a size");
  Heap& heap = interpreter.heap();
  const Value all = iterate(heap, value);
  std::vector<Value> lines, line;
  for (const Value& item : all.sequence().items) {
    if (static_cast<int64_t>(line.size()) == size) {
      lines.push_back(heap.list(std::move(line)));
      line.clear();
    }
    line.push_back(item);
  }
  if (!line.empty()) {
    const bool fills = given[1].given() && !given[1].is(Kind::kNone);
    if (fills && size > static_cast<int64_t>(line.size())) {
      heap.expect(static_cast<size_t>(size) * sizeof(Value));
      line.resize(static_cast<size_t>(size), given[1]);
    }
    lines.push_back(heap.list(std::move(line)));
  }
  return heap.list(std::move(lines), Flavor::kIterator);
}

Value slice_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  const Parameters<2> given("slice", arguments, {"slices", "fill_with"}, 1);
  const int64_t slices = integer_of(given[0], "a number of slices");
  Heap& heap = interpreter.heap();
  if (slices == 0) fail("division by zero");
  if (slices > 100000) fail("there are too many slices");
  const Value all = iterate(heap, value);
  const std::vector<Value>& items = all.sequence().items;
  const size_t count = slices > 0 ? static_cast<size_t>(slices) : 0;
  std::vector<Value> lines;
  size_t at = 0;
  heap.work(count + items.size());
  for (size_t i = 0; i < count; ++i) {
    const bool longer = i < items.size() % count;
    const size_t size = items.size() / count + (longer ? 1 : 0);
    std::vector<Value> line(items.begin() + static_cast<ptrdiff_t>(at),
                            items.begin() + static_cast<ptrdiff_t>(at + size));
    at += size;
    if (given[1].given() && !given[1].is(Kind::kNone) && !longer) line.push_back(given[1]);
    lines.push_back(heap.list(std::move(line)));
  }
  return heap.list(std::move(lines), Flavor::kIterator);
}

// ---- filters of filters and tests ----

CallArguments without_first(Arguments arguments, size_t count) {
  CallArguments rest;
  rest.keywords = arguments.keywords;
  rest.positional.assign(arguments.positional.begin() + static_cast<ptrdiff_t>(count),
                         arguments.positional.end());
  return rest;
}

Value map_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  Heap& heap = interpreter.heap();
  if (!truth(value)) return heap.list({}, Flavor::kIterator);
  const Value all = iterate(heap, value);
  std::vector<Value> items;
  if (arguments.positional.empty()) {
    const Parameters<2> given("map", {{}, arguments.keywords}, {"attribute", "default"}, 1);
    const std::vector<Value> path = attribute_path(interpreter, given[0]);
    for (const Value& item : all.sequence().items) {
      items.push_back(follow(interpreter, item, path, given[1]));
    }
  } else {
    if (!arguments.positional[0].is_string()) fail("map takes the name of a filter");
    const std::string& name = arguments.positional[0].text();
    const CallArguments rest = without_first(arguments, 1);
    for (const Value& item : all.sequence().items) {
      heap.work(1);
      items.push_back(interpreter.filter(name, item, rest));
    }
  }
  return heap.list(std::move(items), Flavor::kIterator);
}

template <bool wanted, bool by_attribute>
Value select_filter(Interpreter& interpreter, const Value& value, Arguments arguments) {
  Heap& heap = interpreter.heap();
  if (!truth(value)) return heap.list({}, Flavor::kIterator);
  const size_t first = by_attribute ? 1 : 0;
  if (arguments.positional.size() < first) fail("the name of an attribute is missing");
  const std::vector<Value> path =
      by_attribute ? attribute_path(interpreter, arguments.positional[0]) : std::vector<Value>();
  const bool has_test = arguments.positional.size() > first;
  if (has_test && !arguments.positional[first].is_string()) fail("the name of a test is no text");
  const CallArguments rest = has_test ? without_first(arguments, first + 1) : CallArguments();
  const Value all = iterate(heap, value);
  std::vector<Value> items;
  for (const Value& item : all.sequence().items) {
    heap.work(1);
    const Value subject = follow(interpreter, item, path, Value());
    const bool holds = has_test
                           ? interpreter.test(arguments.positional[first].text(), subject, rest)
                           : truth(subject);
    if (holds == wanted) items.push_back(item);
  }
  return heap.list(std::move(items), Flavor::kIterator);
}

const Filter kFilters[] = {
    {"abs", abs_filter},
    {"attr", attr_filter},
    {"batch", batch_filter},
    {"capitalize", convert_filter<capitalize>},
    {"center", center_filter},
    {"count", length_filter},
    {"d", default_filter},
    {"default", default_filter},
    {"dictsort", dict_sort_filter},
    {"e", escape_filter<false>},
    {"escape", escape_filter<false>},
    {"first", first_filter},
    {"float", float_filter},
    {"forceescape", escape_filter<true>},
    {"format", format_filter},
    {"indent", indent_filter},
    {"int", int_filter},
    {"items", items_filter},
    {"join", join_filter},
    {"last", last_filter},
    {"length", length_filter},
    {"list", list_filter},
    {"lower", convert_filter<to_lower>},
    {"map", map_filter},
    {"max", extreme_filter<true>},
    {"min", extreme_filter<false>},
    {"reject", select_filter<false, false>},
    {"rejectattr", select_filter<false, true>},
    {"replace", replace_filter},
    {"reverse", reverse_filter},
    {"round", round_filter},
    {"safe", safe_filter},
    {"select", select_filter<true, false>},
    {"selectattr", select_filter<true, true>},
    {"slice", slice_filter},
    {"sort", sort_filter},
    {"string", string_filter},
    {"sum", sum_filter},
    {"title", convert_filter<title>},
    {"tojson", json_filter},
    {"trim", trim_filter},
    {"truncate", truncate_filter},
    {"unique", unique_filter},
    {"upper", convert_filter<to_upper>},
    {"wordcount", word_count_filter},
};

}  // namespace

const Filter* find_filter(std::string_view name) {
  const auto found = std::lower_bound(
      std::begin(kFilters), std::end(kFilters), name,
      [](const Filter& filter, std::string_view wanted) { return filter.name < wanted; });
  return found != std::end(kFilters) && found->name == name ? &*found : nullptr;
}

}  // namespace mlcb::jinja
