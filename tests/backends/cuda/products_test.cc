// SPDX-License-Identifier: Apache-2.0
//
// Matrix products, norms, experts and the router of the NVIDIA backend against the CPU backend; results of a row do not depend on
// the rows beside it.
#include <cstring>
#include <span>

#include "device_pair.h"

namespace deepinfer::cuda {
namespace {

using device::HostMatrix;
using device::InputKind;
using device::WeightFormat;

class CudaProducts : public OnBothDevices {};
INSTANTIATE_TEST_SUITE_P(Of, CudaProducts, testing::Values(Kernels::kGeneral, Kernels::kReleased, Kernels::kFast), KernelsName);

struct Shape {
  WeightFormat format;
  InputKind kind;
  int64_t rows, cols;
  int groups;
};

std::vector<float> Product(Side& side, const Arithmetic& a, std::span<const HostMatrix> parts, InputKind kind, int groups,
                           const std::vector<float>& x, int64_t num_rows) {
  const auto w = side->CreateMatrix(parts).value();
  const int64_t width = w->cols() * groups;
  auto input = side->CreateInput();
  side->Prepare(a, side.PutAct(x, width), num_rows, width, kind, *input);
  const Act y = side.MakeAct(num_rows, w->rows());
  if (groups > 1) {
    side->MatMulGroups(a, *w, groups, *input, y);
  } else {
    side->MatMul(a, *w, *input, y);
  }
  return side.GetAct(y, num_rows, w->rows());
}

TEST_P(CudaProducts, EveryFormatAndShape) {
  Random random(1);
  const Shape shapes[] = {
      {WeightFormat::kFp8Block32, InputKind::kQuantized, 112, 96, 1},   {WeightFormat::kFp8Block32, InputKind::kQuantized, 1792, 5120, 1},
      {WeightFormat::kFp8Block32, InputKind::kQuantized, 4096, 1280, 1}, {WeightFormat::kFp8Block32, InputKind::kQuantized, 5120, 8192, 1},
      {WeightFormat::kFp8Block32, InputKind::kPlain, 2048, 4096, 2},    {WeightFormat::kFp8Block32, InputKind::kPlain, 64, 128, 2},
      {WeightFormat::kFp4Row32, InputKind::kQuantized, 64, 96, 1},      {WeightFormat::kFp4Row32, InputKind::kQuantized, 512, 5120, 1},
      {WeightFormat::kBf16, InputKind::kPlain, 384, 5120, 1},           {WeightFormat::kBf16, InputKind::kPlain, 1, 288, 1},
      {WeightFormat::kBf16, InputKind::kPlain, 33, 50, 1},
  };
  // Every projection of the released model; the tallest ones cut.
  const Shape released[] = {
      {WeightFormat::kFp8Block32, InputKind::kQuantized, 1792, 5120, 1},  {WeightFormat::kFp8Block32, InputKind::kQuantized, 32768, 1280, 1},
      {WeightFormat::kFp8Block32, InputKind::kQuantized, 4096, 1280, 1},  {WeightFormat::kFp8Block32, InputKind::kPlain, 8192, 4096, 8},
      {WeightFormat::kFp8Block32, InputKind::kQuantized, 5120, 8192, 1},  {WeightFormat::kFp8Block32, InputKind::kQuantized, 4608, 5120, 1},
      {WeightFormat::kFp8Block32, InputKind::kQuantized, 5120, 2304, 1},  {WeightFormat::kFp8Block32, InputKind::kQuantized, 2560, 6144, 1},
      {WeightFormat::kBf16, InputKind::kPlain, 1024, 5120, 1},            {WeightFormat::kBf16, InputKind::kPlain, 512, 5120, 1},
      {WeightFormat::kBf16, InputKind::kPlain, 384, 5120, 1},             {WeightFormat::kBf16, InputKind::kPlain, 32, 5120, 1},
      {WeightFormat::kBf16, InputKind::kPlain, 4080, 5120, 1},
  };
  const bool is_general = GetParam() == Kernels::kGeneral;
  for (const Shape& s : is_general ? std::span<const Shape>(shapes) : std::span<const Shape>(released)) {
    const HostWeight w = RandomWeight(random, s.format, s.rows, s.cols);
    for (const Arithmetic& a : Arithmetics()) {
      for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 129}) {
        if (is_general && m == 129 && s.rows * s.cols > 10'000'000) continue;
        const auto x = random.Floats(m * s.cols * s.groups, 1.0f, a.round_bf16);
        ExpectNear(OnBoth([&](Side& side) { return Product(side, a, {&w.matrix, 1}, s.kind, s.groups, x, m); }), a.round_bf16 ? 3e-2 : 2e-5,  // bf16: one step at the largest values
                   std::to_string(s.rows) + " x " + std::to_string(s.cols) + ", " + std::to_string(m) + " rows");
      }
    }
  }
}

