// SPDX-License-Identifier: Apache-2.0
//
// T1: asynchronous steps on and off give the same tokens, log probabilities and finish reasons.
#include <random>

#include "engine/real_models.h"

namespace deepinfer::engine {
namespace {

TEST(T1, AsyncOnEqualsOffGreedyAndSeeded) {
  const auto model = LoadNano();
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
  for (const bool is_async : {true, false}) {
    EngineCoreOptions o = RealModelOptions(kNanoKeep);
    o.is_async = is_async;
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
    ExpectSame(runs[0][i], runs[1][i], what);
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
