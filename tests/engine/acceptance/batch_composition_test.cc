// SPDX-License-Identifier: Apache-2.0
//
// T2: what a request gets does not depend on what runs beside it: logits and tokens, bit for bit.
#include <random>

#include "engine/real_models.h"

namespace deepinfer::engine {
namespace {

TEST(T2, AloneRandomBatchesAndPermutedGiveTheSameLogits) {
  const auto model = LoadNano();
  constexpr size_t kNumRequests = 64;
  std::mt19937_64 rng(2);
  std::vector<EngineRequest> requests;
  for (size_t i = 0; i < kNumRequests; ++i) requests.push_back(RandomRequest(rng, 320, 400));
  LogitsLedger ledger;
  std::vector<Answer> alone;
  for (const EngineRequest& request : requests) alone.push_back(RunAlone(*model, request, 0, &ledger));
  // Each row above is new; each row below is known.
  const int64_t num_rows = ledger.num_rows(), num_repeated = ledger.num_compared();

  EngineCoreOptions o = RealModelOptions(kNanoKeep);
  o.scheduler.max_num_seqs = 32;
  o.scheduler.max_num_batched_tokens = 512;
  std::vector<size_t> order(kNumRequests);
  for (size_t i = 0; i < kNumRequests; ++i) order[i] = i;
  RealEngine engine(*model, o, &ledger);
  int64_t num_runs = 0;
  const auto run = [&](std::span<const size_t> group) {
    std::vector<std::shared_ptr<RequestHandle>> handles;
    for (const size_t i : group) handles.push_back(engine.core->Submit(requests[i]).value());
    for (size_t k = 0; k < group.size(); ++k)
      ExpectSame(Collect(*handles[k])[0], alone[group[k]], "request " + std::to_string(group[k]) + " in a batch of " + std::to_string(group.size()));
    engine.core->WaitIdle();
  };
  // Alone in the engine.
  for (const size_t& i : order) run({&i, 1});
  ++num_runs;
  // Random batches of 2..32.
  for (int round = 0; round < 2; ++round, ++num_runs) {
    std::shuffle(order.begin(), order.end(), rng);
    for (size_t begin = 0; begin < kNumRequests;) {
      size_t size = std::min<size_t>(2 + rng() % 31, kNumRequests - begin);
      if (kNumRequests - begin - size == 1) ++size;
      run(std::span(order).subspan(begin, std::min(size, kNumRequests - begin)));
      begin += size;
    }
  }
  // All of them, in two orders.
  for (int round = 0; round < 2; ++round, ++num_runs) {
    std::shuffle(order.begin(), order.end(), rng);
    run(order);
  }
  engine.Drain();
  EXPECT_EQ(ledger.num_different(), 0);
  EXPECT_EQ(ledger.num_rows(), num_rows) << "a run went another way";
  EXPECT_GE(ledger.num_compared() - num_repeated, num_runs * num_rows);
}

}  // namespace
}  // namespace deepinfer::engine
