// SPDX-License-Identifier: Apache-2.0
//
// The cache state of one token sequence on one model: its token ids, the blocks of compressed keys, and its state slot
// (window rings, compressor partial groups). Made by Model::NewSequence, which must outlive it; gives its blocks back when
// destroyed. Not thread-safe: the thread that calls the model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/status.h"
#include "device/device.h"
#include "model/cache.h"

namespace deepinfer::model {

class Sequence {
 public:
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  // Tokens whose keys are in the caches.
  int64_t length() const { return static_cast<int64_t>(ids_.size()); }
  std::span<const int32_t> ids() const { return ids_; }
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }

  // Forgets the tokens from `length` on: at most max_backtracking() of them (rejected drafts), or all (length 0). Nothing is
  // restored; the next tokens overwrite what the forgotten ones wrote.
  Status Truncate(int64_t length);
  int max_backtracking() const { return layout_.max_backtracking; }

 private:
  friend class Model;
  friend struct ModelAccess;
  Sequence(BlockPool& pool, const CacheLayout& layout, device::Device& device, int64_t max_length);

  // Blocks for `length` tokens; false (and nothing changed) when the pool has too few.
  bool Grow(int64_t length);
  void Shrink(int64_t num_blocks);

  BlockPool& pool_;
  const CacheLayout& layout_;
  device::Device& device_;
  int64_t max_length_;
  std::vector<int32_t> ids_;
  std::vector<uint8_t> is_image_;   // per token; empty while no token is an image token
  std::vector<int32_t> blocks_;
  device::Buffer block_table_;      // device copy of blocks_
  device::Buffer state_;
  int64_t window_floor_ = 0;        // decoder replay: first position that runs through the consumer half
};

}  // namespace deepinfer::model
