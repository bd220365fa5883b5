#include "jinja/python.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "jinja/format.h"
#include "jinja/python_text.h"

namespace mlcb::jinja {
namespace {

constexpr int kMaxDepth = 150;                  // of nested values
constexpr size_t kMaxText = size_t{64} << 20;  // bytes that one value may be written as

void check_depth(int depth) {
  if (depth > kMaxDepth) fail("values are nested too deeply");
}

// Steps for looking at a value's parts. One value may stand in many places of another, so that a
// small one can take forever.
void spend(const Object& object, size_t steps) {
  if (object.heap() != nullptr) object.heap()->work(steps);
}

const char* symbol(Operator op) {
  switch (op) {
    case Operator::kAdd:
      return "+";
    case Operator::kSubtract:
      return "-";
    case Operator::kMultiply:
      return "*";
    case Operator::kDivide:
      return "/";
    case Operator::kFloorDivide:
      return "//";
    case Operator::kModulo:
      return "%";
    case Operator::kPower:
      return "**";
    case Operator::kLess:
      return "<";
    case Operator::kLessEqual:
      return "<=";
    case Operator::kGreater:
      return ">";
    default:
      return ">=";
  }
}

[[noreturn]] void fail_operands(Operator op, const Value& a, const Value& b) {
  fail(std::string("'") + symbol(op) + "' does not work between " + type_name(a) + " and " +
       type_name(b));
}

[[noreturn]] void fail_big() { fail("an integer beyond 64 bits"); }

}  // namespace

const char* type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return "undefined";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kSequence:
      switch (value.sequence().flavor) {
        case Flavor::kList:
          return "list";
        case Flavor::kTuple:
          return "tuple";
        case Flavor::kKeys:
          return "dict_keys";
        case Flavor::kValues:
          return "dict_values";
        case Flavor::kItems:
          return "dict_items";
        case Flavor::kRange:
          return "range";
        case Flavor::kIterator:
          return "iterator";
      }
      return "list";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "namespace";
    case Kind::kFunction:
      return "function";
    case Kind::kLoop:
      return "loop";
  }
  return "";
}

void fail_undefined(const Value& value) {
  fail(value.is(Kind::kUndefined) ? value.text() : std::string("an undefined value is used"));
}

int64_t integer_of(const Value& value, const char* what) {
  if (value.is_integer()) return value.as_int();
  if (value.is(Kind::kBigInt)) fail_big();
  fail(std::string(what) + " is " + type_name(value) + ", not an integer");
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_real() != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kSequence:
      return value.is_sequence(Flavor::kIterator) || !value.sequence().items.empty();
    case Kind::kDict:
      return !value.dict().items.empty();
    default:
      return true;
  }
}

bool equal(const Value& a, const Value& b, int depth) {
  check_depth(depth);
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.as_int() == b.as_int();
    return a.as_real() == b.as_real();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
    case Kind::kBigInt:
      if (a.object() == b.object()) return true;
      if (a.text().size() != b.text().size()) return false;
      spend(*a.object(), a.text().size() / 256);
      return a.text() == b.text();
    case Kind::kSequence: {
      const SequenceObject& left = a.sequence();
      const SequenceObject& right = b.sequence();
      if (&left == &right) return true;
      spend(left, 1 + left.items.size() / 4);
      if (left.flavor != right.flavor || left.flavor == Flavor::kIterator ||
          left.flavor == Flavor::kValues || left.items.size() != right.items.size()) {
        return false;
      }
      for (size_t i = 0; i < left.items.size(); ++i) {
        if (!equal(left.items[i], right.items[i], depth + 1)) return false;
      }
      return true;
    }
    case Kind::kDict: {
      const DictObject& left = a.dict();
      const DictObject& right = b.dict();
      if (&left == &right) return true;
      if (left.items.size() != right.items.size()) return false;
      spend(left, 1 + left.items.size() * left.items.size() / 8);
      for (const auto& [key, value] : left.items) {
        const Value* other = right.find(key);
        if (other == nullptr || !equal(value, *other, depth + 1)) return false;
      }
      return true;
    }
    default:
      return a.object() == b.object();
  }
}

