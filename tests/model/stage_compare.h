// SPDX-License-Identifier: Apache-2.0
//
// Two instruction sets stage by stage. The first pass (scalar kernels) keeps every traced stage; the second pass takes each
// of its stages from the first one: what it computed is compared, then replaced, so that a difference never reaches the
// next stage and every stage has its own tolerance. Each pass has its own model, on a device made for its instruction set.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/cpu_features.h"
#include "model/golden_support.h"

namespace deepinfer::model {

// A prompt in one chunk, then tokens one by one; the tokens are given, so both passes see the same ones.
struct StageScript {
  std::vector<int32_t> prompt;
  std::vector<int32_t> decoded;
};

// The difference of all occurrences of one kind of stage, as "attn.output".
struct StageDifference {
  double worst_abs = 0;   // in units of RMS 0.5 of the stage, the scale of the tolerances in golden/model
  double worst_norm = 0;  // norm of the difference over the norm, worst occurrence (a layer of a step)
  int64_t num_values = 0;
  int64_t num_rows = 0;
  int64_t num_changed_rows = 0;  // choices: other experts or other selected groups
  double worst_margin = 0;       // of changed expert choices: distance of the biased scores at the border
};

class StageCompare {
 public:
  explicit StageCompare(StageScript script) : script_(std::move(script)) {}

  // Records the reference.
  void Record(Model& model) {
    TraceSink sink;
    sink.on_float = [&](const std::string& name, std::span<const int64_t> shape, const float* data) {
      floats_[Key(name)] = {data, data + Recorder::Count(shape)};
    };
    sink.on_int = [&](const std::string& name, std::span<const int64_t> shape, const int32_t* data) {
      ints_[Key(name)] = {data, data + Recorder::Count(shape)};
    };
    Run(model, sink, [&](std::span<const float> logits) { logits_.emplace_back(logits.begin(), logits.end()); });
  }

  void Compare(Model& model) {
    experts_per_token_ = static_cast<size_t>(model.config().num_experts_per_tok);
    differences_.clear();
    changed_rows_.clear();
    num_missing_ = 0;
    TraceSink sink;
    sink.inject = [&](const std::string& name, std::span<const int64_t> shape, float* data) {
      const auto found = floats_.find(Key(name));
      if (found == floats_.end() || found->second.size() != static_cast<size_t>(Recorder::Count(shape))) {
        ++num_missing_;
        return false;
      }
      const bool is_router = name.find(".router.") != std::string::npos;
      if (is_router) NoteMargins(name, shape, found->second);
      Note(KindOf(name), shape, data, found->second,
           name.ends_with("router.weights") || name.ends_with("ffn.output") ? ChangedRows(name) : nullptr);
      // The weights belong to the experts chosen here; a choice cannot be replaced.
      if (is_router) return false;
      std::copy(found->second.begin(), found->second.end(), data);
      return true;
    };
    sink.on_int = [&](const std::string& name, std::span<const int64_t> shape, const int32_t* data) {
      const auto found = ints_.find(Key(name));
      if (found == ints_.end() || found->second.size() != static_cast<size_t>(Recorder::Count(shape))) {
        ++num_missing_;
        return;
      }
      NoteChoice(name, shape, data, found->second);
    };
    size_t i = 0;
    Run(model, sink, [&](std::span<const float> logits) {
      const int64_t shape[] = {1, static_cast<int64_t>(logits.size())};
      Note("logits", shape, logits.data(), logits_.at(i++), nullptr);
    });
  }

  const std::map<std::string, StageDifference>& differences() const { return differences_; }
  // Stages that the reference lacks or has in another shape; 0 in a good run.
  int num_missing() const { return num_missing_; }
  size_t num_recorded() const { return floats_.size() + ints_.size(); }

  void Print(const char* title) const {
    std::printf("%s\n%-30s %12s %10s %12s %12s\n", title, "stage", "values", "changed", "abs (RMS .5)", "of the norm");
    for (const auto& [kind, d] : differences_) {
      std::printf("%-30s %12lld %10lld %12.2e %12.2e", kind.c_str(), static_cast<long long>(d.num_values),
                  static_cast<long long>(d.num_changed_rows), d.worst_abs, d.worst_norm);
      if (d.worst_margin > 0) std::printf("  border margin %.2e", d.worst_margin);
      std::printf("\n");
    }
  }

