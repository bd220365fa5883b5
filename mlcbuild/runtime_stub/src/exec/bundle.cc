#include "exec/bundle.h"

#include <algorithm>

#include "core/context.h"
#include "core/error.h"
#include "core/sha256.h"
#include "text/tokenizer_file.h"

namespace mlcb {
namespace {

constexpr size_t kProblemsShown = 5;

// Whether a path of the manifest stays inside the bundle.
bool is_safe_path(const std::string& path) {
  if (path.empty() || path.front() == '/' || path.back() == '/') return false;
  if (path.find('\\') != std::string::npos || path.find(':') != std::string::npos) return false;
  if (path.find('\0') != std::string::npos) return false;
  for (size_t begin = 0; begin <= path.size();) {
    size_t end = std::min(path.find('/', begin), path.size());
    std::string part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

}  // namespace

Bundle::Bundle(const std::string& root, bool verify_full) : root_(root) {
  while (root_.size() > 1 && root_.back() == '/') root_.pop_back();
  read_manifest();
  const std::string manifest_path = path_of("bundle.json");
  in_file(manifest_path, [&] {
    check_versions();
    read_file_list();
    check_sizes();
    check_tree_digest();
    read_limits();
    read_variants();
    open_params();
  });
  if (verify_full) verify_everything();
  open_text();
}

// Of kernels and plans only the hash matters here: an engine opens those that it needs.
void Bundle::open_params() {
  for (const BundleVariant& variant : variants_) {
    // The kernels of a variant that is linked in are no file.
    if (!may_be_absent(variant.kernels)) open_checked(variant.kernels);
    open_checked(variant.plan);
  }
  const std::string index = manifest_.at("params").as_string();
  params_ = Params::parse(open_checked(index).text(), path_of(index));
  for (const ParamShard& shard : params_.shards()) {
    const File& file = listed(shard.path);
    if (static_cast<uint64_t>(file.size) == shard.size && file.sha256 == shard.sha256) continue;
    throw Error(MLCB_ERROR_BUNDLE, path_of(index) + ": " + shard.path + " is listed with " +
                                       std::to_string(shard.size) + " bytes, sha256 " +
                                       shard.sha256 + "; bundle.json lists " +
                                       std::to_string(file.size) + " bytes, sha256 " + file.sha256);
  }
  params_.map(root_);
}

void Bundle::open_text() {
  const std::string manifest_path = path_of("bundle.json");
  const std::string tokenizer =
      in_file(manifest_path, [&] { return manifest_.at("tokenizer").as_string(); });
  // Beside the tokenizer.json may lie the same one packed, which loads several times as fast.
  const std::string packed = tokenizer.substr(0, tokenizer.find_last_of('/') + 1) + "tokenizer.bin";
  const std::string source = by_path_.count(packed) != 0 ? packed : tokenizer;
  tokenizer_ = in_file(path_of(source), [&] {
    const MappedFile file = open_checked(source);
    if (source == packed && packed_tokenizer_source(file.text()) != listed(tokenizer).sha256) {
      throw Error(MLCB_ERROR_BUNDLE, path_of(packed) + ": it was not made of " + tokenizer +
                                         "\nwhy: it names another sha256 of its source");
    }
    return Tokenizer::from_file(file.text(), path_of(source));
  });
  const std::string chat = in_file(manifest_path, [&] { return manifest_.at("chat").as_string(); });
  chat_ = in_file(path_of(chat), [&] {
    return ChatTemplate::from_json(Json::parse(open_checked(chat).text(), path_of(chat)));
  });
}

void Bundle::read_manifest() {
  const std::string path = path_of("bundle.json");
  if (file_size(path) < 0) {
    throw Error(MLCB_ERROR_BUNDLE, root_ + ": no bundle here\nwhy: " + path +
                                       " is missing\nhint: give the folder that holds bundle.json");
  }
  manifest_text_ = std::string(MappedFile(path).text());
  manifest_ = Json::parse(manifest_text_, path);
}

void Bundle::check_versions() const {
  const struct {
    const char* key;
    int64_t supported;
  } kVersions[] = {{"bundle_version", kBundleVersion},
                   {"abi_version", MLCB_ABI_VERSION},
                   {"plan_version", kPlanVersion},
                   {"params_version", kParamsVersion}};
  for (const auto& version : kVersions) {
    const int64_t found = manifest_.at(version.key).as_int();
    if (found == version.supported) continue;
    throw Error(MLCB_ERROR_VERSION,
                path_of("bundle.json") + ": " + version.key + " is " + std::to_string(found) +
                    ", this runtime reads " + std::to_string(version.supported) +
                    "\nwhy: bundle and runtime come from different versions of mlcbuild\n" +
                    "hint: use the runtime in the bundle's own lib/ folder");
  }
}

void Bundle::read_file_list() {
  for (const Json& entry : manifest_.at("files").items()) {
    File file{entry.at("path").as_string(), entry.at("size").as_int(),
              entry.at("sha256").as_string()};
    if (!is_safe_path(file.path)) {
      throw Error(MLCB_ERROR_BUNDLE, path_of("bundle.json") + ": unsafe path " +
                                         json_quote(file.path) + " in the list of files");
    }
    if (file.size < 0) {
      throw Error(MLCB_ERROR_BUNDLE, path_of("bundle.json") + ": negative size of " + file.path);
    }
    if (!by_path_.emplace(file.path, files_.size()).second) {
      throw Error(MLCB_ERROR_BUNDLE,
                  path_of("bundle.json") + ": " + file.path + " is listed twice");
    }
    files_.push_back(std::move(file));
  }
}

void Bundle::check_sizes() const {
  std::vector<std::string> problems;
  for (const File& file : files_) {
    const int64_t size = file_size(path_of(file.path));
    if (size < 0) {
      if (kBundlesMayBePartial) continue;  // what is opened must be there
      problems.push_back(file.path + ": file is missing");
    } else if (size != file.size) {
      problems.push_back(file.path + ": has " + std::to_string(size) + " bytes, bundle.json says " +
                         std::to_string(file.size));
    }
  }
  if (problems.empty()) return;
  std::string message = root_ + ": the bundle is not complete";
  for (size_t i = 0; i < std::min(problems.size(), kProblemsShown); ++i) {
    message += "\n" + problems[i];
  }
  if (problems.size() > kProblemsShown) {
    message += "\nand " + std::to_string(problems.size() - kProblemsShown) + " more";
  }
  throw Error(MLCB_ERROR_BUNDLE, message + "\nhint: copy or download the bundle again");
}

void Bundle::check_tree_digest() const {
  std::vector<const File*> sorted;
  for (const File& file : files_) sorted.push_back(&file);
  std::sort(sorted.begin(), sorted.end(),
            [](const File* a, const File* b) { return a->path < b->path; });
  std::string text = "[";
  for (const File* file : sorted) {
    if (text.size() > 1) text += ',';
    text += "{\"path\":" + json_quote(file->path) + ",\"sha256\":" + json_quote(file->sha256) +
            ",\"size\":" + std::to_string(file->size) + "}";
  }
  const std::string found = "sha256:" + sha256_hex(text + "]");
  const std::string& expected = manifest_.at("tree_digest").as_string();
  if (found != expected) {
    throw Error(MLCB_ERROR_HASH, path_of("bundle.json") + ": its list of files has the digest " +
                                     found + ", tree_digest says " + expected +
                                     "\nwhy: bundle.json was altered");
  }
}

void Bundle::check_hash(const File& file, const MappedFile& content) const {
  const std::string found = sha256_hex(content.data(), content.size());
  if (found == file.sha256) return;
  throw Error(MLCB_ERROR_HASH, path_of(file.path) + ": sha256 is " + found + ", bundle.json says " +
                                   file.sha256 + altered_tensors(file, content) +
                                   "\nwhy: the file was altered or damaged\n" +
                                   "hint: copy or download the bundle again");
}

std::string Bundle::altered_tensors(const File& file, const MappedFile& content) const {
  std::string names;
  if (content.size() != static_cast<uint64_t>(file.size)) return names;
  for (const ParamTensor& tensor : params_.tensors()) {
    if (params_.shards()[tensor.shard].path != file.path) continue;
    if (sha256_hex(content.data() + tensor.offset, tensor.nbytes) == tensor.sha256) continue;
    names += (names.empty() ? "\naltered: " : ", ") + tensor.name;
  }
  return names;
}

void Bundle::read_limits() {
  const Json& limits = manifest_.at("limits");
  const struct {
    const char* key;
    int64_t* value;
  } kKeys[] = {{"context_window_size", &limits_.context_window_size},
               {"prefill_chunk_size", &limits_.prefill_chunk_size},
               {"max_batch_size", &limits_.max_batch_size},
               {"page_size", &limits_.page_size}};
  for (const auto& key : kKeys) {
    *key.value = limits.at(key.key).as_int();
    if (*key.value < 1 || *key.value > (int64_t{1} << 31)) {
      throw Error(MLCB_ERROR_BUNDLE, path_of("bundle.json") + ": limits." + key.key + " is " +
                                         std::to_string(*key.value));
    }
  }
  const Json& model = manifest_.at("model");
  vocab_size_ = model.at("vocab_size").as_int();
  tokenizer_vocab_size_ = model.at("tokenizer_vocab_size").as_int();
  if (vocab_size_ < 1 || tokenizer_vocab_size_ < 1) {
    throw Error(MLCB_ERROR_BUNDLE, path_of("bundle.json") + ": the vocabulary is empty");
  }
}

void Bundle::read_variants() {
  for (const Json& entry : manifest_.at("variants").items()) {
    BundleVariant variant;
    variant.name = entry.at("name").as_string();
    variant.activations = entry.at("activations").as_string();
    for (const Json& flag : entry.at("capability").items()) {
      variant.capability.push_back(flag.as_string());
    }
    variant.kernels = entry.at("kernels").as_string();
    variant.plan = entry.at("plan").as_string();
    variants_.push_back(std::move(variant));
  }
  if (variants_.empty()) {
    throw Error(MLCB_ERROR_BUNDLE, path_of("bundle.json") + ": lists no kernel variant");
  }
}

const Bundle::File& Bundle::listed(const std::string& inside) const {
  auto found = by_path_.find(inside);
  if (found == by_path_.end()) {
    throw Error(MLCB_ERROR_BUNDLE, path_of("bundle.json") + ": " + json_quote(inside) +
                                       " is not in its list of files");
  }
  return files_[found->second];
}

MappedFile Bundle::open_checked(const std::string& inside) const {
  const File& file = listed(inside);
  MappedFile content(path_of(inside));
  check_hash(file, content);
  return content;
}

bool Bundle::may_be_absent(const std::string& inside) const {
  return kBundlesMayBePartial && file_size(path_of(listed(inside).path)) < 0;
}

void Bundle::verify_everything() const {
  for (const File& file : files_) check_hash(file, MappedFile(path_of(file.path)));
}

}  // namespace mlcb
