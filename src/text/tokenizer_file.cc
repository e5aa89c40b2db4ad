// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_file.h"

#include <limits>
#include <utility>

#include <fmt/format.h>

#include "core/escape.h"
#include "core/json.h"

namespace deepinfer::text {

namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxMembers = 1024;  // of one object outside model.vocab

// Receives the events of the JSON parser. model.vocab and model.merges, nearly all of the file, go straight into the flat
// arrays of `file`; everything else becomes the small document `root`. A handler returns false to stop; `error` says why.
class FileHandler final : public nlohmann::json_sax<Json> {
 public:
  TokenizerFile file;
  Json root;
  std::string error;

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool number_integer(number_integer_t value) override {
    return part_ == Part::kVocab ? AddVocabEntry(-1) : Add(value);
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (part_ == Part::kVocab) return AddVocabEntry(value < uint64_t{kMaxTokenIds} ? static_cast<int64_t>(value) : -1);
    return Add(value);
  }
  bool string(string_t& value) override {
    if (part_ == Part::kMerges) return AddMergeString(value);
    if (part_ == Part::kMergePair) return AddMergePart(value);
    return Add(std::move(value));
  }
  bool binary(binary_t&) override { return Fail("binary values are not JSON"); }

  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }

  bool start_object(std::size_t) override {
    if (part_ != Part::kOther) return FailInPart();
    if (AtModelKey("vocab")) {
      if (has_vocab_) return Fail("\"model.vocab\" appears twice");
      has_vocab_ = true;
      part_ = Part::kVocab;
      return true;
    }
    return Open(Json::object());
  }
  bool end_object() override {
    if (part_ == Part::kVocab) {
      part_ = Part::kOther;
      return true;
    }
    return Close();
  }
  bool start_array(std::size_t) override {
    if (part_ == Part::kMerges) {
      part_ = Part::kMergePair;
      num_pair_parts_ = 0;
      return true;
    }
    if (part_ != Part::kOther) return FailInPart();
    if (AtModelKey("merges")) {
      if (has_merges_) return Fail("\"model.merges\" appears twice");
      has_merges_ = true;
      part_ = Part::kMerges;
      return true;
    }
    return Open(Json::array());
  }
  bool end_array() override {
    if (part_ == Part::kMergePair) {
      if (num_pair_parts_ != 2 || !AddMerge(pair_parts_[0], pair_parts_[1])) return FailInPart();
      part_ = Part::kMerges;
      return true;
    }
    if (part_ == Part::kMerges) {
      part_ = Part::kOther;
      return true;
    }
    return Close();
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    std::string reason = e.what();
    if (const size_t at = reason.find(": "); at != std::string::npos) reason = reason.substr(at + 2);
    return Fail(fmt::format("invalid JSON at byte {}: {}", position, Escape(reason)));
  }

  bool has_vocab() const { return has_vocab_; }
  bool has_merges() const { return has_merges_; }

 private:
  enum class Part { kOther, kVocab, kMerges, kMergePair };

  bool Fail(std::string message) {
    if (error.empty()) error = std::move(message);
    return false;
  }
  bool FailInPart() {
    if (part_ == Part::kVocab) {
      return Fail(fmt::format("the id of token \"{}\" must be an integer in [0, {})", Escape(key_, 64), kMaxTokenIds));
    }
    return Fail(fmt::format("merge {} must be \"left right\" or [\"left\", \"right\"]", file.merges.size()));
  }

  bool AtModelKey(std::string_view name) const { return open_.size() == 2 && open_keys_.back() == "model" && key_ == name; }

