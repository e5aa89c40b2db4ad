// SPDX-License-Identifier: Apache-2.0
#include "text/output_parser.h"

#include <algorithm>

#include "core/utf8.h"
#include "text/python_json.h"

namespace deepinfer::text {

namespace {

constexpr std::string_view kOpenTag = "<｜DSML｜";
constexpr std::string_view kCloseTag = "</｜DSML｜";
constexpr std::string_view kEndThink = "</think>";
constexpr std::string_view kStringAttribute = "\" string=\"";

}  // namespace

bool OutputParser::Rule::Step(char c) {
  while (num_matched > 0 && literal[num_matched] != c) num_matched = borders[num_matched - 1];
  if (literal[num_matched] == c) ++num_matched;
  return num_matched == literal.size();
}

OutputParser::OutputParser(const ParserOptions& options, ParserSink& sink) : options_(options), sink_(sink) {
  const bool tools = options_.parse_tool_calls;
  if (tools) AddRule(Stage::kReasoning, kOpenTag, Action::kEnterToolCalls, /*takes_newlines=*/true);
  AddRule(Stage::kReasoning, kEndThink, Action::kEndThinking, /*takes_newlines=*/true);

  AddStopRules(Stage::kAnswer);
  if (tools) AddRule(Stage::kAnswer, kOpenTag, Action::kEnterToolCalls, /*takes_newlines=*/true);
  AddRule(Stage::kAnswer, kEndThink, Action::kDropTag);

  AddRule(Stage::kJsonSearch, "```json\n", Action::kOpenJsonFence);
  AddRule(Stage::kJsonSearch, "```\n", Action::kOpenJsonFence);
  AddRule(Stage::kJsonSearch, "{", Action::kOpenJson);
  AddRule(Stage::kJsonSearch, "[", Action::kOpenJson);
  if (tools) AddRule(Stage::kJsonSearch, kOpenTag, Action::kEnterToolCalls, /*takes_newlines=*/true);
  AddRule(Stage::kJsonSearch, kEndThink, Action::kDropTag);

  AddStopRules(Stage::kJson);
  AddRule(Stage::kJson, "\n```", Action::kCloseJsonFence);

  if (tools) AddRule(Stage::kJsonDone, kOpenTag, Action::kEnterToolCalls, /*takes_newlines=*/true);

  AddRule(Stage::kToolCalls, "invoke name=\"", Action::kBeginName);
  AddRule(Stage::kToolCalls, "</｜DSML｜ calls>", Action::kEndToolCalls);
  AddRule(Stage::kToolCalls, "</｜DSML｜tool_calls>", Action::kEndToolCalls);

  AddRule(Stage::kName, "\"", Action::kEndName);

  AddRule(Stage::kArgs, "parameter name=\"", Action::kBeginParam);
  AddRule(Stage::kArgs, kCloseTag, Action::kEndCall);

  AddRule(Stage::kParamName, "\" string=\"true\">", Action::kStringParam);
  AddRule(Stage::kParamName, "\" string=\"false\">", Action::kJsonParam);
  AddRule(Stage::kParamName, "\">", Action::kJsonParam);

  AddRule(Stage::kStringValue, kCloseTag, Action::kEndValue);
  AddRule(Stage::kJsonValue, kCloseTag, Action::kEndValue);

  const Stage answer = options_.parse_json_output ? Stage::kJsonSearch : Stage::kAnswer;
  if (options_.starts_in_tool_calls) {
    Enter(Stage::kToolCalls);
  } else {
    switch (options_.initial_stage) {
      case InitialStage::kReasoningStart: Enter(Stage::kReasoning, /*is_leading=*/true); break;
      case InitialStage::kReasoningContinuation: Enter(Stage::kReasoning); break;
      case InitialStage::kContentContinuation: Enter(answer); break;
      case InitialStage::kAnswer: Enter(answer, /*is_leading=*/true); break;
    }
  }
}

void OutputParser::AddRule(
    Stage stage, std::string_view literal, Action action, bool takes_newlines, size_t stop_idx) {
  if (literal.empty()) return;
  Rule rule;
  rule.literal = literal;
  rule.action = action;
  rule.takes_newlines = takes_newlines;
  rule.stop_idx = stop_idx;
  rule.borders.assign(literal.size(), 0);
  for (size_t i = 1, border = 0; i < literal.size(); ++i) {
    while (border > 0 && literal[i] != literal[border]) border = rule.borders[border - 1];
    if (literal[i] == literal[border]) ++border;
    rule.borders[i] = static_cast<uint32_t>(border);
  }
  StageRules& rules = stages_[static_cast<size_t>(stage)];
  rules.can_start[static_cast<unsigned char>(literal[0])] = true;
  if (takes_newlines) rules.can_start['\n'] = true;
  rules.rules.push_back(std::move(rule));
}

void OutputParser::AddStopRules(Stage stage) {
  for (size_t i = 0; i < options_.stop_sequences.size(); ++i) {
    AddRule(stage, options_.stop_sequences[i], Action::kStop, /*takes_newlines=*/false, i);
  }
}

void OutputParser::Enter(Stage stage, bool is_leading) {
  stage_ = stage;
  for (Rule& rule : stages_[static_cast<size_t>(stage)].rules) rule.num_matched = 0;
  is_leading_ = is_leading;
  is_idle_ = true;
  newline_run_ = 0;
  run_before_tag_ = 0;
  in_blank_ = false;
}

void OutputParser::Push(std::string_view text) {
  if (text.empty() || stage_ == Stage::kFinished) return;
  if (incomplete_.empty() && IsValidUtf8(text)) {
    ProcessText(text);
    return;
  }
  // Rare: a piece that ends inside a character, or bytes that are no UTF-8 at all.
  std::string joined = std::move(incomplete_);
  incomplete_.clear();
  joined += text;
  std::string whole;
  std::string_view rest = joined;
  while (!rest.empty()) {
    const Utf8Char c = DecodeUtf8(rest);
    if (c.is_truncated) {
      incomplete_ = rest;
      break;
    }
    if (c.is_valid) {
      whole.append(rest.substr(0, c.num_bytes));
    } else {
      AppendUtf8(0xfffd, whole);
    }
    rest.remove_prefix(c.num_bytes);
  }
  ProcessText(whole);
}

void OutputParser::Finish() {
  if (!incomplete_.empty()) {
    incomplete_.clear();
    std::string replacement;
    AppendUtf8(0xfffd, replacement);
    ProcessText(replacement);
  }
  Release({}, 0);
  switch (stage_) {
    case Stage::kParamName: {
      const size_t quote = buffer_.find('"');
      EmitEscaped(std::string_view(buffer_).substr(0, quote));
      if (quote != std::string::npos) sink_.OnArguments("\": ");
      break;
    }
    case Stage::kJsonValue: EmitJsonValue(/*is_complete=*/false); break;
    default: break;
  }
  Enter(Stage::kFinished);
}

// The loop over bytes. `text` shrinks from the front whenever a rule completes; the bytes before the current one that are not
// yet released are the held text and text[0..i].
void OutputParser::ProcessText(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    if (stage_ == Stage::kFinished) return;
    StageRules& stage = stages_[static_cast<size_t>(stage_)];
    const char c = text[i];
    if (is_idle_ && !stage.can_start[static_cast<unsigned char>(c)] && !(is_leading_ && c == '\n')) {
      is_leading_ = false;
      ++i;
      continue;
    }
    if (c == '<') run_before_tag_ = newline_run_;
    const Rule* completed = nullptr;
    bool any_partial = false;
    for (Rule& rule : stage.rules) {
      if (rule.Step(c)) {
        completed = &rule;
        break;
      }
      any_partial |= rule.num_matched > 0;
    }
    ++i;
    if (completed != nullptr) {
      const size_t match_bytes = completed->literal.size() + (completed->takes_newlines ? run_before_tag_ : 0);
      Release(text.substr(0, i), match_bytes);
      held_newlines_ = 0;
      held_.clear();
      held_begin_ = 0;
      num_read_ += i;
      text.remove_prefix(i);
      i = 0;
      Apply(*completed, num_read_ - match_bytes);
      continue;
    }
    if (is_leading_ && c == '\n') {  // nothing is held here: a leading newline is always skipped at once
      num_read_ += i;
      text.remove_prefix(i);
      i = 0;
      Enter(stage_, /*is_leading=*/true);
      continue;
    }
    is_leading_ = false;
    newline_run_ = c == '\n' ? newline_run_ + 1 : 0;
    is_idle_ = !any_partial && newline_run_ == 0;
  }
  const size_t keep = BytesToKeep();
  Release(text, keep);
  Hold(text);
}

