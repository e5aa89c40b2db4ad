// SPDX-License-Identifier: Apache-2.0
#include "protocols/output_stream.h"

#include <iterator>

#include <fmt/format.h>

namespace deepinfer::protocols {

OutputStream::OutputStream(const text::ParserOptions& options, const text::Tokenizer* tokenizer, uint64_t id_seed)
    : parser_(options, *this), tokenizer_(tokenizer), random_(id_seed) {
  if (tokenizer_ != nullptr) {
    detokenizer_ = std::make_unique<text::Detokenizer>(*tokenizer_);
    end_id_ = tokenizer_->FindAddedToken("<｜end▁of▁sentence｜>");
    end_of_turn_id_ = tokenizer_->FindAddedToken("<|EOT|>");
  }
}

std::span<const OutputEvent> OutputStream::PushText(std::string_view text, int64_t num_tokens) {
  num_tokens_ += num_tokens;
  num_events_ = 0;
  if (!text.empty()) open_tokens_.push_back({text_end_, text_end_ + text.size(), num_tokens, false, std::nullopt});
  PushDecoded(text);
  return Events();
}

std::span<const OutputEvent> OutputStream::PushTokens(std::span<const int32_t> ids, std::span<const SampledLogprob> logprobs) {
  num_events_ = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    ++num_tokens_;
    if (is_stopped() || detokenizer_ == nullptr || ids[i] == end_id_ || ids[i] == end_of_turn_id_) continue;
    OpenToken& token = open_tokens_.emplace_back();
    token.begin = token.end = text_end_;
    if (i < logprobs.size()) {
      TokenLogprob& entry = token.logprob.emplace();
      entry.bytes = tokenizer_->TokenBytes(ids[i]);
      entry.logprob = logprobs[i].logprob;
      for (const auto& [id, logprob] : logprobs[i].top) entry.top.emplace_back(tokenizer_->TokenBytes(id), logprob);
    }
    ++num_waiting_;
    decoded_.clear();
    detokenizer_->Push(ids[i], decoded_);
    if (decoded_.empty()) continue;  // part of a character: its text comes with a later token
    for (size_t k = 0; k < num_waiting_; ++k) open_tokens_[open_tokens_.size() - 1 - k].end += decoded_.size();
    num_waiting_ = 0;
    PushDecoded(decoded_);
  }
  return Events();
}

std::span<const OutputEvent> OutputStream::Finish() {
  num_events_ = 0;
  if (is_stopped()) return {};
  if (detokenizer_ != nullptr) {
    decoded_.clear();
    detokenizer_->Finish(decoded_);
    for (size_t k = 0; k < num_waiting_; ++k) open_tokens_[open_tokens_.size() - 1 - k].end += decoded_.size();
    num_waiting_ = 0;
    PushDecoded(decoded_);
  }
  if (!is_stopped()) parser_.Finish();
  return Events();
}

FinishReason OutputStream::ReasonFor(EngineFinish finish) const {
  if (is_stopped()) return FinishReason::kStop;
  switch (finish) {
    case EngineFinish::kLength: return FinishReason::kLength;
    case EngineFinish::kContentFilter: return FinishReason::kContentFilter;
    case EngineFinish::kStop: break;
  }
  return parser_.num_tool_calls() > 0 ? FinishReason::kToolCalls : FinishReason::kStop;
}

void OutputStream::PushDecoded(std::string_view text) {
  text_end_ += text.size();
  parser_.Push(text);
  ForgetDecidedTokens();
}

void OutputStream::DropFirstToken() {
  if (++first_open_token_ == open_tokens_.size()) {
    open_tokens_.clear();
    first_open_token_ = 0;
  } else if (first_open_token_ >= 64 && first_open_token_ * 2 >= open_tokens_.size()) {
    open_tokens_.erase(open_tokens_.begin(), open_tokens_.begin() + static_cast<std::ptrdiff_t>(first_open_token_));
    first_open_token_ = 0;
  }
}

void OutputStream::ForgetDecidedTokens() {
  const uint64_t decided = parser_.is_finished() ? text_end_ : parser_.num_decided_bytes();
  while (NumOpenTokens() > num_waiting_ && open_tokens_[first_open_token_].end <= decided) DropFirstToken();
}

OutputEvent& OutputStream::NewEvent(OutputEvent::Kind kind) {
  if (num_events_ == events_.size()) events_.emplace_back();
  OutputEvent& event = events_[num_events_++];
  event.kind = kind;
  event.text.clear();
  event.tool_idx = tool_idx_;
  event.tool_id.clear();
  event.logprobs.clear();
  return event;
}

OutputEvent& OutputStream::EventFor(OutputEvent::Kind kind) {
  if (num_events_ > 0 && events_[num_events_ - 1].kind == kind) return events_[num_events_ - 1];
  return NewEvent(kind);
}

void OutputStream::ShowTokens(uint64_t begin, uint64_t end, bool is_reasoning, OutputEvent& event) {
  while (NumOpenTokens() > num_waiting_ && open_tokens_[first_open_token_].end <= begin) DropFirstToken();
  for (size_t i = first_open_token_; i < open_tokens_.size(); ++i) {
    OpenToken& token = open_tokens_[i];
    if (token.begin >= end) break;
    if (token.is_visible || token.end <= begin) continue;
    token.is_visible = true;
    if (is_reasoning) num_reasoning_tokens_ += token.weight;
    if (token.logprob) event.logprobs.push_back(*std::move(token.logprob));
  }
}

void OutputStream::OnText(text::Channel channel, std::string_view text, uint64_t source_begin, bool is_verbatim) {
  const bool is_reasoning = channel == text::Channel::kReasoning;
  OutputEvent& event = EventFor(is_reasoning ? OutputEvent::Kind::kReasoning : OutputEvent::Kind::kContent);
  event.text += text;
  if (is_verbatim) ShowTokens(source_begin, source_begin + text.size(), is_reasoning, event);
}

void OutputStream::OnToolCall(std::string_view name) {
  ++tool_idx_;
  OutputEvent& event = NewEvent(OutputEvent::Kind::kToolCallBegin);
  event.text = name;
  AppendToolCallId(event.tool_id);
}

void OutputStream::OnArguments(std::string_view json_text) {
  if (!json_text.empty()) EventFor(OutputEvent::Kind::kArguments).text += json_text;
}

void OutputStream::OnToolCallEnd() { EventFor(OutputEvent::Kind::kToolCallEnd); }

void OutputStream::OnStop(size_t stop_idx, uint64_t source_begin) {
  stop_idx_ = stop_idx;
  // The token in which the stop string starts is reported although none of its text may be visible.
  for (size_t i = first_open_token_; i < open_tokens_.size(); ++i) {
    OpenToken& token = open_tokens_[i];
    if (token.begin > source_begin) break;
    if (token.end <= source_begin || token.is_visible || !token.logprob) continue;
    token.is_visible = true;
    EventFor(OutputEvent::Kind::kContent).logprobs.push_back(*std::move(token.logprob));
  }
}

void OutputStream::AppendToolCallId(std::string& out) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  fmt::format_to(std::back_inserter(out), "call_{:02}_", tool_idx_);
  if (has_fixed_tool_ids_) {
    out += 'X';
    return;
  }
  for (int i = 0; i < 20; ++i) out += kAlphabet[random_() % kAlphabet.size()];
  for (int i = 0; i < 4; ++i) out += static_cast<char>('0' + random_() % 10);
}

}  // namespace deepinfer::protocols
