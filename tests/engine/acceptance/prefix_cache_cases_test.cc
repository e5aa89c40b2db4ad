// SPDX-License-Identifier: Apache-2.0
//
// T16, the lengths of tests/golden/cases/14 on the demo model: a prompt is sent three times (cold, hit, hit) in each cache
// mode. NanoEngineTest and TinyEngine (model_slots_test.cc) hold the rest of T16.
#include "core/json.h"
#include "engine/real_models.h"

namespace deepinfer::engine {
namespace {

class T16 : public ::testing::Test {
 protected:
  T16() : model_(LoadDemo()), rows_(ReadJsonFile(std::string(DEEPINFER_SOURCE_DIR) + "/tests/golden/cases/14-prefix-hit-lengths.json").value()["rows"]) {}
  static EngineRequest Request(int64_t length, uint8_t salt) {
    EngineRequest r;
    for (int64_t i = 0; i < length; ++i) r.prompt_ids.push_back(static_cast<int32_t>(1000 + i * 7919 % 3000));
    r.params.temperature = 0;
    r.params.max_tokens = 4;
    r.params.ignore_eos = true;
    r.params.seq_seed = 1;
    // Rows never find each other's prefixes.
    r.cache_root.bytes[0] = salt;
    return r;
  }
  // Three sends of every row; what each of them got.
  std::vector<std::array<Answer, 3>> SendThrice(CacheMode mode) {
    EngineCoreOptions o = RealModelOptions(kDemoKeep);
    o.scheduler.max_model_len = 2048;
    o.scheduler.cache_mode = mode;
    RealEngine engine(*model_, o);
    std::vector<std::array<Answer, 3>> answers;
    for (const Json& row : rows_) {
      auto& of_row = answers.emplace_back();
      for (Answer& answer : of_row)
        answer = Collect(*engine.core->Submit(Request(row["length"].get<int64_t>(), static_cast<uint8_t>(answers.size()))).value())[0];
    }
    engine.Drain();
    return answers;
  }
  static std::string Name(const Json& row, int send) {
    return "length " + std::to_string(row["length"].get<int64_t>()) + ", send " + std::to_string(send);
  }

  std::unique_ptr<model::Model> model_;
  const Json rows_;
};

TEST_F(T16, HitLengthsOfCase14AndWhatTheyAnswer) {
  const auto exact = SendThrice(CacheMode::kExact), replay = SendThrice(CacheMode::kReplay);
  for (size_t i = 0; i < exact.size(); ++i) {
    const int64_t max_exact = rows_[i]["max_cached_tokens_exact"].get<int64_t>(), max_replay = rows_[i]["max_cached_tokens"].get<int64_t>();
    for (int send = 0; send < 3; ++send) {
      const Answer &e = exact[i][static_cast<size_t>(send)], &r = replay[i][static_cast<size_t>(send)];
      EXPECT_EQ(e.cached_tokens, send == 0 ? 0 : max_exact) << Name(rows_[i], send);
      EXPECT_EQ(r.cached_tokens, send == 0 ? 0 : max_replay) << Name(rows_[i], send);
      EXPECT_EQ(r.ids.size(), 4u) << Name(rows_[i], send);
      // An exact hit is the cold run. A replayed one depends on the tokens and its length only; without a hit it is cold too.
      ExpectSame(e, exact[i][0], Name(rows_[i], send) + ", exact");
      ExpectSame(r, send == 2 ? replay[i][1] : send == 1 && max_replay > 0 ? r : exact[i][0], Name(rows_[i], send) + ", replay");
    }
  }
}

}  // namespace
}  // namespace deepinfer::engine
