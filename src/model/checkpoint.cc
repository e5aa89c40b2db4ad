// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "core/escape.h"
#include "core/mapping_guard.h"
#include "model/inventory.h"
#include "model/json_scanner.h"

namespace deepinfer::model {

namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = int64_t{256} << 20;
constexpr int kMaxMetadataDepth = 8;
constexpr std::string_view kPrefix = "model.";

std::string_view Canonical(std::string_view name) {
  if (name.substr(0, kPrefix.size()) == kPrefix) name.remove_prefix(kPrefix.size());
  return name;
}

// Mixing norms must already be folded into hc_*_fn; a checkpoint that still carries them would be
// computed wrongly.
bool IsUnfoldedMixingNorm(std::string_view name) {
  for (const std::string_view suffix :
       {"hc_attn_norm.weight", "hc_ffn_norm.weight", "hc_head_norm.weight"}) {
    if (name.size() < suffix.size() || name.substr(name.size() - suffix.size()) != suffix) continue;
    if (name.size() == suffix.size() || name[name.size() - suffix.size() - 1] == '.') return true;
  }
  return false;
}

Status UnfoldedMixingNorm(const std::string& path, std::string_view name) {
  return BadModel(
      fmt::format("{}: tensor {} must not exist: its values belong folded into hc_attn_fn and "
                  "hc_ffn_fn; re-export the checkpoint in the release format",
                  path,
                  Escape(name)));
}

bool IsPlainFileName(std::string_view name) {
  if (name.empty() || name == "." || name.size() > 255) return false;
  if (name.find("..") != std::string_view::npos) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return c != '/' && c != '\\' && static_cast<uint8_t>(c) >= 0x20;
  });
}

struct Index {
  std::vector<std::string> shards;                     // in order of first mention
  std::vector<std::pair<std::string, int>> placement;  // tensor name as written, shard
};

Result<Index> ReadIndex(const std::string& path) {
  DI_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxIndexBytes));
  Index index;
  std::unordered_map<std::string, int> shard_idx;
  JsonScanner scanner(text);
  const auto json_error = [&] {
    return BadModel(fmt::format("{}: {}; fetch the file again", path, scanner.ErrorText()));
  };
  bool has_map = false;
  bool first = true;
  std::string key;
  while (scanner.NextKey(first, key)) {
    if (key != "weight_map") {
      if (!scanner.SkipValue(kMaxMetadataDepth)) return json_error();
      continue;
    }
    if (has_map) return BadModel(fmt::format("{}: weight_map appears twice; fetch the file again", path));
    has_map = true;
    std::string name;
    std::string shard;
    bool first_name = true;
    while (scanner.NextKey(first_name, name)) {
      if (!scanner.ReadString(shard)) return json_error();
      const auto [it, is_new] = shard_idx.try_emplace(shard, static_cast<int>(index.shards.size()));
      if (is_new) {
        if (!IsPlainFileName(shard)) {
          return BadModel(
              fmt::format("{}: the shard name {} of {} is not a plain file name; only files of the "
                          "model directory are read",
                          path,
                          Escape(shard),
                          Escape(name)));
        }
        index.shards.push_back(shard);
      }
      index.placement.emplace_back(name, it->second);
    }
    if (!scanner.ok()) return json_error();
  }
  if (!scanner.ExpectEnd()) return json_error();
  if (!has_map)
    return BadModel(fmt::format("{}: weight_map is missing; this key is required", path));
  if (index.placement.empty()) return BadModel(fmt::format("{}: weight_map names no tensor; fetch the file again", path));
  return index;
}

