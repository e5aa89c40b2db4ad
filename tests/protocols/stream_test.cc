// SPDX-License-Identifier: Apache-2.0
//
// The golden streams of the three protocols, through the bytes that a client would get.
#include <map>
#include <random>

#include "core/utf8.h"
#include "protocols/convert_request.h"
#include "protocols/stream_cases.h"

namespace deepinfer::protocols {
namespace {

// Our arguments where they differ on purpose (README of the golden cases).
const std::map<std::string, std::string>& OurArguments() {
  static const auto* const arguments = new std::map<std::string, std::string>{
      {"chat/stream-tool-badjson", R"({"n": "oops"})"},
      {"responses/stream-tool-badjson", R"({"n": "oops"})"},
      {"messages/stream-tool-badjson", R"({"n": "oops"})"},
      {"chat/stream-tool-no-string-attr", R"({"a": "x"})"},
      {"chat/stream-end-pname-quote", R"({"ab": )"},
  };
  return *arguments;
}

void SetArguments(Json& json, const std::string& arguments) {
  ForEachObject(json, [&](Json& object) {
    for (const char* key : {"arguments", "partial_json"}) {
      if (object.contains(key) && object[key] != "") object[key] = arguments;  // "" stands where a call begins
    }
    if (object.value("type", "") == "response.function_call_arguments.delta") object["delta"] = arguments;
  });
}

// Members that we add.
void ForgetOurs(Api api, Json& json) {
  if (api != Api::kResponses) return;
  ForEachObject(json, [](Json& object) {
    if (!object.contains("cached_tokens")) return;
    EXPECT_EQ(object["cache_write_tokens"], 0);
    object.erase("cache_write_tokens");
  });
}

class Stream : public ::testing::TestWithParam<Api> {};

TEST_P(Stream, GoldenCases) {
  const Api api = GetParam();
  int num_cases = 0;
  for (const Json& test_case : StreamCases(api)) {
    const std::string id = test_case["id"];
    SCOPED_TRACE(id);
    ++num_cases;
    RunResult ours = RunStream(api, test_case, ChunksOf(test_case));
    std::vector<Json> expected(test_case["expect"]["events"].begin(), test_case["expect"]["events"].end());
    Json response = test_case["expect"]["response"];
    if (!test_case["expect"]["sse_done"].is_null()) {
      expected.push_back(Json{{"event", nullptr}, {"data", test_case["expect"]["sse_done"]}});
    }
    for (Json& line : ours.lines) ForgetOurs(api, line);
    ForgetOurs(api, ours.response);
    ours.lines = Merge(api, ours.lines);
    expected = Merge(api, expected);
    if (IsMadeOfText(test_case)) {
      for (Json& line : ours.lines) ForgetReasoningTokens(line);
      for (Json& line : expected) ForgetReasoningTokens(line);
      ForgetReasoningTokens(ours.response);
      ForgetReasoningTokens(response);
    }
    if (const auto it = OurArguments().find(id); it != OurArguments().end()) {
      for (Json& line : expected) SetArguments(line, it->second);
      SetArguments(response, it->second);
      if (api == Api::kMessages) response["content"][0]["input"] = Json::parse(it->second);
    }
    ASSERT_EQ(ours.lines.size(), expected.size()) << DumpJson(Json(ours.lines)) << "\n" << DumpJson(Json(expected));
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(ours.lines[i], expected[i]);
    EXPECT_EQ(ours.response, response);
  }
  EXPECT_EQ(num_cases, api == Api::kChat ? 60 : api == Api::kResponses ? 24 : 14);
}

size_t VisibleBytes(Api api, Json line) {
  const DeltaPlace place = PlaceOf(api, line);
  return place.text == nullptr ? 0 : place.text->get<std::string>().size();
}

// Text is released at the latest when the reference releases it (it often holds a whole piece for a tag at its end).
TEST_P(Stream, NothingIsHeldLongerThanInTheReference) {
  const Api api = GetParam();
  for (const Json& test_case : StreamCases(api)) {
    if (!IsMadeOfText(test_case) || OurArguments().contains(test_case["id"].get<std::string>())) continue;
    // Parameter names are held (protocols.md 4).
    if (test_case["id"] == "chat/stream-end-pname-open" || test_case["id"] == "messages/stream-end-pname") continue;
    SCOPED_TRACE(test_case["id"].get<std::string>());
    const RunResult ours = RunStream(api, test_case, ChunksOf(test_case));
    const Json& their_counts = test_case["expect"]["events_per_push"];
    const Json& their_events = test_case["expect"]["events"];
    size_t our_event = 0;
    size_t their_event = 0;
    size_t our_bytes = 0;
    size_t their_bytes = 0;
    for (size_t push = 0; push < ours.lines_per_push.size() && push < their_counts.size(); ++push) {
      for (size_t i = 0; i < ours.lines_per_push[push]; ++i) our_bytes += VisibleBytes(api, ours.lines[our_event++]);
      for (size_t i = 0; i < their_counts[push].get<size_t>(); ++i) their_bytes += VisibleBytes(api, their_events[their_event++]);
      EXPECT_GE(our_bytes, their_bytes) << "push " << push;
    }
  }
}

// The text of all chunks, cut anew; a stream without the detokenizer, events and body.
class CutStream {
 public:
  CutStream(Api api, const Json& test_case)
      : api_(api), options_(OptionsOf(test_case)), request_(ConvertRequest(api, DumpJson(test_case["request"]), {}).value()) {
    for (const Json& chunk : test_case["chunks"]) text_ += chunk["text"].get<std::string>();
  }
  const std::string& text() const { return text_; }

