// From a pattern (Ruby syntax of Oniguruma, the part that tokenizers use) to instructions.
#include <algorithm>
#include <iterator>
#include <memory>

#include "core/error.h"
#include "core/utf8.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace mlcb {
namespace {

constexpr size_t kMaxProgram = 20000;
constexpr uint32_t kMaxRepeat = 1000;
constexpr int kMaxNesting = 50;
constexpr uint32_t kUnlimited = UINT32_MAX;

enum class NodeKind {
  kEmpty,
  kClass,
  kSequence,
  kAlternatives,
  kRepeat,
  kLook,
  kLookNot,
  kAtomic,
  kAssert
};
enum class RepeatMode { kGreedy, kLazy, kPossessive };

struct Node {
  NodeKind kind = NodeKind::kEmpty;
  std::vector<std::unique_ptr<Node>> children;
  uint32_t index = 0;  // of a class or an assertion
  uint32_t min = 0, max = 0;
  RepeatMode mode = RepeatMode::kGreedy;
};
using NodePtr = std::unique_ptr<Node>;

NodePtr make_node(NodeKind kind, NodePtr child = nullptr) {
  NodePtr node = std::make_unique<Node>();
  node->kind = kind;
  if (child) node->children.push_back(std::move(child));
  return node;
}

bool can_be_empty(const Node& node) {
  switch (node.kind) {
    case NodeKind::kClass:
      return false;
    case NodeKind::kSequence:
      for (const NodePtr& child : node.children) {
        if (!can_be_empty(*child)) return false;
      }
      return true;
    case NodeKind::kAlternatives:
      for (const NodePtr& child : node.children) {
        if (can_be_empty(*child)) return true;
      }
      return false;
    case NodeKind::kRepeat:
      return node.min == 0 || can_be_empty(*node.children[0]);
    case NodeKind::kAtomic:
      return can_be_empty(*node.children[0]);
    default:
      return true;
  }
}

struct PropertyName {
  const char* name;
  uint32_t categories;
};

constexpr PropertyName kProperties[] = {
    {"L", kCategoriesLetter},
    {"M", kCategoriesMark},
    {"N", kCategoriesNumber},
    {"P", kCategoriesPunctuation},
    {"S", kCategoriesSymbol},
    {"Z", kCategoriesSeparator},
    {"C", kCategoriesOther},
    {"Letter", kCategoriesLetter},
    {"Mark", kCategoriesMark},
    {"Number", kCategoriesNumber},
    {"Punctuation", kCategoriesPunctuation},
    {"Symbol", kCategoriesSymbol},
    {"Separator", kCategoriesSeparator},
    {"Other", kCategoriesOther},
    {"Any", kCategoriesAll},
};
constexpr char kCategoryNames[] = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";

void add_white_space(bool negated, CharClass* out) {
  constexpr uint32_t kControl = category_bit(kCc);
  if (negated) {
    out->categories |= kCategoriesAll & ~kCategoriesSeparator & ~kControl;
    out->add_range(0, 8);
    out->add_range(0x0E, 0x1F);
    out->add_range(0x7F, 0x84);
    out->add_range(0x86, 0x9F);
  } else {
    out->categories |= kCategoriesSeparator;
    out->add_range('\t', '\r');
    out->add_range(0x85, 0x85);
  }
}

// Outside of brackets Oniguruma counts the superscript digits and fractions of Latin-1 as well.
void add_word(bool negated, bool in_brackets, CharClass* out) {
  CharClass word;
  word.categories = kCategoriesWord;
  word.ranges.assign(std::begin(kWordRanges), std::end(kWordRanges));
  if (!in_brackets) {
    for (uint32_t code = 0x80; code < 0x100; ++code) {
      if (unicode_category(code) == kNo) word.add_range(code, code);
    }
  }
  word.negated = negated;
  word.finish(false);
  out->nested.push_back(std::move(word));
}

}  // namespace

