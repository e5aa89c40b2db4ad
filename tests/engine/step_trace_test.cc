// SPDX-License-Identifier: Apache-2.0
#include "engine/step_trace.h"

#include <gtest/gtest.h>

#include "core/json.h"

namespace deepinfer::engine {
namespace {

TEST(StepTrace, IsChromeTraceJson) {
  StepTiming step;
  step.number = 7;
  step.kind = StepKind::kDecode;
  step.num_rows = step.num_tokens = 3;
  step.schedule_begin_ns = 1000;
  step.schedule_end_ns = 3000;
  step.run_begin_ns = 4000;
  step.run_end_ns = 9500;
  step.process_begin_ns = 10000;
  step.process_end_ns = 11000;
  const Json json = ParseJson(ChromeTrace({&step, 1})).value();
  const Json& events = json["traceEvents"];
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[3]["name"], "run 7");
  EXPECT_EQ(events[3]["tid"], 2);
  EXPECT_EQ(events[3]["ts"], 3.0);
  EXPECT_EQ(events[3]["dur"], 5.5);
  EXPECT_EQ(events[3]["args"]["rows"], 3);
  EXPECT_EQ(ParseJson(ChromeTrace({})).value()["traceEvents"].size(), 2u);
}

}  // namespace
}  // namespace deepinfer::engine