  struct Output {
    std::vector<Json> lines;
    std::string body;
    bool operator==(const Output&) const = default;
  };
  Output Run(const std::vector<std::string_view>& pieces) const {
    Output output;
    std::string bytes;
    for (const bool is_stream : {true, false}) {
      ResponseSetup setup = MakeResponseSetup(request_, "ID", 0);
      setup.is_stream = is_stream;
      ProtocolStream stream(request_, nullptr, setup, 0);
      stream.UseFixedToolIds();
      std::string& out = is_stream ? bytes : output.body;
      stream.Start(10, 4, out);
      for (const std::string_view piece : pieces) {
        if (!stream.is_stopped()) stream.PushText(piece, 0, out);
      }
      stream.Finish(options_.finish, 0, out);
    }
    output.lines = Merge(api_, ReadServerSentEvents(bytes));
    ForgetUsage(output.lines);
    const size_t usage = output.body.find("\"usage\":{");
    output.body.erase(usage, output.body.find('}', usage) - usage);
    return output;
  }

 private:
  Api api_;
  DebugStreamOptions options_;
  ConvertedRequest request_;
  std::string text_;
};

TEST_P(Stream, EveryCutIntoTwoGivesTheSameResult) {
  for (const Json& test_case : StreamCases(GetParam())) {
    if (!IsMadeOfText(test_case)) continue;
    SCOPED_TRACE(test_case["id"].get<std::string>());
    const CutStream stream(GetParam(), test_case);
    const std::string_view text = stream.text();
    const CutStream::Output whole = stream.Run({text});
    for (size_t cut = 1; cut < text.size(); ++cut) {  // also inside characters
      ASSERT_EQ(stream.Run({text.substr(0, cut), text.substr(cut)}), whole) << "cut at " << cut;
    }
  }
}

TEST_P(Stream, EveryByteAndRandomCutsGiveTheSameResult) {
  std::mt19937 random(7);
  for (const Json& test_case : StreamCases(GetParam())) {
    if (!IsMadeOfText(test_case)) continue;
    SCOPED_TRACE(test_case["id"].get<std::string>());
    const CutStream stream(GetParam(), test_case);
    const std::string_view text = stream.text();
    const CutStream::Output whole = stream.Run({text});
    for (int round = 0; round <= 40; ++round) {
      const size_t max_bytes = round == 0 ? 1 : 1 + random() % 24;
      std::vector<std::string_view> pieces;
      for (size_t begin = 0; begin < text.size();) {
        const size_t n = std::min(text.size() - begin, 1 + random() % max_bytes);
        pieces.push_back(text.substr(begin, n));
        begin += n;
      }
      ASSERT_EQ(stream.Run(pieces), whole) << "round " << round;
    }
  }
}

// The same for tokens: one by one, all at once, or in between.
TEST_P(Stream, AnyGroupingOfTokensGivesTheSameEvents) {
  const Api api = GetParam();
  std::mt19937 random(11);
  for (const Json& test_case : StreamCases(api)) {
    if (IsMadeOfText(test_case)) continue;
    SCOPED_TRACE(test_case["id"].get<std::string>());
    Json ids = Json::array();
    Json logprobs = Json::array();
    for (const Json& chunk : test_case["chunks"]) {
      for (const Json& id : chunk["ids"]) ids.push_back(id);
      if (chunk.contains("logprobs")) {
        for (const Json& entry : chunk["logprobs"]) logprobs.push_back(entry);
      }
    }
    const std::vector<Json> expected = Merge(api, RunStream(api, test_case, ChunksOf(test_case)).lines);
    for (int round = 0; round < 20; ++round) {
      std::vector<Json> chunks;
      for (size_t i = 0; i < ids.size();) {
        const size_t n = std::min(ids.size() - i, size_t{1} + random() % 4);
        Json chunk = Json::object();
        chunk["ids"] = Json(std::vector<Json>(ids.begin() + static_cast<long>(i), ids.begin() + static_cast<long>(i + n)));
        if (!logprobs.empty()) {
          chunk["logprobs"] =
              Json(std::vector<Json>(logprobs.begin() + static_cast<long>(i), logprobs.begin() + static_cast<long>(i + n)));
        }
        chunks.push_back(chunk);
        i += n;
      }
      EXPECT_EQ(Merge(api, RunStream(api, test_case, chunks).lines), expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Protocols, Stream, ::testing::ValuesIn(kStreamApis),
                         [](const auto& api) { return std::string(ApiName(api.param)); });

}  // namespace
}  // namespace deepinfer::protocols
