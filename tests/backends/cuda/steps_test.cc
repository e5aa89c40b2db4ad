// SPDX-License-Identifier: Apache-2.0
//
// Steps of few rows of a narrow model, as the model issues them: what the NVIDIA backend runs as one kernel, beside the stream or
// as a kept step has the bits of single ops, and the host waits for nothing on the way.
#include <chrono>
#include <memory>

#include "device_pair.h"

namespace deepinfer::cuda {
namespace {

using device::InputKind;
using device::WeightFormat;

class CudaSteps : public OnBothDevices {};
INSTANTIATE_TEST_SUITE_P(Kernels, CudaSteps, testing::Values(Kernels::kGeneral), KernelsName);

// Two layers without their attention, an n-gram injection and a head, of a model of demo size.
class NarrowStep {
 public:
  static constexpr int kHidden = 256, kStreams = 4, kInner = 96, kExperts = 16, kChosen = 4, kHeadDim = 512, kRope = 64, kLow = 128, kVocab = 600;
  static constexpr int kColumns = 6, kGramWidth = 64, kRingRows = 40;

  NarrowStep(Side& side, Random& random, int64_t rows, const Arithmetic& a) : side_(side), a_(a), rows_(rows) {
    const auto matrix = [&](WeightFormat format, int64_t n, int64_t cols) {
      host_.push_back(std::make_unique<HostWeight>(RandomWeight(random, format, n, cols)));
      matrices_.push_back(side->CreateMatrix({&host_.back()->matrix, 1}).value());
      return matrices_.back().get();
    };
    const auto table = [&](WeightFormat format, int64_t n, int64_t cols) {
      host_.push_back(std::make_unique<HostWeight>(RandomWeight(random, format, n, cols)));
      tables_.push_back(side->CreateTable(host_.back()->matrix).value());
      return tables_.back().get();
    };
    const auto floats = [&](int64_t n, float scale) { return side.Put(random.Floats(n, scale)); };
    embed_ = table(WeightFormat::kBf16, kVocab, kHidden);
    grams_ = table(WeightFormat::kFp8Row32, 50, kGramWidth);
    gram_kv_ = matrix(WeightFormat::kFp8Block32, (kStreams + 1) * kHidden, kColumns * kGramWidth);
    qk_ = floats(kStreams * kHidden, 0.3f);
    qa_kv_ = matrix(WeightFormat::kFp8Block32, kLow + kHeadDim, kHidden);
    q_b_ = matrix(WeightFormat::kFp8Block32, 4 * kHeadDim, kLow);
    o_a_ = matrix(WeightFormat::kBf16, 2 * 64, 2 * kHeadDim);
    o_b_ = matrix(WeightFormat::kFp8Block32, kHidden, 2 * 64);
    index_weight_ = matrix(WeightFormat::kBf16, 8, kHidden);
    gate_ = matrix(WeightFormat::kBf16, kExperts, kHidden);
    head_ = matrix(WeightFormat::kBf16, kVocab, kHidden);
    site_.fn = matrix(WeightFormat::kF32, kStreams * (kStreams + 2), kStreams * kHidden);
    site_.base = floats(kStreams * (kStreams + 2), 0.3f);
    site_.scale = floats(3, 1.0f);
    site_.streams = kStreams;
    site_.hidden = kHidden;
    site_.norm_eps = 1e-20f;
    gate_bias_ = floats(kExperts, 0.1f);
    for (float** norm : {&attn_norm_, &ffn_norm_, &low_norm_, &key_norm_, &last_norm_}) *norm = floats(kHeadDim, 0.7f);
    std::vector<device::HostExpert> experts;
    device::HostExpert shared;
    for (int e = 0; e <= kExperts; ++e) {
      const WeightFormat format = e < kExperts ? WeightFormat::kFp4Row32 : WeightFormat::kFp8Block32;
      device::HostExpert expert;
      for (auto [part, n, cols] : {std::tuple{&expert.w1, kInner, kHidden}, {&expert.w3, kInner, kHidden}, {&expert.w2, kHidden, kInner}}) {
        host_.push_back(std::make_unique<HostWeight>(RandomWeight(random, format, n, cols)));
        *part = host_.back()->matrix;
      }
      if (e < kExperts) {
        experts.push_back(expert);
      } else {
        shared = expert;
      }
    }
    bank_ = side->CreateExperts(experts, shared).value();

    std::vector<int32_t> positions, numbers;
    std::vector<int32_t>&ids = host_ids_, &gram_rows = host_gram_rows_;
    std::vector<device::SequenceRows> sequences;
    state_ = static_cast<uint8_t*>(side.Make(rows * StateBytes()));
    for (int32_t i = 0; i < rows; ++i) {
      positions.push_back(7 + 13 * i);
      numbers.push_back(i);
      ids.push_back(static_cast<int32_t>(random.Bits() % kVocab));
      for (int c = 0; c < kColumns; ++c) gram_rows.push_back(static_cast<int32_t>(random.Bits() % 50));
      device::SequenceRows& s = sequences.emplace_back();
      s.row_begin = i;
      s.num_rows = 1;
      s.start = positions.back();
      s.state = state_ + i * StateBytes();
    }
    ids_ = side.Put(ids);
    gram_rows_ = side.Put(gram_rows);
    step_.num_rows = step_.num_sequences = static_cast<int32_t>(rows);
    step_.positions = side.Put(positions);
    step_.row_sequence = side.Put(numbers);
    step_.sequences = side.Put(sequences);
    inverse_ = floats(kRope / 2, 0.3f);
    rope_ = static_cast<float*>(side.Make(rows * kRope * 4));
    ring_.rows = kRingRows;
    ring_.window = 32;
    ring_.format = a.quantize ? device::KeyFormat::kMxFp8 : device::KeyFormat::kFloat;
    for (auto [act, width] : {std::pair{&trunk_, kStreams * kHidden}, {&found_, kColumns * kGramWidth}, {&gram_out_, (kStreams + 1) * kHidden},
                              {&x_, kHidden}, {&y_, kHidden}, {&qa_, kLow + kHeadDim}, {&qr_, kLow}, {&q_, 4 * kHeadDim}, {&keys_, kHeadDim},
                              {&low_, 2 * 64}, {&weight_, 8}, {&mean_, kHidden}, {&logits_, kVocab}}) {
      *act = side.MakeAct(rows, width);
      acts_.push_back({*act, width});
    }
    for (auto [data, n] : {std::pair{&one_hot_, kStreams}, {&pre_[0], kStreams}, {&pre_[1], kStreams}, {&post_, kStreams},
                           {&comb_, kStreams * kStreams}, {&expert_weights_, kChosen}, {&biased_, kExperts}}) {
      *data = static_cast<float*>(side.Make(rows * n * 4));
      floats_.push_back({*data, n});
    }
    std::vector<float> first(static_cast<size_t>(rows * kStreams), 0.0f);
    for (size_t i = 0; i < first.size(); i += kStreams) first[i] = 1.0f;
    side->Upload(one_hot_, first.data(), rows * kStreams * 4);
    experts_ = static_cast<int32_t*>(side.Make(rows * kChosen * 4));
    for (auto* input : {&quantized_, &plain_, &low_in_, &attended_}) *input = side->CreateInput();
  }

