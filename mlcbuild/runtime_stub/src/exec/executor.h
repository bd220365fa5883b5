// Runs the functions of a plan.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "exec/kernel_library.h"
#include "exec/params.h"
#include "exec/plan.h"
#include "exec/profile.h"

namespace mlcb {

// A piece of memory that tensors of a plan may lie in.
struct Span {
  void* data = nullptr;
  uint64_t bytes = 0;
};

// The memory around the functions: everything but inputs.
struct Bindings {
  std::vector<Span> params;  // by index in the plan
  std::vector<Span> layers;  // KV pages, by layer
  std::array<Span, kMetaTableCount> meta;
};

// The kernels of a plan, by index. Throws Error(MLCB_ERROR_BUNDLE) if one is missing.
std::vector<KernelFn> resolve_kernels(const Plan& plan, const KernelLibrary& library);

// The plan's params in the mapped shards. Throws Error(MLCB_ERROR_BUNDLE) if name, type, shape or
// layout disagree.
std::vector<Span> bind_params(const Plan& plan, const Params& params);

// One function, ready to run. Shapes are evaluated again only when a shape variable changes.
// Not thread-safe.
class Function {
 public:
  // plan, function, kernels and bindings must outlive it; arena holds function.arena_bytes.
  Function(const Plan& plan, const PlanFunction& function, const std::vector<KernelFn>& kernels,
           const Bindings& bindings, Span arena);

  // Runs all calls. Throws Error(MLCB_ERROR_INTERNAL) if a variable is out of its bounds or an
  // input is too small, MLCB_ERROR_KERNEL with the kernel's own message if one fails. Returns the
  // first output, which stays valid until the next run.
  Span run(const std::vector<Span>& inputs, const ShapeValues& values);

  // Times every kernel call of the runs to come; nullptr: none, which costs nothing. The profile
  // must outlive the function.
  void set_profile(Profile* profile);

 private:
  template <bool kTimed>
  void run_calls();
  void materialize(const ShapeValues& values);
  void check_bounds(const ShapeValues& values) const;
  void fill_args();
  Span memory_of(const PlanTensor& tensor) const;
  void bind_inputs(const std::vector<Span>& inputs);

  const Plan& plan_;
  const PlanFunction& function_;
  const std::vector<KernelFn>& kernels_;
  const Bindings& bindings_;
  Span arena_;
  std::string where_;

  bool ready_ = false;
  ShapeValues values_{};
  std::vector<int64_t> evaluated_;  // by expression
  std::vector<DLTensor> tensors_;
  std::vector<uint64_t> bytes_;  // by tensor
  std::vector<int64_t> dims_;    // of all tensors, one after the other
  std::vector<PackedArg> args_;  // of all calls, one after the other

  Profile* profile_ = nullptr;
  size_t profile_function_ = 0;          // slots of the profile: of this function,
  std::vector<size_t> profile_kernels_;  // and by kernel
  std::vector<Profile::Call> profile_calls_;
};

}  // namespace mlcb