  // "layers.3.attn.output" -> "attn.output"
  static std::string KindOf(const std::string& name) {
    if (!name.starts_with("layers.")) return name;
    return name.substr(name.find('.', 7) + 1);
  }

 private:
  std::string Key(const std::string& name) const { return fmt::format("{}/{}", step_, name); }

  template <typename OnLogits>
  void Run(Model& model, TraceSink& sink, OnLogits on_logits) {
    auto sequence = NewSequence(model);
    const auto forward = [&](std::span<const int32_t> ids) {
      SequenceChunk chunk;
      chunk.sequence = sequence.get();
      chunk.ids = ids;
      const auto logits = model.Forward({&chunk, 1}, &sink);
      ASSERT_TRUE(logits.ok()) << logits.status().ToString();
      on_logits(*logits);
    };
    step_ = 0;
    forward(script_.prompt);
    for (const int32_t& id : script_.decoded) {
      ++step_;
      forward({&id, 1});
    }
  }

  // Rows of this layer and step whose experts differ; their products belong to other weights.
  const std::vector<bool>* ChangedRows(const std::string& name) const {
    const auto found = changed_rows_.find(LayerKey(name));
    return found == changed_rows_.end() ? nullptr : &found->second;
  }
  std::string LayerKey(const std::string& name) const { return Key(name.substr(0, name.find('.', 7))); }

  void Note(const std::string& kind, std::span<const int64_t> shape, const float* ours, const std::vector<float>& expected,
            const std::vector<bool>* skipped_rows) {
    StageDifference& d = differences_[kind];
    const size_t rows = static_cast<size_t>(shape[0]), width = rows == 0 ? 0 : expected.size() / rows;
    double diff = 0, norm = 0, worst = 0;
    int64_t num_finite = 0;
    for (size_t t = 0; t < rows; ++t) {
      if (skipped_rows != nullptr && (*skipped_rows)[t]) continue;
      for (size_t i = t * width; i < (t + 1) * width; ++i) {
        if (ours[i] == expected[i] && std::isinf(expected[i])) continue;
        const double e = expected[i], x = std::fabs(ours[i] - e);
        diff += x * x;
        norm += e * e;
        worst = std::isnan(x) ? INFINITY : std::max(worst, x);
        ++num_finite;
      }
    }
    d.num_rows += static_cast<int64_t>(rows);
    d.num_values += num_finite;
    if (num_finite == 0 || worst == 0) return;
    const double rms = std::sqrt(norm / static_cast<double>(num_finite));
    d.worst_abs = std::max(d.worst_abs, worst * 0.5 / rms);
    d.worst_norm = std::max(d.worst_norm, std::sqrt(diff / norm));
  }

  void NoteChoice(const std::string& name, std::span<const int64_t> shape, const int32_t* ours,
                  const std::vector<int32_t>& expected) {
    StageDifference& d = differences_[KindOf(name)];
    const size_t rows = static_cast<size_t>(shape[0]), k = rows == 0 ? 0 : expected.size() / rows;
    std::vector<bool> changed(rows);
    for (size_t t = 0; t < rows; ++t) {
      changed[t] = !std::equal(ours + t * k, ours + (t + 1) * k, expected.begin() + static_cast<int64_t>(t * k));
      d.num_changed_rows += changed[t];
    }
    d.num_rows += static_cast<int64_t>(rows);
    d.num_values += static_cast<int64_t>(expected.size());
    if (name.ends_with("router.experts")) changed_rows_[LayerKey(name)] = changed;
  }