// Without an index: every *.safetensors of the directory, by name.
Result<std::vector<std::string>> ScanForShards(const std::string& dir) {
  DIR* handle = ::opendir(dir.c_str());
  if (handle == nullptr)
    return BadModel(
        fmt::format("cannot read the model directory {}: {}", dir, std::strerror(errno)));
  std::vector<std::string> names;
  constexpr std::string_view kSuffix = ".safetensors";
  while (const dirent* entry = ::readdir(handle)) {
    const std::string_view name = entry->d_name;
    if (name.size() > kSuffix.size() && name[0] != '.' &&
        name.substr(name.size() - kSuffix.size()) == kSuffix)
      names.emplace_back(name);
  }
  ::closedir(handle);
  if (names.empty()) {
    return BadModel(fmt::format(
        "{} has no {} and no *.safetensors file; give the directory of a downloaded checkpoint",
        dir,
        kIndexName));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Sorts by canonical name and refuses two entries of one canonical name.
Status SortByCanonicalName(std::vector<std::pair<std::string, int>>* placement,
                           const std::string& path) {
  std::sort(placement->begin(), placement->end(), [](const auto& a, const auto& b) {
    return Canonical(a.first) < Canonical(b.first);
  });
  for (size_t i = 1; i < placement->size(); ++i) {
    const std::string& a = (*placement)[i - 1].first;
    const std::string& b = (*placement)[i].first;
    if (Canonical(a) != Canonical(b)) continue;
    if (a == b) return BadModel(fmt::format("{}: tensor {} is named twice", path, Escape(a)));
    return BadModel(
        fmt::format("{}: ambiguous alias: {} and {} name the same tensor; keep one of them",
                    path,
                    Escape(a),
                    Escape(b)));
  }
  return Status::Ok();
}

// The exact name first, then the form with the prefix added or removed.
const TensorView* FindAlias(const SafetensorsFile& shard, const std::string& name) {
  if (const TensorView* view = shard.Find(name); view != nullptr) return view;
  const std::string_view canonical = Canonical(name);
  if (canonical.size() != name.size()) return shard.Find(canonical);
  return shard.Find(std::string(kPrefix) + name);
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& model_dir) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->dir_ = model_dir;
  const std::string index_path = model_dir + "/" + kIndexName;
  struct stat st {};
  const bool has_index = ::lstat(index_path.c_str(), &st) == 0;  // a link to nothing is a damaged checkpoint, not a missing index
  Index index;
  if (has_index) {
    DI_ASSIGN_OR_RETURN(index, ReadIndex(index_path));
    for (const auto& [name, shard] : index.placement) {
      if (IsUnfoldedMixingNorm(name)) return UnfoldedMixingNorm(index_path, name);
    }
  } else {
    DI_ASSIGN_OR_RETURN(index.shards, ScanForShards(model_dir));
  }
  const std::string& origin = has_index ? index_path : model_dir;
  checkpoint->shards_.reserve(index.shards.size());
  for (const std::string& name : index.shards) {
    Result<SafetensorsFile> shard = SafetensorsFile::Open(model_dir + "/" + name);
    if (!shard.ok()) {
      const std::string& problem = shard.status().message();
      // Errors of the header carry their remedy already; a file that cannot be opened gets one
      // here.
      if (problem.rfind("cannot read", 0) != 0) return shard.status();
      return BadModel(
          fmt::format("{}; it is part of the checkpoint ({}), fetch it again", problem, origin));
    }
    for (const TensorView& view : shard->tensors()) {
      if (IsUnfoldedMixingNorm(view.name)) return UnfoldedMixingNorm(shard->path(), view.name);
      if (!has_index)
        index.placement.emplace_back(view.name, static_cast<int>(checkpoint->shards_.size()));
    }
    checkpoint->shards_.push_back(std::move(shard).value());
  }
  DI_RETURN_IF_ERROR(SortByCanonicalName(&index.placement, origin));
  for (const auto& [name, shard_idx] : index.placement) {
    const SafetensorsFile& shard = checkpoint->shards_[static_cast<size_t>(shard_idx)];
    const TensorView* found = FindAlias(shard, name);
    if (found == nullptr) {
      return BadModel(
          fmt::format("{}: tensor {} is not in the header of {}; the index and the shard do not "
                      "belong together",
                      index_path,
                      Escape(name),
                      shard.path()));
    }
    TensorView view = *found;
    view.name = std::string(Canonical(name));
    view.shard_idx = shard_idx;
    checkpoint->payload_bytes_ += view.num_bytes;
    checkpoint->tensors_.emplace_hint(checkpoint->tensors_.end(), view.name, std::move(view));
  }
  return checkpoint;
}

const TensorView* Checkpoint::Find(std::string_view name) const {
  const auto it = tensors_.find(Canonical(name));
  return it == tensors_.end() ? nullptr : &it->second;
}

Result<TensorView> Checkpoint::Get(std::string_view name) const {
  const TensorView* view = Find(name);
  if (view == nullptr)
    return BadModel(
        fmt::format("{}: tensor {} is missing; the checkpoint is incomplete", dir_, Escape(name)));
  return *view;
}

namespace {

// For "layers.3.ffn.experts.12.w1.weight" gives "layers.3" and 12. False for other names.
bool ParseExpertName(std::string_view name, std::string_view* block, std::string_view* expert) {
  constexpr std::string_view kInfix = ".ffn.experts.";
  const size_t at = name.find(kInfix);
  if (at == std::string_view::npos) return false;
  *block = name.substr(0, at);
  *expert = name.substr(at + kInfix.size());
  *expert = expert->substr(0, expert->find('.'));
  return true;
}

// Value of a canonical decimal number ("0", "17"), or -1.
int ParseIndex(std::string_view text) {
  if (text.empty() || text.size() > 6 || (text.size() > 1 && text[0] == '0')) return -1;
  int value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return -1;
    value = value * 10 + (c - '0');
  }
  return value;
}

// Experts of block `block` ("layers.3", "mtp.0"), 0 for a block the configuration does not have.
int NumExpertsOf(std::string_view block, const ModelConfig& config) {
  for (const auto& [prefix, num_blocks, num_experts] :
       {std::tuple{std::string_view("layers."), config.num_hidden_layers, config.n_routed_experts},
        std::tuple{
            std::string_view("mtp."), config.num_draft_stages, config.dspark_n_routed_experts}}) {
    if (block.substr(0, prefix.size()) != prefix) continue;
    const int idx = ParseIndex(block.substr(prefix.size()));
    if (idx >= 0 && idx < num_blocks) return num_experts;
  }
  return 0;
}

// A layer with experts beyond n_routed_experts belongs to another model.
Status CheckNoExtraExperts(const Checkpoint& checkpoint, const ModelConfig& config) {
  for (const auto& [name, view] : checkpoint.tensors()) {
    std::string_view block;
    std::string_view expert;
    if (!ParseExpertName(name, &block, &expert)) continue;
    const int num_experts = NumExpertsOf(block, config);
    const int idx = ParseIndex(expert);
    if (num_experts > 0 && (idx < 0 || idx >= num_experts)) {
      return BadModel(
          fmt::format("{}: tensor {} is beyond the {} experts that config.json gives this layer "
                      "(0..{}); config.json does not "
                      "belong to this checkpoint",
                      checkpoint.dir(),
                      Escape(name),
                      num_experts,
                      num_experts - 1));
    }
  }
  return Status::Ok();
}

}  // namespace

