// SPDX-License-Identifier: Apache-2.0
//
// The complete list of tensors that a configuration requires (checkpoint.md 3 of the
// specification): name, dtype, shape and the part of the model it belongs to. One list serves the
// check of a checkpoint, `inspect`, dummy weights and the tools that write test checkpoints. For
// the released configuration: 96,085 tensors, 510,286,023,000 bytes.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/dtypes.h"
#include "model/config.h"

namespace deepinfer::model {

// The rows of the byte budget (checkpoint.md 3.6), DSpark split in two.
enum class ModelPart {
  kRoutedExperts,
  kEngramTables,
  kDraftExperts,
  kDraftDense,
  kDense,  // attention, shared expert, router, mHC and Engram projections of the backbone
  kEmbedAndHead,
  kVision,
  kFinalNorm,
};
inline constexpr int kNumModelParts = 8;
std::string_view ModelPartName(ModelPart part);  // "routed experts", ...

// What kind of numbers a tensor holds; decides how seeded weights are drawn
// (model/seeded_weights.h).
enum class TensorRole {
  kLinear,  // normal, deviation gain / sqrt(fan_in)
  kNorm,
  kEmbed,
  kSmall,  // biases
  kSink,
  kMixFn,
  kMixBase,
  kMixScale,
  kTable,  // Engram rows
};

struct RequiredTensor {
  std::string name;
  DType dtype = DType::kF32;
  int rank = 1;
  std::array<int64_t, 2> dims = {0, 1};
  ModelPart part = ModelPart::kDense;
  TensorRole role = TensorRole::kLinear;
  bool is_scale = false;  // the scale of the weight that comes just before it
  bool is_fp4 = false;    // packed FP4, or the scale of such a weight
  float gain = 1;         // kLinear
  int64_t fan_in = 1;     // logical input features

  std::span<const int64_t> shape() const { return {dims.data(), static_cast<size_t>(rank)}; }
  int64_t num_bytes() const { return dims[0] * (rank > 1 ? dims[1] : 1) * DTypeBytes(dtype); }
  // Parameters of the model: packed FP4 counts twice, scales not at all.
  int64_t num_parameters() const;
};

// Calls `visit` for every tensor in checkpoint order until it returns false. Vision tensors and the
// image biases of the routers are included if the configuration has a vision tower and
// `with_vision` is set.
void ForEachRequiredTensor(const ModelConfig& config,
                           bool with_vision,
                           const std::function<bool(const RequiredTensor&)>& visit);

struct PartSize {
  int64_t num_tensors = 0;
  int64_t num_bytes = 0;
  int64_t num_parameters = 0;
};

struct InventorySummary {
  std::array<PartSize, kNumModelParts> parts;
  PartSize total;

  const PartSize& part(ModelPart p) const { return parts[static_cast<size_t>(p)]; }
};

InventorySummary SummarizeInventory(const ModelConfig& config, bool with_vision);

// Weight bytes that every decoded token reads: all but routed experts, embeddings and tables.
int64_t DenseBytesPerToken(const InventorySummary& summary);
// Of one routed expert of the backbone.
int64_t ExpertBytes(const ModelConfig& config, const InventorySummary& summary);

}  // namespace deepinfer::model
