// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/file.h"
#include "core/json.h"
#include "model/released_config.h"
#include "model/seeded_weights.h"

namespace deepinfer::model {

namespace {

constexpr int64_t kWriteTileBytes = int64_t{4} << 20;
constexpr size_t kWriteTilesPerRound = 32;

Status WriteError(const std::string& path, int error) {
  return ResourceExhausted(fmt::format("cannot write {}: {}", path, std::strerror(error)));
}

Status WriteAt(
    int fd, const std::string& path, int64_t offset, const uint8_t* bytes, size_t num_bytes) {
  while (num_bytes > 0) {
    const ssize_t n = ::pwrite(fd, bytes, num_bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return WriteError(path, errno);
    bytes += n;
    offset += n;
    num_bytes -= static_cast<size_t>(n);
  }
  return Status::Ok();
}

// Names come from the inventory and need no escaping; written by hand because an ordered_json of
// this many keys is slow.
std::string HeaderText(std::span<const RequiredTensor> tensors) {
  std::string text = "{";
  int64_t offset = 0;
  for (const RequiredTensor& t : tensors) {
    text += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        text.size() > 1 ? "," : "",
                        t.name,
                        DTypeName(t.dtype),
                        fmt::join(t.shape(), ","),
                        offset,
                        offset + t.num_bytes());
    offset += t.num_bytes();
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

Result<std::unique_ptr<ShardWriter>> ShardWriter::Create(const std::string& path,
                                                         std::span<const RequiredTensor> tensors) {
  std::unique_ptr<ShardWriter> writer(new ShardWriter());
  writer->path_ = path;
  const std::string header = HeaderText(tensors);
  int64_t offset = 8 + static_cast<int64_t>(header.size());
  for (const RequiredTensor& t : tensors) {
    writer->offsets_.push_back(offset);
    writer->sizes_.push_back(t.num_bytes());
    offset += t.num_bytes();
  }
  writer->file_bytes_ = offset;
  writer->fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (writer->fd_ < 0) return WriteError(path, errno);
  std::string start(8, '\0');
  for (size_t i = 0; i < 8; ++i) start[i] = static_cast<char>(header.size() >> (8 * i));
  start += header;
  DI_RETURN_IF_ERROR(
      WriteAt(writer->fd_, path, 0, reinterpret_cast<const uint8_t*>(start.data()), start.size()));
  if (::ftruncate(writer->fd_, writer->file_bytes_) != 0) return WriteError(path, errno);
  return writer;
}

ShardWriter::~ShardWriter() {
  if (fd_ >= 0) ::close(fd_);
}

Status ShardWriter::Write(size_t tensor_idx, int64_t begin, std::span<const uint8_t> bytes) {
  DI_CHECK(begin >= 0 && begin + static_cast<int64_t>(bytes.size()) <= sizes_[tensor_idx]) << path_;
  return WriteAt(fd_, path_, offsets_[tensor_idx] + begin, bytes.data(), bytes.size());
}

std::string ShardName(size_t shard_idx, size_t num_shards) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard_idx + 1, num_shards);
}

Status WriteIndex(const std::string& dir, std::span<const std::vector<RequiredTensor>> shards) {
  int64_t total_bytes = 0;
  std::string map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string shard = ShardName(i, shards.size());
    for (const RequiredTensor& t : shards[i]) {
      map += fmt::format("{}\n    \"{}\": \"{}\"", map.empty() ? "" : ",", t.name, shard);
      total_bytes += t.num_bytes();
    }
  }
  return WriteFileAtomically(dir + "/model.safetensors.index.json",
                             fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  "
                                         "\"weight_map\": {{{}\n  }}\n}}\n",
                                         total_bytes,
                                         map));
}

