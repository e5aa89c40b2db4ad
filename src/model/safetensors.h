// SPDX-License-Identifier: Apache-2.0
//
// One safetensors file: header parsed and checked (checkpoint.md 1.1 of the specification), data
// mapped read-only, one view per tensor. Damage of any kind is a kBadModel error that names the
// file and the tensor. Memory is bounded by the header size (at most 100,000,000 bytes), whatever
// the file claims.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtypes.h"
#include "core/file.h"
#include "core/status.h"

namespace deepinfer::model {

struct TensorView {
  std::string name;  // in a Checkpoint: canonical, without the optional "model." prefix
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const uint8_t* data = nullptr;  // little-endian, as stored; need not be aligned to the element
  int64_t num_bytes = 0;
  int shard_idx = -1;

  int64_t dim(int i) const { return shape[static_cast<size_t>(i)]; }
  int64_t num_elements() const;
};

// One safetensors file: header parsed and checked, data mapped. Also used for golden data in tests.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> Open(const std::string& path);
  // Checks `bytes` as a whole file would be (used by the fuzzer); the views point into `bytes`.
  static Result<std::vector<TensorView>> ParseBytes(const uint8_t* bytes,
                                                    int64_t num_bytes,
                                                    const std::string& path);

  const std::string& path() const { return file_.path(); }
  int64_t file_bytes() const { return file_.size(); }
  bool is_damaged() const { return file_.is_damaged(); }
  const std::vector<TensorView>& tensors() const { return tensors_; }  // in header order
  // nullptr if there is none of that name.
  const TensorView* Find(std::string_view name) const;
  const uint8_t* mapped_data() const { return file_.data(); }  // the whole file
  // Byte offset of a view of this file, for readers that do not go through the map.
  int64_t OffsetInFile(const TensorView& view) const { return view.data - file_.data(); }

 private:
  MappedFile file_;
  std::vector<TensorView> tensors_;
  std::vector<uint32_t> by_name_;  // indexes into tensors_, ascending by name
};

}  // namespace deepinfer::model