  // Puts a value into the innermost open container of the document and returns where it now lies, or null.
  Json* Place(Json&& value) {
    if (open_.empty()) {
      root = std::move(value);
      return &root;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    if (parent.size() >= kMaxMembers) {  // members are looked up one by one
      Fail(fmt::format("an object has more than {} members", kMaxMembers));
      return nullptr;
    }
    Json& slot = parent[key_];
    slot = std::move(value);
    return &slot;
  }
  bool Add(Json&& value) {
    if (part_ != Part::kOther) return FailInPart();
    return Place(std::move(value)) != nullptr;
  }
  bool Open(Json&& value) {
    if (open_.size() >= kMaxDepth) return Fail(fmt::format("invalid JSON: nested deeper than {}", kMaxDepth));
    open_keys_.push_back(key_);
    // The pointers in open_ stay good: a container gets no new member while one of its members is open.
    open_.push_back(Place(std::move(value)));
    return open_.back() != nullptr;
  }
  bool Close() {
    open_.pop_back();
    open_keys_.pop_back();
    return true;
  }

  static bool Fits(const std::string& blob, size_t more) {
    return more <= std::numeric_limits<uint32_t>::max() - blob.size();
  }
  bool AddVocabEntry(int64_t id) {
    if (id < 0) return FailInPart();
    if (!Fits(file.vocab_text, key_.size())) return Fail("\"model.vocab\" is too large");
    file.vocab.push_back({static_cast<uint32_t>(file.vocab_text.size()), static_cast<uint32_t>(key_.size()),
                          static_cast<int32_t>(id)});
    file.vocab_text += key_;
    return true;
  }
  bool AddMerge(std::string_view left, std::string_view right) {
    if (left.empty() || right.empty()) return FailInPart();
    if (!Fits(file.merge_text, left.size() + right.size()) || static_cast<int64_t>(file.merges.size()) >= kMaxTokenIds) {
      return Fail("\"model.merges\" is too large");
    }
    file.merges.push_back({static_cast<uint32_t>(file.merge_text.size()), static_cast<uint32_t>(left.size()),
                           static_cast<uint32_t>(right.size())});
    file.merge_text += left;
    file.merge_text += right;
    return true;
  }
  bool AddMergeString(std::string_view text) {
    // A space is U+0120 in the byte-level alphabet, so the separator is the only one.
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) return FailInPart();
    return AddMerge(text.substr(0, space), text.substr(space + 1));
  }
  bool AddMergePart(std::string& text) {
    if (num_pair_parts_ >= 2) return FailInPart();
    pair_parts_[num_pair_parts_++] = std::move(text);
    return true;
  }

  Part part_ = Part::kOther;
  bool has_vocab_ = false;
  bool has_merges_ = false;
  std::string key_;
  std::vector<Json*> open_;
  std::vector<std::string> open_keys_;
  std::string pair_parts_[2];
  size_t num_pair_parts_ = 0;
};

// The member `name` of an object; null when it is absent or `json` is no object.
const Json& Member(const Json& json, const char* name) {
  static const Json absent;
  if (!json.is_object()) return absent;
  const auto at = json.find(name);
  return at == json.end() ? absent : *at;
}

bool IsString(const Json& json, std::string_view wanted) {
  return json.is_string() && json.get_ref<const std::string&>() == wanted;
}
bool IsFalse(const Json& json) { return json.is_boolean() && !json.get<bool>(); }
bool IsFalseOrAbsent(const Json& json) { return json.is_null() || IsFalse(json); }

// The three splits of tokenizer.md 2.1 as the files spell them.
constexpr std::string_view kSplitPatterns[] = {
    R"(\p{N}{1,3})",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^)"
    "\r\n"
    R"(\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[)"
    "\r\n"
    R"(]*|\s*[)"
    "\r\n"
    R"(]+|\s+(?!\S)|\s+)",
};
constexpr size_t kNumSplits = std::size(kSplitPatterns);

// Empty when the pre-tokenizer is the one of text/tokenizer_scanner.h, otherwise what differs.
std::string PreTokenizerDifference(const Json& pre) {
  if (!IsString(Member(pre, "type"), "Sequence")) return "is not a Sequence";
  const Json& steps = Member(pre, "pretokenizers");
  if (!steps.is_array() || steps.size() != kNumSplits + 1) return fmt::format("does not have {} steps", kNumSplits + 1);
  for (size_t i = 0; i < kNumSplits; ++i) {
    const Json& step = steps[i];
    if (!IsString(Member(step, "type"), "Split")) return fmt::format("step {} is not a Split", i);
    if (!IsString(Member(Member(step, "pattern"), "Regex"), kSplitPatterns[i])) {
      return fmt::format("step {} has another pattern", i);
    }
    if (!IsString(Member(step, "behavior"), "Isolated") || !IsFalse(Member(step, "invert"))) {
      return fmt::format("step {} is not an Isolated split without inversion", i);
    }
  }
  const Json& bytes = steps[kNumSplits];
  if (!IsString(Member(bytes, "type"), "ByteLevel") || !IsFalse(Member(bytes, "add_prefix_space")) ||
      !IsFalse(Member(bytes, "use_regex"))) {
    return fmt::format("step {} is not ByteLevel with add_prefix_space and use_regex false", kNumSplits);
  }
  return {};
}

