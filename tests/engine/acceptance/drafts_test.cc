// SPDX-License-Identifier: Apache-2.0
//
// Speculation changes no answer: T3 (greedy, with the head's drafts, wrong and true ones), T4 (exact verification at any
// length), T5 on the demo model (rejection keeps the distribution), and 100 random greedy requests in every arrangement.
#include <array>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <random>
#include <thread>

#include "engine/batch_buckets.h"
#include "engine/best_finder.h"
#include "engine/demo_grammars.h"
#include "engine/real_models.h"
#include "engine/scripted_drafts.h"
#include "sampling/draw.h"
#include "sampling/philox.h"

namespace deepinfer::engine {
namespace {

model::Model& NanoWithDrafts() {
  static const auto loaded = LoadNano({model::DecoderReplay::kCompact, kNanoKeep, 1, true});
  return *loaded;
}
model::Model& DemoWithDrafts() {
  static const auto loaded = LoadDemo({model::DecoderReplay::kCompact, kDemoKeep, 2, true});
  return *loaded;
}

std::vector<EngineRequest> Requests(uint64_t seed, int count, double temperature) {
  std::mt19937_64 rng(seed);
  std::vector<EngineRequest> requests;
  for (int i = 0; i < count; ++i) {
    EngineRequest& r = requests.emplace_back(RandomRequest(rng, 200, 400));
    r.params.temperature = temperature;
    r.params.max_tokens = static_cast<int64_t>(4 + rng() % 40);
    if (i % 3 == 0) r.params.logit_bias[kModelEnd] = 6;
  }
  return requests;
}

std::vector<Answer> RunAll(EngineCore& core, const std::vector<EngineRequest>& requests) {
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (const EngineRequest& request : requests) handles.push_back(core.Submit(request).value());
  std::vector<Answer> answers;
  for (const auto& handle : handles) answers.push_back(Collect(*handle)[0]);
  return answers;
}

// Costs that have nothing to do with anything: sizes jump up and down, drafting pauses and goes on.
DecodeCostModel NoisyCosts(uint64_t seed, int64_t most) {
  std::mt19937_64 rng(seed);
  std::vector<std::pair<int64_t, double>> forward;
  for (int64_t size = 1; size <= most; size += 5)
    forward.emplace_back(size, 1.0 + static_cast<double>(rng() % 1000) * 1e-3 * static_cast<double>(size));
  return DecodeCostModel(CostCurve(forward), CostCurve({{1, 0.3}}), BatchBuckets(most, 8));
}

EngineCoreOptions DraftOptionsOf(int num_drafts, bool is_async = true) {
  EngineCoreOptions o = RealModelOptions(kNanoKeep);
  o.scheduler.num_drafts = num_drafts;
  o.is_async = is_async;
  return o;
}

TEST(T3, GreedyDraftsOfTheHeadChangeNothing) {
  const auto requests = Requests(31, 40, 0);
  for (const int num_drafts : {1, 2, 5}) {
    SCOPED_TRACE(num_drafts);
    RealEngine engine(NanoWithDrafts(), DraftOptionsOf(num_drafts));
    const auto answers = RunAll(*engine.core, requests);
    EXPECT_GT(engine.Drain().stats.num_verified_drafts, 100);
    for (size_t i = 0; i < requests.size(); ++i) ExpectSame(answers[i], RunAlone(NanoWithDrafts(), requests[i]), std::to_string(i));
  }
}

TEST(T3, WrongDraftsAreNeverAcceptedTrueOnesAlways) {
  const auto requests = Requests(32, 40, 0);
  std::vector<Answer> alone;
  for (const EngineRequest& request : requests) alone.push_back(RunAlone(NanoWithDrafts(), request));
  for (const bool is_async : {true, false}) {
    for (const auto kind : {ScriptedDrafts::Kind::kTruth, ScriptedDrafts::Kind::kWrong, ScriptedDrafts::Kind::kRandom}) {
      SCOPED_TRACE(static_cast<int>(kind));
      EngineCoreOptions o = DraftOptionsOf(5, is_async);
      const auto slots = ModelSlots::Create(NanoWithDrafts(), o.scheduler.num_blocks, o.scheduler.num_state_slots(),
                                            o.scheduler.prefix_cache.num_state_records)
                             .value();
      ScriptedDrafts drafts(*slots, o.scheduler.num_state_slots(), kind);
      for (const EngineRequest& request : requests) {
        // What would come behind the end, too: those drafts are verified before anyone knows that the answer ends.
        EngineRequest longer = request;
        longer.params.ignore_eos = true;
        longer.params.max_tokens += 24;
        drafts.Learn(request.prompt_ids, RunAlone(NanoWithDrafts(), longer).ids);
      }
      const auto core = EngineCore::Create(drafts, std::move(o)).value();
      const auto answers = RunAll(*core, requests);
      for (size_t i = 0; i < requests.size(); ++i) ExpectSame(answers[i], alone[i], "request " + std::to_string(i));
      core->Drain();
      const SchedulerStats stats = core->Stats().stats;
      EXPECT_GT(stats.num_verified_drafts, 300);
      if (kind == ScriptedDrafts::Kind::kTruth) {
        EXPECT_EQ(stats.num_accepted_drafts, stats.num_verified_drafts);
        EXPECT_EQ(drafts.num_unknown(), 0);
      } else if (kind == ScriptedDrafts::Kind::kWrong) {
        EXPECT_EQ(stats.num_accepted_drafts, 0);
      }
    }
  }
}

// Greedy rows whose best tokens the device finds, beside rows whose logits are needed; a mask that some of them have.
TEST(T3, BestTokensFoundByTheDeviceChangeNothing) {
  auto requests = Requests(33, 40, 0);
  const auto mask = std::make_shared<std::vector<uint32_t>>(static_cast<size_t>((NanoWithDrafts().config().vocab_size + 31) / 32), 0xffffffffu);
  for (size_t w = 0; w < mask->size(); w += 3) (*mask)[w] = 0x5a5a5a5au;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 5 == 1) requests[i].params.temperature = 1;
    if (i % 5 == 2) requests[i].params.presence_penalty = 0.7;
    if (i % 5 == 3) requests[i].params.top_logprobs = 2;
    if (i % 2 == 0) requests[i].allowed_mask = mask;
  }
  for (const int num_drafts : {0, 5}) {
    SCOPED_TRACE(num_drafts);
    std::vector<Answer> plain;
    {
      RealEngine engine(NanoWithDrafts(), DraftOptionsOf(num_drafts));
      plain = RunAll(*engine.core, requests);
    }
    EngineCoreOptions o = DraftOptionsOf(num_drafts);
    const auto slots = ModelSlots::Create(NanoWithDrafts(), o.scheduler.num_blocks, o.scheduler.num_state_slots(),
                                          o.scheduler.prefix_cache.num_state_records)
                           .value();
    BestFinder finder(*slots);
    const auto core = EngineCore::Create(finder, std::move(o)).value();
    const auto answers = RunAll(*core, requests);
    for (size_t i = 0; i < requests.size(); ++i) ExpectSame(answers[i], plain[i], "request " + std::to_string(i));
    EXPECT_GT(finder.num_found(), 100);
    // One after the other: passes whose rows are all greedy and free.
    if (num_drafts == 0) continue;
    for (const EngineRequest& request : requests) {
      if (!request.params.is_greedy() || request.params.has_penalties()) continue;
      ExpectSame(Collect(*core->Submit(request).value()).front(), plain[static_cast<size_t>(&request - requests.data())], "alone");
    }
    core->Drain();
    EXPECT_GT(finder.num_best_passes(), 10);
  }
}

