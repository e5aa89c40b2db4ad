// SPDX-License-Identifier: Apache-2.0
//
// Requests with grammars in the engine, on the checking fake model and a fake grammar over token ids: what they get is what
// a loop without engine gives, with and without drafts, under preemption and aborts; failures are their own.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "constrain/compile_service.h"
#include "constrain/constraint.h"
#include "constrain/fake_grammar.h"
#include "constrain/structured_output.h"
#include "engine/answers.h"
#include "engine/engine_core.h"
#include "engine/fake_step_model.h"
#include "sampling/params.h"

namespace deepinfer::engine {
namespace {

constexpr int kVocab = 40;
constexpr int32_t kEnd = 3;

// Moves when told, from any thread.
class SharedClock : public Clock {
 public:
  int64_t NowNs() const override { return now_ns.load(); }
  std::atomic<int64_t> now_ns{0};
};

EngineCoreOptions Options() {
  EngineCoreOptions o;
  o.scheduler.max_model_len = 640;
  o.scheduler.max_num_batched_tokens = 256;
  o.scheduler.max_num_seqs = 16;
  o.scheduler.num_blocks = 100;
  o.scheduler.end_token_ids = {kEnd};
  o.end_token_id = kEnd;
  return o;
}

struct Fixture {
  explicit Fixture(EngineCoreOptions options = Options(), int num_threads = 1, constrain::CompileServiceOptions service = {})
      : model(kVocab, options.scheduler.max_model_len, options.scheduler.num_blocks, options.scheduler.num_state_slots(),
              options.scheduler.prefix_cache.num_state_records, num_threads),
        backend(std::make_shared<constrain::FakeGrammarBackend>(kVocab, std::vector<int32_t>{kEnd})) {
    options.grammars = std::make_shared<constrain::CompileService>(
        [backend = backend] { return Result<std::shared_ptr<constrain::GrammarBackend>>(backend); }, service);
    grammars = options.grammars;
    auto made = EngineCore::Create(model, std::move(options));
    EXPECT_TRUE(made.ok()) << made.status().message();
    core = std::move(made).value();
  }
  ~Fixture() { backend->OpenGate(); }
  FakeStepModel model;
  std::shared_ptr<constrain::FakeGrammarBackend> backend;
  std::shared_ptr<constrain::CompileService> grammars;
  std::unique_ptr<EngineCore> core;  // goes first
};

StructuredOutput Grammar(std::string text) {
  StructuredOutput so_args;
  so_args.schema_type = "regex";  // the fake backend takes any text
  so_args.schema = std::move(text);
  return so_args;
}

EngineRequest Request(std::string grammar, int64_t max_tokens = 30, uint64_t salt = 1) {
  EngineRequest request;
  request.prompt_ids = {static_cast<int32_t>(salt % kVocab), 9, 10, 11, 12};
  request.params.max_tokens = max_tokens;
  request.params.temperature = 0;
  if (!grammar.empty()) request.params.so_args = Grammar(std::move(grammar));
  return request;
}

std::string RandomGrammar(std::mt19937_64& rng) {
  std::string text;
  const uint64_t length = 1 + rng() % 20;
  for (uint64_t i = 0; i < length; ++i) {
    if (rng() % 2 == 0) {
      text += "* ";
      continue;
    }
    const uint64_t count = 1 + rng() % 12;
    for (uint64_t k = 0; k < count; ++k) text += (k > 0 ? "|" : "") + std::to_string(4 + rng() % (kVocab - 4));
    text += ' ';
  }
  if (rng() % 3 != 0) text += "...";
  return text;
}

EngineRequest RandomRequest(std::mt19937_64& rng) {
  EngineRequest request;
  const uint64_t length = 1 + rng() % 200;
  for (uint64_t i = 0; i < length; ++i) request.prompt_ids.push_back(static_cast<int32_t>(rng() % kVocab));
  SamplingParams& p = request.params;
  p.max_tokens = static_cast<int64_t>(1 + rng() % 40);
  switch (rng() % 4) {
    case 0:
    case 1: p.temperature = 0; break;
    case 2: p.top_p = 0.8; p.top_k = 10; break;
    default: p.presence_penalty = 1.0; p.repetition_penalty = 1.2;
  }
  p.seq_seed = rng() % 1000;
  if (rng() % 5 == 0) p.min_tokens = std::min<int64_t>(p.max_tokens, 5);
  if (rng() % 6 == 0) p.stop_token_ids = {7, 11};
  if (rng() % 6 == 0) p.ignore_eos = true;
  if (rng() % 6 == 0) p.logit_bias[5] = 3;
  if (rng() % 12 == 0) p.allowed_token_ids = {3, 5, 6, 7, 8, 9, 20, 21, 22, 23, 24, 30, 31};
  if (rng() % 12 == 0) p.golden_token_ids = {-1, 5};
  if (rng() % 8 == 0) p.first_n_token_no_eos = 1;
  if (rng() % 4 != 0) {
    p.so_args = Grammar(RandomGrammar(rng));
    if (rng() % 3 == 0) p.so_args->trigger_token_ids = {static_cast<int32_t>(rng() % kVocab)};
    if (rng() % 6 == 0) {
      p.so_args->trigger_token_ids = {5, 6};
      p.so_args->bound_token_id = static_cast<int32_t>(rng() % kVocab);
    }
  }
  return request;
}

bool AnyAllowed(std::span<const uint32_t> mask, const SamplingParams& params, std::span<const int32_t> banned) {
  for (int32_t id = 0; id < kVocab; ++id) {
    if ((mask[static_cast<size_t>(id) >> 5] >> (id & 31) & 1u) == 0) continue;
    const auto contains = [id](const auto& list) { return std::find(list.begin(), list.end(), id) != list.end(); };
    if (params.allowed_token_ids && !contains(*params.allowed_token_ids)) continue;
    if (!contains(banned)) return true;
  }
  return false;
}

// The same request computed token by token without an engine.
Answer Reference(const EngineRequest& request, const EngineCoreOptions& o, int sample = 0) {
  sampling::Sampler sampler(kVocab);
  const SamplingParams params = sampling::Normalized(request.params);
  sampling::TokenCounts counts(kVocab);
  counts.AddPrompt(request.prompt_ids);
  std::vector<int32_t> end_bans = params.stop_token_ids;
  end_bans.push_back(kEnd);
  const std::vector<int32_t> first_bans = {kEnd};
  std::unique_ptr<constrain::Constraint> constraint;
  if (params.so_args) {
    constrain::FakeGrammarBackend backend(kVocab, {kEnd});
    const constrain::GrammarSpec spec = constrain::GrammarSpecOf(*params.so_args);
    constraint = std::make_unique<constrain::Constraint>(spec, backend.Compile(spec).value(), constrain::ConstraintOptions());
  }
  uint64_t hash = 1;
  for (const int32_t id : request.prompt_ids) hash = HashToken(hash, id);
  std::vector<float> row(kVocab);
  std::vector<uint32_t> mask(constrain::MaskWords(kVocab));
  Answer answer;
  const auto fail = [&] {
    answer.ids.push_back(0);
    answer.logprobs.push_back(TokenOutput().logprob);
    answer.reason = FinishReason::kStructuredOutputFailed;
    return answer;
  };
  while (answer.reason == FinishReason::kNone) {
    FakeStepModel::FillLogits(hash, row);
    sampling::RowContext context;
    context.seed = params.seq_seed.value_or(params.random_seed) + static_cast<uint64_t>(sample);
    context.position = static_cast<int32_t>(request.prompt_ids.size() + answer.ids.size());
    context.draw_mode = params.seq_seed ? sampling::DrawMode::kRace : sampling::DrawMode::kInverseCdf;
    if (static_cast<int64_t>(answer.ids.size()) < params.min_tokens) {
      context.banned_ids = end_bans;
    } else if (answer.ids.empty() && params.first_n_token_no_eos == 1) {
      context.banned_ids = first_bans;
    }
    if (params.has_penalties()) context.counts = &counts;
    if (answer.ids.size() < params.golden_token_ids.size()) context.forced_id = params.golden_token_ids[answer.ids.size()];
    if (constraint != nullptr && constraint->constrained()) {
      const Result<bool> is_masked = constraint->Fill(mask);
      if (!is_masked.ok()) return fail();
      if (*is_masked) context.grammar_mask = mask;
      if (*is_masked && !AnyAllowed(mask, params, context.banned_ids)) context.banned_ids = {};
      if (*is_masked && !AnyAllowed(mask, params, {})) return fail();
    }
    const sampling::SampledToken token = sampler.Sample(row, params, context).value();
    counts.AddOutput(token.id);
    answer.ids.push_back(token.id);
    answer.logprobs.push_back(token.logprob);
    hash = HashToken(hash, token.id);
    const auto& stops = params.stop_token_ids;
    if ((token.id == kEnd && !params.ignore_eos) || std::find(stops.begin(), stops.end(), token.id) != stops.end()) {
      answer.reason = FinishReason::kStop;
    } else if (static_cast<int64_t>(answer.ids.size()) >= params.max_tokens ||
               static_cast<int64_t>(request.prompt_ids.size() + answer.ids.size()) > o.scheduler.max_model_len) {
      answer.reason = FinishReason::kLength;
    }
    if (answer.reason == FinishReason::kNone && constraint != nullptr) {
      const Result<bool> is_accepted = constraint->Accept(token.id);
      if (!is_accepted.ok() || !*is_accepted) return fail();
    }
  }
  return answer;
}

Answer Only(const std::shared_ptr<RequestHandle>& handle) { return Collect(*handle)[0]; }

const Answer kFailed{{0}, {TokenOutput().logprob}, FinishReason::kStructuredOutputFailed};

TEST(StructuredOutput, TheGrammarDecidesTheTokens) {
  Fixture f;
  const Answer answer = Only(f.core->Submit(Request("5|6 7 * 8|9")).value());
  ASSERT_EQ(answer.ids.size(), 5u);
  EXPECT_TRUE(answer.ids[0] == 5 || answer.ids[0] == 6);
  EXPECT_EQ(answer.ids[1], 7);
  EXPECT_NE(answer.ids[2], kEnd);
  EXPECT_TRUE(answer.ids[3] == 8 || answer.ids[3] == 9);
  EXPECT_EQ(answer.ids[4], kEnd);
  EXPECT_EQ(answer.reason, FinishReason::kStop);
  EXPECT_EQ(answer, Reference(Request("5|6 7 * 8|9"), Options()));
}

TEST(StructuredOutput, WithoutACompilerSuchRequestsAreRefused) {
  FakeStepModel model(kVocab, 640, 100, Options().scheduler.num_state_slots(), 0);
  auto core = EngineCore::Create(model, Options()).value();
  const auto refused = core->Submit(Request("5"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(Only(core->Submit(Request("")).value()), Reference(Request(""), Options()));
}

// One that does not compile, one without a way on, one whose matcher fails, one of an unknown type: each ends alone.
TEST(StructuredOutput, FailuresAreTheRequestsOwn) {
  for (const bool is_async : {false, true}) {
    EngineCoreOptions o = Options();
    o.is_async = is_async;
    Fixture f(o);
    std::vector<std::shared_ptr<RequestHandle>> good;
    for (uint64_t i = 0; i < 4; ++i) good.push_back(f.core->Submit(Request(i % 2 == 0 ? "" : "* ...", 40, i)).value());
    EXPECT_EQ(Only(f.core->Submit(Request("fail")).value()), kFailed);
    EXPECT_EQ(Only(f.core->Submit(Request("dead")).value()), kFailed);
    EngineRequest unknown = Request("5");
    unknown.params.so_args->schema_type = "poem";
    EXPECT_EQ(Only(f.core->Submit(unknown).value()), kFailed);
    EngineRequest unbound = Request("5");
    unbound.params.so_args->bound_token_id = 4;
    EXPECT_EQ(Only(f.core->Submit(unbound).value()), kFailed);
    // Its matcher fails at the first token, which was emitted.
    const Answer thrown = Only(f.core->Submit(Request("throw")).value());
    EXPECT_EQ(thrown.ids.size(), 2u);
    EXPECT_EQ(thrown.ids.back(), 0);
    EXPECT_EQ(thrown.reason, FinishReason::kStructuredOutputFailed);
    for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(Only(good[i]), Reference(Request(i % 2 == 0 ? "" : "* ...", 40, i), o));
    f.core->Drain();
  }
}

TEST(StructuredOutput, EverySampleOfAFailureEnds) {
  Fixture f;
  EngineRequest request = Request("fail");
  request.params.temperature = 1;
  request.params.n = 3;
  for (const Answer& answer : Collect(*f.core->Submit(request).value())) EXPECT_EQ(answer, kFailed);
  f.core->WaitIdle();
  EXPECT_EQ(f.core->Stats().num_live, 0);
}

void ExpectAllLikeReference(EngineCoreOptions options, uint64_t seed, int num_requests, int num_threads = 1) {
  std::mt19937_64 rng(seed);
  std::vector<EngineRequest> requests;
  for (int i = 0; i < num_requests; ++i) requests.push_back(RandomRequest(rng));
  Fixture f(options, num_threads);
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (const EngineRequest& request : requests) handles.push_back(f.core->Submit(request).value());
  for (size_t i = 0; i < requests.size(); ++i) {
    const Answer expected = Reference(requests[i], options);
    EXPECT_EQ(Only(handles[i]), expected)
        << "request " << i << " of seed " << seed << ": " << (requests[i].params.so_args ? requests[i].params.so_args->schema : "free");
  }
  f.core->Drain();
}

TEST(StructuredOutput, TheSameWithAndWithoutDraftsAndAsynchronousSteps) {
  for (const int num_drafts : {0, 1, 5}) {
    for (const bool is_async : {false, true}) {
      SCOPED_TRACE(testing::Message() << num_drafts << " drafts, async " << is_async);
      EngineCoreOptions o = Options();
      o.is_async = is_async;
      o.scheduler.num_drafts = num_drafts;
      ExpectAllLikeReference(o, 17, 100);
      ExpectAllLikeReference(o, 18, 60, 3);
    }
  }
}

TEST(StructuredOutput, PreemptedOnesGoOnWhereTheyWere) {
  for (const int num_drafts : {0, 5}) {
    EngineCoreOptions o = Options();
    o.scheduler.num_drafts = num_drafts;
    o.scheduler.num_blocks = 7;
    std::mt19937_64 rng(5);
    Fixture f(o);
    std::vector<EngineRequest> requests;
    std::vector<std::shared_ptr<RequestHandle>> handles;
    for (int i = 0; i < 12; ++i) {
      EngineRequest request = RandomRequest(rng);
      request.prompt_ids.resize(110, 8);
      request.params.max_tokens = 60;
      request.params.golden_token_ids = {};
      request.params.allowed_token_ids.reset();
      request.params.so_args = Grammar(RandomGrammar(rng) + " ...");
      requests.push_back(request);
      handles.push_back(f.core->Submit(request).value());
    }
    for (size_t i = 0; i < handles.size(); ++i) EXPECT_EQ(Only(handles[i]), Reference(requests[i], o)) << i;
    EXPECT_GT(f.core->Stats().stats.num_preempted, 0);
    f.core->Drain();
  }
}

TEST(StructuredOutput, EverySampleHasAStateOfItsOwn) {
  for (const int num_drafts : {0, 3}) {
    EngineCoreOptions o = Options();
    o.scheduler.num_drafts = num_drafts;
    Fixture f(o);
    EngineRequest request = Request("4|5|6|7|8 * 10|11|12|13|14 * 20|21|22|23 ...", 30);
    request.params.temperature = 1.3;
    request.params.seq_seed = 5;
    request.params.n = 6;
    const std::vector<Answer> answers = Collect(*f.core->Submit(request).value());
    for (int i = 0; i < 6; ++i) EXPECT_EQ(answers[static_cast<size_t>(i)], Reference(request, o, i)) << i;
    EXPECT_GT(f.core->Stats().stats.num_forked, 0);
  }
}

// What a forced token breaks ends the request one token later; what limits leave nothing of ends it at once.
TEST(StructuredOutput, OtherLimitsTogetherWithAGrammar) {
  Fixture f;
  EngineRequest golden = Request("5 6 7");
  golden.params.golden_token_ids = {5, 9};
  Answer answer = Only(f.core->Submit(golden).value());
  EXPECT_EQ(answer.ids, (std::vector<int32_t>{5, 9, 0}));
  EXPECT_EQ(answer.reason, FinishReason::kStructuredOutputFailed);

  EngineRequest forced = Request("5|6 6|7 7");
  forced.params.golden_token_ids = {6, 7, 7};
  EXPECT_EQ(Only(f.core->Submit(forced).value()).ids, (std::vector<int32_t>{6, 7, 7, kEnd}));

  // A complete text ends, however few tokens it took.
  EngineRequest few = Request("5 6");
  few.params.min_tokens = 20;
  EXPECT_EQ(Only(f.core->Submit(few).value()).ids, (std::vector<int32_t>{5, 6, kEnd}));
  EngineRequest repeated = Request("5 ...");
  repeated.params.min_tokens = 8;
  EXPECT_GE(Only(f.core->Submit(repeated).value()).ids.size(), 8u);

  EngineRequest biased = Request("5|6|7");
  biased.params.logit_bias = {{7, 100}, {9, 100}};
  EXPECT_EQ(Only(f.core->Submit(biased).value()).ids, (std::vector<int32_t>{7, kEnd}));

  EngineRequest narrow = Request("5|6 7");
  narrow.params.allowed_token_ids = {6, 8, kEnd};
  EXPECT_EQ(Only(f.core->Submit(narrow).value()), (Answer{{6, 0}, {0.0f, TokenOutput().logprob}, FinishReason::kStructuredOutputFailed}));
  EngineRequest masked = Request("5|6 7");
  masked.allowed_mask = std::make_shared<const std::vector<uint32_t>>(std::vector<uint32_t>{1u << 6 | 1u << 7 | 1u << kEnd, 0});
  EXPECT_EQ(Only(f.core->Submit(masked).value()).ids, (std::vector<int32_t>{6, 7, kEnd}));

  EngineRequest endless = Request("5 6", 10);
  endless.params.ignore_eos = true;
  answer = Only(f.core->Submit(endless).value());
  EXPECT_EQ(answer.ids.size(), 10u);
  EXPECT_EQ((std::vector<int32_t>(answer.ids.begin(), answer.ids.begin() + 3)), (std::vector<int32_t>{5, 6, kEnd}));
  EXPECT_EQ(answer, Reference(endless, Options()));
}

TEST(StructuredOutput, OthersRunWhileAGrammarIsCompiled) {
  Fixture f;
  f.backend->CloseGate();
  const auto waiting = f.core->Submit(Request("5 6")).value();
  f.backend->WaitForWaiting(1);
  EXPECT_EQ(Only(f.core->Submit(Request("", 20)).value()), Reference(Request("", 20), Options()));
  EXPECT_FALSE(waiting->is_done());
  f.backend->OpenGate();
  EXPECT_EQ(Only(waiting).ids, (std::vector<int32_t>{5, 6, kEnd}));
}

TEST(StructuredOutput, ACompilationThatTakesTooLongFailsItsRequest) {
  SharedClock clock;
  constrain::CompileServiceOptions service;
  service.clock = &clock;
  service.timeout_ms = 1000;
  Fixture f(Options(), 1, service);
  f.backend->CloseGate();
  const auto waiting = f.core->Submit(Request("5 6")).value();
  f.backend->WaitForWaiting(1);
  clock.now_ns = 900'000'000;
  f.grammars->CheckDeadlines();
  EXPECT_EQ(Only(f.core->Submit(Request("", 20)).value()), Reference(Request("", 20), Options()));
  EXPECT_FALSE(waiting->is_done());
  clock.now_ns = 1'100'000'000;
  f.grammars->CheckDeadlines();
  EXPECT_EQ(Only(waiting), kFailed);
}

TEST(StructuredOutput, RequestsCanBeCancelledWhileTheirGrammarIsCompiled) {
  Fixture f;
  f.backend->CloseGate();
  EngineRequest request = Request("5 6");
  request.params.temperature = 1;
  request.params.seq_seed = 1;
  request.params.n = 3;
  const auto all = f.core->Submit(request).value();
  const auto one = f.core->Submit(request).value();
  EngineRequest late = Request("7 8");
  late.params.timeout_s = 0.001;
  EXPECT_EQ(Only(f.core->Submit(late).value()).reason, FinishReason::kTimeout);
  all->Cancel();
  for (const Answer& answer : Collect(*all)) EXPECT_EQ(answer, (Answer{{}, {}, FinishReason::kAbort}));
  one->CancelSample(1);
  CoreOutput output;
  ASSERT_TRUE(one->Next(output));
  EXPECT_EQ(output.sample, 1);
  EXPECT_EQ(output.finish_reason, FinishReason::kAbort);
  f.backend->OpenGate();
  const std::vector<Answer> answers = CollectRest(*one);
  EXPECT_EQ(answers[0].ids, (std::vector<int32_t>{5, 6, kEnd}));
  EXPECT_TRUE(answers[1].ids.empty());
  EXPECT_EQ(answers[2].ids, (std::vector<int32_t>{5, 6, kEnd}));
  f.core->Drain();
}

TEST(StructuredOutput, AnEngineEndsWhileAGrammarIsCompiled) {
  auto f = std::make_unique<Fixture>();
  f->backend->CloseGate();
  const auto waiting = f->core->Submit(Request("5 6")).value();
  f->backend->WaitForWaiting(1);
  f->core.reset();
  EXPECT_EQ(Only(waiting).reason, FinishReason::kAbort);
}

// A grammar whose matching gets slower with every token, by a clock of the test: 10 ms for each accept or fill at first.
TEST(StructuredOutput, TheGuardEndsAGrammarThatMatchesTooSlowly) {
  for (const int num_drafts : {0, 5}) {
    SharedClock clock;
    EngineCoreOptions o = Options();
    o.scheduler.num_drafts = num_drafts;
    o.sampling.grammar.clock = &clock;
    Fixture f(o);
    std::atomic<int64_t> cost_ns{1'000'000};
    std::atomic<int> num_steps{0};
    f.backend->on_step = [&] {
      ++num_steps;
      clock.now_ns += cost_ns;
      cost_ns = cost_ns * 5 / 4;
    };
    EngineRequest endless = Request("5 ...", 200);
    endless.params.logit_bias[kEnd] = -100;
    const auto slow = f.core->Submit(endless).value();
    const auto other = f.core->Submit(Request("", 60)).value();
    const Answer answer = Only(slow);
    EXPECT_EQ(answer.reason, FinishReason::kStructuredOutputFailed);
    EXPECT_EQ(answer.ids.back(), 0);
    EXPECT_GT(answer.ids.size(), 1u);
    EXPECT_TRUE(std::all_of(answer.ids.begin(), answer.ids.end() - 1, [](int32_t id) { return id == 5; }));
    // 1 ms * 1.25^18 is above the 50 ms of a step: what exceeds them is the last thing that is computed.
    EXPECT_LT(num_steps.load(), 25);
    EXPECT_EQ(Only(other), Reference(Request("", 60), o));
  }
}

TEST(StructuredOutput, TheGuardCountsTheWholeRequestToo) {
  SharedClock clock;
  EngineCoreOptions o = Options();
  o.sampling.grammar.clock = &clock;
  Fixture f(o);
  f.backend->on_step = [&] { clock.now_ns += 20'000'000; };  // 40 ms a step
  EngineRequest endless = Request("5 ...", 200);
  endless.params.logit_bias[kEnd] = -100;
  const Answer answer = Only(f.core->Submit(endless).value());
  EXPECT_EQ(answer.reason, FinishReason::kStructuredOutputFailed);
  EXPECT_NEAR(static_cast<double>(answer.ids.size()), 51, 2);
}

// Random traffic in little memory: grammars of all kinds, aborts, failing grammars, drafts; every answer is compared, also
// as far as a cancelled one came.
TEST(StructuredOutput, ThousandRandomRequests) {
  EngineCoreOptions o = Options();
  o.scheduler.num_blocks = 9;
  o.scheduler.num_drafts = 3;
  Fixture f(o, 2);
  std::mt19937_64 rng(2024);
  struct Open {
    EngineRequest request;
    std::shared_ptr<RequestHandle> handle;
    bool is_cancelled = false;
  };
  std::deque<Open> open;
  int64_t num_failed = 0, num_cancelled = 0;
  const auto finish = [&](Open& o1) {
    const Answer answer = Only(o1.handle);
    const auto& so_args = o1.request.params.so_args;
    if (so_args && (so_args->schema == "fail" || so_args->schema == "dead")) {
      if (!o1.is_cancelled) {
        EXPECT_EQ(answer, kFailed);
      }
      ++num_failed;
      return;
    }
    const Answer expected = Reference(o1.request, o);
    if (answer.reason == FinishReason::kAbort) {
      ASSERT_TRUE(o1.is_cancelled);
      ++num_cancelled;
      ASSERT_LE(answer.ids.size(), expected.ids.size());
      EXPECT_TRUE(std::equal(answer.ids.begin(), answer.ids.end(), expected.ids.begin()));
    } else {
      EXPECT_EQ(answer, expected);
    }
  };
  for (int i = 0; i < 1000; ++i) {
    Open& next = open.emplace_back();
    next.request = RandomRequest(rng);
    if (rng() % 20 == 0) next.request.params.so_args = Grammar(rng() % 2 == 0 ? "fail" : "dead");
    next.handle = f.core->Submit(next.request).value();
    if (rng() % 10 == 0) {
      Open& victim = open[rng() % open.size()];
      victim.is_cancelled = true;
      victim.handle->Cancel();
    }
    while (open.size() > 40) {
      finish(open.front());
      open.pop_front();
    }
  }
  for (Open& each : open) finish(each);
  f.core->Drain();
  const EngineCore::Snapshot stats = f.core->Stats();
  EXPECT_GT(stats.stats.num_preempted, 0);
  EXPECT_GT(stats.stats.num_accepted_drafts, 0);
  EXPECT_GT(num_failed, 0);
  EXPECT_GT(num_cancelled, 0);
  EXPECT_EQ(stats.num_live, 0);
}

}  // namespace
}  // namespace deepinfer::engine
