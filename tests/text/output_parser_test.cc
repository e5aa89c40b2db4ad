// SPDX-License-Identifier: Apache-2.0
#include "text/output_parser.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "text/python_json.h"

namespace deepinfer::text {
namespace {

struct Call {
  std::string name;
  std::string arguments;
  bool is_complete = false;

  bool operator==(const Call&) const = default;
};

// Everything the parser said, joined.
struct Output : ParserSink {
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;
  int stop_idx = -1;
  std::string order;  // which kinds came, without repetitions
  std::string verbatim_source;  // the output rebuilt at the positions the parser named

  void Note(char kind) {
    if (order.empty() || order.back() != kind) order += kind;
  }
  void OnText(Channel channel, std::string_view text, uint64_t source_begin, bool is_verbatim) override {
    Note(channel == Channel::kReasoning ? 'r' : 'c');
    (channel == Channel::kReasoning ? reasoning : content) += text;
    if (!is_verbatim) return;
    if (verbatim_source.size() < source_begin + text.size()) verbatim_source.resize(source_begin + text.size(), '#');
    verbatim_source.replace(source_begin, text.size(), text);
  }
  void OnToolCall(std::string_view name) override {
    Note('t');
    calls.push_back({std::string(name), "", false});
  }
  void OnArguments(std::string_view json_text) override {
    Note('a');
    calls.back().arguments += json_text;
  }
  void OnToolCallEnd() override { calls.back().is_complete = true; }
  void OnStop(size_t idx, uint64_t) override { stop_idx = static_cast<int>(idx); }
};

Output ParsePieces(const ParserOptions& options, const std::vector<std::string>& pieces) {
  Output output;
  OutputParser parser(options, output);
  for (const std::string& piece : pieces) parser.Push(piece);
  parser.Finish();
  return output;
}

Output Parse(const ParserOptions& options, const std::string& text) { return ParsePieces(options, {text}); }

ParserOptions Thinking() {
  ParserOptions options;
  options.initial_stage = InitialStage::kReasoningStart;
  return options;
}

ParserOptions Tools() {
  ParserOptions options;
  options.parse_tool_calls = true;
  return options;
}

ParserOptions JsonObject() {
  ParserOptions options;
  options.parse_json_output = true;
  return options;
}

std::string Invoke(const std::string& parameters) {
  return "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"w\">\n" + parameters + "\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
}

std::string Parameter(const std::string& rest) { return "<｜DSML｜ parameter name=\"" + rest + "</｜DSML｜ parameter>"; }

std::string ArgumentsOf(const std::string& parameters) {
  const Output output = Parse(Tools(), Invoke(parameters));
  EXPECT_EQ(output.calls.size(), 1u);
  return output.calls.empty() ? "" : output.calls[0].arguments;
}

TEST(OutputParser, NewlinesAroundThinkingAreDropped) {
  const Output output = Parse(Thinking(), "\n\nR\n\nx\n\n</think>\n\nA\n");
  EXPECT_EQ(output.reasoning, "R\n\nx");
  EXPECT_EQ(output.content, "A\n");
}

TEST(OutputParser, StrayThinkTags) {
  EXPECT_EQ(Parse({}, "a<think>b</think>\n\nc").content, "a<think>b\n\nc");
  EXPECT_EQ(Parse(Thinking(), "a<think>b</think>c</think>d").content, "cd");
}

TEST(OutputParser, ThinkingNeverClosed) {
  const Output output = Parse(Thinking(), "no end\n\n");
  EXPECT_EQ(output.reasoning, "no end\n\n");
  EXPECT_EQ(output.content, "");
}

TEST(OutputParser, InitialStages) {
  ParserOptions options;
  options.initial_stage = InitialStage::kReasoningContinuation;
  EXPECT_EQ(Parse(options, "\n\nmore</think>\nans").reasoning, "\n\nmore");
  options.initial_stage = InitialStage::kContentContinuation;
  EXPECT_EQ(Parse(options, "\n\nis").content, "\n\nis");
  options.initial_stage = InitialStage::kAnswer;
  EXPECT_EQ(Parse(options, "\n\nis").content, "is");
}

TEST(OutputParser, StopStrings) {
  ParserOptions options;
  options.stop_sequences = {"abcd", "bc"};
  Output output = Parse(options, "xabcdy");
  EXPECT_EQ(output.content, "xa");  // the one that ends first
  EXPECT_EQ(output.stop_idx, 1);
  options.stop_sequences = {"bc", "abc"};
  EXPECT_EQ(Parse(options, "xabcy").content, "xa");  // both end here: list order
  options.stop_sequences = {"abc", "bc"};
  EXPECT_EQ(Parse(options, "xabcy").content, "x");
  options.stop_sequences = {"aab"};
  EXPECT_EQ(Parse(options, "aaab").content, "a");
  options.stop_sequences = {"\n\n"};
  EXPECT_EQ(Parse(options, "\n\na\n\nb").content, "a");  // leading newlines are no answer text
}

TEST(OutputParser, StopStringsOnlyInAnswerText) {
  ParserOptions options = Tools();
  options.initial_stage = InitialStage::kReasoningStart;
  options.stop_sequences = {"END"};
  const Output output = Parse(options, "aEND</think>b" + Invoke(Parameter("k\" string=\"true\">END")));
  EXPECT_EQ(output.reasoning, "aEND");
  EXPECT_EQ(output.content, "b");
  ASSERT_EQ(output.calls.size(), 1u);
  EXPECT_EQ(output.calls[0].arguments, "{\"k\": \"END\"}");
  EXPECT_EQ(output.stop_idx, -1);
}

TEST(OutputParser, NothingAfterAStopString) {
  Output output;
  ParserOptions options;
  options.stop_sequences = {"END"};
  OutputParser parser(options, output);
  parser.Push("abcE");
  EXPECT_EQ(output.content, "abc");
  parser.Push("NDx");
  EXPECT_TRUE(parser.is_stopped());
  parser.Push("y");
  parser.Finish();
  EXPECT_EQ(output.content, "abc");
}

TEST(OutputParser, TextIsReleasedAtOnce) {
  Output output;
  OutputParser parser(Tools(), output);
  parser.Push("say <｜DSM");
  EXPECT_EQ(output.content, "say ");
  parser.Push("x\n");
  EXPECT_EQ(output.content, "say <｜DSMx");  // the newline may belong to a calls block
  parser.Push("\n!");
  EXPECT_EQ(output.content, "say <｜DSMx\n\n!");
}

TEST(OutputParser, ToolCalls) {
  const Output output = Parse(Tools(),
                              "pre\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke>\n<｜DSML｜ invoke "
                              "name=\"g\">\n" +
                                  Parameter("a\" string=\"true\">x\"y\n\té") + "\n" + Parameter("n\" string=\"false\"> 3 ") +
                                  "\n</｜DSML｜ invoke>\n</｜DSML｜ calls>post");
  EXPECT_EQ(output.content, "pre");
  EXPECT_EQ(output.calls,
            (std::vector<Call>{{"f", "{}", true}, {"g", "{\"a\": \"x\\\"y\\n\\té\", \"n\":  3 }", true}}));
}

TEST(OutputParser, OldSpellingAndMissingWrapper) {
  EXPECT_EQ(Parse(Tools(),
                  "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"w\">\n<｜DSML｜parameter name=\"a\" "
                  "string=\"true\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>")
                .calls,
            (std::vector<Call>{{"w", "{\"a\": \"1\"}", true}}));
  EXPECT_EQ(Parse(Tools(), "<｜DSML｜ invoke name=\"w\">\n</｜DSML｜ invoke>\n").calls,
            (std::vector<Call>{{"w", "{}", true}}));
}

TEST(OutputParser, MarkupWithoutToolsIsText) {
  std::string text = "a";  // not "a" + ...: GCC 12 warns falsely about that
  text += Invoke(Parameter("k\" string=\"true\">v"));
  EXPECT_EQ(Parse({}, text).content, text);
}

TEST(OutputParser, CallsBlockInsideThinking) {
  ParserOptions options = Tools();
  options.initial_stage = InitialStage::kReasoningStart;
  const Output output = Parse(options, "plan" + Invoke(""));
  EXPECT_EQ(output.reasoning, "plan");
  EXPECT_EQ(output.content, "");
  EXPECT_EQ(output.calls, (std::vector<Call>{{"w", "{}", true}}));
}

TEST(OutputParser, MalformedCalls) {
  // Not JSON although it says so: a string.
  EXPECT_EQ(ArgumentsOf(Parameter("n\" string=\"false\">oops")), "{\"n\": \"oops\"}");
  EXPECT_EQ(ArgumentsOf(Parameter("n\" string=\"false\">[1, ")), "{\"n\": \"[1, \"}");
  EXPECT_EQ(ArgumentsOf(Parameter("n\" string=\"false\">")), "{\"n\": \"\"}");
  EXPECT_EQ(ArgumentsOf(Parameter("n\" string=\"false\">1e400")), "{\"n\": \"1e400\"}");
  EXPECT_EQ(ArgumentsOf(Parameter(std::string("n\" string=\"false\">2\0", 20))), "{\"n\": \"2\\u0000\"}");
  // No attribute or another one.
  EXPECT_EQ(ArgumentsOf(Parameter("a\">x")), "{\"a\": \"x\"}");
  EXPECT_EQ(ArgumentsOf(Parameter("a\">7")), "{\"a\": 7}");
  EXPECT_EQ(ArgumentsOf(Parameter("a\" string=\"maybe\">7")), "{\"a\": 7}");
  // Names with blanks and quotes, empty names.
  EXPECT_EQ(ArgumentsOf(Parameter("ship to\" string=\"true\">v")), "{\"ship to\": \"v\"}");
  EXPECT_EQ(ArgumentsOf(Parameter("q\"uote\" string=\"true\">v")), "{\"q\\\"uote\": \"v\"}");
  EXPECT_EQ(ArgumentsOf(Parameter("\" string=\"true\">v")), "{\"\": \"v\"}");
  // An opening tag inside a value is text; any closing tag ends it.
  EXPECT_EQ(ArgumentsOf("<｜DSML｜ parameter name=\"a\" string=\"true\"><｜DSML｜ parameter></｜DSML｜ anything>"),
            "{\"a\": \"<｜DSML｜ parameter>\"}");
  // Unquoted or oddly spaced names: no call.
  EXPECT_TRUE(Parse(Tools(), "<｜DSML｜ invoke name=w>\n</｜DSML｜ invoke>").calls.empty());
  EXPECT_TRUE(Parse(Tools(), "<｜DSML｜ invoke  name=\"w\">\n</｜DSML｜ invoke>").calls.empty());
  // Further attributes of the tool are skipped; a second block is dropped.
  EXPECT_EQ(Parse(Tools(), "<｜DSML｜ invoke name=\"w\" id=\"1\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>" + Invoke("")).calls,
            (std::vector<Call>{{"w", "{}", true}}));
}

TEST(OutputParser, EndOfInputInEachState) {
  const std::string open = "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"w\">\n";
  EXPECT_TRUE(Parse(Tools(), "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"w").calls.empty());
  EXPECT_EQ(Parse(Tools(), open).calls, (std::vector<Call>{{"w", "", false}}));
  EXPECT_EQ(Parse(Tools(), open + "<｜DSML｜ parameter name=\"ab").calls[0].arguments, "{\"ab");
  EXPECT_EQ(Parse(Tools(), open + "<｜DSML｜ parameter name=\"ab\"").calls[0].arguments, "{\"ab\": ");
  EXPECT_EQ(Parse(Tools(), open + "<｜DSML｜ parameter name=\"n\" string=\"false\">12</｜DS").calls[0].arguments,
            "{\"n\": 12</｜DS");
  EXPECT_EQ(Parse(Tools(), open + "<｜DSML｜ parameter name=\"k\" string=\"true\">x\"y</｜DS").calls[0].arguments,
            "{\"k\": \"x\\\"y</｜DS");
  EXPECT_EQ(Parse(Tools(), "a\n\n<｜DSM").content, "a\n\n<｜DSM");
}

TEST(OutputParser, JsonObjectMode) {
  EXPECT_EQ(Parse(JsonObject(), "Sure:\n```json\n{\"a\":1}\n```\nbye").content, " {\"a\":1} ");
  EXPECT_EQ(Parse(JsonObject(), "```\n[1]\n```").content, "[1]");
  EXPECT_EQ(Parse(JsonObject(), "\n\n{\"a\":1}").content, "{\"a\":1}");
  EXPECT_EQ(Parse(JsonObject(), "no json here").content, " ");
  EXPECT_EQ(Parse(JsonObject(), "Sure ``").content, " ");
}

TEST(OutputParser, BrokenUtf8BecomesReplacementCharacters) {
  EXPECT_EQ(Parse({}, "a\xff\xe4\xbd").content, "a\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(ParsePieces({}, {"\xe4", "\xbd", "\xa0!"}).content, "你!");
}

TEST(OutputParser, SourcePositions) {
  ParserOptions options = Tools();
  options.initial_stage = InitialStage::kReasoningStart;
  const std::string text = "\nplan\n\n</think>\n\nok \n" + Invoke("");
  const Output output = Parse(options, text);
  ASSERT_EQ(output.reasoning + output.content, "planok ");
  EXPECT_EQ(output.verbatim_source.substr(1, 4), "plan");
  EXPECT_EQ(output.verbatim_source.substr(text.find("ok"), 3), "ok ");
}

TEST(OutputParser, EndlessNewlinesNeedNoMemory) {
  Output output;
  OutputParser parser(Tools(), output);
  parser.Push("a");
  const std::string newlines(1000, '\n');
  for (int i = 0; i < 1000; ++i) parser.Push(newlines);
  EXPECT_EQ(output.content, "a");
  parser.Push("<｜DSML｜ invoke name=\"w\">");
  EXPECT_EQ(output.content, "a");  // they belonged to the tag
  EXPECT_EQ(output.calls.size(), 1u);
}

TEST(OutputParser, LongNamesAreCutAtACharacter) {
  std::string name;
  while (name.size() < OutputParser::kMaxNameBytes + 10) name += "é1";
  const std::string text = Invoke(Parameter(name + "\" string=\"true\">v"));
  const Output whole = Parse(Tools(), text);
  ASSERT_EQ(whole.calls.size(), 1u);
  EXPECT_TRUE(IsJsonText(whole.calls[0].arguments));
  EXPECT_LE(whole.calls[0].arguments.size(), OutputParser::kMaxNameBytes + 20);
  std::vector<std::string> pieces;
  for (size_t i = 0; i < text.size(); i += 777) pieces.push_back(text.substr(i, 777));
  EXPECT_EQ(ParsePieces(Tools(), pieces).calls, whole.calls);
}

TEST(OutputParser, HugeJsonValueIsPassedOnAsString) {
  std::string value = "[\"";
  value.append(OutputParser::kMaxJsonValueBytes, 'x');
  value += "\"]";
  const std::string text = Invoke(Parameter("a\" string=\"false\">" + value) + "\n" + Parameter("b\" string=\"false\">1"));
  const Output output = Parse(Tools(), text);
  ASSERT_EQ(output.calls.size(), 1u);
  EXPECT_TRUE(IsJsonText(output.calls[0].arguments));
  EXPECT_EQ(output.calls[0].arguments.substr(0, 12), "{\"a\": \"[\\\"xx");
  EXPECT_TRUE(output.calls[0].arguments.ends_with("x\\\"]\", \"b\": 1}"));
  std::vector<std::string> pieces;
  for (size_t i = 0; i < text.size(); i += 1000003) pieces.push_back(text.substr(i, 1000003));
  EXPECT_EQ(ParsePieces(Tools(), pieces).calls, output.calls);
}

// Random text over the alphabet of the grammar, cut at random bytes.
TEST(OutputParser, AnyCutGivesTheSameResult) {
  const std::vector<std::string> words = {"<",          "｜DSML｜", "</",    " calls>",      "tool_calls>",      " invoke name=\"",
                                          "\"",         ">",        "\n",    " parameter name=\"", " string=\"true\"", " string=\"false\"",
                                          "</think>",   "<think>",  "```",   "json\n",       "{",                "[1]",
                                          "STOP",       "ST",       "\n\nX", "é",            "😀",               "12",
                                          "<｜DSML｜ invoke name=\"f\">\n", "</｜DSML｜ calls>", "a b"};
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    ParserOptions options;
    options.parse_tool_calls = random() % 2 == 0;
    options.parse_json_output = random() % 4 == 0;
    options.starts_in_tool_calls = options.parse_tool_calls && random() % 4 == 0;
    options.initial_stage = static_cast<InitialStage>(random() % 4);
    if (random() % 2 == 0) options.stop_sequences = {"STOP", "\n\nX", "TOP"};
    std::string text;
    for (int i = 0; i < 30; ++i) text += words[random() % words.size()];
    const Output whole = Parse(options, text);
    for (int cut = 0; cut < 4; ++cut) {
      std::vector<std::string> pieces;
      for (size_t at = 0; at < text.size();) {
        const size_t n = 1 + random() % (cut == 0 ? 1 : 9);
        pieces.push_back(text.substr(at, n));
        at += n;
      }
      const Output ours = ParsePieces(options, pieces);
      ASSERT_EQ(ours.reasoning, whole.reasoning) << text;
      ASSERT_EQ(ours.content, whole.content) << text;
      ASSERT_EQ(ours.calls, whole.calls) << text;
      ASSERT_EQ(ours.order, whole.order) << text;
      ASSERT_EQ(ours.stop_idx, whole.stop_idx) << text;
      ASSERT_EQ(ours.verbatim_source, whole.verbatim_source) << text;
    }
  }
}

}  // namespace
}  // namespace deepinfer::text
