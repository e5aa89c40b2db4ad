// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint directory in the release format: the index, the shards mapped read-only, and one
// view per tensor (no copies). Open() applies every rule of checkpoint.md 1.1 that needs no
// knowledge of the model; CheckInventory() compares names, shapes and dtypes with what the
// configuration requires (section 3). Views live as long as the Checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtypes.h"
#include "core/status.h"
#include "core/threads.h"
#include "model/config.h"
#include "model/safetensors.h"

namespace deepinfer::model {

class Checkpoint {
 public:
  // Reads model.safetensors.index.json and every shard header. Without an index file the
  // *.safetensors of the directory are scanned.
  static Result<std::unique_ptr<Checkpoint>> Open(const std::string& model_dir);

  // Seeded random weights of any configuration, in memory: every tensor is valid and activations
  // stay in range. Used by load_format=dummy, benchmarks and tests. kResourceExhausted when the
  // memory is not there.
  static Result<std::unique_ptr<Checkpoint>> Dummy(const ModelConfig& config,
                                                   uint64_t seed,
                                                   ThreadPool* pool = nullptr);

  const std::string& dir() const { return dir_; }
  // nullptr if absent. `name` is the canonical form, as in "layers.3.attn.wq_a.weight"; a "model."
  // prefix is ignored.
  const TensorView* Find(std::string_view name) const;
  Result<TensorView> Get(std::string_view name) const;  // kBadModel naming the tensor when absent
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  const std::vector<SafetensorsFile>& shards() const { return shards_; }
  std::vector<std::string> ShardPaths() const;
  int64_t payload_bytes() const;

  // Every tensor the configuration needs is present with the right shape and dtype (scales
  // included), experts are exactly 0..n-1, and both parts of an Engram table lie in one shard.
  Status CheckInventory(const ModelConfig& config, bool with_vision) const;

  // kBadModel naming the shard when a mapped page could not be read since it was opened: what was computed from it is wrong.
  Status CheckMapped() const;

  // Mapped pages leave the process's memory until they are used again.
  void DropPages() const;

  // Reads every byte and refuses non-finite values in BF16, F16 and F32 tensors and NaN codes in
  // FP8 tensors and scales; the error names the tensor and the element. progress(bytes done, bytes
  // total) is called from the calling thread.
  Status Verify(ThreadPool& pool,
                const std::function<void(int64_t, int64_t)>& progress = nullptr) const;

 private:
  Checkpoint() = default;
  struct Unmap {
    Unmap() : num_bytes(0) {}
    explicit Unmap(int64_t bytes) : num_bytes(bytes) {}
    int64_t num_bytes;
    void operator()(uint8_t* memory) const;
  };

  std::string dir_;
  std::vector<SafetensorsFile> shards_;
  std::map<std::string, TensorView, std::less<>> tensors_;
  int64_t payload_bytes_ = 0;
  std::unique_ptr<uint8_t, Unmap> memory_;  // of a dummy checkpoint
};

}  // namespace deepinfer::model
