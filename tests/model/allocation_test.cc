// SPDX-License-Identifier: Apache-2.0
//
// No allocation in steady decoding: operator new is counted for the whole program.
#include "count_allocations.h"
#include "model/golden_support.h"

namespace deepinfer::model {
namespace {

TEST(Allocation, NoneInSteadyDecoding) {
  for (const Numerics numerics : {Numerics::kPlain, Numerics::kRelease}) {
    Model& model = Nano(numerics);
    const auto ids = Golden("cases/len0333.safetensors").Ints("tokens");
    auto sequence = NewSequence(model);
    SequenceChunk chunk{.sequence = sequence.get(), .ids = std::span(ids).first(262)};
    ASSERT_TRUE(model.Forward({&chunk, 1}).ok());
    const auto decode = [&](size_t from, size_t to) {
      for (size_t i = from; i < to; ++i) {
        chunk.ids = std::span(ids).subspan(i, 1);
        ASSERT_TRUE(model.Forward({&chunk, 1}).ok());
      }
    };
    decode(262, 266);  // buffers reach their sizes; ids grow geometrically
    const int64_t before = num_allocations.load();
    decode(266, 290);
    EXPECT_EQ(num_allocations.load() - before, 0);
  }
}

}  // namespace
}  // namespace deepinfer::model
