// SPDX-License-Identifier: Apache-2.0
#include "core/metrics.h"

#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepinfer {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsRegistry, SameNameAndLabelsAreOneMetric) {
  MetricsRegistry registry;
  Counter& a = registry.GetCounter("deepinfer_requests_total", "requests", {{"code", "200"}});
  Counter& b = registry.GetCounter("deepinfer_requests_total", "requests", {{"code", "200"}});
  Counter& c = registry.GetCounter("deepinfer_requests_total", "requests", {{"code", "500"}});
  EXPECT_EQ(&a, &b);
  EXPECT_NE(&a, &c);
  a.Add();
  b.Add(2);
  EXPECT_EQ(a.value(), 3);
  EXPECT_EQ(c.value(), 0);
}

TEST(MetricsRegistry, TextExposition) {
  MetricsRegistry registry;
  registry.GetCounter("deepinfer_requests_total", "requests answered", {{"code", "200"}}).Add(2);
  registry.GetGauge("deepinfer_requests_running", "requests in work").Set(1);
  const double buckets[] = {0.1, 1};
  Histogram& seconds = registry.GetHistogram("deepinfer_step_seconds", "time of a step", buckets);
  seconds.Observe(0.05);
  seconds.Observe(5);
  const std::string text = registry.TextExposition();
  EXPECT_THAT(text, HasSubstr("# HELP deepinfer_requests_total requests answered\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE deepinfer_requests_total counter\n"));
  EXPECT_THAT(text, HasSubstr("deepinfer_requests_total{code=\"200\"} 2"));
  EXPECT_THAT(text, HasSubstr("deepinfer_requests_running 1"));
  EXPECT_THAT(text, HasSubstr("deepinfer_step_seconds_bucket{le=\"0.1\"} 1"));
  EXPECT_THAT(text, HasSubstr("deepinfer_step_seconds_bucket{le=\"+Inf\"} 2"));
  EXPECT_THAT(text, HasSubstr("deepinfer_step_seconds_count 2"));
}

TEST(MetricsRegistry, LabelSetsAreBounded) {
  MetricsRegistry registry;
  for (int i = 0; i < 1000; ++i) registry.GetCounter("deepinfer_errors_total", "errors", {{"type", std::to_string(i)}}).Add();
  const std::string text = registry.TextExposition();
  EXPECT_THAT(text, HasSubstr("type=\"49\""));
  EXPECT_THAT(text, Not(HasSubstr("type=\"50\"")));
  EXPECT_THAT(text, HasSubstr("deepinfer_errors_total{type=\"other\"} 950"));
}

TEST(MetricsRegistry, UpdatesFromManyThreadsAddUp) {
  MetricsRegistry registry;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&registry] {
      for (int i = 0; i < 1000; ++i) registry.GetCounter("deepinfer_output_tokens_total", "tokens").Add();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registry.GetCounter("deepinfer_output_tokens_total", "tokens").value(), 4000);
}

TEST(MetricsRegistryDeathTest, OneNameHasOneType) {
  MetricsRegistry registry;
  registry.GetCounter("deepinfer_x", "x");
  EXPECT_DEATH(registry.GetGauge("deepinfer_x", "x"), "two types");
  EXPECT_DEATH(registry.GetCounter("bad name", "x"), "metric name");
}

}  // namespace
}  // namespace deepinfer