Status Checkpoint::CheckInventory(const ModelConfig& config, bool with_vision) const {
  constexpr int kMaxCounted =
      1000;  // bounds the work for a configuration that has nothing to do with the files
  Status first_error;
  int num_missing = 0;
  std::string first_missing;
  const auto place = [&](const TensorView& view) {
    return view.shard_idx < 0 ? dir_ : shards_[static_cast<size_t>(view.shard_idx)].path();
  };
  int embed_shard_idx = -1;
  ForEachRequiredTensor(config, with_vision, [&](const RequiredTensor& t) {
    const auto it = tensors_.find(t.name);
    if (it == tensors_.end()) {
      if (num_missing++ == 0) {
        first_missing =
            t.is_scale ? fmt::format("{} (the scale of a quantised weight)", t.name) : t.name;
      }
      return num_missing < kMaxCounted;
    }
    if (!first_error.ok()) return true;
    const TensorView& view = it->second;
    if (view.dtype != t.dtype) {
      first_error =
          BadModel(fmt::format("{}: tensor {} has dtype {} but must be {}; re-export the "
                               "checkpoint in the release format",
                               place(view),
                               t.name,
                               DTypeName(view.dtype),
                               DTypeName(t.dtype)));
    } else if (!std::equal(
                   view.shape.begin(), view.shape.end(), t.shape().begin(), t.shape().end())) {
      first_error =
          BadModel(fmt::format("{}: tensor {} has shape [{}] but config.json asks for [{}]; "
                               "config.json and the weights do not "
                               "belong together",
                               place(view),
                               t.name,
                               fmt::join(view.shape, ", "),
                               fmt::join(t.shape(), ", ")));
    } else if (t.part == ModelPart::kEngramTables) {
      if (!t.is_scale) {
        embed_shard_idx = view.shard_idx;
      } else if (view.shard_idx != embed_shard_idx) {
        first_error =
            BadModel(fmt::format("{}: tensor {} lies in another shard than its weight; both parts "
                                 "of an Engram table must be "
                                 "in one file",
                                 place(view),
                                 t.name));
      }
    }
    return true;
  });
  if (num_missing > 0) {
    const std::string more = num_missing == 1 ? ""
                             : num_missing >= kMaxCounted
                                 ? fmt::format(" and at least {} more are", num_missing - 1)
                                 : fmt::format(" and {} more are", num_missing - 1);
    return BadModel(
        fmt::format("{}: tensor {}{} missing; the checkpoint is incomplete or config.json belongs "
                    "to another one",
                    dir_,
                    first_missing,
                    more.empty() ? " is" : more));
  }
  DI_RETURN_IF_ERROR(first_error);
  return CheckNoExtraExperts(*this, config);
}

std::vector<std::string> Checkpoint::ShardPaths() const {
  std::vector<std::string> paths;
  for (const SafetensorsFile& shard : shards_) paths.push_back(shard.path());
  return paths;
}

Status Checkpoint::CheckMapped() const {
  if (!IsAnyMappingDamaged()) return Status::Ok();
  for (const SafetensorsFile& shard : shards_) {
    if (!shard.is_damaged()) continue;
    return BadModel(fmt::format("{}: the file became shorter or unreadable while it was in use; restore it (deepinfer inspect --verify) "
                                "and start again", shard.path()));
  }
  return Status::Ok();
}

void Checkpoint::DropPages() const {
  for (const SafetensorsFile& shard : shards_)
    ::madvise(const_cast<uint8_t*>(shard.mapped_data()), static_cast<size_t>(shard.file_bytes()), MADV_DONTNEED);
}

int64_t Checkpoint::payload_bytes() const {
  return payload_bytes_;
}

}  // namespace deepinfer::model
