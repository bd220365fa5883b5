// Arithmetic on values.
#include <cmath>

#include "jinja/format.h"
#include "jinja/python.h"

namespace mlcb::jinja {

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
