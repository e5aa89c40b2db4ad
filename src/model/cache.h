// SPDX-License-Identifier: Apache-2.0
//
// Where cached keys live: the layout of a block (128 tokens over all source layers) and of a sequence's state slot, and the
// pool of blocks. Layouts follow model.md 9 and kv-store.md 2 of the specification.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/status.h"
#include "device/device.h"
#include "model/config.h"
#include "model/numerics.h"

namespace deepinfer::model {

inline constexpr int kBlockTokens = 128;

struct CacheLayout {
  // Compressed keys, one entry per source layer in layer order (`pool` unset).
  std::vector<device::KeyCache> owners;
  std::vector<int> owner_of_layer;   // [L]: index into owners of the layer's KV source, -1 for window-only layers
  int64_t block_payload_bytes = 0;
  int64_t block_stride = 0;

  std::vector<device::WindowRing> rings;     // [L + draft stages]
  std::vector<int64_t> compressor_offset;    // [owners]: offset of the partial-group ring, -1 for ratio 1
  int compressor_rows = 0;
  int64_t state_bytes = 0;
  int64_t persistable_state_bytes = 0;       // the rings of the producer half come first
  int max_backtracking = 0;

  static CacheLayout Make(const ModelConfig& config, Numerics numerics, bool use_fp4_sparse_kv, int max_backtracking);
};

// Block ids are 1.. (0 = none). A block's content is unspecified when handed out: entries are written before they are
// visible.
class BlockPool {
 public:
  static Result<std::unique_ptr<BlockPool>> Create(device::Device& device, int64_t block_stride, int64_t num_blocks,
                                                   bool may_shrink);
  uint8_t* data() const { return buffer_.as<uint8_t>(); }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()) + num_blocks_ - next_unused_; }
  // 0 when none is left.
  int32_t Allocate();
  void Free(int32_t block);

 private:
  device::Buffer buffer_;
  int64_t num_blocks_ = 0;   // ids 1..num_blocks_
  int64_t next_unused_ = 0;  // ids above it were never handed out
  std::vector<int32_t> free_;
};

}  // namespace deepinfer::model
