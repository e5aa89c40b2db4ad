// SPDX-License-Identifier: Apache-2.0
//
// Model output -> reasoning, answer text and tool calls (protocols.md 4). Text may arrive in pieces of any size, even cut inside
// a character; the sequence of sink calls, with adjacent ones of the same kind joined, does not depend on the cuts. Work is
// O(1) amortised for each byte and stop string, and the memory held back is bounded whatever the model writes: partial tags
// and stop strings, a count of newlines, and names and JSON values up to the caps below.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/prompt_renderer.h"

namespace deepinfer::text {

struct ParserOptions {
  bool parse_tool_calls = false;
  bool starts_in_tool_calls = false;
  bool parse_json_output = false;  // json_object: whatever surrounds the JSON value becomes one blank
  InitialStage initial_stage = InitialStage::kAnswer;
  std::vector<std::string> stop_sequences;  // matched in answer text only; none may be empty
};

enum class Channel { kReasoning, kContent };

// Receives what the parser recognises. Views are valid during the call only.
class ParserSink {
 public:
  virtual ~ParserSink() = default;
  // `source_begin` is the position of the text in the model's output (bytes from the start); `is_verbatim` is false for the
  // blank that stands for text around JSON.
  virtual void OnText(Channel channel, std::string_view text, uint64_t source_begin, bool is_verbatim) = 0;
  virtual void OnToolCall(std::string_view name) = 0;       // a call begins; its name is complete
  virtual void OnArguments(std::string_view json_text) = 0;  // of the current call
  virtual void OnToolCallEnd() = 0;                          // its arguments are complete
  virtual void OnStop(size_t stop_idx, uint64_t source_begin) = 0;
};

class OutputParser {
 public:
  // Longer parameter and tool names are cut; a longer JSON value is passed on as a string.
  static constexpr size_t kMaxNameBytes = size_t{1} << 16;
  static constexpr size_t kMaxJsonValueBytes = size_t{1} << 24;

  // `sink` must outlive the parser.
  OutputParser(const ParserOptions& options, ParserSink& sink);

  void Push(std::string_view text);
  // End of the output: held text is released. Nothing may follow.
  void Finish();

  // A stop string was found; the request is over and further text is dropped.
  bool is_stopped() const { return is_stopped_; }
  // Whatever follows is dropped.
  bool is_finished() const { return stage_ == Stage::kFinished; }
  int num_tool_calls() const { return num_tool_calls_; }
  // Bytes of the output that are decided: passed on, skipped or taken into a name or value. The rest is held.
  uint64_t num_decided_bytes() const { return num_read_ - HeldBytes(); }

 private:
  enum class Stage {
    kReasoning,
    kAnswer,
    kJsonSearch,  // json_object before the JSON value
    kJson,
    kJsonDone,
    kToolCalls,
    kName,
    kArgs,
    kParamName,
    kStringValue,
    kJsonValue,
    kFinished,
  };
  static constexpr size_t kNumStages = static_cast<size_t>(Stage::kFinished) + 1;

  enum class Action {
    kStop,
    kEnterToolCalls,
    kEndThinking,
    kDropTag,
    kOpenJsonFence,
    kOpenJson,
    kCloseJsonFence,
    kEndToolCalls,
    kBeginName,
    kEndName,
    kBeginParam,
    kEndCall,
    kStringParam,
    kJsonParam,
    kEndValue,
  };

  // One literal, matched by the Knuth-Morris-Pratt automaton.
  struct Rule {
    std::string literal;
    Action action;
    bool takes_newlines = false;  // the newlines directly before the literal belong to the match
    size_t stop_idx = 0;
    std::vector<uint32_t> borders;  // length of the longest proper border of each prefix
    uint32_t num_matched = 0;

    bool Step(char c);
  };

  struct StageRules {
    std::vector<Rule> rules;  // in order of precedence
    std::array<bool, 256> can_start{};
  };

  void AddRule(Stage stage, std::string_view literal, Action action, bool takes_newlines = false, size_t stop_idx = 0);
  void AddStopRules(Stage stage);
  void Enter(Stage stage, bool is_leading = false);
  void ProcessText(std::string_view text);  // whole characters
  // Text of the current piece, and what is held from earlier pieces, up to `keep` bytes before the end of `text`, is given
  // to the stage's default action; the rest of `text` stays unread.
  void Release(std::string_view text, size_t keep);
  void Hold(std::string_view text);
  void Default(std::string_view text, uint64_t source_begin);
  void Apply(const Rule& rule, uint64_t source_begin);
  void AppendName(std::string_view text);
  void AppendJsonValue(std::string_view text);
  void EmitParamName(bool is_string);
  void EmitJsonValue(bool is_complete);
  void EmitEscaped(std::string_view text);
  size_t HeldBytes() const { return held_newlines_ + (held_.size() - held_begin_); }
  size_t BytesToKeep() const;

  const ParserOptions options_;
  ParserSink& sink_;
  std::array<StageRules, kNumStages> stages_;
  Stage stage_ = Stage::kAnswer;

  bool is_leading_ = false;    // nothing but skipped newlines so far in this stage
  bool is_idle_ = true;        // no rule has a partial match and no newline run is open
  size_t newline_run_ = 0;     // newlines directly before the next byte
  size_t run_before_tag_ = 0;  // newlines directly before the last '<'
  bool in_blank_ = false;      // inside a stretch that became one blank
  bool is_first_param_ = true;

  // Unreleased text before the current piece: newlines, then held_[held_begin_..].
  size_t held_newlines_ = 0;
  std::string held_;
  size_t held_begin_ = 0;
  uint64_t num_read_ = 0;  // bytes given to ProcessText and either released, skipped or held

  std::string buffer_;      // name or JSON value being collected
  bool is_name_full_ = false;
  std::string incomplete_;  // first bytes of a character that the next piece completes
  std::string scratch_;
  bool is_stopped_ = false;
  int num_tool_calls_ = 0;
};

}  // namespace deepinfer::text
