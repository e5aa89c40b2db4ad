// SPDX-License-Identifier: Apache-2.0
//
// No allocation in steady decoding: operator new is counted for the whole program.
#include <atomic>
#include <cstdlib>
#include <new>

#include "model/golden_support.h"

namespace {
std::atomic<int64_t> num_allocations{0};
}  // namespace

void* operator new(size_t bytes) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

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
