// SPDX-License-Identifier: Apache-2.0
//
// Writes a small safetensors file (traces, logits) from tensors in memory. For checkpoints see checkpoint_writer.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtypes.h"
#include "core/status.h"

namespace deepinfer::model {

class SafetensorsWriter {
 public:
  // Copies `num_bytes` of little-endian data. Names must be distinct.
  void Add(const std::string& name, DType dtype, const std::vector<int64_t>& shape, const void* data, int64_t num_bytes);
  // Atomic: an old file stays until the new one is complete.
  Status WriteFile(const std::string& path) const;

 private:
  struct Entry {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
    int64_t begin, end;
  };
  std::vector<Entry> entries_;
  std::string data_;
};

}  // namespace deepinfer::model
