// SPDX-License-Identifier: Apache-2.0
#include "kvstore/block_layout.h"

#include <numeric>

#include <fmt/format.h>

#include "kvstore/block_key.h"

namespace deepinfer::kvstore {
namespace {

constexpr uint32_t kIndexRecordBytes = 64 + 4;
constexpr uint32_t kRegionAlign = 32;

uint32_t RoundUp(uint32_t value, uint32_t step) { return (value + step - 1) / step * step; }

}  // namespace

Result<BlockLayout> MakeBlockLayout(std::span<const SourceLayer> source_layers, uint32_t layout_id) {
  if (layout_id != kLayoutFp4 && layout_id != kLayoutFp8) {
    return InvalidArgument(fmt::format("block layout {} is unknown; 1 (FP4) and 2 (FP8) are known", layout_id));
  }
  const uint32_t main_record_bytes = layout_id == kLayoutFp4 ? 288 : 528;
  BlockLayout layout;
  uint32_t offset = 0;
  for (const SourceLayer& source : source_layers) {
    if (!layout.layers.empty() && source.layer <= layout.layers.back().layer) {
      return InvalidArgument(fmt::format("layer {} of a block layout is out of order", source.layer));
    }
    if (source.ratio < 1 || kTokensPerBlock % source.ratio != 0) {
      return InvalidArgument(fmt::format("layer {} has compress ratio {}, which does not divide a block of {} tokens", source.layer,
                                         source.ratio, kTokensPerBlock));
    }
    const auto records = static_cast<uint32_t>(kTokensPerBlock / source.ratio);
    LayerRegion region{.layer = source.layer};
    region.index_offset = offset;
    region.index_bytes = RoundUp(records * kIndexRecordBytes, kRegionAlign);
    region.main_offset = offset + region.index_bytes;
    region.main_bytes = RoundUp(records * main_record_bytes, kRegionAlign);
    offset = region.main_offset + region.main_bytes;
    layout.layers.push_back(region);
  }
  layout.payload_bytes = offset;
  layout.stride_bytes = RoundUp(offset, std::lcm(128u, main_record_bytes));
  return layout;
}

}  // namespace deepinfer::kvstore
