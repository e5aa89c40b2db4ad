// SPDX-License-Identifier: Apache-2.0
//
// Where the parts of a block's payload are: for each layer that owns keys, first its index region (all data, then all
// scales), then its main region (records one after another). Layout ids: 1 = FP4 main keys, 2 = FP8.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/status.h"

namespace deepinfer::kvstore {

inline constexpr uint32_t kLayoutFp4 = 1;
inline constexpr uint32_t kLayoutFp8 = 2;

struct SourceLayer {
  int layer = 0;
  int ratio = 1;  // tokens of one compressed record: 1 or 2
};

struct LayerRegion {
  int layer = 0;
  uint32_t index_offset = 0, index_bytes = 0;
  uint32_t main_offset = 0, main_bytes = 0;
};

struct BlockLayout {
  std::vector<LayerRegion> layers;  // ascending
  uint32_t payload_bytes = 0;       // what is stored
  uint32_t stride_bytes = 0;        // of a block in device memory
};

// kInvalidArgument: layers out of order, a ratio that does not divide the block, an unknown layout.
Result<BlockLayout> MakeBlockLayout(std::span<const SourceLayer> source_layers, uint32_t layout_id);

}  // namespace deepinfer::kvstore
