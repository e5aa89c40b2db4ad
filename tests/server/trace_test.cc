// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "core/json.h"
#include "server/trace_context.h"
#include "server/tracer.h"

namespace deepinfer::server {
namespace {

constexpr const char* kHeader = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(Trace, ParsesTraceparent) {
  TraceContext context;
  ASSERT_TRUE(ParseTraceparent(kHeader, context));
  EXPECT_EQ(context.TraceId(), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(SpanIdText(context.parent_id), "b7ad6b7169203331");
  EXPECT_TRUE(context.is_sampled);
  context.span_id = 0x1f;
  EXPECT_EQ(context.Header(), "00-0af7651916cd43dd8448eb211c80319c-000000000000001f-01");
  ASSERT_TRUE(ParseTraceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-fe", context));
  EXPECT_FALSE(context.is_sampled);
  EXPECT_TRUE(ParseTraceparent("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", context));
}

TEST(Trace, IgnoresMalformedTraceparent) {
  for (const char* header : {"", "00", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
                             "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                             "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
                             "00-0af7651916cd43dd8448eb211c80319cxb7ad6b7169203331-01", "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x"}) {
    TraceContext context;
    EXPECT_FALSE(ParseTraceparent(header, context)) << header;
    EXPECT_FALSE(context.is_set());
  }
}

Json Spans(const ExchangeRecord& record) {
  const Json body = ParseJson(TraceBody({record}, "1", 1000, 5000)).value();
  return body["resourceSpans"][0]["scopeSpans"][0]["spans"];
}

TEST(Trace, SpansOfARequest) {
  ExchangeRecord record;
  ASSERT_TRUE(ParseTraceparent(kHeader, record.trace));
  record.trace.span_id = 2;
  record.endpoint = "chat_completions";
  record.status = 200;
  record.begin_ns = 100;
  record.body_ns = 110;
  record.submitted_ns = 120;
  record.scheduled_ns = 130;
  record.first_token_ns = 140;
  record.end_ns = 150;
  record.num_preempted = 2;
  record.preempted_ns = 145;
  const Json spans = Spans(record);
  const std::vector<std::array<const char*, 3>> expected = {
      {"http", "4100", "4150"}, {"tokenize", "4110", "4120"}, {"queue", "4120", "4130"}, {"prefill", "4130", "4140"}, {"decode", "4140", "4150"}};
  ASSERT_EQ(spans.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(spans[i]["name"], expected[i][0]);
    EXPECT_EQ(spans[i]["startTimeUnixNano"], expected[i][1]);
    EXPECT_EQ(spans[i]["endTimeUnixNano"], expected[i][2]);
    EXPECT_EQ(spans[i]["traceId"], "0af7651916cd43dd8448eb211c80319c");
    EXPECT_EQ(spans[i]["parentSpanId"], i == 0 ? "b7ad6b7169203331" : "0000000000000002");
  }
  EXPECT_EQ(spans[4]["events"][0]["name"], "first_token");
  EXPECT_EQ(spans[4]["events"][1]["name"], "retract");
  EXPECT_EQ(spans[4]["events"][1]["timeUnixNano"], "4145");
  EXPECT_FALSE(spans[0].contains("status"));
}

TEST(Trace, RequestsThatEndEarly) {
  ExchangeRecord record;
  ASSERT_TRUE(ParseTraceparent(kHeader, record.trace));
  record.begin_ns = 100;
  record.end_ns = 150;
  record.status = 401;
  EXPECT_EQ(Spans(record).size(), 1u);
  record.body_ns = 110;
  record.status = 400;
  EXPECT_EQ(Spans(record).size(), 2u);
  record.submitted_ns = 120;
  record.status = 504;
  const Json spans = Spans(record);
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[2]["endTimeUnixNano"], "4150");
  EXPECT_EQ(spans[0]["status"]["code"], 2);
}

// Nobody listens: requests end all the same, and what is lost is counted.
TEST(Trace, NoCollector) {
  TracerOptions options;
  options.endpoint = net::ParseUrl("http://127.0.0.1:1/v1/traces").value();
  options.max_queued = 4;
  Tracer tracer(options);
  ExchangeRecord record;
  record.status = 500;
  for (int i = 0; i < 10; ++i) tracer.End(record);
  EXPECT_GE(tracer.num_dropped(), 1);
  record.status = 200;
  const int64_t num_dropped = tracer.num_dropped();
  tracer.End(record);  // not sampled
  EXPECT_GE(tracer.num_dropped(), num_dropped);
}

}  // namespace
}  // namespace deepinfer::server
