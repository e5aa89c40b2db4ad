// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint directory in the release format: the index, the shards mapped read-only, and one view per tensor (no
// copies). Open() applies every rule of checkpoint.md 1.1 that needs no knowledge of the model; CheckInventory() compares
// names, shapes and dtypes with what the configuration requires (section 3). Views live as long as the Checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtypes.h"
#include "core/file.h"
#include "core/status.h"
#include "model/config.h"

namespace deepinfer::model {

struct TensorView {
  std::string name;             // canonical: without the optional "model." prefix
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const uint8_t* data = nullptr;  // little-endian, as stored
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
  static Result<std::vector<TensorView>> ParseBytes(const uint8_t* bytes, int64_t num_bytes, const std::string& path);

  const std::string& path() const { return file_.path(); }
  int64_t file_bytes() const { return file_.size(); }
  const std::vector<TensorView>& tensors() const { return tensors_; }  // in header order
  // nullptr if there is none of that name.
  const TensorView* Find(std::string_view name) const;

 private:
  MappedFile file_;
  std::vector<TensorView> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

class Checkpoint {
 public:
  // Reads model.safetensors.index.json and every shard header. Without an index file the *.safetensors of the directory
  // are scanned.
  static Result<std::unique_ptr<Checkpoint>> Open(const std::string& model_dir);

  const std::string& dir() const { return dir_; }
  // nullptr if absent. `name` is the canonical form, as in "layers.3.attn.wq_a.weight".
  const TensorView* Find(std::string_view name) const;
  Result<TensorView> Get(std::string_view name) const;  // kBadModel naming the tensor when absent
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  const std::vector<SafetensorsFile>& shards() const { return shards_; }
  int64_t payload_bytes() const;

  // Every tensor the configuration needs is present with the right shape and dtype (scales included).
  Status CheckInventory(const ModelConfig& config, bool with_vision) const;

 private:
  std::string dir_;
  std::vector<SafetensorsFile> shards_;
  std::map<std::string, TensorView, std::less<>> tensors_;
};

}  // namespace deepinfer::model