size_t OutputParser::BytesToKeep() const {
  size_t keep = 0;
  for (const Rule& rule : stages_[static_cast<size_t>(stage_)].rules) {
    size_t bytes = rule.num_matched;
    if (rule.takes_newlines) bytes = rule.num_matched > 0 ? rule.num_matched + run_before_tag_ : newline_run_;
    keep = std::max(keep, bytes);
  }
  return keep;
}

void OutputParser::Release(std::string_view text, size_t keep) {
  const size_t total = HeldBytes() + text.size();
  if (keep >= total) return;
  size_t to_release = total - keep;
  uint64_t source = num_read_ - HeldBytes();
  constexpr std::string_view kNewlines = "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n";
  while (held_newlines_ > 0 && to_release > 0) {
    const size_t n = std::min({held_newlines_, to_release, kNewlines.size()});
    Default(kNewlines.substr(0, n), source);
    held_newlines_ -= n;
    to_release -= n;
    source += n;
  }
  if (const size_t n = std::min(held_.size() - held_begin_, to_release); n > 0) {
    Default(std::string_view(held_).substr(held_begin_, n), source);
    held_begin_ += n;
    to_release -= n;
    source += n;
  }
  if (to_release > 0) Default(text.substr(0, to_release), source);
}

// Called after Release: keeps the part of `text` that was not released.
void OutputParser::Hold(std::string_view text) {
  num_read_ += text.size();
  const size_t keep = std::min(BytesToKeep(), HeldBytes() + text.size());
  const size_t already = HeldBytes();
  // What Release left of `text` are its last keep - already bytes.
  std::string_view rest = keep > already ? text.substr(text.size() - (keep - already)) : std::string_view();
  if (held_begin_ == held_.size()) {
    held_.clear();
    held_begin_ = 0;
    const size_t num_newlines = std::min(rest.find_first_not_of('\n'), rest.size());
    held_newlines_ += num_newlines;
    rest.remove_prefix(num_newlines);
  }
  held_ += rest;
  // A run of newlines behind a given-up stop string must not grow the buffer either.
  while (held_begin_ < held_.size() && held_[held_begin_] == '\n') {
    ++held_begin_;
    ++held_newlines_;
  }
  if (held_begin_ * 2 > held_.size()) {
    held_.erase(0, held_begin_);
    held_begin_ = 0;
  }
}