int compare(const Value& a, const Value& b, Operator op, int depth) {
  check_depth(depth);
  if (a.is(Kind::kUndefined)) fail_undefined(a);
  if (b.is(Kind::kUndefined)) fail_undefined(b);
  if (a.is_integer() && b.is_integer()) {
    return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int() ? 1 : 0;
  }
  if (a.is_number() && b.is_number()) {
    const double left = a.as_real(), right = b.as_real();
    if (std::isnan(left) || std::isnan(right)) {  // whatever is asked, the answer is no
      return op == Operator::kLess || op == Operator::kLessEqual ? 1 : -1;
    }
    return left < right ? -1 : left > right ? 1 : 0;
  }
  // Bytes of UTF-8 are in the order of the characters.
  if (a.is_string() && b.is_string()) {
    const int order = a.text().compare(b.text());
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (a.is(Kind::kSequence) && b.is(Kind::kSequence) &&
      a.sequence().flavor == b.sequence().flavor && a.sequence().flavor <= Flavor::kTuple) {
    const std::vector<Value>& left = a.sequence().items;
    const std::vector<Value>& right = b.sequence().items;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!equal(left[i], right[i], depth + 1)) return compare(left[i], right[i], op, depth + 1);
    }
    return left.size() < right.size() ? -1 : left.size() > right.size() ? 1 : 0;
  }
  fail_operands(op, a, b);
}

bool contains(Heap& heap, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (!item.is_string()) {
        if (item.is(Kind::kUndefined)) fail("an undefined value is looked for in a text");
        fail(std::string("a text can only hold a text, not ") + type_name(item));
      }
      heap.work(container.text().size() / 16);
      return find_text(container.text(), item.text(), 0) != std::string_view::npos;
    case Kind::kDict:
      require_hashable(item);
      heap.work(container.dict().items.size());
      return container.dict().find(item) != nullptr;
    case Kind::kSequence: {
      const Value items = iterate(heap, container);
      heap.work(items.sequence().items.size());
      for (const Value& other : items.sequence().items) {
        if (equal(other, item)) return true;
      }
      return false;
    }
    default:
      fail(std::string("'in' does not work with ") + type_name(container));
  }
}

int64_t length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return character_count(value.text());
    case Kind::kSequence:
      if (value.is_sequence(Flavor::kIterator)) break;
      return static_cast<int64_t>(value.sequence().items.size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().items.size());
    case Kind::kLoop:
      return static_cast<int64_t>(value.loop().items.sequence().items.size());
    default:
      break;
  }
  fail(std::string(type_name(value)) + " has no length");
}

// ---- text -------------------------------------------------------------------------------------

void append_text(const Value& value, std::string* out) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return;
    case Kind::kString:
      *out += value.text();
      return;
    default:
      append_repr(value, out);
  }
}

std::string text_of(const Value& value) {
  std::string out;
  append_text(value, &out);
  return out;
}

namespace {

void append_items(const std::vector<Value>& items, std::string* out, int depth) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) *out += ", ";
    append_repr(items[i], out, depth + 1);
  }
}

void append_sequence(const SequenceObject& sequence, std::string* out, int depth) {
  const std::vector<Value>& items = sequence.items;
  switch (sequence.flavor) {
    case Flavor::kTuple:
      *out += '(';
      append_items(items, out, depth);
      *out += items.size() == 1 ? ",)" : ")";
      return;
    case Flavor::kRange: {
      // What is kept is the numbers, not how they were asked for.
      fail("a range cannot be written: make a list of it");
    }
    case Flavor::kIterator:
      fail("an iterator cannot be written: make a list of it");
    case Flavor::kKeys:
      *out += "dict_keys(";
      break;
    case Flavor::kValues:
      *out += "dict_values(";
      break;
    case Flavor::kItems:
      *out += "dict_items(";
      break;
    case Flavor::kList:
      break;
  }
  *out += '[';
  append_items(items, out, depth);
  *out += sequence.flavor == Flavor::kList ? "]" : "])";
}

}  // namespace