TEST_P(CudaProducts, StackedPartsKeepTheirScales) {
  Random random(2);
  for (const int64_t height : {48, 64}) {
    const HostWeight a = RandomWeight(random, WeightFormat::kFp8Block32, height, 96), b = RandomWeight(random, WeightFormat::kFp8Block32, 40, 96);
    const HostMatrix parts[] = {a.matrix, b.matrix};
    const auto x = random.Floats(3 * 96);
    ExpectNear(OnBoth([&](Side& side) { return Product(side, kFloat32, parts, InputKind::kQuantized, 1, x, 3); }), 2e-5, std::to_string(height));
  }
}

TEST_P(CudaProducts, RowsDoNotDependOnTheirNeighbours) {
  Random random(3);
  if (GetParam() == Kernels::kFast) GTEST_SKIP() << "they do there";
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1792, 5120}, {4096, 1280}, {5120, 8192}, {5120, 2304}}) {
    const HostWeight w = RandomWeight(random, WeightFormat::kFp8Block32, rows, cols);
    const auto x = random.Floats(129 * cols);
    Side side(*Gpu());
    const auto all = Product(side, kRelease, {&w.matrix, 1}, InputKind::kQuantized, 1, x, 129);
    for (const int64_t m : {1, 2, 7, 8, 64}) {
      const auto some = Product(side, kRelease, {&w.matrix, 1}, InputKind::kQuantized, 1, {x.begin(), x.begin() + m * cols}, m);
      EXPECT_EQ(0, std::memcmp(all.data(), some.data(), some.size() * sizeof(float))) << cols << ", " << m;
    }
  }
}

TEST_P(CudaProducts, NormsAndTheirQuantisedForm) {
  Random random(4);
  for (const int64_t width : {96, 128, 512, 1280, 5120}) {
    for (const Arithmetic& a : Arithmetics()) {
      const auto x = random.Floats(5 * width, 3.0f, a.round_bf16), norm = random.Floats(width);
      const HostWeight w = RandomWeight(random, WeightFormat::kFp8Block32, 64, width);
      ExpectNear(OnBoth([&](Side& side) {
                   const Act in = side.PutAct(x, width), out = side.MakeAct(5, width), y = side.MakeAct(5, 64);
                   side->RmsNorm(a, in, side.Put(norm), 5, width, 1e-20f, out);
                   auto result = side.GetAct(out, 5, width);
                   // The product reads the form that came with the norm.
                   const auto matrix = side->CreateMatrix({&w.matrix, 1}).value();
                   auto input = side->CreateInput();
                   side->RmsNorm(a, in, side.Put(norm), 5, width, 1e-20f, out);
                   side->Prepare(a, out, 5, width, InputKind::kQuantized, *input);
                   side->MatMul(a, *matrix, *input, y);
                   const auto product = side.GetAct(y, 5, 64);
                   result.insert(result.end(), product.begin(), product.end());
                   return result;
                 }),
                 a.round_bf16 ? 5e-2 : 5e-3, std::to_string(width));
    }
  }
}

