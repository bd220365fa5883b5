#include "exec/plan.h"

#include <algorithm>
#include <cmath>

#include "core/context.h"
#include "core/error.h"
#include "exec/dtype.h"

namespace mlcb {
namespace {

constexpr size_t kMaxStack = 32;
constexpr size_t kMaxTokens = 256;
constexpr size_t kMaxDims = 8;
constexpr int64_t kMaxBytes = int64_t{1} << 46;  // 64 TiB: more is a damaged file
constexpr const char* kMetaNames[kMetaTableCount] = {"positions",   "slots",        "page_begin",
                                                     "page_values", "rope_cos_sin", "page_skip"};

[[noreturn]] void bad_plan(const std::string& where, const std::string& what) {
  throw Error(MLCB_ERROR_BUNDLE, where + ": " + what);
}

size_t index_below(const Json& value, size_t count, const std::string& where, const char* what) {
  const int64_t index = value.as_int();
  if (index < 0 || static_cast<uint64_t>(index) >= count) {
    bad_plan(where, std::string(what) + " " + std::to_string(index) + " is not below " +
                        std::to_string(count));
  }
  return static_cast<size_t>(index);
}

int64_t number_in(const Json& value, int64_t low, int64_t high, const std::string& where,
                  const char* what) {
  const int64_t number = value.as_int();
  if (number < low || number > high) {
    bad_plan(where, std::string(what) + " is " + std::to_string(number) + ", not in " +
                        std::to_string(low) + ".." + std::to_string(high));
  }
  return number;
}

ShapeVar parse_var(const std::string& name, const std::string& where) {
  for (int i = 0; i < kShapeVarCount; ++i) {
    if (name == kShapeVarNames[i]) return static_cast<ShapeVar>(i);
  }
  bad_plan(where, "unknown shape variable " + json_quote(name));
}

PlanExpr::Token parse_token(const Json& token, size_t var_count, const std::string& where) {
  using Op = PlanExpr::Op;
  if (token.is_number()) return {Op::kConst, token.as_int()};
  const std::string& text = token.as_string();
  static const struct {
    const char* text;
    Op op;
  } kOps[] = {{"+", Op::kAdd}, {"-", Op::kSub},   {"*", Op::kMul},  {"/", Op::kDiv},
              {"%", Op::kMod}, {"max", Op::kMax}, {"min", Op::kMin}};
  for (const auto& op : kOps) {
    if (text == op.text) return {op.op, 0};
  }
  bool is_var = text.size() >= 2 && text.size() <= 4 && text[0] == '$';
  int64_t index = 0;
  for (size_t i = 1; is_var && i < text.size(); ++i) {
    is_var = text[i] >= '0' && text[i] <= '9';
    index = index * 10 + (text[i] - '0');
  }
  if (!is_var) bad_plan(where, "unknown token " + json_quote(text) + " in an expression");
  if (static_cast<size_t>(index) >= var_count) {
    bad_plan(where, "variable " + text + " of " + std::to_string(var_count));
  }
  return {Op::kVar, index};
}

PlanExpr parse_expr(const Json& tokens, size_t var_count, const std::string& where) {
  PlanExpr expr;
  size_t depth = 0;
  if (tokens.size() > kMaxTokens) bad_plan(where, "an expression is too long");
  for (const Json& item : tokens.items()) {
    PlanExpr::Token token = parse_token(item, var_count, where);
    if (token.op == PlanExpr::Op::kConst || token.op == PlanExpr::Op::kVar) {
      if (++depth > kMaxStack) bad_plan(where, "an expression nests too deeply");
    } else {
      if (depth < 2) bad_plan(where, "an operator of an expression lacks an operand");
      --depth;
    }
    expr.tokens.push_back(token);
  }
  if (depth != 1)
    bad_plan(where, "an expression leaves " + std::to_string(depth) + " values, not 1");
  return expr;
}

int64_t floor_div(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return quotient - ((a % b != 0) && ((a < 0) != (b < 0)) ? 1 : 0);
}

int64_t apply(PlanExpr::Op op, int64_t a, int64_t b, const std::string& where) {
  using Op = PlanExpr::Op;
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Op::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Op::kSub:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Op::kMul:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Op::kDiv:
    case Op::kMod:
      if (b == 0) bad_plan(where, "an expression divides by zero");
      if (b == -1) {  // the smallest integer divided by -1 would trap
        overflow = op == Op::kDiv && __builtin_sub_overflow(int64_t{0}, a, &result);
        break;
      }
      result = op == Op::kDiv ? floor_div(a, b) : a - floor_div(a, b) * b;
      break;
    case Op::kMax:
      result = std::max(a, b);
      break;
    default:
      result = std::min(a, b);
      break;
  }
  if (overflow) bad_plan(where, "an expression overflows");
  return result;
}

size_t parse_ref(PlanTensor::Kind kind, const Json& ref, const Plan& plan, size_t input_count,
                 const std::string& where) {
  switch (kind) {
    case PlanTensor::Kind::kParam:
      return index_below(ref, plan.params.size(), where, "param");
    case PlanTensor::Kind::kInput:
      return index_below(ref, input_count, where, "input");
    case PlanTensor::Kind::kKv:
      return index_below(ref, static_cast<size_t>(plan.kv.layers), where, "layer");
    case PlanTensor::Kind::kArena:
      return index_below(ref, 1, where, "arena");
    case PlanTensor::Kind::kMeta:
      break;
  }
  const std::string& name = ref.as_string();
  for (int i = 0; i < kMetaTableCount; ++i) {
    if (name != kMetaNames[i]) continue;
    if (static_cast<MetaTable>(i) == MetaTable::kRopeCosSin && !plan.rope.present) {
      bad_plan(where, "uses rope_cos_sin, but the plan has no rope");
    }
    if (static_cast<MetaTable>(i) == MetaTable::kPageSkip && plan.kv.window == 0) {
      bad_plan(where, "uses page_skip, but the plan has no sliding window");
    }
    return static_cast<size_t>(i);
  }
  bad_plan(where, "unknown meta table " + json_quote(name));
}

PlanTensor parse_tensor(const Json& entry, const Plan& plan, const PlanFunction& function,
                        size_t input_count, const std::string& where) {
  if (entry.size() != 5)
    bad_plan(where, "a tensor has " + std::to_string(entry.size()) + " fields");
  const std::vector<Json>& fields = entry.items();
  static const char* const kKinds[] = {"param", "input", "arena", "kv", "meta"};
  const std::string& name = fields[0].as_string();
  auto found = std::find(std::begin(kKinds), std::end(kKinds), name);
  if (found == std::end(kKinds)) bad_plan(where, "unknown tensor kind " + json_quote(name));
  PlanTensor tensor;
  tensor.kind = static_cast<PlanTensor::Kind>(found - std::begin(kKinds));
  tensor.ref = parse_ref(tensor.kind, fields[1], plan, input_count, where);
  tensor.offset = static_cast<uint64_t>(number_in(fields[2], 0, kMaxBytes, where, "an offset"));
  if (tensor.offset % 64 != 0) {
    bad_plan(where, "offset " + std::to_string(tensor.offset) + " is not a multiple of 64");
  }
  tensor.dtype = parse_dtype(fields[3].as_string(), where);
  if (fields[4].size() > kMaxDims) bad_plan(where, "a tensor has too many dimensions");
  for (const Json& dim : fields[4].items()) {
    tensor.shape.push_back(index_below(dim, function.exprs.size(), where, "expression"));
  }
  return tensor;
}

PlanCall parse_call(const Json& entry, const Plan& plan, const PlanFunction& function,
                    const std::string& where) {
  if (entry.size() != 2) bad_plan(where, "a call has " + std::to_string(entry.size()) + " fields");
  PlanCall call;
  call.kernel = index_below(entry.items()[0], plan.kernels.size(), where, "kernel");
  for (const Json& item : entry.items()[1].items()) {
    if (item.size() != 2) bad_plan(where, "an argument of a call has not 2 fields");
    const std::string& kind = item.items()[0].as_string();
    const Json& value = item.items()[1];
    if (kind == "t") {
      size_t index = index_below(value, function.tensors.size(), where, "tensor");
      call.args.push_back({PlanArg::Kind::kTensor, index, 0});
    } else if (kind == "i") {
      size_t index = index_below(value, function.exprs.size(), where, "expression");
      call.args.push_back({PlanArg::Kind::kInt, index, 0});
    } else if (kind == "f") {
      call.args.push_back({PlanArg::Kind::kFloat, 0, value.as_double()});
    } else {
      bad_plan(where, "unknown kind of argument " + json_quote(kind));
    }
  }
  return call;
}

PlanFunction parse_function(const Json& entry, const Plan& plan) {
  PlanFunction function;
  function.name = entry.at("name").as_string();
  const std::string where = plan.where + ": function " + function.name;
  for (const Json& name : entry.at("vars").items()) {
    function.vars.push_back(parse_var(name.as_string(), where));
  }
  for (const Json& tokens : entry.at("exprs").items()) {
    function.exprs.push_back(parse_expr(tokens, function.vars.size(), where));
  }
  function.arena_bytes =
      static_cast<uint64_t>(number_in(entry.at("arena_bytes"), 0, kMaxBytes, where, "arena_bytes"));
  const size_t input_count = entry.at("inputs").size();
  for (const Json& tensor : entry.at("tensors").items()) {
    function.tensors.push_back(parse_tensor(tensor, plan, function, input_count, where));
  }
  const size_t tensor_count = function.tensors.size();
  for (const Json& index : entry.at("inputs").items()) {
    const size_t tensor = index_below(index, tensor_count, where, "input tensor");
    if (function.tensors[tensor].kind != PlanTensor::Kind::kInput ||
        function.tensors[tensor].ref != function.inputs.size()) {
      bad_plan(where, "input " + std::to_string(function.inputs.size()) + " is tensor " +
                          std::to_string(tensor) + ", which is not of that kind");
    }
    function.inputs.push_back(tensor);
  }
  for (const Json& index : entry.at("outputs").items()) {
    function.outputs.push_back(index_below(index, tensor_count, where, "output tensor"));
  }
  for (const Json& call : entry.at("calls").items()) {
    function.calls.push_back(parse_call(call, plan, function, where));
  }
  return function;
}

// Bytes of one page of one layer: keys and values; in "kt8" then a float32 scale for each of their
// tokens, and padding to 64 bytes.
int64_t page_bytes_of(const PlanKv& kv, const std::string& where) {
  const bool scaled = kv.layout == "kt8";
  if (!scaled && kv.layout != "kt") bad_plan(where, "unknown kv layout " + json_quote(kv.layout));
  const DLDataType dtype = parse_dtype(kv.dtype, where);
  if (scaled != (kv.dtype == "int8")) {
    bad_plan(where, "kv.dtype is " + kv.dtype + " in the layout " + json_quote(kv.layout));
  }
  const int64_t tokens = 2 * kv.kv_heads * kv.page_size;
  int64_t bytes = 0;
  if (__builtin_mul_overflow(tokens, kv.head_dim * element_bytes(dtype) + (scaled ? 4 : 0),
                             &bytes) ||
      bytes > kMaxBytes) {
    bad_plan(where, "kv makes pages of an impossible size");
  }
  return scaled ? (bytes + 63) / 64 * 64 : bytes;
}

PlanKv parse_kv(const Json& entry, const std::string& where) {
  PlanKv kv;
  kv.layers = number_in(entry.at("layers"), 0, 4096, where, "kv.layers");
  kv.kv_heads = number_in(entry.at("kv_heads"), 1, 65536, where, "kv.kv_heads");
  kv.head_dim = number_in(entry.at("head_dim"), 1, 65536, where, "kv.head_dim");
  kv.page_size = number_in(entry.at("page_size"), 1, 65536, where, "kv.page_size");
  kv.page_bytes = number_in(entry.at("page_bytes"), 1, kMaxBytes, where, "kv.page_bytes");
  kv.dtype = entry.at("dtype").as_string();
  kv.layout = entry.at("layout").as_string();
  if (const Json* window = entry.find("window")) {
    kv.window = number_in(*window, 0, INT32_MAX, where, "kv.window");
  }
  if (const Json* sinks = entry.find("sinks")) {
    kv.sinks = number_in(*sinks, 0, kv.window == 0 ? 0 : INT32_MAX, where, "kv.sinks");
  }
  const int64_t expected = page_bytes_of(kv, where);
  if (kv.page_bytes != expected) {
    bad_plan(where, "kv.page_bytes is " + std::to_string(kv.page_bytes) + ", its shape makes " +
                        std::to_string(expected));
  }
  return kv;
}

PlanRope parse_rope(const Json& entry, const std::string& where) {
  PlanRope rope;
  if (entry.is_null()) return rope;
  rope.present = true;
  rope.rotary_dim = number_in(entry.at("rotary_dim"), 2, 65536, where, "rope.rotary_dim");
  rope.attention_factor = static_cast<float>(entry.at("attention_factor").as_double());
  for (const Json& value : entry.at("inv_freq").items()) {
    rope.inv_freq.push_back(static_cast<float>(value.as_double()));
    if (!std::isfinite(rope.inv_freq.back()))
      bad_plan(where, "rope.inv_freq holds no finite number");
  }
  if (static_cast<int64_t>(rope.inv_freq.size()) * 2 != rope.rotary_dim) {
    bad_plan(where, "rope.inv_freq has " + std::to_string(rope.inv_freq.size()) +
                        " numbers for rotary_dim " + std::to_string(rope.rotary_dim));
  }
  return rope;
}

// What the tensor lies in may hold at most this many bytes at the bounds; -1: known at run time.
int64_t room_for(const PlanTensor& tensor, const Plan& plan, const PlanFunction& function) {
  switch (tensor.kind) {
    case PlanTensor::Kind::kArena:
      return static_cast<int64_t>(function.arena_bytes);
    case PlanTensor::Kind::kKv:
      return plan.kv.page_bytes * plan.bounds[kKvPages];
    case PlanTensor::Kind::kParam: {
      const PlanParam& param = plan.params[tensor.ref];
      int64_t bytes = element_bytes(parse_dtype(param.dtype, plan.where));
      for (int64_t dim : param.shape) {
        if (__builtin_mul_overflow(bytes, dim, &bytes))
          bad_plan(plan.where, "impossible param shape");
      }
      return bytes;
    }
    default:
      return -1;
  }
}

void check_room(const Plan& plan, const PlanFunction& function) {
  const std::string where = plan.where + ": function " + function.name;
  std::vector<int64_t> values;
  evaluate(function, plan.bounds, where, &values);
  for (size_t i = 0; i < function.tensors.size(); ++i) {
    const PlanTensor& tensor = function.tensors[i];
    const uint64_t end = tensor.offset + tensor_bytes(tensor, values, where);
    const int64_t room = room_for(tensor, plan, function);
    if (room >= 0 && end > static_cast<uint64_t>(room)) {
      bad_plan(where, "tensor " + std::to_string(i) + " ends at byte " + std::to_string(end) +
                          " of " + std::to_string(room));
    }
  }
}

Plan parse_plan(const Json& root, const std::string& where) {
  const int64_t version = root.at("plan_version").as_int();
  if (version != kPlanVersion) {
    throw Error(MLCB_ERROR_VERSION, where + ": plan version " + std::to_string(version) +
                                        ", this runtime reads version " +
                                        std::to_string(kPlanVersion));
  }
  Plan plan;
  plan.where = where;
  plan.target = root.at("target").as_string();
  plan.variant = root.at("variant").as_string();
  plan.activations = root.at("activations").as_string();
  plan.layout = root.at("layout").as_string();
  plan.symbol_prefix = root.at("symbol_prefix").as_string();
  for (const Json& flag : root.at("capability").items()) {
    plan.capability.push_back(flag.as_string());
  }
  plan.vocab_size = number_in(root.at("vocab_size"), 1, INT32_MAX, where, "vocab_size");
  plan.kv = parse_kv(root.at("kv"), where);
  plan.rope = parse_rope(root.at("rope"), where);
  const Json& bounds = root.at("bounds");
  for (const auto& bound : bounds.members()) parse_var(bound.first, where + ": bounds");
  for (int i = 0; i < kShapeVarCount; ++i) {
    const Json* bound = bounds.find(kShapeVarNames[i]);
    if (bound != nullptr) {
      plan.bounds[i] = number_in(*bound, 0, INT32_MAX, where, kShapeVarNames[i]);
    }
  }
  int64_t pool_bytes = 0;
  if (__builtin_mul_overflow(plan.kv.page_bytes, plan.bounds[kKvPages], &pool_bytes) ||
      pool_bytes > kMaxBytes) {
    bad_plan(where, "the bound of kv_pages makes an impossible amount of memory");
  }
  for (const Json& entry : root.at("params").items()) {
    PlanParam param{entry.at("name").as_string(), entry.at("dtype").as_string(), {}};
    for (const Json& dim : entry.at("shape").items()) {
      param.shape.push_back(number_in(dim, 0, kMaxBytes, where, "a dimension of a param"));
    }
    plan.params.push_back(std::move(param));
  }
  for (const Json& name : root.at("kernels").items()) plan.kernels.push_back(name.as_string());
  for (const Json& entry : root.at("functions").items()) {
    plan.functions.push_back(parse_function(entry, plan));
    const PlanFunction& function = plan.functions.back();
    for (ShapeVar var : function.vars) {
      if (bounds.find(kShapeVarNames[var]) == nullptr) {
        bad_plan(where, std::string("no bound for the shape variable ") + kShapeVarNames[var]);
      }
    }
    check_room(plan, function);
  }
  return plan;
}

}  // namespace