void append_repr(const Value& value, std::string* out, int depth) {
  check_depth(depth);
  if (out->size() > kMaxText) fail("a value is too large to be written");
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      *out += "Undefined";
      return;
    case Kind::kNone:
      *out += "None";
      return;
    case Kind::kBool:
      *out += value.as_bool() ? "True" : "False";
      return;
    case Kind::kInt:
      *out += std::to_string(value.as_int());
      return;
    case Kind::kBigInt:
      *out += value.text();
      return;
    case Kind::kFloat:
      *out += float_repr(value.as_real());
      return;
    case Kind::kString:
      if (value.string().markup) *out += "Markup(";
      append_repr(std::string_view(value.text()), out);
      if (value.string().markup) *out += ')';
      return;
    case Kind::kSequence:
      append_sequence(value.sequence(), out, depth);
      return;
    case Kind::kDict: {
      *out += '{';
      bool first = true;
      for (const auto& [key, item] : value.dict().items) {
        if (!first) *out += ", ";
        first = false;
        append_repr(key, out, depth + 1);
        *out += ": ";
        append_repr(item, out, depth + 1);
      }
      *out += '}';
      return;
    }
    case Kind::kNamespace: {
      *out += "<Namespace {";
      bool first = true;
      for (const auto& [name, item] : value.name_space().items) {
        if (!first) *out += ", ";
        first = false;
        append_repr(std::string_view(name), out);
        *out += ": ";
        append_repr(item, out, depth + 1);
      }
      *out += "}>";
      return;
    }
    default:
      fail(std::string("a ") + type_name(value) + " cannot be written");
  }
}

// ---- iterating, subscripts --------------------------------------------------------------------

bool iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kSequence:
    case Kind::kDict:
    case Kind::kLoop:
      return true;
    default:
      return false;
  }
}

Value iterate(Heap& heap, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return heap.list({});
    case Kind::kString: {
      const std::vector<std::string_view> parts = characters(value.text());
      heap.expect(parts.size() * (sizeof(StringObject) + sizeof(Value)));
      heap.work(2 * parts.size());
      std::vector<Value> items;
      items.reserve(parts.size());
      for (const std::string_view part : parts) items.push_back(heap.string(std::string(part)));
      return heap.list(std::move(items));
    }
    case Kind::kSequence: {
      SequenceObject& sequence = value.sequence();
      if (sequence.flavor != Flavor::kIterator) return value;
      if (sequence.consumed) return heap.list({});
      sequence.consumed = true;
      return value;
    }
    case Kind::kDict: {
      std::vector<Value> items;
      items.reserve(value.dict().items.size());
      for (const auto& item : value.dict().items) items.push_back(item.first);
      heap.work(items.size());
      return heap.list(std::move(items));
    }
    case Kind::kLoop:
      fail("a loop cannot be iterated over");
    default:
      fail(std::string(type_name(value)) + " cannot be iterated over");
  }
}

namespace {

// The part of a key that cannot be one, or nullptr.
const Value* find_unhashable(const Value& key, int depth) {
  check_depth(depth);
  if (key.is(Kind::kDict)) return &key;
  if (!key.is(Kind::kSequence)) return nullptr;
  switch (key.sequence().flavor) {
    case Flavor::kTuple:
      break;
    case Flavor::kRange:
    case Flavor::kValues:
    case Flavor::kIterator:
      return nullptr;
    default:
      return &key;
  }
  spend(key.sequence(), 1 + key.sequence().items.size());
  for (const Value& item : key.sequence().items) {
    if (const Value* found = find_unhashable(item, depth + 1)) return found;
  }
  return nullptr;
}

}  // namespace

void require_hashable(const Value& key) {
  if (const Value* found = find_unhashable(key, 0)) {
    fail(std::string(type_name(*found)) + " cannot be a key");
  }
}

Value find_item(Heap& heap, const Value& value, const Value& key) {
  switch (value.kind()) {
    case Kind::kUndefined:
      fail_undefined(value);
    case Kind::kString: {
      if (!key.is_integer()) return Value();
      const std::string& text = value.text();
      heap.work(text.size() / 64);
      int64_t index = key.as_int();
      if (index < 0) index += character_count(text);
      if (index < 0) return Value();
      const size_t begin = character_offset(text, index);
      if (begin >= text.size()) return Value();
      return heap.string(text.substr(begin, character_offset(text.substr(begin, 4), 1)));
    }
    case Kind::kSequence: {
      const SequenceObject& sequence = value.sequence();
      const bool subscripts = sequence.flavor <= Flavor::kTuple || sequence.flavor == Flavor::kRange;
      if (!subscripts || !key.is_integer()) return Value();
      const int64_t size = static_cast<int64_t>(sequence.items.size());
      const int64_t index = key.as_int() < 0 ? key.as_int() + size : key.as_int();
      if (index < 0 || index >= size) return Value();
      return sequence.items[static_cast<size_t>(index)];
    }
    case Kind::kDict: {
      heap.work(value.dict().items.size() / 8);
      const Value* found = find_unhashable(key, 0) == nullptr ? value.dict().find(key) : nullptr;
      return found == nullptr ? Value() : *found;
    }
    default:
      return Value();
  }
}

