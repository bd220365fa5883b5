// The weights of a bundle: shards mapped read-only, tensors found by name.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/json.h"
#include "core/os.h"

namespace mlcb {

constexpr int64_t kParamsVersion = 1;

struct ParamTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  size_t shard = 0;
  size_t offset = 0;
  size_t nbytes = 0;
  std::string sha256;
};

struct ParamShard {
  std::string path;  // inside the bundle
  size_t size = 0;
  std::string sha256;
};

class Params {
 public:
  // index: text of params/index.json. Throws Error naming what does not fit.
  static Params parse(std::string_view index, const std::string& where);

  // Maps the shards of the bundle in folder `root`.
  void map(const std::string& root);

  const std::string& layout() const { return layout_; }
  const std::vector<ParamShard>& shards() const { return shards_; }
  const std::vector<ParamTensor>& tensors() const { return tensors_; }
  const ParamTensor* find(const std::string& name) const;
  const uint8_t* data(const ParamTensor& tensor) const {
    return maps_[tensor.shard].data() + tensor.offset;
  }
  const MappedFile& map_of(size_t shard) const { return maps_[shard]; }
  uint64_t total_bytes() const;

 private:
  static Params read(const Json& root, const std::string& where);

  std::string layout_;
  std::vector<ParamShard> shards_;
  std::vector<ParamTensor> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
  std::vector<MappedFile> maps_;
};

}  // namespace mlcb
