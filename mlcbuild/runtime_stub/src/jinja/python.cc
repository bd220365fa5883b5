#include "jinja/python.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "jinja/python_text.h"

namespace mlcb::jinja {
namespace {

constexpr int kMaxWrittenDepth = 150;                 // of nested values
constexpr size_t kMaxWrittenText = size_t{64} << 20;  // bytes that one value may be written as

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

}  // namespace

void check_depth(int depth) {
  if (depth > kMaxWrittenDepth) fail("values are nested too deeply");
}

void spend(const Object& object, size_t steps) {
  if (object.heap() != nullptr) object.heap()->work(steps);
}

void fail_operands(Operator op, const Value& a, const Value& b) {
  fail(std::string("'") + symbol(op) + "' does not work between " + type_name(a) + " and " +
       type_name(b));
}

void fail_big() { fail("an integer beyond 64 bits"); }

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
  if (out->size() > kMaxWrittenText) fail("a value is too large to be written");
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

}  // namespace mlcb::jinja
