// A bundle on disk: opened, checked against its manifest, its parts at hand.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/json.h"
#include "core/os.h"
#include "exec/params.h"
#include "exec/plan.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace mlcb {

constexpr int64_t kBundleVersion = 1;

struct BundleLimits {
  int64_t context_window_size = 0;
  int64_t prefill_chunk_size = 0;
  int64_t max_batch_size = 0;
  int64_t page_size = 0;
};

// One kernel library and its plan; best first in the manifest.
struct BundleVariant {
  std::string name;
  std::string activations;  // "int8" or "float"
  std::vector<std::string> capability;
  std::string kernels;  // paths inside the bundle
  std::string plan;
};

class Bundle {
 public:
  // Checks versions, then sizes of all files, then hashes (those of params only if verify_full).
  // Throws Error naming the file and both values of whatever differs.
  Bundle(const std::string& root, bool verify_full);

  const std::string& root() const { return root_; }
  std::string path_of(const std::string& inside) const { return root_ + "/" + inside; }
  const std::string& manifest_text() const { return manifest_text_; }
  const Json& manifest() const { return manifest_; }
  const BundleLimits& limits() const { return limits_; }
  const std::vector<BundleVariant>& variants() const { return variants_; }
  const Params& params() const { return params_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ChatTemplate& chat() const { return chat_; }
  int64_t vocab_size() const { return vocab_size_; }
  // Ids from here on are rows that pad the vocabulary: never sampled.
  int64_t tokenizer_vocab_size() const { return tokenizer_vocab_size_; }

 private:
  struct File {
    std::string path;
    int64_t size;
    std::string sha256;
  };

  void read_manifest();
  void open_params();
  void open_text();
  void check_versions() const;
  void read_file_list();
  void check_sizes() const;
  void check_tree_digest() const;
  void check_hash(const File& file, const MappedFile& content) const;
  void read_variants();
  void read_limits();
  // The file `inside`, mapped and its hash checked.
  MappedFile open_checked(const std::string& inside) const;
  const File& listed(const std::string& inside) const;
  // Whether a file that is listed is not there, rightly: see kBundlesMayBePartial.
  bool may_be_absent(const std::string& inside) const;
  void verify_everything() const;
  std::string altered_tensors(const File& file, const MappedFile& content) const;

  std::string root_;
  std::string manifest_text_;
  Json manifest_;
  std::vector<File> files_;
  std::unordered_map<std::string, size_t> by_path_;
  BundleLimits limits_;
  std::vector<BundleVariant> variants_;
  Params params_;
  std::unique_ptr<Tokenizer> tokenizer_;
  ChatTemplate chat_;
  int64_t vocab_size_ = 0;
  int64_t tokenizer_vocab_size_ = 0;
};

}  // namespace mlcb
