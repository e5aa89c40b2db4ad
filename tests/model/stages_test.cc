// SPDX-License-Identifier: Apache-2.0
//
// Every instruction set of this machine against the scalar kernels, stage by stage, on the nano model. The same at the
// released widths: slice/slice_test.cc.
#include "model/stage_compare.h"

namespace deepinfer::model {
namespace {

class Stages : public testing::TestWithParam<Numerics> {};
INSTANTIATE_TEST_SUITE_P(Arithmetics, Stages, testing::Values(Numerics::kPlain, Numerics::kFp32, Numerics::kRelease),
                         [](const auto& param_info) { return std::string(FileName(param_info.param)); });

TEST_P(Stages, EveryInstructionSetAgainstScalar) {
  const Golden golden("cases/len0096.safetensors");
  const auto tokens = golden.Ints("tokens");
  StageCompare compare({{tokens.begin(), tokens.end() - 8}, {tokens.end() - 8, tokens.end()}});
  for (const CpuIsa isa : SupportedCpuIsas()) {
    SCOPED_TRACE(CpuIsaName(isa));
    const ScopedCpuIsa scoped(isa);
    const auto model = LoadNano(GetParam());
    if (isa == CpuIsa::kScalar) compare.Record(*model);
    compare.Compare(*model);
    CheckStages(compare, GetParam());
    if (isa != CpuIsa::kScalar) {
      compare.Print(fmt::format("{}, {}", CpuIsaName(isa), FileName(GetParam())).c_str());
      continue;
    }
    // The harness itself: the reference against itself differs nowhere.
    for (const auto& [kind, d] : compare.differences())
      EXPECT_EQ(d.worst_abs + static_cast<double>(d.num_changed_rows), 0) << kind;
  }
}

// A comparison that could not fail would prove nothing: another arithmetic differs where it must, and only there.
TEST(StageCompareTest, SeesAnotherArithmetic) {
  const auto tokens = Golden("cases/len0040.safetensors").Ints("tokens");
  StageCompare compare({{tokens.begin(), tokens.end() - 4}, {tokens.end() - 4, tokens.end()}});
  compare.Record(Nano(Numerics::kPlain));
  compare.Compare(Nano(Numerics::kRelease));
  const auto& differences = compare.differences();
  EXPECT_EQ(differences.at("engram_rows").num_changed_rows, 0);
  for (const char* kind : {"attn.query", "attn.window_key", "attn.output", "ffn.output", "indexer.query"}) {
    const StageLimit limit = LimitOf(Numerics::kPlain, kind);
    EXPECT_GT(differences.at(kind).worst_abs, limit.abs) << kind;
    EXPECT_GT(differences.at(kind).worst_norm, limit.norm) << kind;
  }
}

}  // namespace
}  // namespace deepinfer::model
