// SPDX-License-Identifier: Apache-2.0
//
// Writes checkpoints in the release format: shards with header and data, then the index. Shards are
// created at full size, so data that is never written stays a hole that reads as zeros. For tools
// and tests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "core/threads.h"
#include "model/inventory.h"

namespace deepinfer::model {

// One safetensors file. Tensors lie in the order given, without gaps.
class ShardWriter {
 public:
  static Result<std::unique_ptr<ShardWriter>> Create(const std::string& path,
                                                     std::span<const RequiredTensor> tensors);
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  // Bytes [begin, begin + bytes.size()) of a tensor. May be called by several threads.
  Status Write(size_t tensor_idx, int64_t begin, std::span<const uint8_t> bytes);
  int64_t file_bytes() const { return file_bytes_; }

 private:
  ShardWriter() = default;
  std::string path_;
  int fd_ = -1;
  int64_t file_bytes_ = 0;
  std::vector<int64_t> offsets_;  // of each tensor in the file
  std::vector<int64_t> sizes_;
};

// "model-00007-of-00048.safetensors", counted from 1.
std::string ShardName(size_t shard_idx, size_t num_shards);

// The index of shards[i] = the tensors of shard i.
Status WriteIndex(const std::string& dir, std::span<const std::vector<RequiredTensor>> shards);

// Puts all tensors in order into shards of at most about `max_shard_bytes`; a weight and its scale
// stay together.
std::vector<std::vector<RequiredTensor>> SplitIntoShards(const std::vector<RequiredTensor>& tensors,
                                                         int64_t max_shard_bytes);

// Shards filled by FillSeeded, and the index.
Status WriteSeededCheckpoint(const std::string& dir,
                             std::span<const std::vector<RequiredTensor>> shards,
                             uint64_t seed,
                             ThreadPool& pool,
                             const std::function<void(int64_t, int64_t)>& progress = nullptr);

// The full-size checkpoint of the released configuration as holes: 48 shards, 510 GB in size, some
// 15 MB on disk. Placed as released: mtp.0..2 in shards 44..46, layers.1.engram in 47,
// layers.14.engram in 48. Only the first and the last row of each Engram table hold data, byte i of
// row r being SparseTableByte / SparseScaleByte.
Status WriteSparseReleasedCheckpoint(const std::string& dir);
uint8_t SparseTableByte(int64_t row, int64_t column);
uint8_t SparseScaleByte(int64_t row, int64_t column);

}  // namespace deepinfer::model