  static int64_t StateBytes() { return 4 * kHeadDim * kRingRows; }

  // `separately`: the device is asked for something behind every op, so that nothing waits for the next one.
  void Run(bool separately = false) {
    Device& d = *side_;
    const auto end = [&] {
      float value;
      if (separately) d.Download(&value, one_hot_, 4);
    };
    d.RopeTable(step_.positions, rows_, inverse_, kRope, rope_);
    end();
    d.Embed(a_, *embed_, ids_, nullptr, nullptr, rows_, kStreams, kHidden, trunk_);
    end();
    d.GatherRows(a_, *grams_, gram_rows_, rows_, kColumns, kGramWidth, found_);
    end();
    d.Prepare(a_, found_, rows_, kColumns * kGramWidth, InputKind::kQuantized, *quantized_);
    d.MatMul(a_, *gram_kv_, *quantized_, gram_out_);
    end();
    d.EngramInject(a_, gram_out_, qk_, nullptr, rows_, kStreams, kHidden, 1e-20f, trunk_, nullptr);
    end();
    const float* pre = one_hot_;
    for (int layer = 0; layer < 2; ++layer) {
      d.StreamMean(a_, trunk_, rows_, kStreams, kHidden, mean_);
      end();
      d.CollapseNorm(a_, trunk_, pre, rows_, kStreams, kHidden, attn_norm_, 1e-20f, Act(), x_);
      end();
      d.HyperConnectionMix(site_, trunk_, rows_, pre_[0], post_, comb_);
      end();
      d.Prepare(a_, x_, rows_, kHidden, InputKind::kQuantized, *quantized_);
      d.MatMul(a_, *qa_kv_, *quantized_, qa_);
      end();
      d.RmsNorm(a_, qa_, low_norm_, rows_, kLow, 1e-20f, qr_);
      end();
      d.WindowKeys(a_, qa_.Columns(kLow), key_norm_, 1e-20f, rows_, kHeadDim, kRope, rope_, keys_);
      end();
      d.Prepare(a_, qr_, rows_, kLow, InputKind::kQuantized, *low_in_);
      d.MatMul(a_, *q_b_, *low_in_, q_);
      end();
      d.IndexQuery(a_, q_, rows_, 16, 128, kRope, rope_);
      end();
      d.Prepare(a_, x_, rows_, kHidden, InputKind::kPlain, *plain_);
      d.MatMul(a_, *index_weight_, *plain_, weight_);
      end();
      d.Scale(a_, weight_, rows_, 8, 0.37f);
      end();
      d.StoreWindow(step_, ring_, kHeadDim, keys_);
      end();
      d.Prepare(a_, q_, rows_, 4 * kHeadDim, InputKind::kPlain, *attended_);
      d.MatMulGroups(a_, *o_a_, 2, *attended_, low_);
      end();
      d.Prepare(a_, low_, rows_, 2 * 64, InputKind::kQuantized, *low_in_);
      d.MatMul(a_, *o_b_, *low_in_, y_);
      end();
      d.Expand(a_, y_, post_, comb_, rows_, kStreams, kHidden, trunk_);
      end();
      d.CollapseNorm(a_, trunk_, pre_[0], rows_, kStreams, kHidden, ffn_norm_, 1e-20f, Act(), x_);
      end();
      d.HyperConnectionMix(site_, trunk_, rows_, pre_[1], post_, comb_);
      end();
      d.Prepare(a_, x_, rows_, kHidden, InputKind::kPlain, *plain_);
      device::RouterArgs router;
      router.gate = gate_;
      router.x = plain_.get();
      router.bias = gate_bias_;
      router.num_chosen = kChosen;
      router.scaling = 1.5f;
      router.experts = experts_;
      router.weights = expert_weights_;
      router.biased_scores = biased_;
      d.Route(router, rows_);
      end();
      d.Prepare(a_, x_, rows_, kHidden, InputKind::kQuantized, *quantized_);
      device::ExpertArgs experts;
      experts.bank = bank_.get();
      experts.x = quantized_.get();
      experts.num_chosen = kChosen;
      experts.experts = experts_;
      experts.weights = expert_weights_;
      experts.swiglu_limit = 10.0f;
      experts.out = y_;
      d.Experts(a_, experts, rows_);
      end();
      d.Expand(a_, y_, post_, comb_, rows_, kStreams, kHidden, trunk_);
      end();
      pre = pre_[1];
    }
    d.CollapseNorm(a_, trunk_, pre, rows_, kStreams, kHidden, last_norm_, 1e-20f, mean_, x_);
    end();
    d.Prepare(a_, x_, rows_, kHidden, InputKind::kPlain, *plain_);
    d.MatMulFloat(*head_, *plain_, static_cast<float*>(logits_.data), kVocab);
    end();
  }