void OutputParser::Default(std::string_view text, uint64_t source_begin) {
  switch (stage_) {
    case Stage::kReasoning: sink_.OnText(Channel::kReasoning, text, source_begin, true); break;
    case Stage::kAnswer:
    case Stage::kJson: sink_.OnText(Channel::kContent, text, source_begin, true); break;
    case Stage::kJsonSearch:
    case Stage::kJsonDone:
      if (!in_blank_) sink_.OnText(Channel::kContent, " ", source_begin, false);
      in_blank_ = true;
      break;
    case Stage::kName:
    case Stage::kParamName: AppendName(text); break;
    case Stage::kJsonValue: AppendJsonValue(text); break;
    case Stage::kStringValue: EmitEscaped(text); break;
    case Stage::kToolCalls:
    case Stage::kArgs:
    case Stage::kFinished: break;
  }
}

void OutputParser::Apply(const Rule& rule, uint64_t source_begin) {
  const Stage answer = options_.parse_json_output ? Stage::kJsonSearch : Stage::kAnswer;
  switch (rule.action) {
    case Action::kStop:
      is_stopped_ = true;
      sink_.OnStop(rule.stop_idx, source_begin);
      Enter(Stage::kFinished);
      break;
    case Action::kEnterToolCalls: Enter(Stage::kToolCalls); break;
    case Action::kEndThinking: Enter(answer, /*is_leading=*/true); break;
    case Action::kDropTag: Enter(stage_); break;
    case Action::kOpenJsonFence: Enter(Stage::kJson); break;
    case Action::kOpenJson:
      sink_.OnText(Channel::kContent, rule.literal, source_begin, true);
      Enter(Stage::kJson);
      break;
    case Action::kCloseJsonFence: Enter(Stage::kJsonDone); break;
    case Action::kEndToolCalls: Enter(Stage::kFinished); break;
    case Action::kBeginName:
      buffer_.clear();
      is_name_full_ = false;
      Enter(Stage::kName);
      break;
    case Action::kEndName:
      ++num_tool_calls_;
      sink_.OnToolCall(buffer_);
      is_first_param_ = true;
      Enter(Stage::kArgs);
      break;
    case Action::kBeginParam:
      sink_.OnArguments(is_first_param_ ? "{\"" : ", \"");
      is_first_param_ = false;
      buffer_.clear();
      is_name_full_ = false;
      Enter(Stage::kParamName);
      break;
    case Action::kEndCall:
      sink_.OnArguments(is_first_param_ ? "{}" : "}");
      sink_.OnToolCallEnd();
      Enter(Stage::kToolCalls);
      break;
    case Action::kStringParam: EmitParamName(/*is_string=*/true); break;
    case Action::kJsonParam: EmitParamName(/*is_string=*/false); break;
    case Action::kEndValue:
      if (stage_ == Stage::kStringValue) {
        sink_.OnArguments("\"");
      } else {
        EmitJsonValue(/*is_complete=*/true);
      }
      Enter(Stage::kArgs);
      break;
  }
}