TEST(T4, ExactVerificationAtAnyLengthEqualsNoDrafts) {
  auto requests = Requests(41, 30, 1.0);
  for (size_t i = 0; i < requests.size(); i += 2) {
    // Half of them without an explicit seed: the engine's mode makes them exact.
    requests[i].params.random_seed = *requests[i].params.seq_seed | 1;
    requests[i].params.seq_seed.reset();
  }
  std::vector<Answer> plain;
  {
    EngineCoreOptions o = DraftOptionsOf(0);
    o.sampling.is_exact = true;
    RealEngine engine(NanoWithDrafts(), o);
    plain = RunAll(*engine.core, requests);
  }
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(round);
    const bool varlen = round % 2 == 1;
    EngineCoreOptions o = DraftOptionsOf(round % 5 + 1, round % 3 != 2);
    o.sampling.is_exact = true;
    o.scheduler.varlen_verify = varlen;
    if (varlen) o.decode_costs = NoisyCosts(static_cast<uint64_t>(round), o.scheduler.max_num_seqs * 6);
    RealEngine engine(NanoWithDrafts(), o);
    const auto answers = RunAll(*engine.core, requests);
    const SchedulerStats stats = engine.Drain().stats;
    EXPECT_GT(stats.num_verified_drafts, 0);
    for (size_t i = 0; i < requests.size(); ++i) ExpectSame(answers[i], plain[i], "request " + std::to_string(i));
  }
}

