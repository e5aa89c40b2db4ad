// SPDX-License-Identifier: Apache-2.0
//
// The profiling endpoint's states with a clock that moves when told.
#include "engine/step_profiler.h"

#include <atomic>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "core/json.h"
#include "temporary_dir.h"

namespace deepinfer::engine {
namespace {

using ::testing::HasSubstr;

class StepProfilerTest : public ::testing::Test {
 protected:
  StepProfilerOptions Options() {
    StepProfilerOptions o;
    o.default_dir = dir_.path();
    o.device_idx = 1;
    o.rank = 2;
    o.clock = &clock_;
    o.unix_ms = [] { return int64_t{1'700'000'000'042}; };  // 2023-11-14 22:13:20.042 UTC
    return o;
  }
  // A step that is planned now.
  void Step(StepProfiler& profiler) {
    StepTiming t;
    t.number = ++number_;
    t.kind = StepKind::kDecode;
    t.schedule_begin_ns = clock_.NowNs();
    t.schedule_end_ns = t.run_begin_ns = t.schedule_begin_ns + 10;
    t.run_end_ns = t.process_begin_ns = t.run_begin_ns + 1000;
    t.process_end_ns = t.process_begin_ns + 10;
    profiler.OnStep(t);
  }
  static std::string Message(const ProfileResponse& response) {
    const Json json = ParseJson(response.body).value();
    EXPECT_EQ(json["status"], response.status == 200 ? "ok" : "error");
    return json["message"].get<std::string>();
  }

  testing::TemporaryDir dir_;
  FakeClock clock_;
  uint64_t number_ = 0;
};

TEST_F(StepProfilerTest, RecordsTheNextSteps) {
  StepProfiler profiler(Options());
  Step(profiler);  // nobody asked
  ASSERT_FALSE(profiler.Begin("num_steps=3", ""));
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(profiler.Poll());
    clock_.AdvanceMs(5);
    Step(profiler);
  }
  Step(profiler);  // not part of it
  const auto response = profiler.Poll();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 200);
  const Json json = ParseJson(response->body).value();
  const std::string path = dir_.path() + "/profile-127.0.0.1-gpu1-rank2-20231114-221320-042.json";
  EXPECT_EQ(json["status"], "ok");
  EXPECT_EQ(json["message"], "recorded 3 steps");
  EXPECT_EQ(json["gpu_id"], 1);
  EXPECT_EQ(json["trace_file"], path);
  const Json trace = ParseJson(ReadFile(path, 1 << 20).value()).value();
  ASSERT_EQ(trace["traceEvents"].size(), 2u + 3 * 3);
  EXPECT_EQ(trace["traceEvents"][2]["name"], "plan 2");
}

TEST_F(StepProfilerTest, AStepThatWasUnderWayDoesNotCount) {
  StepProfiler profiler(Options());
  StepTiming old;
  old.number = 1;
  old.schedule_begin_ns = clock_.NowNs();
  clock_.AdvanceMs(1);
  ASSERT_FALSE(profiler.Begin("", R"({"num_steps": 1})"));
  profiler.OnStep(old);
  EXPECT_FALSE(profiler.Poll());
  Step(profiler);
  EXPECT_EQ(profiler.Poll()->status, 200);
}

TEST_F(StepProfilerTest, DefaultsAndWhoWins) {
  const std::string other = dir_.path() + "/a b";
  std::filesystem::create_directory(other);
  const auto parse = [&](std::string_view query, std::string_view body) { return ParseProfileRequest(query, body, dir_.path()).value(); };
  EXPECT_EQ(parse("", "").num_steps, 20);
  EXPECT_EQ(parse("", "").output_dir, dir_.path());
  EXPECT_EQ(parse("", "{}").num_steps, 20);
  EXPECT_EQ(parse("num_steps=50", "").num_steps, 50);
  EXPECT_EQ(parse("num_steps=5", R"({"num_steps":7})").num_steps, 7);
  EXPECT_EQ(parse("num_steps=5", R"({"output_dir":")" + dir_.path() + R"("})").num_steps, 5);
  EXPECT_EQ(parse("output_dir=" + dir_.path() + "/a+b&num_steps=1", "").output_dir, other);
  EXPECT_EQ(parse("&output_dir=" + dir_.path() + "%2Fa%20b&", "").output_dir, other);
}

TEST_F(StepProfilerTest, BadRequests) {
  const struct {
    std::string query, body, message;
  } cases[] = {
      {"num_steps=0", "", "num_steps is 0 but must be from 1 to 50"},
      {"num_steps=51", "", "num_steps is 51"},
      {"num_steps=-1", "", "num_steps is -1"},
      {"num_steps=", "", "must be a whole number"},
      {"num_steps=5x", "", "must be a whole number"},
      {"num_steps=true", "", "must be a whole number"},
      {"num_steps=99999999999999999999", "", "must be a whole number"},
      {"num_steps=2&num_steps=2", "", "given twice"},
      {"steps=2", "", "unknown parameter \"steps\""},
      {"num_steps=%2", "", "hexadecimal"},
      {"num_steps=%zz", "", "hexadecimal"},
      {"output_dir=/nowhere/at/all", "", "is no directory"},
      {"output_dir=", "", "is no directory"},
      {"output_dir=/tmp%00x", "", "is no directory"},
      {"", R"({"num_steps":true})", "must be a whole number"},
      {"", R"({"num_steps":2.5})", "must be a whole number"},
      {"", R"({"num_steps":"5"})", "must be a whole number"},
      {"", R"({"num_steps":0})", "num_steps is 0"},
      {"", R"({"num_steps":18446744073709551615})", "must be from 1 to 50"},
      {"", R"({"output_dir":5})", "output_dir must be a string"},
      {"", R"({"depth":5})", "unknown parameter \"depth\""},
      {"", "[]", "must be a JSON object"},
      {"", "{", "the body"},
  };
  StepProfiler profiler(Options());
  for (const auto& c : cases) {
    const auto response = profiler.Begin(c.query, c.body);
    ASSERT_TRUE(response) << c.query << c.body;
    EXPECT_EQ(response->status, 400);
    EXPECT_THAT(Message(*response), HasSubstr(c.message)) << c.query << c.body;
  }
  EXPECT_FALSE(profiler.Begin("", ""));  // none of them left anything behind
}

