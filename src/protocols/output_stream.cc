// SPDX-License-Identifier: Apache-2.0
#include "protocols/output_stream.h"

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

void OutputStream::PushText(std::string_view text, int64_t num_tokens, std::vector<OutputEvent>& out) {
  num_tokens_ += num_tokens;
  out_ = &out;
  first_event_ = out.size();
  if (!text.empty()) open_tokens_.push_back({text_end_, text_end_ + text.size(), num_tokens, false, std::nullopt});
  PushDecoded(text, out);
}

void OutputStream::PushTokens(
    std::span<const int32_t> ids, std::span<const SampledLogprob> logprobs, std::vector<OutputEvent>& out) {
  out_ = &out;
  first_event_ = out.size();
  for (size_t i = 0; i < ids.size(); ++i) {
    ++num_tokens_;
    if (is_stopped() || detokenizer_ == nullptr || ids[i] == end_id_ || ids[i] == end_of_turn_id_) continue;
    OpenToken token{text_end_, text_end_, 1, false, std::nullopt};
    if (i < logprobs.size()) {
      TokenLogprob entry;
      entry.bytes = tokenizer_->TokenBytes(ids[i]);
      entry.logprob = logprobs[i].logprob;
      for (const auto& [id, logprob] : logprobs[i].top) {
        entry.top.emplace_back(tokenizer_->TokenBytes(id), logprob);
      }
      token.logprob = std::move(entry);
    }
    open_tokens_.push_back(std::move(token));
    ++num_waiting_;
    decoded_.clear();
    detokenizer_->Push(ids[i], decoded_);
    if (decoded_.empty()) continue;  // part of a character: its text comes with a later token
    for (size_t k = 0; k < num_waiting_; ++k) open_tokens_[open_tokens_.size() - 1 - k].end += decoded_.size();
    num_waiting_ = 0;
    PushDecoded(decoded_, out);
  }
}

void OutputStream::Finish(std::vector<OutputEvent>& out) {
  out_ = &out;
  first_event_ = out.size();
  if (is_stopped()) return;
  if (detokenizer_ != nullptr) {
    decoded_.clear();
    detokenizer_->Finish(decoded_);
    for (size_t k = 0; k < num_waiting_; ++k) open_tokens_[open_tokens_.size() - 1 - k].end += decoded_.size();
    num_waiting_ = 0;
    PushDecoded(decoded_, out);
  }
  if (is_stopped()) return;
  parser_.Finish();
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

void OutputStream::PushDecoded(std::string_view text, std::vector<OutputEvent>& out) {
  out_ = &out;
  text_end_ += text.size();
  parser_.Push(text);
  const uint64_t decided = parser_.num_decided_bytes();
  while (!open_tokens_.empty() && open_tokens_.size() > num_waiting_ &&
         (open_tokens_.front().end <= decided || is_stopped())) {
    open_tokens_.pop_front();
  }
}

OutputEvent& OutputStream::EventFor(OutputEvent::Kind kind) {
  if (out_->size() == first_event_ || out_->back().kind != kind) {
    out_->emplace_back();
    out_->back().kind = kind;
    out_->back().tool_idx = tool_idx_;
  }
  return out_->back();
}

void OutputStream::ShowTokens(uint64_t begin, uint64_t end, bool is_reasoning, OutputEvent& event) {
  while (!open_tokens_.empty() && open_tokens_.front().end <= begin && open_tokens_.size() > num_waiting_) {
    open_tokens_.pop_front();
  }
  for (OpenToken& token : open_tokens_) {
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
  OutputEvent event;
  event.kind = OutputEvent::Kind::kToolCallBegin;
  event.text = name;
  event.tool_idx = tool_idx_;
  event.tool_id = NewToolCallId();
  out_->push_back(std::move(event));
}

void OutputStream::OnArguments(std::string_view json_text) {
  if (!json_text.empty()) EventFor(OutputEvent::Kind::kArguments).text += json_text;
}

void OutputStream::OnToolCallEnd() { EventFor(OutputEvent::Kind::kToolCallEnd); }

void OutputStream::OnStop(size_t stop_idx, uint64_t source_begin) {
  stop_idx_ = stop_idx;
  // The token in which the stop string starts is reported although none of its text may be visible.
  for (OpenToken& token : open_tokens_) {
    if (token.begin > source_begin) break;
    if (token.end <= source_begin || token.is_visible || !token.logprob) continue;
    token.is_visible = true;
    EventFor(OutputEvent::Kind::kContent).logprobs.push_back(*std::move(token.logprob));
  }
}

std::string OutputStream::NewToolCallId() {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  std::string id = fmt::format("call_{:02}_", tool_idx_);
  for (int i = 0; i < 20; ++i) id += kAlphabet[random_() % kAlphabet.size()];
  for (int i = 0; i < 4; ++i) id += static_cast<char>('0' + random_() % 10);
  return id;
}

}  // namespace deepinfer::protocols
