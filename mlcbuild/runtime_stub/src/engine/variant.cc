#include "engine/variant.h"

#include <algorithm>

#include "core/error.h"

namespace mlcb {

const BundleVariant& choose_variant(const std::vector<BundleVariant>& variants,
                                    const std::string& name, const std::string& activations,
                                    bool (*cpu_has)(std::string_view)) {
  std::vector<const BundleVariant*> candidates;
  std::string offered;
  for (const BundleVariant& variant : variants) {
    offered += (offered.empty() ? "" : ", ") + variant.name + " (" + variant.activations + ")";
    if (!name.empty() && variant.name != name) continue;
    if (!activations.empty() && variant.activations != activations) continue;
    candidates.push_back(&variant);
  }
  if (candidates.empty()) {
    std::string wish = name.empty() ? "" : "variant " + name;
    if (!activations.empty()) wish += (wish.empty() ? "" : " with ") + activations + " activations";
    throw Error(MLCB_ERROR_UNSUPPORTED,
                "the bundle has no " + wish + "\nhint: it offers " + offered);
  }
  std::string lacking;
  for (const BundleVariant* variant : candidates) {
    std::string missing;
    for (const std::string& flag : variant->capability) {
      if (!cpu_has(flag)) missing += " " + flag;
    }
    if (missing.empty()) return *variant;
    lacking += "\nwhy: " + variant->name + " needs" + missing + ", which this CPU lacks";
  }
  throw Error(MLCB_ERROR_DEVICE, "no kernel library of this bundle runs on this CPU" + lacking +
                                     "\nhint: build the bundle with a variant for this CPU");
}

}  // namespace mlcb
