// SPDX-License-Identifier: Apache-2.0
//
// Sampled tokens (or text pieces) -> output events, the same for all protocols: detokenizer, output parser, tool call ids, token
// counts and the place of log probabilities. Each protocol writes the events in its own way (response_writer.h). Events are
// reused from push to push: without log probabilities a running stream allocates nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace deepinfer::protocols {

// One token with its log probability, as bytes: a token need not be whole characters.
struct TokenLogprob {
  std::string bytes;
  double logprob = 0.0;
  std::vector<std::pair<std::string, double>> top;  // most likely tokens, best first
};

// As the engine reports it: the same by id.
struct SampledLogprob {
  double logprob = 0.0;
  std::vector<std::pair<int32_t, double>> top;
};

struct OutputEvent {
  enum class Kind { kReasoning, kContent, kToolCallBegin, kArguments, kToolCallEnd };
  Kind kind = Kind::kContent;
  std::string text;  // new text; kToolCallBegin: the name; kArguments: piece of the arguments' JSON text
  int tool_idx = 0;
  std::string tool_id;                  // kToolCallBegin
  std::vector<TokenLogprob> logprobs;  // of the tokens whose first visible text is in `text`
};

// Why the engine stopped.
enum class EngineFinish { kStop, kLength, kContentFilter };
// What the client is told.
enum class FinishReason { kStop, kLength, kContentFilter, kToolCalls };

struct TokenUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;      // of the prompt
  int64_t completion_tokens = 0;  // every sampled token, the end token included
  int64_t reasoning_tokens = 0;   // tokens whose text went to the reasoning
};

class OutputStream : private text::ParserSink {
 public:
  // `tokenizer` may be null if only text is pushed; it must outlive the stream. `id_seed` makes the tool call ids.
  OutputStream(const text::ParserOptions& options, const text::Tokenizer* tokenizer, uint64_t id_seed);
  OutputStream(const OutputStream&) = delete;  // the parser knows its sink
  OutputStream& operator=(const OutputStream&) = delete;

  // Tool call ids without the random part: call_00_X.
  void UseFixedToolIds() { has_fixed_tool_ids_ = true; }

  // Each returns its events, neighbours of one kind joined. They are valid until the next call.
  std::span<const OutputEvent> PushText(std::string_view text, int64_t num_tokens);
  // `logprobs` is empty or has one entry for each id. End tokens count but have no text.
  std::span<const OutputEvent> PushTokens(std::span<const int32_t> ids, std::span<const SampledLogprob> logprobs = {});
  // The end of the output: held text is released. Without effect after a stop string.
  std::span<const OutputEvent> Finish();

  // A stop string ended the request: the engine must be told.
  bool is_stopped() const { return parser_.is_stopped(); }
  std::optional<size_t> stop_idx() const { return stop_idx_; }
  FinishReason ReasonFor(EngineFinish finish) const;

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_reasoning_tokens() const { return num_reasoning_tokens_; }

 private:
  // A token between its text entering the parser and that text being decided.
  struct OpenToken {
    uint64_t begin = 0;
    uint64_t end = 0;
    int64_t weight = 1;  // tokens it stands for
    bool is_visible = false;
    std::optional<TokenLogprob> logprob;
  };

  void OnText(text::Channel channel, std::string_view text, uint64_t source_begin, bool is_verbatim) override;
  void OnToolCall(std::string_view name) override;
  void OnArguments(std::string_view json_text) override;
  void OnToolCallEnd() override;
  void OnStop(size_t stop_idx, uint64_t source_begin) override;

  void PushDecoded(std::string_view text);
  void ForgetDecidedTokens();
  void DropFirstToken();
  OutputEvent& NewEvent(OutputEvent::Kind kind);
  OutputEvent& EventFor(OutputEvent::Kind kind);
  std::span<const OutputEvent> Events() const { return {events_.data(), num_events_}; }
  size_t NumOpenTokens() const { return open_tokens_.size() - first_open_token_; }
  void ShowTokens(uint64_t begin, uint64_t end, bool is_reasoning, OutputEvent& event);
  void AppendToolCallId(std::string& out);

  text::OutputParser parser_;
  const text::Tokenizer* tokenizer_;
  std::unique_ptr<text::Detokenizer> detokenizer_;
  int32_t end_id_ = -1;
  int32_t end_of_turn_id_ = -1;
  std::mt19937_64 random_;
  bool has_fixed_tool_ids_ = false;
  std::vector<OutputEvent> events_;  // the first num_events_ are of the current push; the others keep their memory
  size_t num_events_ = 0;
  std::vector<OpenToken> open_tokens_;
  size_t first_open_token_ = 0;
  size_t num_waiting_ = 0;  // last open tokens whose text the detokenizer still holds
  uint64_t text_end_ = 0;   // bytes given to the parser
  std::string decoded_;
  int tool_idx_ = -1;
  std::optional<size_t> stop_idx_;
  int64_t num_tokens_ = 0;
  int64_t num_reasoning_tokens_ = 0;
};

}  // namespace deepinfer::protocols