std::vector<std::vector<RequiredTensor>> SplitIntoShards(const std::vector<RequiredTensor>& tensors,
                                                         int64_t max_shard_bytes) {
  std::vector<std::vector<RequiredTensor>> shards(1);
  int64_t filled = 0;
  for (const RequiredTensor& t : tensors) {
    if (filled > 0 && !t.is_scale && filled + t.num_bytes() > max_shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(t);
    filled += t.num_bytes();
  }
  return shards;
}

Status WriteSeededCheckpoint(const std::string& dir,
                             std::span<const std::vector<RequiredTensor>> shards,
                             uint64_t seed,
                             ThreadPool& pool,
                             const std::function<void(int64_t, int64_t)>& progress) {
  struct Tile {
    size_t tensor_idx;
    int64_t begin;
    int64_t num_bytes;
  };
  int64_t total_bytes = 0;
  for (const auto& tensors : shards) {
    for (const RequiredTensor& t : tensors) total_bytes += t.num_bytes();
  }
  int64_t done = 0;
  std::vector<std::vector<uint8_t>> buffers(static_cast<size_t>(pool.num_threads()),
                                            std::vector<uint8_t>(static_cast<size_t>(kWriteTileBytes)));
  std::vector<Status> statuses(kWriteTilesPerRound);
  for (size_t s = 0; s < shards.size(); ++s) {
    DI_ASSIGN_OR_RETURN(const std::unique_ptr<ShardWriter> writer,
                        ShardWriter::Create(dir + "/" + ShardName(s, shards.size()), shards[s]));
    std::vector<Tile> tiles;
    for (size_t i = 0; i < shards[s].size(); ++i) {
      const int64_t size = shards[s][i].num_bytes();
      for (int64_t begin = 0; begin < size; begin += kWriteTileBytes)
        tiles.push_back({i, begin, std::min(kWriteTileBytes, size - begin)});
    }
    for (size_t first = 0; first < tiles.size(); first += kWriteTilesPerRound) {
      const size_t round = std::min(kWriteTilesPerRound, tiles.size() - first);
      pool.ParallelFor(static_cast<int64_t>(round), [&](int64_t i, int thread_idx) {
        const Tile& tile = tiles[first + static_cast<size_t>(i)];
        const std::span<uint8_t> bytes(buffers[static_cast<size_t>(thread_idx)].data(),
                                       static_cast<size_t>(tile.num_bytes));
        FillSeeded(shards[s][tile.tensor_idx], seed, tile.begin, bytes);
        statuses[static_cast<size_t>(i)] = writer->Write(tile.tensor_idx, tile.begin, bytes);
      });
      for (size_t i = 0; i < round; ++i) {
        DI_RETURN_IF_ERROR(statuses[i]);
        done += tiles[first + i].num_bytes;
      }
      if (progress) progress(done, total_bytes);
    }
  }
  return WriteIndex(dir, shards);
}

// Never 0x7f / 0xff, the NaN codes of e4m3.
uint8_t SparseTableByte(int64_t row, int64_t column) {
  return static_cast<uint8_t>((row * 31 + column * 7 + 1) % 0x7f);
}
uint8_t SparseScaleByte(int64_t row, int64_t column) {
  return static_cast<uint8_t>(120 + (row + column) % 8);
}

Status WriteSparseReleasedCheckpoint(const std::string& dir) {
  constexpr size_t kNumShards = 48;
  const Json json = ReleasedConfigJson();
  DI_ASSIGN_OR_RETURN(const ModelConfig config,
                      ModelConfig::FromJson(json, "released configuration"));
  DI_RETURN_IF_ERROR(WriteFileAtomically(dir + "/config.json", json.dump(2) + "\n"));

  // Shards 1..43: globals and vision in the first and last, one layer each in 2..41. Then draft
  // stages and Engram groups.
  std::vector<std::vector<RequiredTensor>> shards(kNumShards);
  ForEachRequiredTensor(config, true, [&](const RequiredTensor& t) {
    size_t shard = 0;
    int number = 0;
    if (t.name.rfind("layers.1.engram.", 0) == 0) {
      shard = 46;
    } else if (t.name.rfind("layers.14.engram.", 0) == 0) {
      shard = 47;
    } else if (std::sscanf(t.name.c_str(), "layers.%d.", &number) == 1) {
      shard = static_cast<size_t>(1 + number);
    } else if (std::sscanf(t.name.c_str(), "mtp.%d.", &number) == 1) {
      shard = static_cast<size_t>(43 + number);
    } else if (t.part == ModelPart::kVision) {
      shard = 42;
    } else if (t.name != "embed.weight") {
      shard = 41;
    }
    shards[shard].push_back(t);
    return true;
  });
  for (size_t s = 0; s < kNumShards; ++s) {
    DI_ASSIGN_OR_RETURN(const std::unique_ptr<ShardWriter> writer,
                        ShardWriter::Create(dir + "/" + ShardName(s, kNumShards), shards[s]));
    for (size_t i = 0; i < shards[s].size(); ++i) {
      const RequiredTensor& t = shards[s][i];
      if (t.part != ModelPart::kEngramTables) continue;
      for (const int64_t row : {int64_t{0}, t.dims[0] - 1}) {
        std::vector<uint8_t> bytes(static_cast<size_t>(t.dims[1]));
        for (int64_t c = 0; c < t.dims[1]; ++c) {
          bytes[static_cast<size_t>(c)] =
              t.is_scale ? SparseScaleByte(row, c) : SparseTableByte(row, c);
        }
        DI_RETURN_IF_ERROR(writer->Write(i, row * t.dims[1], bytes));
      }
    }
  }
  return WriteIndex(dir, shards);
}

}  // namespace deepinfer::model
