// SPDX-License-Identifier: Apache-2.0
#include "core/json.h"

#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/file.h"

namespace deepinfer {

namespace {

// Builds the document from parser events. nlohmann's own builder looks every key up by a linear search, which makes an
// object of n keys cost n^2: minutes for an index of a hundred thousand tensors, and a way to stall a server. Here large
// objects get a hash table while they are open.
class JsonBuilder {
 public:
  explicit JsonBuilder(int max_depth) : max_depth_(max_depth) {}

  Json TakeRoot() { return std::move(root_); }
  const std::string& error() const { return error_; }

  bool null() { return Add(nullptr); }
  bool boolean(bool value) { return Add(value); }
  bool number_integer(Json::number_integer_t value) { return Add(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return Add(value); }
  bool number_float(Json::number_float_t value, const std::string&) { return Add(value); }
  bool string(std::string& value) { return Add(std::move(value)); }
  bool binary(Json::binary_t&) { return false; }  // not in JSON text

  bool start_object(size_t) { return Open(Json::object()); }
  bool start_array(size_t) { return Open(Json::array()); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }

  bool key(std::string& name) {
    Level& level = levels_.back();
    auto& members = level.value.get_ref<Json::object_t&>();
    level.member = IndexOf(level, members, name);
    if (level.member == members.size()) {
      if (level.has_table) level.table.emplace(name, members.size());
      members.emplace_back(std::move(name), nullptr);
    }
    return true;
  }

  bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception& e) {
    std::string reason = e.what();
    // "[...] parse error at line 1, column 3: syntax error ...; last read: 'x'": the first colon ends the place.
    if (const size_t at = reason.find(": "); at != std::string::npos) {
      reason = reason.substr(at + 2);
    } else if (const size_t name_end = reason.find("] "); name_end != std::string::npos) {
      reason = reason.substr(name_end + 2);  // "[json.exception.out_of_range.406] number overflow ..."
    }
    error_ = fmt::format("invalid JSON at byte {}: {}", byte, reason);
    return false;
  }

 private:
  static constexpr size_t kMinTableSize = 32;

  // An open array or object.
  struct Level {
    Json value;
    size_t member = 0;  // object: where the next value goes
    bool has_table = false;
    std::unordered_map<std::string, size_t> table;
  };

  // members.size() when the key is new.
  static size_t IndexOf(Level& level, const Json::object_t& members, const std::string& name) {
    if (!level.has_table && members.size() >= kMinTableSize) {
      for (const auto& [key, value] : members) level.table.emplace(key, level.table.size());
      level.has_table = true;
    }
    if (level.has_table) {
      const auto it = level.table.find(name);
      return it == level.table.end() ? members.size() : it->second;
    }
    size_t i = 0;
    for (const auto& [key, value] : members) {
      if (key == name) break;
      ++i;
    }
    return i;
  }

  bool Add(Json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
    } else if (levels_.back().value.is_array()) {
      levels_.back().value.get_ref<Json::array_t&>().push_back(std::move(value));
    } else {
      const auto member = static_cast<std::ptrdiff_t>(levels_.back().member);
      (levels_.back().value.get_ref<Json::object_t&>().begin() + member)->second = std::move(value);
    }
    return true;
  }

  bool Open(Json value) {
    if (static_cast<int>(levels_.size()) >= max_depth_) {
      error_ = fmt::format("invalid JSON: nested more than {} deep, which is the limit", max_depth_);
      return false;
    }
    levels_.emplace_back().value = std::move(value);
    return true;
  }

  bool Close() {
    Json value = std::move(levels_.back().value);
    levels_.pop_back();
    return Add(std::move(value));
  }

  const int max_depth_;
  std::vector<Level> levels_;
  Json root_;
  std::string error_;
};

}  // namespace

Result<Json> ParseJson(std::string_view text, int max_depth) {
  // The library takes a NUL byte for the end of the text.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    return InvalidArgument(fmt::format("invalid JSON: a NUL byte at byte {}", nul));
  JsonBuilder builder(max_depth);
  try {
    if (!Json::sax_parse(text.begin(), text.end(), &builder)) return InvalidArgument(builder.error());
  } catch (const std::exception& e) {  // out of memory
    return InvalidArgument(fmt::format("invalid JSON: {}", e.what()));
  }
  return builder.TakeRoot();
}

Result<Json> ReadJsonFile(const std::string& path, int64_t max_bytes) {
  DI_ASSIGN_OR_RETURN(std::string text, ReadFile(path, max_bytes));
  Result<Json> json = ParseJson(text);
  if (!json.ok()) return BadModel(fmt::format("{}: {}; mend the file or fetch it again", path, json.status().message()));
  return json;
}

std::string DumpJson(const Json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace deepinfer
