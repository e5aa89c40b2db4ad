// SPDX-License-Identifier: Apache-2.0
//
// Shared by the tests of the forward pass: the golden files, the nano model in one of the three arithmetics, and small
// comparisons. A model is loaded once per arithmetic and test program.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backends/registry.h"
#include "model/checkpoint.h"
#include "model/model.h"
#include "model/sequence.h"
#include "test_device.h"

namespace deepinfer::model {

inline std::string GoldenPath(const std::string& name) { return std::string(DEEPINFER_SOURCE_DIR) + "/tests/golden/model/" + name; }

// One golden file with its tensors as host vectors.
class Golden {
 public:
  explicit Golden(const std::string& name) : file_(SafetensorsFile::Open(GoldenPath(name)).value()) {}

  bool Has(const std::string& name) const { return file_.Find(name) != nullptr; }
  std::vector<int64_t> Shape(const std::string& name) const { return View(name).shape; }
  std::vector<float> Floats(const std::string& name) const {
    const TensorView& t = View(name);
    EXPECT_EQ(t.dtype, DType::kF32) << name;
    std::vector<float> out(static_cast<size_t>(t.num_elements()));
    std::memcpy(out.data(), t.data, out.size() * sizeof(float));
    return out;
  }
  std::vector<int32_t> Ints(const std::string& name) const {
    const TensorView& t = View(name);
    std::vector<int32_t> out;
    for (int64_t i = 0; i < t.num_elements(); ++i) {
      if (t.dtype == DType::kI64) {
        int64_t v;
        std::memcpy(&v, t.data + 8 * i, 8);
        out.push_back(static_cast<int32_t>(v));
      } else if (t.dtype == DType::kI32) {
        int32_t v;
        std::memcpy(&v, t.data + 4 * i, 4);
        out.push_back(v);
      } else {
        EXPECT_EQ(t.dtype, DType::kU8) << name;
        out.push_back(t.data[i]);
      }
    }
    return out;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& t : file_.tensors()) names.push_back(t.name);
    return names;
  }

 private:
  const TensorView& View(const std::string& name) const {
    const TensorView* t = file_.Find(name);
    DI_CHECK(t != nullptr) << name;
    return *t;
  }
  SafetensorsFile file_;
};

inline const char* FileName(Numerics n) {
  return n == Numerics::kRelease ? "qat16" : n == Numerics::kFp32 ? "qat32" : "plain";
}

inline std::unique_ptr<Model> LoadNano(Numerics numerics, int num_threads = 1, int64_t max_step_rows = 0, const std::string& isa = "") {
  const std::string dir = GoldenPath("nano");
  LoadOptions options;
  options.numerics = numerics;
  options.max_step_rows = max_step_rows;
  options.compressed_vocab = Golden("engram.safetensors").Ints("token_map");
  auto device = TestDevice(num_threads, isa);
  EXPECT_TRUE(device.ok()) << device.status().ToString();
  auto checkpoint = Checkpoint::Open(dir);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  auto config = ModelConfig::Load(dir);
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  auto model = Model::Load(std::move(checkpoint).value(), *config, *device, options);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return std::move(model).value();
}

inline Model& Nano(Numerics numerics) {
  static std::map<Numerics, std::unique_ptr<Model>> models;
  auto& model = models[numerics];
  if (model == nullptr) model = LoadNano(numerics);
  return *model;
}

inline std::unique_ptr<Sequence> NewSequence(Model& model) {
  auto sequence = model.NewSequence();
  EXPECT_TRUE(sequence.ok()) << sequence.status().ToString();
  return std::move(sequence).value();
}

// All logits of a prompt in one pass.
inline std::vector<float> FullLogits(Model& model, const std::vector<int32_t>& ids, TraceSink* trace = nullptr) {
  auto sequence = NewSequence(model);
  SequenceChunk chunk;
  chunk.sequence = sequence.get();
  chunk.ids = ids;
  chunk.all_logits = true;
  auto logits = model.Forward({&chunk, 1}, trace);
  EXPECT_TRUE(logits.ok()) << logits.status().ToString();
  return {logits->begin(), logits->end()};
}

inline float MaxAbsDiff(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;  // infinities
    const float d = std::fabs(a[i] - b[i]);
    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
  }
  return worst;
}

inline int32_t ArgMax(std::span<const float> row) {
  size_t best = 0;
  for (size_t i = 1; i < row.size(); ++i)
    if (row[i] > row[best]) best = i;
  return static_cast<int32_t>(best);
}

// Keeps everything a traced pass hands out.
struct Recorder {
  std::map<std::string, std::vector<float>> floats;
  std::map<std::string, std::vector<int32_t>> ints;
  std::map<std::string, std::vector<int64_t>> shapes;
  TraceSink sink;

  Recorder() {
    sink.on_float = [this](const std::string& name, std::span<const int64_t> shape, const float* data) {
      shapes[name] = {shape.begin(), shape.end()};
      floats[name] = {data, data + Count(shape)};
    };
    sink.on_int = [this](const std::string& name, std::span<const int64_t> shape, const int32_t* data) {
      shapes[name] = {shape.begin(), shape.end()};
      ints[name] = {data, data + Count(shape)};
    };
  }
  Recorder(const Recorder&) = delete;
  static int64_t Count(std::span<const int64_t> shape) {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
};

}  // namespace deepinfer::model