Value slice(Heap& heap, const Value& value, const Value& start, const Value& stop,
            const Value& step) {
  if (value.is(Kind::kUndefined)) fail_undefined(value);
  const bool text = value.is_string();
  if (!text && (!value.is(Kind::kSequence) || (value.sequence().flavor > Flavor::kTuple &&
                                               !value.is_sequence(Flavor::kRange)))) {
    fail(std::string(type_name(value)) + " cannot be sliced");
  }
  const int64_t size = length(value);
  auto bound = [](const Value& given, int64_t fallback) {
    return given.is(Kind::kNone) ? fallback : integer_of(given, "a slice's index");
  };
  const int64_t by = bound(step, 1);
  if (by == 0) fail("a slice's step is zero");
  auto clamp = [&](int64_t index) {
    if (index < 0) index = index < -size ? -1 : index + size;
    if (index < 0) return by < 0 ? int64_t{-1} : int64_t{0};
    if (index >= size) return by < 0 ? size - 1 : size;
    return index;
  };
  const int64_t from = start.is(Kind::kNone) ? (by < 0 ? size - 1 : 0) : clamp(bound(start, 0));
  const int64_t to = stop.is(Kind::kNone) ? (by < 0 ? -1 : size) : clamp(bound(stop, 0));
  const auto in_range = [&](int64_t index) { return by > 0 ? index < to : index > to; };
  // A step beyond the size takes one item; limiting it keeps the index from overflowing.
  const int64_t stride = std::max(-size - 1, std::min(size + 1, by));
  heap.work(static_cast<uint64_t>(size) / 8);
  if (!text) {
    std::vector<Value> items;
    for (int64_t i = from; in_range(i); i += stride) {
      items.push_back(value.sequence().items[static_cast<size_t>(i)]);
    }
    return heap.list(std::move(items),
                     value.is_sequence(Flavor::kTuple) ? Flavor::kTuple : Flavor::kList);
  }
  std::string out;
  if (stride == 1) {
    if (from < to) {
      const size_t begin = character_offset(value.text(), from);
      const size_t end = character_offset(std::string_view(value.text()).substr(begin), to - from);
      out = value.text().substr(begin, end);
    }
  } else {
    const std::vector<std::string_view> parts = characters(value.text());
    for (int64_t i = from; in_range(i); i += stride) out += parts[static_cast<size_t>(i)];
  }
  Value result = heap.string(std::move(out));
  result.string().markup = value.string().markup;
  return result;
}

// ---- arithmetic -------------------------------------------------------------------------------

namespace {

std::string escaped(const Value& value) {
  const std::string text = text_of(value);
  if (value.is_string() && value.string().markup) return text;
  return escape_html(text);
}

Value add_texts(Heap& heap, const Value& a, const Value& b) {
  heap.expect(a.text().size() + b.text().size());
  heap.work((a.text().size() + b.text().size()) / 64);
  const bool markup = a.string().markup || b.string().markup;
  Value result = heap.string(markup ? escaped(a) + escaped(b) : a.text() + b.text());
  result.string().markup = markup;
  return result;
}

Value repeat(Heap& heap, const Value& value, int64_t times) {
  const bool text = value.is_string();
  const size_t count = times > 0 ? static_cast<size_t>(times) : 0;
  const size_t size = text ? value.text().size() : value.sequence().items.size() * sizeof(Value);
  size_t bytes = 0;
  if (__builtin_mul_overflow(size, count, &bytes)) bytes = SIZE_MAX;
  heap.expect(bytes);
  heap.work(bytes / 64);
  if (text) {
    std::string out;
    out.reserve(bytes);
    for (size_t i = 0; size > 0 && i < count; ++i) out += value.text();
    Value result = heap.string(std::move(out));
    result.string().markup = value.string().markup;
    return result;
  }
  std::vector<Value> items;
  const std::vector<Value>& given = value.sequence().items;
  for (size_t i = 0; !given.empty() && i < count; ++i) {
    items.insert(items.end(), given.begin(), given.end());
  }
  return heap.list(std::move(items), value.sequence().flavor);
}

Value power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) fail("zero cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  bool beyond = false, base_beyond = false;
  while (exponent > 0) {
    if ((exponent & 1) != 0) {
      beyond |= base_beyond || __builtin_mul_overflow(result, base, &result);
    }
    exponent >>= 1;
    if (exponent > 0) base_beyond |= __builtin_mul_overflow(base, base, &base);
  }
  if (beyond) fail_big();
  return Value::integer(result);
}

