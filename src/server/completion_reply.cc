// SPDX-License-Identifier: Apache-2.0
#include <ctime>

#include <fmt/format.h>

#include "core/json.h"
#include "protocols/completion_response.h"
#include "server/reply.h"

namespace deepinfer::server {

namespace {

class CompletionReply : public Reply {
 public:
  CompletionReply(const protocols::CompletionRequest& request, const protocols::ConvertOptions& options, const text::Tokenizer& tokenizer)
      : tokenizer_(tokenizer),
        info_(protocols::MakeCompletionResponseInfo(request, fmt::format("cmpl-{:016x}{:016x}", RandomBits(), RandomBits()),
                                                    std::time(nullptr), options, tokenizer)),
        samples_(info_.num_choices),
        num_open_(info_.num_choices) {
    if (request.stream) stream_.emplace(info_, tokenizer);
  }

  bool is_event_stream() const override { return stream_.has_value(); }
  void Start(int64_t prompt_tokens, int64_t, std::string&) override { samples_.front().usage.prompt_tokens = prompt_tokens; }

  StreamAction Push(const BackendOutput& output, std::string& out) override {
    Completion& sample = samples_[static_cast<size_t>(output.sample)];
    if (output.token != nullptr) ++num_tokens_;
    // Without an engine there is no completion to copy in the end.
    if (output.completion == nullptr) {
      sample.text += output.text;
      if (output.token != nullptr) sample.tokens.push_back(*output.token);
      sample.usage.completion_tokens = static_cast<int64_t>(sample.tokens.size());
      sample.usage.cached_tokens = output.cached_tokens;
    }
    // The last output of a sample is written with its end.
    if (stream_ && output.finish_reason == FinishReason::kNone) Write(output, out);
    return StreamAction::kContinue;
  }

  void EndSample(const BackendOutput& output, std::string& out) override {
    Completion& sample = samples_[static_cast<size_t>(output.sample)];
    sample.finish_reason = output.finish_reason;
    reason_ = FinishReasonName(output.finish_reason);
    --num_open_;
    if (stream_) return Write(output, out);
    if (output.completion != nullptr) {
      sample = *output.completion;
      sample.finish_reason = output.finish_reason;
    }
    if (num_open_ == 0) out += protocols::CompletionBody(info_, samples_, tokenizer_);
  }

  void Fail(const Status& status, std::string& out) override {
    if (stream_) stream_->Fail(status, out);
    else out += DumpJson(protocols::ErrorBody(protocols::Api::kChat, status));
  }
  void KeepAlive(std::string& out) override {
    if (stream_) protocols::CompletionStream::KeepAlive(out);
    else out += protocols::kKeepAliveLine;
  }
  int64_t num_output_tokens() const override { return num_tokens_; }
  std::string_view reason() const override { return reason_; }

 private:
  void Write(const BackendOutput& output, std::string& out) {
    StreamUpdate update;
    update.token = output.token;
    update.text = output.text;
    update.finish_reason = output.finish_reason;
    update.completion = output.completion != nullptr ? output.completion : &samples_[static_cast<size_t>(output.sample)];
    stream_->Write(static_cast<size_t>(output.sample), update, out);
  }

  const text::Tokenizer& tokenizer_;
  const protocols::CompletionResponseInfo info_;
  std::optional<protocols::CompletionStream> stream_;
  std::vector<Completion> samples_;
  size_t num_open_;
  int64_t num_tokens_ = 0;
  std::string_view reason_;
};

}  // namespace

std::unique_ptr<Reply> MakeCompletionReply(const protocols::CompletionRequest& request, const protocols::ConvertOptions& options,
                                           const text::Tokenizer& tokenizer) {
  return std::make_unique<CompletionReply>(request, options, tokenizer);
}

}  // namespace deepinfer::server
