// An execution plan as data: what docs/formats.md describes, parsed and checked.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "exec/packed_abi.h"
#include "exec/shape_vars.h"

namespace mlcb {

constexpr int64_t kPlanVersion = 1;

// A shape expression in reverse Polish notation.
struct PlanExpr {
  enum class Op : uint8_t { kConst, kVar, kAdd, kSub, kMul, kDiv, kMod, kMax, kMin };
  struct Token {
    Op op;
    int64_t value;  // the constant, or the index of the variable
  };
  std::vector<Token> tokens;
};

// kPageSkip (int32 [seq_len]): how many pages of the row's sequence were dropped behind its sink
// pages. Plans with a sliding window read it, no others.
enum class MetaTable : uint8_t {
  kPositions,
  kSlots,
  kPageBegin,
  kPageValues,
  kRopeCosSin,
  kPageSkip
};
constexpr int kMetaTableCount = 6;

struct PlanTensor {
  enum class Kind : uint8_t { kParam, kInput, kArena, kKv, kMeta };
  Kind kind;
  size_t ref;  // index of param, input, layer or MetaTable; 0 for arena
  uint64_t offset;
  DLDataType dtype;
  std::vector<size_t> shape;  // indices of expressions
};

struct PlanArg {
  enum class Kind : uint8_t { kTensor, kInt, kFloat };
  Kind kind;
  size_t index;  // of a tensor or an expression
  double number;
};

struct PlanCall {
  size_t kernel;
  std::vector<PlanArg> args;
};

struct PlanFunction {
  std::string name;
  std::vector<ShapeVar> vars;
  std::vector<PlanExpr> exprs;
  uint64_t arena_bytes = 0;
  std::vector<PlanTensor> tensors;
  std::vector<size_t> inputs;
  std::vector<size_t> outputs;
  std::vector<PlanCall> calls;
};

struct PlanParam {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
};

struct PlanKv {
  int64_t layers = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t page_size = 0;
  int64_t page_bytes = 0;  // of one page of one layer
  // A row at position p attends to the positions j <= p with j < sinks or j > p - window; 0: to
  // all of them.
  int64_t window = 0;
  int64_t sinks = 0;
  std::string dtype;
  std::string layout;

  // Pages at the front of a page list that are never dropped.
  int64_t sink_pages() const { return (sinks + page_size - 1) / page_size; }
};

struct PlanRope {
  bool present = false;
  int64_t rotary_dim = 0;
  std::vector<float> inv_freq;
  float attention_factor = 1;
};

struct Plan {
  std::string where;  // file name for messages
  std::string target, variant, activations, layout, symbol_prefix;
  std::vector<std::string> capability;
  int64_t vocab_size = 0;
  PlanKv kv;
  PlanRope rope;
  ShapeValues bounds{};
  std::vector<PlanParam> params;
  std::vector<std::string> kernels;
  std::vector<PlanFunction> functions;

  // Throws Error(MLCB_ERROR_BUNDLE) or MLCB_ERROR_VERSION. Every index is in range afterwards,
  // every expression evaluates without under- or overflow of its stack, and at the bounds every
  // tensor fits into what it lies in.
  static Plan parse(std::string_view text, const std::string& where);

  // The function with this name; throws Error(MLCB_ERROR_BUNDLE).
  const PlanFunction& function(const std::string& name) const;
};

// The value of every expression. Throws Error(MLCB_ERROR_BUNDLE) on overflow or division by zero.
void evaluate(const PlanFunction& function, const ShapeValues& values, const std::string& where,
              std::vector<int64_t>* out);

// Bytes of a tensor whose dimensions are `values[shape[i]]`; throws on a negative one or overflow.
uint64_t tensor_bytes(const PlanTensor& tensor, const std::vector<int64_t>& values,
                      const std::string& where);

}  // namespace mlcb
