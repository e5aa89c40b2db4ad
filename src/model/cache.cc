// SPDX-License-Identifier: Apache-2.0
#include "model/cache.h"

#include <memory>
#include <numeric>

#include "core/integers.h"

namespace deepinfer::model {

CacheLayout CacheLayout::Make(const ModelConfig& config, Numerics numerics, bool use_fp4_sparse_kv, int max_backtracking) {
  using device::KeyFormat;
  CacheLayout layout;
  layout.max_backtracking = max_backtracking;
  const bool quantize = QuantizesActivations(numerics);
  const KeyFormat window_format = quantize ? KeyFormat::kMxFp8 : KeyFormat::kFloat;
  const KeyFormat main_format = !quantize             ? KeyFormat::kFloat
                                : use_fp4_sparse_kv ? KeyFormat::kFp4E4m3
                                                      : KeyFormat::kMxFp8;
  const KeyFormat index_format = quantize ? KeyFormat::kFp4Pow2 : KeyFormat::kFloat;

  layout.owner_of_layer.assign(static_cast<size_t>(config.num_hidden_layers), -1);
  const int64_t main_record = device::KeyRecordBytes(main_format, config.head_dim);
  const int64_t index_record = device::KeyRecordBytes(index_format, config.index_head_dim);
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    const int ratio = config.compress_ratios[static_cast<size_t>(layer)];
    if (ratio == 0) continue;
    if (config.is_kv_source(layer)) {
      device::KeyCache owner;
      owner.ratio = ratio;
      owner.entries_per_block = kBlockTokens / ratio;
      owner.head_dim = config.head_dim;
      owner.index_dim = config.index_head_dim;
      owner.main_format = main_format;
      owner.index_format = index_format;
      owner.index_offset = layout.block_payload_bytes;
      owner.main_offset = owner.index_offset + RoundUp(owner.entries_per_block * index_record, 32);
      layout.block_payload_bytes = owner.main_offset + RoundUp(owner.entries_per_block * main_record, 32);
      layout.owners.push_back(owner);
    }
    layout.owner_of_layer[static_cast<size_t>(layer)] = static_cast<int>(layout.owners.size()) - 1;
  }
  layout.block_stride = RoundUp(std::max<int64_t>(layout.block_payload_bytes, 1), std::lcm(int64_t{128}, main_record));
  for (auto& owner : layout.owners) owner.block_stride = layout.block_stride;

  const int64_t window_record = device::KeyRecordBytes(window_format, config.head_dim);
  const int first_consumer = config.first_consumer_layer();
  int64_t offset = 0;
  for (int layer = 0; layer < config.num_hidden_layers + config.num_draft_stages; ++layer) {
    if (layer == first_consumer) layout.persistable_state_bytes = offset;
    device::WindowRing ring;
    ring.offset = offset;
    ring.rows = config.sliding_window + max_backtracking;
    ring.window = config.sliding_window;
    ring.format = window_format;
    offset += RoundUp(ring.rows * window_record, 32);
    layout.rings.push_back(ring);
  }
  layout.compressor_rows = 2 + max_backtracking - 1;
  for (const auto& owner : layout.owners) {
    if (owner.ratio == 1) {
      layout.compressor_offset.push_back(-1);
      continue;
    }
    layout.compressor_offset.push_back(offset);
    offset += int64_t{layout.compressor_rows} * 2 * config.head_dim * 4;
  }
  layout.state_bytes = RoundUp(offset, std::lcm(int64_t{32}, window_record));
  for (auto& owner : layout.owners) owner.block_stride = layout.block_stride;
  return layout;
}

Result<std::unique_ptr<BlockPool>> BlockPool::Create(device::Device& device, int64_t block_stride, int64_t num_blocks,
                                                     bool may_shrink) {
  auto pool = std::make_unique<BlockPool>();
  for (;;) {
    auto buffer = device.Reserve((num_blocks + 1) * block_stride);
    if (buffer.ok()) {
      pool->buffer_ = std::move(buffer).value();
      break;
    }
    if (!may_shrink || num_blocks < 64) return buffer.status();
    num_blocks /= 2;
  }
  pool->num_blocks_ = num_blocks;
  return pool;
}

int32_t BlockPool::Allocate() {
  if (!free_.empty()) {
    const int32_t block = free_.back();
    free_.pop_back();
    return block;
  }
  if (next_unused_ >= num_blocks_) return 0;
  return static_cast<int32_t>(++next_unused_);
}

void BlockPool::Free(int32_t block) { free_.push_back(block); }

}  // namespace deepinfer::model
