// SPDX-License-Identifier: Apache-2.0
//
// Checkpoint::Verify: every byte of every tensor is read (with pread, so that a bad disk gives an
// error, not a signal) and codes that no valid checkpoint holds are refused.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <unistd.h>

#include <fmt/format.h>

#include "core/escape.h"
#include "model/checkpoint.h"
#include "core/finite.h"

namespace deepinfer::model {

namespace {

constexpr int64_t kTileBytes = int64_t{4} << 20;
constexpr int64_t kTilesPerRound = 64;  // between two progress reports

struct Tile {
  const TensorView* tensor;
  int64_t begin;  // bytes from the start of the tensor
  int64_t num_bytes;
};

std::string ElementIndex(const TensorView& tensor, int64_t element) {
  std::vector<int64_t> index(tensor.shape.size());
  for (size_t i = index.size(); i-- > 0;) {
    index[i] = element % tensor.shape[i];
    element /= tensor.shape[i];
  }
  return fmt::format("[{}]", fmt::join(index, ", "));
}

class ShardReader {
 public:
  explicit ShardReader(std::string path)
      : path_(std::move(path)), fd_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;
  ~ShardReader() {
    if (fd_ >= 0) ::close(fd_);
  }

  Status Read(int64_t offset, int64_t num_bytes, uint8_t* out) const {
    if (fd_ < 0) return BadModel(fmt::format("cannot read {}: the file has gone", path_));
    while (num_bytes > 0) {
      const ssize_t n = ::pread(fd_, out, static_cast<size_t>(num_bytes), offset);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0)
        return BadModel(
            fmt::format("cannot read {} at byte {}: {}", path_, offset, std::strerror(errno)));
      if (n == 0)
        return BadModel(
            fmt::format("{} ends at byte {}, inside a tensor; fetch it again", path_, offset));
      out += n;
      offset += n;
      num_bytes -= n;
    }
    return Status::Ok();
  }

 private:
  std::string path_;
  int fd_;
};

}  // namespace

Status Checkpoint::Verify(ThreadPool& pool,
                          const std::function<void(int64_t, int64_t)>& progress) const {
  std::vector<Tile> tiles;
  for (const auto& [name, tensor] : tensors_) {
    for (int64_t begin = 0; begin < tensor.num_bytes; begin += kTileBytes) {
      tiles.push_back({&tensor, begin, std::min(kTileBytes, tensor.num_bytes - begin)});
    }
  }
  // In the order of the files, so that disks read forwards.
  std::sort(tiles.begin(), tiles.end(), [](const Tile& a, const Tile& b) {
    return std::pair(a.tensor->shard_idx, a.tensor->data + a.begin) <
           std::pair(b.tensor->shard_idx, b.tensor->data + b.begin);
  });
  std::vector<std::unique_ptr<ShardReader>> readers;
  for (const SafetensorsFile& shard : shards_)
    readers.push_back(std::make_unique<ShardReader>(shard.path()));
  std::vector<std::vector<uint8_t>> buffers(static_cast<size_t>(pool.num_threads()));
  std::vector<Status> statuses(static_cast<size_t>(kTilesPerRound));

  const auto check = [&](const Tile& tile, std::vector<uint8_t>& buffer) {
    const TensorView& tensor = *tile.tensor;
    const uint8_t* bytes = tensor.data + tile.begin;
    if (tensor.shard_idx >= 0) {  // else the tensor lives in memory
      const auto shard = static_cast<size_t>(tensor.shard_idx);
      buffer.resize(static_cast<size_t>(kTileBytes));
      const int64_t offset = shards_[shard].OffsetInFile(tensor) + tile.begin;
      DI_RETURN_IF_ERROR(readers[shard]->Read(offset, tile.num_bytes, buffer.data()));
      bytes = buffer.data();
    }
    const int64_t bad = FirstNonFinite(tensor.dtype, bytes, tile.num_bytes);
    if (bad < 0) return Status::Ok();
    const int64_t element = tile.begin / DTypeBytes(tensor.dtype) + bad;
    const std::string place =
        tensor.shard_idx < 0 ? dir_ : shards_[static_cast<size_t>(tensor.shard_idx)].path();
    return BadModel(
        fmt::format("{}: tensor {} ({}) is not finite at {}; the file is damaged, fetch it again",
                    place,
                    Escape(tensor.name),
                    DTypeName(tensor.dtype),
                    ElementIndex(tensor, element)));
  };

  int64_t done = 0;
  for (size_t first = 0; first < tiles.size(); first += static_cast<size_t>(kTilesPerRound)) {
    const auto round =
        static_cast<int64_t>(std::min(tiles.size() - first, static_cast<size_t>(kTilesPerRound)));
    pool.ParallelFor(round, [&](int64_t i, int thread_idx) {
      statuses[static_cast<size_t>(i)] =
          check(tiles[first + static_cast<size_t>(i)], buffers[static_cast<size_t>(thread_idx)]);
    });
    for (int64_t i = 0; i < round; ++i) {
      DI_RETURN_IF_ERROR(statuses[static_cast<size_t>(i)]);
      done += tiles[first + static_cast<size_t>(i)].num_bytes;
    }
    if (progress) progress(done, payload_bytes_);
  }
  return Status::Ok();
}

}  // namespace deepinfer::model