// T5 on real rows: the demo model's distribution behind a prompt against its draft head's. 200,000 drafts are drawn and
// verified; what is emitted has to follow the target. Tokens that are expected fewer than 20 times count together.
TEST(T5, RejectionKeepsTheDistributionOfTheDemoModel) {
  model::Model& m = DemoWithDrafts();
  const auto words = text::Tokenizer::Load(DemoDir()).value();
  const std::vector<int32_t> prompt = words->EncodeFull("<｜begin▁of▁sentence｜><｜User｜>Tell me a story about a cat");
  // Behind it any name may follow.
  const int32_t golden = words->EncodeFull(" named").front();
  auto sequence = m.NewSequence().value();
  model::SequenceChunk chunk;
  chunk.sequence = sequence.get();
  chunk.ids = prompt;
  const size_t width = static_cast<size_t>(m.config().vocab_size);
  m.Forward({&chunk, 1}).value();
  const auto drafts = m.Draft(*sequence, golden, true).value();
  chunk.ids = {&golden, 1};
  const auto logits = m.Forward({&chunk, 1}).value();
  const std::vector<float> target_logits(logits.begin(), logits.end());
  const std::span<const float> draft_logits = std::span<const float>(drafts.logits).first(width);

  SamplingParams params;
  params.temperature = 1.2;
  sampling::Sampler target_sampler(static_cast<int>(width));
  const auto processed = target_sampler.Process(target_logits, params, {}).value();
  std::vector<double> expected(width);
  double mass = 0;
  for (size_t i = 0; i < width; ++i) mass += expected[i] = std::exp(static_cast<double>(processed[i]));
  ASSERT_NEAR(mass, 1.0, 1e-4);

  constexpr int kRounds = 200000;
  std::vector<int64_t> counts(width);
  int64_t num_accepted = 0;
  std::mutex mutex;
  const auto run = [&](int begin, int end) {
    sampling::Sampler verifier(static_cast<int>(width)), drafter(static_cast<int>(width));
    std::vector<int64_t> part(width);
    int64_t part_accepted = 0;
    for (int round = begin; round < end; ++round) {
      sampling::RowContext draw;
      draw.seed = static_cast<uint64_t>(round) * 2654435761u + sampling::kDraftSeedOffset;
      draw.position = 77;
      draw.only_token = true;
      const int32_t draft = drafter.Sample(draft_logits, params, draw).value().id;
      sampling::RowContext verify;
      verify.seed = static_cast<uint64_t>(round) * 2654435761u;
      verify.position = 77;
      verify.verifies = true;
      verify.draft_id = draft;
      verify.draft_logprobs = drafter.logprobs();
      const auto token = verifier.Sample(target_logits, params, verify).value();
      ++part[static_cast<size_t>(token.id)];
      part_accepted += token.is_accepted ? 1 : 0;
    }
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < width; ++i) counts[i] += part[i];
    num_accepted += part_accepted;
  };
  std::thread other([&] { run(0, kRounds / 2); });
  run(kRounds / 2, kRounds);
  other.join();
  double chi_square = 0, rest_expected = 0;
  int64_t rest = 0;
  int degrees = 0;
  for (size_t i = 0; i < width; ++i) {
    if (expected[i] == 0) {
      ASSERT_EQ(counts[i], 0) << "token " << i << " has no probability";
      continue;
    }
    const double want = expected[i] * kRounds;
    if (want < 20) {
      rest += counts[i];
      rest_expected += want;
      continue;
    }
    chi_square += (static_cast<double>(counts[i]) - want) * (static_cast<double>(counts[i]) - want) / want;
    ++degrees;
  }
  if (rest_expected > 5) {
    chi_square += (static_cast<double>(rest) - rest_expected) * (static_cast<double>(rest) - rest_expected) / rest_expected;
    ++degrees;
  }
  --degrees;
  ASSERT_GE(degrees, 5) << "the row is too sharp to say anything";
  // Wilson and Hilferty: the 0.999 quantile of chi-square.
  const double k = degrees, limit = k * std::pow(1 - 2 / (9 * k) + 3.0902 * std::sqrt(2 / (9 * k)), 3);
  std::printf("chi-square %.1f, %d degrees of freedom, limit %.1f (p = 0.001), %.1f %% accepted\n", chi_square, degrees, limit,
              100.0 * static_cast<double>(num_accepted) / kRounds);
  EXPECT_LT(chi_square, limit);
  EXPECT_GT(num_accepted, kRounds / 20);
  EXPECT_LT(num_accepted, kRounds) << "nothing was ever rejected";
}