  void Upload() {
    side_->Upload(ids_, host_ids_.data(), rows_ * 4);
    side_->Upload(gram_rows_, host_gram_rows_.data(), rows_ * kColumns * 4);
  }

  // Everything that a step writes; and forgets it.
  std::vector<std::vector<float>> TakeResults() {
    std::vector<std::vector<float>> all;
    for (const auto& [act, width] : acts_) {
      all.push_back(side_.GetAct(act, rows_, width));
      const std::vector<float> empty(static_cast<size_t>(rows_ * width), -77.0f);
      side_->WriteAct(act, rows_, width, empty.data());
    }
    for (const auto& [data, n] : floats_)
      if (data != one_hot_) all.push_back(side_.Get(data, rows_ * n));
    all.push_back(side_.Get(reinterpret_cast<float*>(state_), rows_ * StateBytes() / 4));
    return all;
  }

 private:
  Side& side_;
  Arithmetic a_;
  int64_t rows_;
  std::vector<std::unique_ptr<HostWeight>> host_;
  std::vector<int32_t> host_ids_, host_gram_rows_;
  std::vector<std::unique_ptr<device::Matrix>> matrices_;
  std::vector<std::unique_ptr<device::Table>> tables_;
  std::unique_ptr<device::ExpertBank> bank_;
  const device::Table *embed_ = nullptr, *grams_ = nullptr;
  const device::Matrix *gram_kv_ = nullptr, *qa_kv_ = nullptr, *q_b_ = nullptr, *o_a_ = nullptr, *o_b_ = nullptr, *index_weight_ = nullptr,
                       *gate_ = nullptr, *head_ = nullptr;
  device::HyperConnectionSite site_;
  float *qk_ = nullptr, *gate_bias_ = nullptr, *attn_norm_ = nullptr, *ffn_norm_ = nullptr, *low_norm_ = nullptr, *key_norm_ = nullptr,
        *last_norm_ = nullptr, *inverse_ = nullptr, *rope_ = nullptr;
  float *one_hot_ = nullptr, *pre_[2] = {}, *post_ = nullptr, *comb_ = nullptr, *expert_weights_ = nullptr, *biased_ = nullptr;
  int32_t *ids_ = nullptr, *gram_rows_ = nullptr, *experts_ = nullptr;
  uint8_t* state_ = nullptr;
  device::Step step_;
  device::WindowRing ring_;
  Act trunk_, found_, gram_out_, x_, y_, qa_, qr_, q_, keys_, low_, weight_, mean_, logits_;
  std::vector<std::pair<Act, int64_t>> acts_;
  std::vector<std::pair<float*, int64_t>> floats_;
  std::unique_ptr<device::Input> quantized_, plain_, low_in_, attended_;
};

TEST_P(CudaSteps, WhatRunsTogetherHasTheBitsOfSingleOps) {
  Random random(31);
  for (const Arithmetic& a : Arithmetics()) {
    for (const int64_t rows : {1, 3, 4, 5, 9}) {
      SCOPED_TRACE(std::to_string(rows) + " rows, " + (a.round_bf16 ? "bf16" : a.quantize ? "fp32" : "plain"));
      Side side(*Gpu());
      NarrowStep step(side, random, rows, a);
      step.Run(true);
      const auto expected = step.TakeResults();
      const std::vector<int64_t> key = {-2, rows, a.round_bf16, a.quantize};
      for (int i = 0; i < 4; ++i) {
        if (!Gpu()->repeats_steps() || !side->BeginRepeat(key)) {
          step.Run();
          if (Gpu()->repeats_steps()) side->EndRepeat();
        }
        const auto found = step.TakeResults();
        for (size_t j = 0; j < expected.size(); ++j)
          EXPECT_EQ(0, std::memcmp(expected[j].data(), found[j].data(), expected[j].size() * 4)) << "run " << i << ", value " << j;
      }
      const Status status = Gpu()->TakeError();
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
}

// A step is issued, uploads and all, while the GPU is busy with something long; only a download waits.
TEST_P(CudaSteps, TheHostWaitsForNothing) {
  Random random(32);
  Side side(*Gpu());
  NarrowStep step(side, random, 1, kRelease);
  // Long: many products of many rows by the general kernels.
  const int64_t long_rows = 2048, width = 1024;
  const HostWeight weight = RandomWeight(random, WeightFormat::kF32, width, width);
  const auto matrix = side->CreateMatrix({&weight.matrix, 1}).value();
  const Act x = side.MakeAct(long_rows, width), y = side.MakeAct(long_rows, width);
  const auto input = side->CreateInput();
  const auto seconds = [](auto&& fn) {
    const auto begin = std::chrono::steady_clock::now();
    fn();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const auto wait = [&] {
    float value;
    side->Download(&value, y.data, 4);
  };
  const auto work = [&] {
    side->Prepare(Arithmetic(), x, long_rows, width, InputKind::kPlain, *input);
    for (int i = 0; i < 150; ++i) side->MatMul(Arithmetic(), *matrix, *input, y);
  };
  const std::vector<int64_t> key = {-3, 1};
  const auto issue = [&] {
    step.Upload();
    if (Gpu()->repeats_steps() && side->BeginRepeat(key)) return;
    step.Run();
    if (Gpu()->repeats_steps()) side->EndRepeat();
  };
  // Memory of the ops grows in the first run, the second is kept, the third replays it.
  for (int i = 0; i < 3; ++i) issue(), wait();
  work();
  wait();
  const double work_s = seconds([&] { work(), wait(); });
  double issue_s = 0;
  const double both_s = seconds([&] {
    work();
    issue_s = seconds(issue);
    wait();
  });
  std::printf("%.2f ms of other work, a step was issued in %.3f ms\n", work_s * 1e3, issue_s * 1e3);
  EXPECT_GT(both_s, 0.8 * work_s);
  EXPECT_LT(issue_s, 0.25 * work_s);
  EXPECT_TRUE(Gpu()->TakeError().ok());
}

// A wait inside a kept step is an error.
TEST_P(CudaSteps, WaitsInsideKeptStepsAreRefused) {
  if (!Gpu()->repeats_steps()) GTEST_SKIP() << "this device keeps no steps";
  Side side(*Gpu());
  const Act x = side.MakeAct(1, 64);
  const std::vector<int64_t> key = {-4, 1};
  float value = 0;
  for (int i = 0; i < 2; ++i) {
    ASSERT_FALSE(side->BeginRepeat(key));
    side->Scale(kRelease, x, 1, 64, 2.0f);
    if (i == 1) side->Download(&value, x.data, 4);
    side->EndRepeat();
    EXPECT_EQ(i == 0, Gpu()->TakeError().ok());
  }
}

}  // namespace
}  // namespace deepinfer::cuda