Plan Plan::parse(std::string_view text, const std::string& where) {
  const Json root = Json::parse(text, where);
  return in_file(where, [&] { return parse_plan(root, where); });
}

const PlanFunction& Plan::function(const std::string& name) const {
  for (const PlanFunction& function : functions) {
    if (function.name == name) return function;
  }
  bad_plan(where, "function " + name + " is missing");
}

void evaluate(const PlanFunction& function, const ShapeValues& values, const std::string& where,
              std::vector<int64_t>* out) {
  out->clear();
  int64_t stack[kMaxStack];
  for (const PlanExpr& expr : function.exprs) {
    size_t depth = 0;
    for (const PlanExpr::Token& token : expr.tokens) {
      if (token.op == PlanExpr::Op::kConst) {
        stack[depth++] = token.value;
      } else if (token.op == PlanExpr::Op::kVar) {
        stack[depth++] = values[function.vars[static_cast<size_t>(token.value)]];
      } else {
        --depth;
        stack[depth - 1] = apply(token.op, stack[depth - 1], stack[depth], where);
      }
    }
    out->push_back(stack[0]);
  }
}

uint64_t tensor_bytes(const PlanTensor& tensor, const std::vector<int64_t>& values,
                      const std::string& where) {
  int64_t bytes = element_bytes(tensor.dtype);
  for (size_t index : tensor.shape) {
    const int64_t dim = values[index];
    if (dim < 0 || __builtin_mul_overflow(bytes, dim, &bytes) || bytes > kMaxBytes) {
      bad_plan(where, "a tensor has an impossible shape");
    }
  }
  return static_cast<uint64_t>(bytes);
}

}  // namespace mlcb
