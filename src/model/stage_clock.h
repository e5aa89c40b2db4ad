// SPDX-License-Identifier: Apache-2.0
//
// Where the time of a step goes: a forward pass calls Mark at the end of each stage, and the clock adds the time since the
// previous mark to (layer, stage). Attached with Model::SetStageClock for measurements only; a step without one pays a
// null test per stage. Devices that run asynchronously are to be synchronised before each mark.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

namespace deepinfer::model {

enum class Stage {
  kInput,             // step metadata, n-gram hashes, embedding
  kEngram,            // table rows, projection, gate
  kHyperConnections,  // mixes, collapse, norm, expand
  kProjections,       // wq_a, wkv, wq_b, window keys
  kCompressor,        // compressor, index keys
  kSelect,            // index queries, scores, top-k
  kAttention,         // sparse attention
  kOutput,            // wo_a, wo_b
  kRouter,
  kExperts,
  kDraftContext,
  kHead,
};
inline constexpr int kNumStages = 12;

inline std::string_view StageName(Stage stage) {
  constexpr std::array<std::string_view, kNumStages> kNames = {
      "input", "engram", "hyper-connections", "projections", "compressor", "select",
      "attention", "output", "router", "experts", "draft context", "head"};
  return kNames[static_cast<size_t>(stage)];
}

class StageClock {
 public:
  explicit StageClock(int num_layers) : nanoseconds_(static_cast<size_t>(num_layers + 1) * kNumStages) {}

  void Begin() { last_ = Now(); }
  // layer = num_layers for stages outside the layers; the stages of the draft head's layers are not measured.
  void Mark(int layer, Stage stage) {
    if (layer >= num_layers() && stage != Stage::kInput && stage != Stage::kHead && stage != Stage::kDraftContext) return;
    const int64_t now = Now();
    nanoseconds_[static_cast<size_t>(layer) * kNumStages + static_cast<size_t>(stage)] += now - last_;
    last_ = now;
  }
  void Reset() { nanoseconds_.assign(nanoseconds_.size(), 0); }
  int64_t nanoseconds(int layer, Stage stage) const {
    return nanoseconds_[static_cast<size_t>(layer) * kNumStages + static_cast<size_t>(stage)];
  }
  int num_layers() const { return static_cast<int>(nanoseconds_.size() / kNumStages) - 1; }

 private:
  static int64_t Now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  std::vector<int64_t> nanoseconds_;  // [num_layers + 1][stage]
  int64_t last_ = 0;
};

}  // namespace deepinfer::model
