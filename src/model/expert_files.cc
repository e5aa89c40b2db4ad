// SPDX-License-Identifier: Apache-2.0
#include "model/expert_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

namespace deepinfer::model {
namespace {

uint64_t Fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

std::string Describe(const Checkpoint& checkpoint) {
  std::string text;
  for (const SafetensorsFile& shard : checkpoint.shards()) {
    struct stat st {};
    const bool is_known = ::stat(shard.path().c_str(), &st) == 0;
    text += fmt::format("{} {} {}.{}\n", std::filesystem::path(shard.path()).filename().string(), shard.file_bytes(), st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    if (!is_known) text += "unknown\n";
    // Times may be normalised: a few pages of the content, too.
    constexpr int64_t kSample = 4096;
    for (const int64_t part : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const int64_t begin = (shard.file_bytes() - std::min(kSample, shard.file_bytes())) / 7 * part;
      const auto* bytes = reinterpret_cast<const char*>(shard.mapped_data() + begin);
      text += fmt::format("{:016x}\n", Fnv1a({bytes, static_cast<size_t>(std::min(kSample, shard.file_bytes()))}));
    }
  }
  return text;
}

}  // namespace

device::ExpertStreaming ExpertFiles(const Checkpoint& checkpoint) {
  device::ExpertStreaming streaming;
  for (const SafetensorsFile& shard : checkpoint.shards()) streaming.files.push_back({shard.mapped_data(), shard.file_bytes(), shard.path()});
  const std::string text = Describe(checkpoint);
  streaming.fingerprint = fmt::format("{} shards, {:016x}{:016x}", checkpoint.shards().size(), Fnv1a(text), Fnv1a(text + "."));
  return streaming;
}

std::string PackPath(const Checkpoint& checkpoint, const std::string& where) {
  if (where.empty() || where == "off") return "";
  if (where == "beside") return checkpoint.dir() + "/experts.deepinfer-pack";
  // Several checkpoints may share a directory.
  std::error_code ignored;  // a path that does not exist stays as it is
  const auto full = std::filesystem::weakly_canonical(checkpoint.dir(), ignored);
  return fmt::format("{}/{}-{:08x}.deepinfer-pack", where, full.filename().string(), static_cast<uint32_t>(Fnv1a(full.string())));
}

}  // namespace deepinfer::model