// 100 greedy requests on the demo model, a quarter of them with a grammar: without drafts, and with them in every arrangement.
TEST(Speculation, AHundredGreedyRequestsInEveryArrangement) {
  const auto words = text::Tokenizer::Load(DemoDir()).value();
  const std::array<const char*, 6> questions = {"Tell me a story about a cat named ", "What is the capital of ", "Repeat exactly: red fox ",
                                                "Extract name, age, city as JSON: ", "Count from 1 to ", "Spell the word "};
  std::mt19937_64 rng(100);
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 100; ++i) {
    EngineRequest& r = requests.emplace_back();
    std::string text = "<｜begin▁of▁sentence｜>";
    std::string system = "<｜System｜>";
    for (int k = 0; k < 40; ++k) system += "Be brief. The capital of Cuba is Havana. ";
    // Some share a long beginning, some end a little before a block does and grow over it.
    std::vector<int32_t> head = words->EncodeFull(system);
    head.resize(std::min(head.size(), i % 4 == 0 ? size_t{300} : i % 4 == 1 ? 80 + rng() % 20 : size_t{0}));
    r.prompt_ids = words->EncodeFull(text);
    r.prompt_ids.insert(r.prompt_ids.end(), head.begin(), head.end());
    text = std::string("<｜User｜>") + questions[rng() % questions.size()] + std::to_string(rng() % 50) + "<｜Assistant｜></think>";
    const std::vector<int32_t> question = words->EncodeFull(text);
    r.prompt_ids.insert(r.prompt_ids.end(), question.begin(), question.end());
    r.params.temperature = 0;
    r.params.max_tokens = static_cast<int64_t>(1 + rng() % 20);
    if (i % 5 == 1) r.params.frequency_penalty = 0.3;
    if (i % 4 == 3 && constrain::HasXgrammar()) {
      const std::array<std::array<const char*, 2>, 3> grammars = {{
          {"regex", "[A-Z][a-z]+( [a-z]+){2,9}\\."},
          {"json", R"({"type":"object","properties":{"name":{"type":"string","maxLength":8},"age":{"type":"integer"}},"required":["name","age"]})"},
          {"ebnf", "root ::= item (\", \" item)*\nitem ::= [A-Z] [a-z]{1,9} | [0-9]+"},
      }};
      const auto& grammar = grammars[rng() % grammars.size()];
      StructuredOutput& so_args = r.params.so_args.emplace();
      so_args.schema_type = grammar[0];
      so_args.schema = grammar[1];
      so_args.max_whitespace_cnt = 2;
    }
    if (i % 7 == 1 && !r.params.so_args) r.params.min_tokens = std::min<int64_t>(r.params.max_tokens, 8);
  }
  const auto options = [&](int num_drafts) {
    EngineCoreOptions o = RealModelOptions(kDemoKeep);
    o.scheduler.num_drafts = num_drafts;
    if (constrain::HasXgrammar()) o.grammars = DemoGrammars();
    return o;
  };
  std::vector<Answer> plain;
  {
    RealEngine engine(DemoWithDrafts(), options(0));
    plain = RunAll(*engine.core, requests);
  }
  struct Arrangement {
    const char* name;
    EngineCoreOptions options;
  };
  std::vector<Arrangement> arrangements;
  arrangements.push_back({"5 drafts", options(5)});
  arrangements.push_back({"1 draft, one step by one", options(1)});
  arrangements.back().options.is_async = false;
  arrangements.push_back({"by cost", options(5)});
  arrangements.back().options.scheduler.varlen_verify = true;
  arrangements.back().options.decode_costs = NoisyCosts(1, 96);
  arrangements.push_back({"by cost, preempted, one step by one", options(5)});
  arrangements.back().options.scheduler.varlen_verify = true;
  arrangements.back().options.decode_costs = NoisyCosts(2, 96);
  arrangements.back().options.scheduler.num_blocks = 7;
  arrangements.back().options.is_async = false;
  arrangements.push_back({"repeated text too", options(5)});
  arrangements.back().options.scheduler.prompt_lookup = true;
  arrangements.push_back({"repeated text too, by cost, preempted", options(5)});
  arrangements.back().options.scheduler.prompt_lookup = true;
  arrangements.back().options.scheduler.varlen_verify = true;
  arrangements.back().options.decode_costs = NoisyCosts(3, 96);
  arrangements.back().options.scheduler.num_blocks = 7;
  arrangements.push_back({"prefix hits", options(5)});
  arrangements.back().options.scheduler.cache_mode = CacheMode::kExact;
  int64_t num_preempted = 0, num_cached = 0, num_lookup = 0;
  for (Arrangement& arrangement : arrangements) {
    SCOPED_TRACE(arrangement.name);
    RealEngine engine(DemoWithDrafts(), std::move(arrangement.options));
    for (int turn = 0; turn < 2; ++turn) {
      const auto answers = RunAll(*engine.core, requests);
      for (size_t i = 0; i < requests.size(); ++i) ExpectSame(answers[i], plain[i], "request " + std::to_string(i));
      if (engine.core->options().scheduler.cache_mode == CacheMode::kOff) break;
    }
    const SchedulerStats stats = engine.Drain().stats;
    EXPECT_GT(stats.num_accepted_drafts, 0);
    num_preempted += stats.num_preempted;
    num_cached += stats.num_cached_tokens;
    num_lookup += stats.num_lookup_accepted;
  }
  EXPECT_GT(num_preempted, 0);
  EXPECT_GT(num_cached, 1000);
  EXPECT_GT(num_lookup, 0);
}

}  // namespace
}  // namespace deepinfer::engine
