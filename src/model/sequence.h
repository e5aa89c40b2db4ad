// SPDX-License-Identifier: Apache-2.0
//
// The cache state of one token sequence on one model: its token ids, the blocks of compressed keys, and its state slot
// (window rings, compressor partial groups). Made by Model::NewSequence, which must outlive it; gives its blocks back when
// destroyed. Not thread-safe: the thread that calls the model.
//
// A sequence made by Model::NewSlot owns no blocks: a scheduler tells it which ones to use and may rebind it to another
// token sequence at any time.
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

  // Measurements only: becomes a sequence of `ids` that nobody has computed, every key in its caches a valid random one. Errors:
  // kResourceExhausted. The sequence must be empty.
  Status Fabricate(std::span<const int32_t> ids, uint64_t seed);

  // ---- slots only -----------------------------------------------------------------------------------------------------
  // Another token sequence begins here: `history` are its tokens before the first one to compute. No window keys of
  // positions below `valid_start` (even) are visible from now on, except those that LoadProducerState brings. With decoder
  // replay the consumer half runs rows from max(valid_start, decoder_floor) on.
  void Bind(std::span<const int32_t> history, int64_t valid_start, int64_t decoder_floor);
  // Entries of the block table from `first` on.
  void SetBlocks(int64_t first, std::span<const int32_t> blocks);
  // Errors: kResourceExhausted. Becomes `other` as it was at `length` (at most max_backtracking() tokens ago), without its blocks.
  Status CopyStateFrom(const Sequence& other, int64_t length);
  // The window rings of the producer half at the present length, `producer_state_bytes` of device memory.
  int64_t producer_state_bytes() const { return layout_.persistable_state_bytes; }
  void SaveProducerState(void* to) const;
  void LoadProducerState(const void* from);

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
  device::Buffer taps_;             // ring of the newest draft taps, kept while drafting is paused; made when first needed
  int64_t stale_from_ = -1;         // draft keys from this position on are missing: their taps are in taps_; -1 = none
  int64_t valid_start_ = 0;         // encoder replay: window keys of smaller positions do not exist
  bool is_slot_ = false;            // blocks and floors are set from outside
  bool has_decoder_replay_ = false;
};

}  // namespace deepinfer::model