// Cuts at a whole character; once a name is full nothing is added any more, so the cut does not depend on the pieces.
void OutputParser::AppendName(std::string_view text) {
  if (is_name_full_) return;
  size_t room = kMaxNameBytes - buffer_.size();
  if (text.size() > room) {
    while (room > 0 && (static_cast<unsigned char>(text[room]) & 0xc0) == 0x80) --room;
    text = text.substr(0, room);
    is_name_full_ = true;
  }
  buffer_ += text;
}

void OutputParser::AppendJsonValue(std::string_view text) {
  buffer_ += text;
  if (buffer_.size() <= kMaxJsonValueBytes) return;
  sink_.OnArguments("\"");
  EmitEscaped(buffer_);
  buffer_.clear();
  // Both kinds of value end with the same tag; a partial match goes on.
  StageRules& string_value = stages_[static_cast<size_t>(Stage::kStringValue)];
  string_value.rules[0].num_matched = stages_[static_cast<size_t>(Stage::kJsonValue)].rules[0].num_matched;
  stage_ = Stage::kStringValue;
}

void OutputParser::EmitParamName(bool is_string) {
  EmitEscaped(std::string_view(buffer_).substr(0, buffer_.find(kStringAttribute)));
  sink_.OnArguments(is_string ? "\": \"" : "\": ");
  buffer_.clear();
  Enter(is_string ? Stage::kStringValue : Stage::kJsonValue);
}

void OutputParser::EmitJsonValue(bool is_complete) {
  if (!is_complete || IsJsonText(buffer_)) {
    sink_.OnArguments(buffer_);
  } else {
    sink_.OnArguments("\"");
    EmitEscaped(buffer_);
    sink_.OnArguments("\"");
  }
  buffer_.clear();
}

void OutputParser::EmitEscaped(std::string_view text) {
  scratch_.clear();
  AppendJsonEscaped(text, scratch_);
  if (!scratch_.empty()) sink_.OnArguments(scratch_);
}

}  // namespace deepinfer::text