Value integer_arithmetic(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool beyond = false;
  switch (op) {
    case Operator::kAdd:
      beyond = __builtin_add_overflow(a, b, &result);
      break;
    case Operator::kSubtract:
      beyond = __builtin_sub_overflow(a, b, &result);
      break;
    case Operator::kMultiply:
      beyond = __builtin_mul_overflow(a, b, &result);
      break;
    case Operator::kPower:
      return power(a, b);
    case Operator::kDivide:
      if (b == 0) fail("division by zero");
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    default: {
      if (b == 0) fail("division by zero");
      if (b == -1) {
        if (op == Operator::kModulo) return Value::integer(0);
        beyond = __builtin_sub_overflow(int64_t{0}, a, &result);
        break;
      }
      // Python rounds down, C++ towards zero.
      const int64_t rest = a % b;
      const bool adjust = rest != 0 && (rest < 0) != (b < 0);
      result = op == Operator::kModulo ? rest + (adjust ? b : 0) : a / b - (adjust ? 1 : 0);
      break;
    }
  }
  if (beyond) fail_big();
  return Value::integer(result);
}

Value real_arithmetic(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value::real(a + b);
    case Operator::kSubtract:
      return Value::real(a - b);
    case Operator::kMultiply:
      return Value::real(a * b);
    case Operator::kPower: {
      const double result = std::pow(a, b);
      if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) fail("a power is not real");
      if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) fail("a power is too large");
      return Value::real(result);
    }
    case Operator::kDivide:
      if (b == 0) fail("division by zero");
      return Value::real(a / b);
    default: {
      if (b == 0) fail("division by zero");
      double rest = std::fmod(a, b);
      double quotient = (a - rest) / b;
      if (rest != 0) {
        if ((rest < 0) != (b < 0)) {
          rest += b;
          quotient -= 1;
        }
      } else {
        rest = std::copysign(0.0, b);
      }
      if (op == Operator::kModulo) return Value::real(rest);
      if (quotient == 0) return Value::real(std::copysign(0.0, a / b));
      double rounded = std::floor(quotient);
      if (quotient - rounded > 0.5) rounded += 1;
      return Value::real(rounded);
    }
  }
}

}  // namespace

Value arithmetic(Heap& heap, Operator op, const Value& a, const Value& b) {
  if (a.is(Kind::kUndefined)) fail_undefined(a);
  if (op == Operator::kModulo && a.is_string()) return format_percent(heap, a, b);
  if (b.is(Kind::kUndefined)) fail_undefined(b);
  if (a.is_integer() && b.is_integer()) return integer_arithmetic(op, a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return real_arithmetic(op, a.as_real(), b.as_real());
  if (a.is(Kind::kBigInt) || b.is(Kind::kBigInt)) fail_big();
  auto repeats = [](const Value& value) {
    return value.is_string() ||
           (value.is(Kind::kSequence) && value.sequence().flavor <= Flavor::kTuple);
  };
  if (op == Operator::kAdd && a.is_string() && b.is_string()) return add_texts(heap, a, b);
  if (op == Operator::kAdd && repeats(a) && repeats(b) && !a.is_string() && !b.is_string() &&
      a.sequence().flavor == b.sequence().flavor) {
    const std::vector<Value>& left = a.sequence().items;
    const std::vector<Value>& right = b.sequence().items;
    heap.expect((left.size() + right.size()) * sizeof(Value));
    heap.work((left.size() + right.size()) / 8);
    std::vector<Value> items;
    items.reserve(left.size() + right.size());
    items.insert(items.end(), left.begin(), left.end());
    items.insert(items.end(), right.begin(), right.end());
    return heap.list(std::move(items), a.sequence().flavor);
  }
  if (op == Operator::kMultiply && repeats(a) && b.is_integer()) return repeat(heap, a, b.as_int());
  if (op == Operator::kMultiply && a.is_integer() && repeats(b)) return repeat(heap, b, a.as_int());
  fail_operands(op, a, b);
}

Value negate(const Value& value) {
  if (value.is(Kind::kUndefined)) fail_undefined(value);
  if (value.is_integer()) {
    int64_t result = 0;
    if (__builtin_sub_overflow(int64_t{0}, value.as_int(), &result)) fail_big();
    return Value::integer(result);
  }
  if (value.is(Kind::kFloat)) return Value::real(-value.as_real());
  fail(std::string("'-' does not work with ") + type_name(value));
}

}  // namespace mlcb::jinja
