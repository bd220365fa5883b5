#include "exec/executor.h"

#include <chrono>

#include "core/error.h"
#include "exec/dtype.h"
#include "exec/thread_pool.h"

namespace mlcb {

std::vector<KernelFn> resolve_kernels(const Plan& plan, const KernelLibrary& library) {
  std::vector<KernelFn> kernels;
  for (const std::string& name : plan.kernels) {
    kernels.push_back(library.kernel("__tvm_ffi_" + plan.symbol_prefix + name));
  }
  return kernels;
}

std::vector<Span> bind_params(const Plan& plan, const Params& params) {
  if (plan.layout != params.layout()) {
    throw Error(MLCB_ERROR_BUNDLE, plan.where + ": reads params in the layout " + plan.layout +
                                       ", the bundle holds " + params.layout());
  }
  auto text = [](const std::string& dtype, const std::vector<int64_t>& shape) {
    std::string out = dtype + " [";
    for (size_t i = 0; i < shape.size(); ++i) {
      out += (i ? ", " : "") + std::to_string(shape[i]);
    }
    return out + "]";
  };
  std::vector<Span> spans;
  for (const PlanParam& wanted : plan.params) {
    const ParamTensor* tensor = params.find(wanted.name);
    if (tensor == nullptr) {
      throw Error(MLCB_ERROR_BUNDLE,
                  plan.where + ": param " + wanted.name + " is not in params/index.json");
    }
    if (tensor->dtype != wanted.dtype || tensor->shape != wanted.shape) {
      throw Error(MLCB_ERROR_BUNDLE, plan.where + ": param " + wanted.name + " is wanted as " +
                                         text(wanted.dtype, wanted.shape) +
                                         ", params/index.json has " +
                                         text(tensor->dtype, tensor->shape));
    }
    spans.push_back({const_cast<uint8_t*>(params.data(*tensor)), tensor->nbytes});
  }
  return spans;
}

Function::Function(const Plan& plan, const PlanFunction& function,
                   const std::vector<KernelFn>& kernels, const Bindings& bindings, Span arena)
    : plan_(plan),
      function_(function),
      kernels_(kernels),
      bindings_(bindings),
      arena_(arena),
      where_(plan.where + ": function " + function.name) {
  size_t dim_count = 0, arg_count = 0;
  for (const PlanTensor& tensor : function.tensors) dim_count += tensor.shape.size();
  for (const PlanCall& call : function.calls) arg_count += call.args.size();
  tensors_.resize(function.tensors.size());
  bytes_.resize(function.tensors.size());
  dims_.resize(dim_count);
  args_.resize(arg_count);
}

void Function::check_bounds(const ShapeValues& values) const {
  for (ShapeVar var : function_.vars) {
    if (values[var] >= 1 && values[var] <= plan_.bounds[var]) continue;
    throw Error(MLCB_ERROR_INTERNAL, where_ + ": " + kShapeVarNames[var] + " is " +
                                         std::to_string(values[var]) + ", not in 1.." +
                                         std::to_string(plan_.bounds[var]));
  }
}

Span Function::memory_of(const PlanTensor& tensor) const {
  switch (tensor.kind) {
    case PlanTensor::Kind::kParam:
      return bindings_.params[tensor.ref];
    case PlanTensor::Kind::kArena:
      return arena_;
    case PlanTensor::Kind::kKv:
      return bindings_.layers[tensor.ref];
    case PlanTensor::Kind::kMeta:
      return bindings_.meta[tensor.ref];
    case PlanTensor::Kind::kInput:
      break;
  }
  return {};
}

// The plan was checked at its bounds when it was read; expressions may shrink where a variable
// grows, so what is about to run is checked here once more.
void Function::materialize(const ShapeValues& values) {
  ready_ = false;
  check_bounds(values);
  evaluate(function_, values, where_, &evaluated_);
  size_t dim = 0;
  for (size_t i = 0; i < function_.tensors.size(); ++i) {
    const PlanTensor& tensor = function_.tensors[i];
    bytes_[i] = tensor_bytes(tensor, evaluated_, where_);
    const Span memory = memory_of(tensor);
    if (tensor.kind != PlanTensor::Kind::kInput && tensor.offset + bytes_[i] > memory.bytes) {
      throw Error(MLCB_ERROR_BUNDLE, where_ + ": tensor " + std::to_string(i) + " ends at byte " +
                                         std::to_string(tensor.offset + bytes_[i]) + " of " +
                                         std::to_string(memory.bytes));
    }
    uint8_t* base = static_cast<uint8_t*>(memory.data);
    tensors_[i] = {base != nullptr ? base + tensor.offset : nullptr,
                   {1, 0},
                   static_cast<int32_t>(tensor.shape.size()),
                   tensor.dtype,
                   dims_.data() + dim,
                   nullptr,
                   0};
    for (size_t index : tensor.shape) dims_[dim++] = evaluated_[index];
  }
  fill_args();
  values_ = values;
  ready_ = true;
}

void Function::fill_args() {
  size_t next = 0;
  for (const PlanCall& call : function_.calls) {
    for (const PlanArg& arg : call.args) {
      PackedArg& packed = args_[next++];
      packed.padding = 0;
      if (arg.kind == PlanArg::Kind::kTensor) {
        packed.type_index = kPackedTensor;
        packed.pointer = &tensors_[arg.index];
      } else if (arg.kind == PlanArg::Kind::kInt) {
        packed.type_index = kPackedInt;
        packed.int_value = evaluated_[arg.index];
      } else {
        packed.type_index = kPackedFloat;
        packed.float_value = arg.number;
      }
    }
  }
}

void Function::bind_inputs(const std::vector<Span>& inputs) {
  if (inputs.size() != function_.inputs.size()) {
    throw Error(MLCB_ERROR_BUNDLE, where_ + ": takes " + std::to_string(function_.inputs.size()) +
                                       " inputs, the runtime gives " +
                                       std::to_string(inputs.size()));
  }
  for (size_t i = 0; i < function_.tensors.size(); ++i) {
    const PlanTensor& tensor = function_.tensors[i];
    if (tensor.kind != PlanTensor::Kind::kInput) continue;
    const Span& input = inputs[tensor.ref];
    if (tensor.offset + bytes_[i] > input.bytes) {
      throw Error(MLCB_ERROR_BUNDLE, where_ + ": input " + std::to_string(tensor.ref) + " wants " +
                                         std::to_string(tensor.offset + bytes_[i]) +
                                         " bytes, the runtime gives " +
                                         std::to_string(input.bytes));
    }
    tensors_[i].data = static_cast<uint8_t*>(input.data) + tensor.offset;
  }
}

void Function::set_profile(Profile* profile) {
  profile_kernels_.clear();
  profile_calls_.clear();
  if (profile != nullptr) {
    profile_function_ = profile->function_slot(function_.name);
    for (const std::string& name : plan_.kernels) {
      profile_kernels_.push_back(profile->kernel_slot(name));
    }
    profile_calls_.reserve(function_.calls.size());
  }
  profile_ = profile;
}

template <bool kTimed>
void Function::run_calls() {
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin;
  if (kTimed) begin = Clock::now();
  const PackedArg* args = args_.data();
  for (const PlanCall& call : function_.calls) {
    const int32_t count = static_cast<int32_t>(call.args.size());
    PackedArg result{kPackedNone, 0, {0}};
    if (kernels_[call.kernel](nullptr, args, count, &result) != 0) {
      const std::string why = take_kernel_error();
      throw Error(MLCB_ERROR_KERNEL, plan_.kernels[call.kernel] + ": " +
                                         (why.empty() ? "failed without a message" : why));
    }
    args += count;
    if (kTimed) {
      const Clock::time_point end = Clock::now();
      const double seconds = std::chrono::duration<double>(end - begin).count();
      profile_calls_.push_back({profile_kernels_[call.kernel], seconds});
      begin = end;
    }
  }
}

Span Function::run(const std::vector<Span>& inputs, const ShapeValues& values) {
  if (!ready_ || values != values_) materialize(values);
  bind_inputs(inputs);
  if (profile_ == nullptr) {
    run_calls<false>();
  } else {
    profile_calls_.clear();  // a run that failed leaves some; it does not count
    run_calls<true>();
    profile_->add_run(profile_function_, profile_calls_);
  }
  if (function_.outputs.empty()) return {};
  const size_t output = function_.outputs.front();
  return {tensors_[output].data, bytes_[output]};
}

}  // namespace mlcb