TEST_P(CudaProducts, ArgMaxTakesTheLowerIndexOfTies) {
  std::vector<float> x(3 * 4096, -1.0f);
  x[7] = x[4000] = 5.0f;
  x[4096 + 4095] = 2.0f;
  const auto both = OnBoth([&](Side& side) {
    auto* ids = static_cast<int32_t*>(side.Make(3 * 4));
    side->ArgMax({.x = side.Put(x), .rows = 3, .width = 4096, .stride = 4096, .inverse_temperature = 1, .host_masks = {}}, ids, 1);
    return side.Get(ids, 3);
  });
  EXPECT_EQ(both.gpu, (std::vector<int32_t>{7, 4095, 0}));
  EXPECT_EQ(both.gpu, both.cpu);
}

TEST_P(CudaProducts, ArgMaxBehindMasksAndSumsOfRows) {
  Random random(8);
  constexpr int64_t kRows = 5, kWidth = 5000;
  const auto x = random.Floats(kRows * kWidth), add = random.Floats(kRows * (kWidth + 8));
  std::vector<uint32_t> first((kWidth + 31) / 32), second(first.size(), 0xffffffffu);
  for (uint32_t& word : first) word = static_cast<uint32_t>(random.Bits());
  const auto both = OnBoth([&](Side& side) {
    auto* ids = static_cast<int32_t*>(side.Make(kRows * 4));
    float* sum = side.Put(x);
    side->AddFloats(side.Put(add), kRows, kWidth, kWidth + 8, sum, kWidth);
    const uint32_t* const a = side.Put(first);
    const uint32_t* const b = side.Put(second);
    const uint32_t* mixed[kRows] = {a, nullptr, b, a, nullptr};
    const uint32_t* same[kRows] = {a, a, a, a, a};
    std::vector<int32_t> all;
    for (const auto& masks : {mixed, same}) {
      side->ArgMax({.x = sum, .rows = kRows, .width = kWidth, .stride = kWidth, .inverse_temperature = 1, .host_masks = {masks, kRows}}, ids, 1);
      const auto some = side.Get(ids, kRows);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  });
  EXPECT_EQ(both.cpu, both.gpu);
}

// ---- experts ------------------------------------------------------------------------------------------------------------

struct Bank {
  std::vector<HostWeight> weights;
  std::vector<device::HostExpert> experts;
  device::HostExpert shared;
};
Bank RandomBank(Random& random, int num_experts, int64_t hidden, int64_t inner) {
  Bank bank;
  bank.weights.reserve(static_cast<size_t>(3 * num_experts + 3));
  const auto expert = [&](WeightFormat format) {
    device::HostExpert e;
    e.w1 = bank.weights.emplace_back(RandomWeight(random, format, inner, hidden)).matrix;
    e.w3 = bank.weights.emplace_back(RandomWeight(random, format, inner, hidden)).matrix;
    e.w2 = bank.weights.emplace_back(RandomWeight(random, format, hidden, inner)).matrix;
    return e;
  };
  for (int i = 0; i < num_experts; ++i) bank.experts.push_back(expert(WeightFormat::kFp4Row32));
  bank.shared = expert(WeightFormat::kFp8Block32);
  return bank;
}

std::vector<float> RunExperts(Side& side, const Arithmetic& a, const Bank& bank, int k, const std::vector<int32_t>& chosen,
                              const std::vector<float>& weights, const std::vector<float>& x, int64_t rows, int64_t hidden) {
  const auto experts = side->CreateExperts(bank.experts, bank.shared).value();
  auto input = side->CreateInput();
  side->Prepare(a, side.PutAct(x, hidden), rows, hidden, InputKind::kQuantized, *input);
  device::ExpertArgs args;
  args.bank = experts.get();
  args.x = input.get();
  args.num_chosen = k;
  args.experts = side.Put(chosen);
  args.weights = side.Put(weights);
  args.swiglu_limit = 2.5f;
  args.out = side.MakeAct(rows, hidden);
  side->Experts(a, args, rows);
  return side.GetAct(args.out, rows, hidden);
}

TEST_P(CudaProducts, ExpertsWithNoOneAndManyRowsEach) {
  Random random(5);
  struct Case {
    int experts, k;
    int64_t hidden, inner;
    std::vector<int64_t> rows;
  };
  const std::vector<Case> all_cases = {{6, 2, 96, 64, {1, 3, 8, 17, 129}}, {16, 4, 256, 96, {1, 5, 129}}, {8, 6, 5120, 2304, {1, 2, 3, 8, 17, 129}}};
  for (const Case& c : GetParam() == Kernels::kGeneral ? all_cases : std::vector<Case>{all_cases.back()}) {
    const Bank bank = RandomBank(random, c.experts, c.hidden, c.inner);
    for (const int64_t rows : c.rows) {
      std::vector<int32_t> chosen;
      std::vector<float> weights;
      for (int64_t t = 0; t < rows; ++t) {
        // Expert 0 is taken by every row, the last one by none; -1 is padding.
        std::vector<int32_t> ids;
        for (int32_t e = 1; e + 1 < c.experts; ++e) ids.push_back(e);
        std::shuffle(ids.begin(), ids.end(), std::mt19937_64(random.Bits()));
        ids.insert(ids.begin() + static_cast<std::ptrdiff_t>(random.Bits() % static_cast<uint64_t>(c.k)), 0);
        if (t % 5 == 4) ids[static_cast<size_t>(c.k) - 1] = -1;
        for (int i = 0; i < c.k; ++i) {
          chosen.push_back(ids[static_cast<size_t>(i)]);
          weights.push_back(static_cast<float>(random.Bits() % 1000) / 1000.0f);
        }
      }
      for (const Arithmetic& a : Arithmetics()) {
        const auto x = random.Floats(rows * c.hidden, 1.0f, a.round_bf16);
        ExpectNear(OnBoth([&](Side& side) { return RunExperts(side, a, bank, c.k, chosen, weights, x, rows, c.hidden); }),
                   a.round_bf16 ? 6e-2 : a.quantize ? 2e-2 : 2e-5, std::to_string(c.hidden) + ", " + std::to_string(rows) + " rows");
      }
      if (rows >= 17 && GetParam() != Kernels::kFast) {
        Side side(*Gpu());
        const auto x = random.Floats(rows * c.hidden);
        const auto all = RunExperts(side, kRelease, bank, c.k, chosen, weights, x, rows, c.hidden);
        const auto one = RunExperts(side, kRelease, bank, c.k, chosen, weights, x, 1, c.hidden);
        EXPECT_EQ(0, std::memcmp(all.data(), one.data(), one.size() * sizeof(float)));
      }
    }
  }
}

TEST_P(CudaProducts, RouterChoosesTheSame) {
  Random random(6);
  for (const auto& [experts, k] : {std::pair<int, int>{6, 2}, {16, 4}, {384, 6}}) {
    const int64_t hidden = 256, rows = 33;
    const HostWeight gate = RandomWeight(random, WeightFormat::kBf16, experts, hidden);
    const auto x = random.Floats(rows * hidden), bias = random.Floats(experts, 0.1f), image = random.Floats(experts, 0.5f);
    std::vector<uint8_t> is_image(static_cast<size_t>(rows), 0);
    is_image[3] = is_image[20] = 1;
    std::vector<int32_t> chosen[2];
    int at = 0;
    const auto both = OnBoth([&](Side& side) {
      const auto w = side->CreateMatrix({&gate.matrix, 1}).value();
      auto input = side->CreateInput();
      side->Prepare(kRelease, side.PutAct(x, hidden), rows, hidden, InputKind::kPlain, *input);
      device::RouterArgs args;
      args.gate = w.get();
      args.x = input.get();
      args.bias = side.Put(bias);
      args.bias_image = side.Put(image);
      args.is_image = side.Put(is_image);
      args.num_chosen = k;
      args.scaling = 1.5f;
      args.experts = static_cast<int32_t*>(side.Make(rows * k * 4));
      args.weights = static_cast<float*>(side.Make(rows * k * 4));
      args.biased_scores = static_cast<float*>(side.Make(rows * experts * 4));
      side->Route(args, rows);
      chosen[at++] = side.Get(args.experts, rows * k);
      return side.Get(args.weights, rows * k);
    });
    EXPECT_EQ(chosen[0], chosen[1]) << experts;
    ExpectNear(both, 1e-5, std::to_string(experts));
  }
}

}  // namespace
}  // namespace deepinfer::cuda
