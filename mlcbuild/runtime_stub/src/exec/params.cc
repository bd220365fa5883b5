#include "exec/params.h"

#include "core/context.h"
#include "core/error.h"
#include "core/json.h"
#include "exec/dtype.h"

namespace mlcb {
namespace {

constexpr size_t kAlignment = 64;

[[noreturn]] void bad_params(const std::string& where, const std::string& what) {
  throw Error(MLCB_ERROR_BUNDLE, where + ": " + what);
}

size_t as_size(const Json& value, const std::string& where, const char* what) {
  int64_t number = value.as_int();
  if (number < 0) bad_params(where, std::string(what) + " is negative");
  const size_t size = static_cast<size_t>(number);
  if (size != static_cast<uint64_t>(number)) {
    bad_params(where, std::string(what) + " is more than this machine addresses");
  }
  return size;
}

ParamTensor parse_tensor(const Json& entry, const std::vector<ParamShard>& shards,
                         const std::string& where) {
  ParamTensor tensor;
  tensor.name = entry.at("name").as_string();
  const std::string place = where + ": tensor " + tensor.name;
  tensor.dtype = entry.at("dtype").as_string();
  tensor.shard = as_size(entry.at("shard"), place, "shard");
  tensor.offset = as_size(entry.at("offset"), place, "offset");
  tensor.nbytes = as_size(entry.at("nbytes"), place, "nbytes");
  tensor.sha256 = entry.at("sha256").as_string();
  if (tensor.shard >= shards.size()) {
    bad_params(place,
               "shard " + std::to_string(tensor.shard) + " of " + std::to_string(shards.size()));
  }
  if (tensor.offset % kAlignment != 0) {
    bad_params(place, "offset " + std::to_string(tensor.offset) + " is not a multiple of 64");
  }
  const size_t shard_size = shards[tensor.shard].size;
  if (tensor.offset > shard_size || tensor.nbytes > shard_size - tensor.offset) {
    bad_params(place, "bytes " + std::to_string(tensor.offset) + " + " +
                          std::to_string(tensor.nbytes) + " lie outside the shard of " +
                          std::to_string(shard_size) + " bytes");
  }
  int64_t bytes = element_bytes(parse_dtype(tensor.dtype, place));
  for (const Json& dim : entry.at("shape").items()) {
    int64_t size = dim.as_int();
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes))
      bad_params(place, "impossible shape");
    tensor.shape.push_back(size);
  }
  if (static_cast<uint64_t>(bytes) != tensor.nbytes) {
    bad_params(place, "shape and type make " + std::to_string(bytes) + " bytes, the index says " +
                          std::to_string(tensor.nbytes));
  }
  return tensor;
}

}  // namespace

Params Params::parse(std::string_view index, const std::string& where) {
  const Json root = Json::parse(index, where);
  return in_file(where, [&] { return read(root, where); });
}

Params Params::read(const Json& root, const std::string& where) {
  int64_t version = root.at("params_version").as_int();
  if (version != kParamsVersion) {
    throw Error(MLCB_ERROR_VERSION, where + ": params version " + std::to_string(version) +
                                        ", this runtime reads version " +
                                        std::to_string(kParamsVersion));
  }
  Params params;
  params.layout_ = root.at("layout").as_string();
  for (const Json& entry : root.at("shards").items()) {
    params.shards_.push_back({entry.at("path").as_string(),
                              as_size(entry.at("size"), where, "shard size"),
                              entry.at("sha256").as_string()});
  }
  for (const Json& entry : root.at("tensors").items()) {
    ParamTensor tensor = parse_tensor(entry, params.shards_, where);
    if (!params.by_name_.emplace(tensor.name, params.tensors_.size()).second) {
      bad_params(where, "tensor " + tensor.name + " is listed twice");
    }
    params.tensors_.push_back(std::move(tensor));
  }
  return params;
}

void Params::map(const std::string& root) {
  for (const ParamShard& shard : shards_) {
    maps_.emplace_back(root + "/" + shard.path);
    if (maps_.back().size() != shard.size) {
      bad_params(root + "/" + shard.path, "has " + std::to_string(maps_.back().size()) +
                                              " bytes, the index says " +
                                              std::to_string(shard.size));
    }
    maps_.back().will_need();
  }
}

const ParamTensor* Params::find(const std::string& name) const {
  auto found = by_name_.find(name);
  return found != by_name_.end() ? &tensors_[found->second] : nullptr;
}

uint64_t Params::total_bytes() const {
  uint64_t total = 0;
  for (const ParamShard& shard : shards_) total += shard.size;
  return total;
}

}  // namespace mlcb
