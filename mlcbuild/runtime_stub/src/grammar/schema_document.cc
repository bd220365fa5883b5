#include <cmath>

#include "core/utf8.h"
#include "grammar/grammar_error.h"
#include "grammar/schema.h"

namespace mlcb {
namespace {

std::string escape_key(const std::string& key) {
  std::string out;
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// A token of a JSON pointer in a URI: %XX, then ~1 and ~0.
std::string unescape_key(const std::string& token) {
  std::string plain, key;
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '%' && i + 2 < token.size() && hex_value(token[i + 1]) >= 0 &&
        hex_value(token[i + 2]) >= 0) {
      plain.push_back(static_cast<char>(hex_value(token[i + 1]) * 16 + hex_value(token[i + 2])));
      i += 2;
    } else {
      plain.push_back(token[i]);
    }
  }
  for (size_t i = 0; i < plain.size(); ++i) {
    if (plain[i] == '~' && i + 1 < plain.size() && (plain[i + 1] == '0' || plain[i + 1] == '1')) {
      key.push_back(plain[++i] == '0' ? '~' : '/');
    } else {
      key.push_back(plain[i]);
    }
  }
  return key;
}

}  // namespace

SchemaDocument::SchemaDocument(const Json& root, std::string where)
    : root_(root), where_(std::move(where)) {
  paths_[&root] = "";
}

std::string SchemaDocument::path(const Json& node) const {
  const auto found = paths_.find(&node);
  return where_ + (found == paths_.end() ? "?" : found->second);
}

void SchemaDocument::fail(const Json& node, const std::string& what) const {
  fail_grammar(where(node) + ": " + what);
}

std::string SchemaDocument::where(const Json& node) const {
  const std::string place = path(node);
  return "JSON schema: " + (place.empty() ? "the top" : place);
}

void SchemaDocument::fail_keyword(const Json& node, const std::string& keyword,
                                  const std::string& why) const {
  fail_grammar("JSON schema: " + path(node) + "/" + escape_key(keyword) + ": \"" + keyword + "\" " +
               why);
}

const Json* SchemaDocument::note(const Json& node, const std::string& key, const Json& child) {
  const auto parent = paths_.find(&node);
  paths_.emplace(&child, (parent == paths_.end() ? "" : parent->second) + "/" + escape_key(key));
  return &child;
}

const Json* SchemaDocument::find(const Json& node, const char* key) {
  const Json* child = node.find(key);
  return child == nullptr ? nullptr : note(node, key, *child);
}

const Json* SchemaDocument::find_array(const Json& node, const char* key) {
  const Json* value = find(node, key);
  if (value != nullptr && !value->is_array()) fail(*value, "must be an array");
  return value;
}

const Json* SchemaDocument::find_object(const Json& node, const char* key) {
  const Json* value = find(node, key);
  if (value != nullptr && !value->is_object()) fail(*value, "must be an object");
  return value;
}

bool SchemaDocument::find_number(const Json& node, const char* key, double* out) {
  const Json* value = find(node, key);
  if (value == nullptr) return false;
  if (!value->is_number()) fail(*value, "must be a number");
  *out = value->as_double();
  return true;
}

bool SchemaDocument::find_count(const Json& node, const char* key, uint32_t* out) {
  double number = 0;
  if (!find_number(node, key, &number)) return false;
  if (number < 0 || number != std::floor(number)) {
    fail(*find(node, key), "must be a whole number that is not negative");
  }
  if (number > kMaxGrammarRepeat) {
    fail(*find(node, key), "more than " + std::to_string(kMaxGrammarRepeat) + " is not supported");
  }
  *out = static_cast<uint32_t>(number);
  return true;
}

// The JSON reader limits the depth.
void SchemaDocument::find_anchors(const Json& node, const std::string& path) {
  paths_.emplace(&node, path);
  if (node.is_array()) {
    for (size_t i = 0; i < node.size(); ++i) {
      find_anchors(node.items()[i], path + "/" + std::to_string(i));
    }
  }
  if (!node.is_object()) return;
  const Json* anchor = node.find("$anchor");
  if (anchor != nullptr && anchor->is_string()) anchors_["#" + anchor->as_string()] = &node;
  const Json* id = node.find("$id");
  if (id != nullptr && id->is_string()) anchors_[id->as_string()] = &node;
  for (const auto& member : node.members()) {
    find_anchors(member.second, path + "/" + escape_key(member.first));
  }
}

const Json& SchemaDocument::resolve(const Json& node, const std::string& reference) {
  const Json* target = &root_;
  if (reference.empty() || (reference != "#" && reference.compare(0, 2, "#/") != 0)) {
    if (!anchors_known_) find_anchors(root_, "");
    anchors_known_ = true;
    const auto found = anchors_.find(reference);
    if (found == anchors_.end()) {
      fail_keyword(node, "$ref",
                   "names " + json_quote(reference) +
                       ", which is not in this schema\nhint: put it under $defs and write "
                       "\"#/$defs/name\"");
    }
    return *found->second;
  }
  for (size_t at = 1; at < reference.size();) {
    const size_t end = std::min(reference.find('/', at + 1), reference.size());
    const std::string key = unescape_key(reference.substr(at + 1, end - at - 1));
    const Json* child = nullptr;
    if (target->is_array()) {
      for (size_t i = 0; i < target->size(); ++i) {
        if (std::to_string(i) == key) child = &target->items()[i];
      }
    } else {
      child = target->find(key);
    }
    if (child == nullptr) {
      fail_keyword(node, "$ref", "names " + json_quote(reference) + ", which is not there");
    }
    target = note(*target, key, *child);
    at = end;
  }
  return *target;
}

}  // namespace mlcb
