// SPDX-License-Identifier: Apache-2.0
//
// T1: asynchronous steps on and off give the same tokens, log probabilities and finish reasons, without drafts and with 1
// and 5 of them.
#include <array>
#include <random>

#include "engine/real_models.h"

namespace deepinfer::engine {
namespace {

TEST(T1, AsyncOnEqualsOffGreedyAndSeeded) {
  const auto model = LoadNano({model::DecoderReplay::kCompact, kNanoKeep, 1, true});
  std::mt19937_64 rng(40);
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 40; ++i) {
    EngineRequest& r = requests.emplace_back(RandomRequest(rng, 300, 400));
    r.params.max_tokens = static_cast<int64_t>(1 + rng() % 60);
    r.params.temperature = i % 2 == 0 ? 0 : 1;
    // The random model hardly ever ends by itself.
    if (i % 4 >= 2) r.params.logit_bias[kModelEnd] = r.params.is_greedy() ? 7 : 9;
  }
  std::vector<std::vector<Answer>> runs;
  for (const int variant : {0, 1, 2, 3, 4, 5}) {
    EngineCoreOptions o = RealModelOptions(kNanoKeep);
    o.is_async = variant % 2 == 0;
    o.scheduler.num_drafts = std::array{0, 1, 5}[static_cast<size_t>(variant / 2)];
    RealEngine engine(*model, o);
    std::vector<std::shared_ptr<RequestHandle>> handles;
    for (const EngineRequest& request : requests) handles.push_back(engine.core->Submit(request).value());
    std::vector<Answer>& answers = runs.emplace_back();
    for (const auto& handle : handles) answers.push_back(Collect(*handle)[0]);
    engine.Drain();
  }
  int num_stopped[2] = {0, 0}, num_full[2] = {0, 0};
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::string what = "request " + std::to_string(i);
    for (size_t run = 1; run < runs.size(); ++run) ExpectSame(runs[0][i], runs[run][i], what + ", run " + std::to_string(run));
    ExpectSame(runs[0][i], RunAlone(*model, requests[i]), what + " alone");
    const bool is_greedy = requests[i].params.is_greedy();
    ++(runs[0][i].reason == FinishReason::kStop ? num_stopped : num_full)[is_greedy ? 1 : 0];
  }
  for (const bool is_greedy : {false, true}) {
    EXPECT_GE(num_stopped[is_greedy ? 1 : 0], 3) << is_greedy;
    EXPECT_GE(num_full[is_greedy ? 1 : 0], 3) << is_greedy;
  }
}

}  // namespace
}  // namespace deepinfer::engine
