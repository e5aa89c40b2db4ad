// SPDX-License-Identifier: Apache-2.0
//
// Output parser: any text, any options. Properties: the result does not depend on how the text is cut, and the arguments of a
// finished call are JSON.
// Input: one byte of options, for each stop string a byte of length and its bytes, the text.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/utf8.h"
#include "text/output_parser.h"
#include "text/python_json.h"

namespace {

using namespace deepinfer;
using namespace deepinfer::text;

struct Output : ParserSink {
  // Everything in order; neighbours of one kind joined, so that only the boundaries of deltas are lost.
  std::string log;
  char last = 0;
  std::string arguments;

  void Note(char kind, std::string_view text) {
    if (kind != last) log += std::string("\x01") + kind;
    last = kind;
    log += text;
  }
  void OnText(Channel channel, std::string_view text, uint64_t, bool) override {
    Note(channel == Channel::kReasoning ? 'r' : 'c', text);
  }
  void OnToolCall(std::string_view name) override {
    last = 0;
    Note('t', name);
    arguments.clear();
  }
  void OnArguments(std::string_view text) override {
    Note('a', text);
    arguments += text;
  }
  void OnToolCallEnd() override {
    Note('e', "");
    DI_CHECK(IsJsonText(arguments)) << arguments;
  }
  void OnStop(size_t idx, uint64_t source_begin) override {
    Note('s', std::to_string(idx) + " " + std::to_string(source_begin));
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const uint8_t flags = data[0];
  input.remove_prefix(1);
  ParserOptions options;
  options.parse_tool_calls = (flags & 1) != 0;
  options.starts_in_tool_calls = (flags & 2) != 0;
  options.parse_json_output = (flags & 4) != 0;
  options.initial_stage = static_cast<InitialStage>((flags >> 3) & 3);
  for (int i = 0; i < (flags >> 5) && !input.empty(); ++i) {
    const size_t length = std::min<size_t>(static_cast<uint8_t>(input[0]), input.size() - 1);
    std::string stop = ReplaceInvalidUtf8(input.substr(1, length));
    if (!stop.empty()) options.stop_sequences.push_back(std::move(stop));
    input.remove_prefix(1 + length);
  }

  Output whole;
  {
    OutputParser parser(options, whole);
    parser.Push(input);
    parser.Finish();
  }
  std::minstd_rand random(static_cast<unsigned>(size * 31 + flags + 1));
  for (const size_t max_piece : {size_t{1}, size_t{7}, size_t{64}}) {
    Output cut;
    OutputParser parser(options, cut);
    for (size_t at = 0; at < input.size();) {
      const size_t n = std::min(input.size() - at, 1 + random() % max_piece);
      parser.Push(input.substr(at, n));
      at += n;
      DI_CHECK(parser.is_stopped() || parser.num_decided_bytes() <= at * 3) << "positions";
    }
    parser.Finish();
    DI_CHECK(cut.log == whole.log) << cut.log << "\n--- whole ---\n" << whole.log;
  }
  return 0;
}
