// SPDX-License-Identifier: Apache-2.0
//
// The inner types of BlockStore, for its own sources.
#pragma once

#include <string>
#include <vector>

#include "kvstore/block_store.h"

namespace deepinfer::kvstore {

struct BlockStore::Offered {
  OfferedBlock block;  // its span is not valid any more
  std::vector<uint8_t> payload;
};

struct BlockStore::OpenSegment {
  uint64_t id = 0;
  std::string stem;  // relative
  std::string hour;
  std::unique_ptr<SegmentWriter> writer;
  int64_t last_write_unix_ns = 0;
};

}  // namespace deepinfer::kvstore