// Empty when the document asks for nothing that this tokenizer does not do.
std::string UnsupportedPart(const Json& root) {
  const Json& normalizer = Member(root, "normalizer");
  const Json& normalizers = Member(normalizer, "normalizers");
  const bool is_identity = IsString(Member(normalizer, "type"), "Sequence") && normalizers.is_array() && normalizers.empty();
  if (!normalizer.is_null() && !is_identity) return "unsupported normalizer; only null and an empty Sequence are";

  const std::string difference = PreTokenizerDifference(Member(root, "pre_tokenizer"));
  if (!difference.empty()) {
    return "unsupported pre_tokenizer: it " + difference + "; this engine implements the one of DeepSeek-V4.1-Flash only";
  }
  const Json& post = Member(root, "post_processor");
  if (!post.is_null() && !IsString(Member(post, "type"), "ByteLevel")) {
    return "unsupported post_processor; only null and ByteLevel are";
  }
  if (!IsString(Member(Member(root, "decoder"), "type"), "ByteLevel")) return "unsupported decoder; only ByteLevel is";

  const Json& model = Member(root, "model");
  if (!IsString(Member(model, "type"), "BPE")) return "unsupported \"model.type\"; only BPE is";
  const Json& dropout = Member(model, "dropout");
  if (!dropout.is_null() && !(dropout.is_number() && dropout.get<double>() == 0.0)) return "\"model.dropout\" must be null";
  for (const char* name : {"unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = Member(model, name);
    if (!value.is_null() && !IsString(value, "")) return fmt::format("\"model.{}\" must be null", name);
  }
  for (const char* name : {"fuse_unk", "byte_fallback", "ignore_merges"}) {
    if (!IsFalseOrAbsent(Member(model, name))) return fmt::format("\"model.{}\" must be false", name);
  }
  return {};
}

// Empty when all is well.
std::string ReadAddedTokens(const Json& list, std::vector<TokenizerFile::AddedToken>& out) {
  if (list.is_null()) return {};
  if (!list.is_array()) return "\"added_tokens\" is not an array";
  for (const Json& entry : list) {
    const std::string place = fmt::format("\"added_tokens\"[{}]", out.size());
    const Json& id = Member(entry, "id");
    const Json& content = Member(entry, "content");
    const Json& special = Member(entry, "special");
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= uint64_t{kMaxTokenIds}) {
      return fmt::format("{}: \"id\" must be an integer in [0, {})", place, kMaxTokenIds);
    }
    if (!content.is_string() || content.get_ref<const std::string&>().empty()) {
      return place + ": \"content\" must be a string that is not empty";
    }
    if (!special.is_boolean()) return place + ": \"special\" must be true or false";
    for (const char* name : {"lstrip", "rstrip", "single_word"}) {
      if (!IsFalseOrAbsent(Member(entry, name))) return fmt::format("{}: \"{}\" must be false", place, name);
    }
    out.push_back({static_cast<int32_t>(id.get<uint64_t>()), content.get<std::string>(), special.get<bool>()});
  }
  return {};
}

}  // namespace

deepinfer::Result<TokenizerFile> ParseTokenizerFile(std::string_view json_text, const std::string& origin) {
  const auto bad = [&](const std::string& what) { return BadModel(fmt::format("{}: {}; {}", origin, what, kTokenizerFileRemedy)); };
  FileHandler handler;
  bool is_complete = false;
  try {
    is_complete = Json::sax_parse(json_text.data(), json_text.data() + json_text.size(), &handler);
  } catch (const std::exception& e) {  // out of memory
    return bad(fmt::format("cannot be read: {}", e.what()));
  }
  if (!is_complete) return bad(handler.error.empty() ? "invalid JSON" : handler.error);
  if (!handler.root.is_object()) return bad("is not a JSON object");
  if (std::string what = UnsupportedPart(handler.root); !what.empty()) return bad(what);
  if (!handler.has_vocab()) return bad("\"model.vocab\" is missing or not an object");
  if (!handler.has_merges()) return bad("\"model.merges\" is missing or not an array");
  if (std::string what = ReadAddedTokens(Member(handler.root, "added_tokens"), handler.file.added_tokens); !what.empty()) {
    return bad(what);
  }
  return std::move(handler.file);
}

}  // namespace deepinfer::text
