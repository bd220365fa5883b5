// Chooses the kernel library that an engine runs on.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "exec/bundle.h"

namespace mlcb {

// The first variant that fits: `name` and `activations` may be empty (no wish). cpu_has tells
// whether the CPU has a flag. Throws Error(MLCB_ERROR_UNSUPPORTED) if the bundle offers nothing of
// the kind, MLCB_ERROR_DEVICE naming what the CPU lacks for each candidate.
const BundleVariant& choose_variant(const std::vector<BundleVariant>& variants,
                                    const std::string& name, const std::string& activations,
                                    bool (*cpu_has)(std::string_view));

}  // namespace mlcb