class RegexCompiler {
 public:
  explicit RegexCompiler(std::string_view pattern) : pattern_(pattern) {
    const char* p = pattern.data();
    const char* end = p + pattern.size();
    while (p != end) {
      const Utf8Char c = utf8_decode(p, end);
      if (c.size == 0) fail("invalid UTF-8");
      chars_.push_back(c.code);
      p += c.size;
    }
  }

  Regex compile() {
    NodePtr root = parse_alternatives(0, false);
    if (at_ != chars_.size()) fail("a ')' too many");
    emit(*root);
    push(RegexOp::kAccept);
    return std::move(regex_);
  }

  Regex compile_literal() {
    for (uint32_t code : chars_) push(RegexOp::kClass, add_char(code, false));
    push(RegexOp::kAccept);
    return std::move(regex_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(MLCB_ERROR_UNSUPPORTED, "tokenizer: regular expression '" + std::string(pattern_) +
                                            "', character " + std::to_string(at_ + 1) + ": " +
                                            what);
  }

  bool more() const { return at_ < chars_.size(); }
  bool next_is(char c, size_t ahead = 0) const {
    return at_ + ahead < chars_.size() && chars_[at_ + ahead] == static_cast<uint32_t>(c);
  }
  bool take(char c) {
    if (!next_is(c)) return false;
    ++at_;
    return true;
  }

  // ---- parsing --------------------------------------------------------------------------------

  NodePtr parse_alternatives(int nesting, bool ignore_case) {
    if (nesting > kMaxNesting) fail("groups nest too deeply");
    NodePtr first = parse_sequence(nesting, ignore_case);
    if (!next_is('|')) return first;
    NodePtr node = make_node(NodeKind::kAlternatives, std::move(first));
    while (take('|')) node->children.push_back(parse_sequence(nesting, ignore_case));
    return node;
  }

  NodePtr parse_sequence(int nesting, bool ignore_case) {
    NodePtr node = make_node(NodeKind::kSequence);
    while (more() && !next_is('|') && !next_is(')')) {
      NodePtr item = parse_atom(nesting, ignore_case);
      for (int repeats = 0; parse_repeat(&item); ++repeats) {
        if (repeats == kMaxNesting) fail("too many repetitions of one another");
      }
      node->children.push_back(std::move(item));
    }
    return node;
  }

  NodePtr parse_atom(int nesting, bool ignore_case) {
    const uint32_t c = chars_[at_];
    switch (c) {
      case '(':
        return parse_group(nesting, ignore_case);
      case '[': {
        CharClass set = parse_class(0, ignore_case);
        return class_node(add_class(std::move(set)));
      }
      case '.': {
        ++at_;
        CharClass set;
        set.add_range('\n', '\n');
        set.negated = true;
        set.finish(false);
        return class_node(add_class(std::move(set)));
      }
      case '^':
        ++at_;
        return assert_node(RegexAssert::kLineBegin);
      case '$':
        ++at_;
        return assert_node(RegexAssert::kLineEnd);
      case '*':
      case '+':
      case '?':
        fail("nothing to repeat");
      case '\\':
        break;
      default:
        ++at_;
        return class_node(add_char(c, ignore_case));
    }
    if (at_ + 1 >= chars_.size()) fail("a '\\' at the end");
    switch (chars_[at_ + 1]) {
      case 'A':
        at_ += 2;
        return assert_node(RegexAssert::kTextBegin);
      case 'z':
        at_ += 2;
        return assert_node(RegexAssert::kTextEnd);
      case 'Z':
        at_ += 2;
        return assert_node(RegexAssert::kTextEndOrNewline);
      case 'b':
        at_ += 2;
        return assert_node(RegexAssert::kWordBoundary);
      case 'B':
        at_ += 2;
        return assert_node(RegexAssert::kNotWordBoundary);
      default:
        break;
    }
    CharClass set;
    const uint32_t code = parse_escape(false, &set);
    if (code != kNoChar) return class_node(add_char(code, ignore_case));
    set.finish(false);  // in Oniguruma too, \p{Lu} outside of brackets stays as it is under (?i:
    return class_node(add_class(std::move(set)));
  }

  NodePtr parse_group(int nesting, bool ignore_case) {
    ++at_;
    NodeKind kind = NodeKind::kEmpty;  // a plain group
    if (take('?')) {
      if (take(':')) {
      } else if (take('=')) {
        kind = NodeKind::kLook;
      } else if (take('!')) {
        kind = NodeKind::kLookNot;
      } else if (take('>')) {
        kind = NodeKind::kAtomic;
      } else if (next_is('i') && next_is(':', 1)) {
        at_ += 2;
        ignore_case = true;
      } else if (next_is('-') && next_is('i', 1) && next_is(':', 2)) {
        at_ += 3;
        ignore_case = false;
      } else {
        fail("this kind of group, '(?', is not supported");
      }
    }
    NodePtr body = parse_alternatives(nesting + 1, ignore_case);
    if (!take(')')) fail("a ')' is missing");
    return kind == NodeKind::kEmpty ? std::move(body) : make_node(kind, std::move(body));
  }

  // Reads {m}, {m,}, {,n} or {m,n}; anything else is an ordinary brace.
  bool parse_braces(uint32_t* min, uint32_t* max, bool* exact) {
    size_t p = at_ + 1;
    auto number = [&](uint32_t* value) {
      bool any = false;
      *value = 0;
      for (; p < chars_.size() && chars_[p] >= '0' && chars_[p] <= '9'; ++p) {
        any = true;
        *value = std::min(*value * 10 + (chars_[p] - '0'), kMaxRepeat + 1);
      }
      return any;
    };
    const bool has_min = number(min);
    bool has_max = false;
    *exact = true;
    if (p < chars_.size() && chars_[p] == ',') {
      ++p;
      *exact = false;
      has_max = number(max);
      if (!has_max) *max = kUnlimited;
    } else {
      *max = *min;
    }
    if ((!has_min && !has_max) || p >= chars_.size() || chars_[p] != '}') return false;
    if (*min > kMaxRepeat || (has_max && *max > kMaxRepeat)) fail("more than 1000 repetitions");
    if (*max < *min) fail("a repetition with its bounds in the wrong order");
    at_ = p + 1;
    return true;
  }

  bool parse_repeat(NodePtr* item) {
    uint32_t min = 0, max = kUnlimited;
    bool exact = false, braces = false;
    if (take('*')) {
    } else if (take('+')) {
      min = 1;
    } else if (take('?')) {
      max = 1;
    } else if (next_is('{') && parse_braces(&min, &max, &exact)) {
      braces = true;
    } else {
      return false;
    }
    NodePtr node = make_node(NodeKind::kRepeat, std::move(*item));
    node->min = min;
    node->max = max;
    // In Ruby's syntax a{2}? is an optional a{2}, and a{1,2}+ repeats a{1,2}.
    if (!exact && take('?')) {
      node->mode = RepeatMode::kLazy;
    } else if (!braces && take('+')) {
      node->mode = RepeatMode::kPossessive;
    }
    if (max == kUnlimited && can_be_empty(*node->children[0])) {
      fail("repeating something that can be empty is not supported");
    }
    *item = std::move(node);
    return true;
  }

  static constexpr uint32_t kNoChar = UINT32_MAX;

  uint32_t parse_hex(int min_digits, int max_digits) {
    uint32_t value = 0;
    int digits = 0;
    for (; more() && digits < max_digits; ++at_, ++digits) {
      const uint32_t c = chars_[at_];
      if (c >= '0' && c <= '9') {
        value = value * 16 + (c - '0');
      } else if ((c | 32) >= 'a' && (c | 32) <= 'f') {
        value = value * 16 + ((c | 32) - 'a' + 10);
      } else {
        break;
      }
    }
    if (digits < min_digits || value > 0x10FFFF) fail("a bad character number");
    return value;
  }

  // At a backslash: returns the character that it stands for, or adds a set to *set.
  uint32_t parse_escape(bool in_brackets, CharClass* set) {
    const size_t start = at_;
    if (++at_ >= chars_.size()) fail("a '\\' at the end");
    const uint32_t c = chars_[at_++];
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'a':
        return '\a';
      case 'e':
        return 0x1B;
      case 'u':
        return parse_hex(4, 4);
      case 'x': {
        if (!take('{')) return parse_hex(1, 2);
        const uint32_t code = parse_hex(1, 8);
        if (!take('}')) fail("a '}' is missing");
        return code;
      }
      case 's':
      case 'S':
        add_white_space(c == 'S', set);
        return kNoChar;
      case 'w':
      case 'W':
        add_word(c == 'W', in_brackets, set);
        return kNoChar;
      case 'd':
        set->categories |= category_bit(kNd);
        return kNoChar;
      case 'D':
        set->categories |= kCategoriesAll & ~category_bit(kNd);
        return kNoChar;
      case 'p':
      case 'P':
        parse_property(c == 'P', set);
        return kNoChar;
      default:
        break;
    }
    if (c < 128 && ((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z'))) {
      at_ = start;
      fail(std::string("the escape '\\") + static_cast<char>(c) + "' is not supported");
    }
    return c;
  }

  void parse_property(bool negated, CharClass* set) {
    if (!take('{')) fail("\\p needs a name in braces");
    if (take('^')) negated = !negated;
    std::string name;
    while (more() && !next_is('}')) utf8_append(chars_[at_++], &name);
    uint32_t categories = 0;
    for (const PropertyName& property : kProperties) {
      if (name == property.name) categories = property.categories;
    }
    for (uint32_t i = 0; categories == 0 && i < kCn + 1u; ++i) {
      if (name == std::string_view(kCategoryNames + 2 * i, 2)) categories = 1u << i;
    }
    if (categories == 0) fail("the property \\p{" + name + "} is not supported");
    if (!take('}')) fail("a '}' is missing");
    set->categories |= negated ? kCategoriesAll & ~categories : categories;
  }

  CharClass parse_class(int nesting, bool ignore_case) {
    if (nesting > kMaxNesting) fail("classes nest too deeply");
    ++at_;
    CharClass set;
    set.negated = take('^');
    for (bool first = true;; first = false) {
      if (!more()) fail("a ']' is missing");
      if (next_is(']') && !first) break;
      if (next_is('&') && next_is('&', 1)) fail("intersections of classes are not supported");
      if (next_is('[')) {
        if (next_is(':', 1)) fail("POSIX classes are not supported");
        set.nested.push_back(parse_class(nesting + 1, ignore_case));
        continue;
      }
      const uint32_t low = next_is('\\') ? parse_escape(true, &set) : chars_[at_++];
      if (low == kNoChar) continue;
      uint32_t high = low;
      if (next_is('-') && at_ + 1 < chars_.size() && !next_is(']', 1)) {
        ++at_;
        if (next_is('[')) fail("a range that ends in a class");
        high = next_is('\\') ? parse_escape(true, &set) : chars_[at_++];
        if (high == kNoChar) fail("a range that ends in a class");
        if (high < low) fail("a range with its ends in the wrong order");
      }
      set.add_range(low, high);
    }
    ++at_;
    set.finish(ignore_case);
    return set;
  }

  // ---- instructions ---------------------------------------------------------------------------

  static NodePtr class_node(uint32_t index) {
    NodePtr node = make_node(NodeKind::kClass);
    node->index = index;
    return node;
  }
  static NodePtr assert_node(RegexAssert assertion) {
    NodePtr node = make_node(NodeKind::kAssert);
    node->index = static_cast<uint32_t>(assertion);
    return node;
  }

  uint32_t add_class(CharClass set) {
    regex_.classes_.push_back(std::move(set));
    return static_cast<uint32_t>(regex_.classes_.size() - 1);
  }

  uint32_t add_char(uint32_t code, bool ignore_case) {
    CharClass set;
    set.add_range(code, code);
    set.finish(ignore_case);
    return add_class(std::move(set));
  }

  uint32_t push(RegexOp op, uint32_t x = 0, uint32_t y = 0) {
    if (regex_.program_.size() >= kMaxProgram)
      fail("too long when its repetitions are written out");
    RegexInst inst;
    inst.op = op;
    inst.x = x;
    inst.y = y;
    const bool look = op == RegexOp::kLook || op == RegexOp::kLookNot;
    if (look || op == RegexOp::kSplit || op == RegexOp::kStar || op == RegexOp::kStarAtomic) {
      inst.memo = regex_.memo_columns_;
      regex_.memo_columns_ += look ? 2 : 1;
    }
    regex_.program_.push_back(inst);
    return static_cast<uint32_t>(regex_.program_.size() - 1);
  }
  uint32_t here() const { return static_cast<uint32_t>(regex_.program_.size()); }

  // Sets the target of the split at pc that leads past its body; the other is the body.
  void leave_split(uint32_t pc, bool lazy) {
    RegexInst& split = regex_.program_[pc];
    split.x = lazy ? here() : pc + 1;
    split.y = lazy ? pc + 1 : here();
  }

  void emit(const Node& node) {
    // Repetitions of what is empty write nothing, and yet take time.
    if (++emitted_ > 4 * kMaxProgram) fail("too long when its repetitions are written out");
    switch (node.kind) {
      case NodeKind::kEmpty:
        return;
      case NodeKind::kClass:
        push(RegexOp::kClass, node.index);
        return;
      case NodeKind::kAssert:
        push(RegexOp::kAssert, node.index);
        return;
      case NodeKind::kSequence:
        for (const NodePtr& child : node.children) emit(*child);
        return;
      case NodeKind::kAlternatives: {
        std::vector<uint32_t> jumps;
        for (size_t i = 0; i < node.children.size(); ++i) {
          const bool last = i + 1 == node.children.size();
          const uint32_t split = last ? 0 : push(RegexOp::kSplit);
          emit(*node.children[i]);
          if (last) break;
          jumps.push_back(push(RegexOp::kJump));
          leave_split(split, false);
        }
        for (uint32_t jump : jumps) regex_.program_[jump].x = here();
        return;
      }
      case NodeKind::kLook:
      case NodeKind::kLookNot:
      case NodeKind::kAtomic: {
        const RegexOp op = node.kind == NodeKind::kLook      ? RegexOp::kLook
                           : node.kind == NodeKind::kLookNot ? RegexOp::kLookNot
                                                             : RegexOp::kAtomic;
        const uint32_t group = push(op);
        emit(*node.children[0]);
        push(RegexOp::kAccept);
        regex_.program_[group].x = here();
        return;
      }
      case NodeKind::kRepeat:
        emit_repeat(node);
        return;
    }
  }

  void emit_repeat(const Node& node) {
    const Node& body = *node.children[0];
    const bool lazy = node.mode == RepeatMode::kLazy;
    const bool possessive = node.mode == RepeatMode::kPossessive;
    const bool simple = body.kind == NodeKind::kClass && node.max == kUnlimited && !lazy;
    uint32_t group = 0;
    if (possessive && !simple) group = push(RegexOp::kAtomic);
    for (uint32_t i = 0; i < node.min; ++i) emit(body);
    if (simple) {
      push(possessive ? RegexOp::kStarAtomic : RegexOp::kStar, body.index);
      return;
    }
    if (node.max == kUnlimited) {
      const uint32_t split = push(RegexOp::kSplit);
      emit(body);
      push(RegexOp::kJump, split);
      leave_split(split, lazy);
    } else {
      std::vector<uint32_t> splits;
      for (uint32_t i = node.min; i < node.max; ++i) {
        splits.push_back(push(RegexOp::kSplit));
        emit(body);
      }
      for (uint32_t split : splits) leave_split(split, lazy);
    }
    if (possessive) {
      push(RegexOp::kAccept);
      regex_.program_[group].x = here();
    }
  }

  std::string_view pattern_;
  std::vector<uint32_t> chars_;
  size_t at_ = 0;
  size_t emitted_ = 0;  // nodes
  Regex regex_;
};

Regex Regex::compile(std::string_view pattern) { return RegexCompiler(pattern).compile(); }

Regex Regex::literal(std::string_view text) { return RegexCompiler(text).compile_literal(); }

}  // namespace mlcb