TEST_F(StepProfilerTest, OneAtATime) {
  StepProfiler profiler(Options());
  ASSERT_FALSE(profiler.Begin("num_steps=1", ""));
  EXPECT_EQ(profiler.Begin("", "")->status, 409);  // queued
  Step(profiler);
  const auto refused = profiler.Begin("", "");  // complete, not answered yet
  EXPECT_EQ(refused->status, 409);
  EXPECT_THAT(Message(*refused), HasSubstr("another profile"));
  EXPECT_EQ(profiler.Poll()->status, 200);
  EXPECT_FALSE(profiler.Begin("num_steps=2", ""));
  Step(profiler);
  EXPECT_EQ(profiler.Begin("", "")->status, 409);  // recording
}

TEST_F(StepProfilerTest, NotPickedUp) {
  StepProfiler profiler(Options());
  ASSERT_FALSE(profiler.Begin("", ""));
  clock_.AdvanceMs(29'999);
  EXPECT_FALSE(profiler.Poll());
  clock_.AdvanceMs(1);
  const auto response = profiler.Poll();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 503);
  EXPECT_THAT(Message(*response), HasSubstr("30 s"));
  Step(profiler);  // the request is gone
  EXPECT_FALSE(profiler.Begin("num_steps=1", ""));
  Step(profiler);
  EXPECT_EQ(profiler.Poll()->status, 200);
}

TEST_F(StepProfilerTest, NotFinished) {
  StepProfiler profiler(Options());
  ASSERT_FALSE(profiler.Begin("num_steps=2", ""));
  clock_.AdvanceMs(29'000);
  Step(profiler);
  clock_.AdvanceMs(599'999);
  EXPECT_FALSE(profiler.Poll());
  clock_.AdvanceMs(1);
  const auto response = profiler.Poll();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 503);
  EXPECT_THAT(Message(*response), HasSubstr("1 of 2 steps"));
}

TEST_F(StepProfilerTest, Cancelled) {
  StepProfiler profiler(Options());
  profiler.Cancel();  // nothing to cancel
  ASSERT_FALSE(profiler.Begin("num_steps=2", ""));
  Step(profiler);
  profiler.Cancel();
  Step(profiler);
  EXPECT_EQ(profiler.Poll()->status, 499);
  EXPECT_FALSE(profiler.Begin("", ""));
}

TEST_F(StepProfilerTest, WriteFailure) {
  StepProfilerOptions options = Options();
  options.write = [](const std::string&, std::string_view) { return ResourceExhausted("cannot write: no space left"); };
  StepProfiler profiler(options);
  ASSERT_FALSE(profiler.Begin("num_steps=1", ""));
  Step(profiler);
  const auto response = profiler.Poll();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 500);
  EXPECT_THAT(Message(*response), HasSubstr("no space left"));
  EXPECT_FALSE(profiler.Begin("", ""));
}

TEST_F(StepProfilerTest, DirectoryThatVanishes) {
  const std::string gone = dir_.path() + "/gone";
  std::filesystem::create_directory(gone);
  StepProfiler profiler(Options());
  ASSERT_FALSE(profiler.Begin("num_steps=1&output_dir=" + gone, ""));
  Step(profiler);
  std::filesystem::remove(gone);
  EXPECT_EQ(profiler.Poll()->status, 500);
}

TEST_F(StepProfilerTest, HandleWaitsForTheSteps) {
  StepProfilerOptions options = Options();
  options.clock = &Clock::Steady();
  StepProfiler profiler(options);
  std::atomic<bool> is_over{false};
  std::thread engine([&] {
    while (!is_over) {
      StepTiming t;
      t.number = 1;
      t.schedule_begin_ns = Clock::Steady().NowNs();
      profiler.OnStep(t);
      std::this_thread::yield();
    }
  });
  EXPECT_EQ(profiler.Handle("num_steps=4", "").status, 200);
  EXPECT_EQ(profiler.Handle("num_steps=0", "").status, 400);
  is_over = true;
  engine.join();
  std::atomic<bool> is_cancelled{false};
  std::thread client([&] {
    while (!is_cancelled) {
      profiler.Cancel();
      std::this_thread::yield();
    }
  });
  EXPECT_EQ(profiler.Handle("", "").status, 499);
  is_cancelled = true;
  client.join();
}

}  // namespace
}  // namespace deepinfer::engine