  // How close the reference's scores are at the place where the order of a changed choice differs.
  void NoteMargins(const std::string& name, std::span<const int64_t> shape, const std::vector<float>& scores) {
    const std::vector<bool>* changed = ChangedRows(name);
    if (changed == nullptr || !name.ends_with("router.biased_scores")) return;
    const size_t width = static_cast<size_t>(shape[1]), k = experts_per_token_;
    for (size_t t = 0; t < changed->size(); ++t) {
      if (!(*changed)[t]) continue;
      std::vector<float> row(scores.begin() + static_cast<int64_t>(t * width), scores.begin() + static_cast<int64_t>((t + 1) * width));
      std::sort(row.begin(), row.end(), std::greater<>());
      float margin = INFINITY;
      for (size_t i = 0; i < k && i + 1 < width; ++i) margin = std::min(margin, row[i] - row[i + 1]);
      StageDifference& d = differences_["router.experts"];
      d.worst_margin = std::max<double>(d.worst_margin, margin);
    }
  }

  StageScript script_;
  size_t experts_per_token_ = 0;
  int step_ = 0;
  std::map<std::string, std::vector<float>> floats_;
  std::map<std::string, std::vector<int32_t>> ints_;
  std::vector<std::vector<float>> logits_;
  std::map<std::string, StageDifference> differences_;
  std::map<std::string, std::vector<bool>> changed_rows_;
  int num_missing_ = 0;
};

// The sub-layer tolerances of golden/model (README, "Tolerances and why"), and for the stages in between: what one
// rounding to bf16 (release) or the order of float32 sums (plain) can change.
struct StageLimit {
  double abs = INFINITY;  // at RMS 0.5
  double norm = INFINITY;
};

inline StageLimit LimitOf(Numerics numerics, std::string_view kind) {
  const bool is_plain = numerics == Numerics::kPlain;
  if (kind == "embedding") return {0, 0};
  // Keys are rounded to FP8 or FP4: a value on the other side of a border moves by up to a third of itself.
  if (kind == "attn.window_key" || kind == "attn.compressed_key") return is_plain ? StageLimit{5e-5, 1e-4} : StageLimit{0.75, 1.5e-2};
  // Made of keys and values that were rounded to bf16 and are no stage of their own.
  if (kind == "engram.gate" && !is_plain) return {1e-3, 1e-4};
  if (kind == "ffn.output") return is_plain ? StageLimit{5e-5, 1e-4} : StageLimit{6e-2, 1e-2};
  if (kind.starts_with("attn.") && kind != "attn.input") return is_plain ? StageLimit{5e-5, 1e-4} : StageLimit{6e-2, 1.5e-2};
  // Index vectors are rounded to FP4 in quantised arithmetic: one value on the other side of a border moves by a quarter.
  if (kind.starts_with("indexer.")) return is_plain ? StageLimit{5e-5, 1e-4} : StageLimit{INFINITY, 1.5e-2};
  for (const std::string_view stored : {"engram.output", "attn.input", "after_attn", "ffn.input", "output", "final.collapsed", "final.normed",
                                        "draft_taps", "draft.main"})
    if (kind == stored) return is_plain ? StageLimit{5e-5, 1e-4} : StageLimit{6e-2, 2e-3};
  return {5e-5, 1e-4};  // float32 in every arithmetic: mixing coefficients, gates, router, logits
}

inline void CheckStages(const StageCompare& compare, Numerics numerics) {
  EXPECT_EQ(compare.num_missing(), 0);
  for (const auto& [kind, d] : compare.differences()) {
    SCOPED_TRACE(kind);
    EXPECT_GT(d.num_rows, 0);
    if (kind == "router.experts" || kind == "indexer.selected" || kind == "indexer.candidates") {
      // Fed with the same input, a choice may only change where the scores nearly tie.
      const double allowed = numerics == Numerics::kPlain ? 0.002 : 0.02;
      EXPECT_LE(static_cast<double>(d.num_changed_rows), allowed * static_cast<double>(d.num_rows));
      EXPECT_LT(d.worst_margin, 1e-4);
      continue;
    }
    EXPECT_EQ(d.num_changed_rows, 0);
    const StageLimit limit = LimitOf(numerics, kind);
    EXPECT_LE(d.worst_abs, limit.abs);
    EXPECT_LE(d.worst_norm, limit.norm);
  }
}

}  // namespace deepinfer::model
