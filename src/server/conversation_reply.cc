// SPDX-License-Identifier: Apache-2.0
#include <ctime>
#include <random>
#include <span>

#include "server/reply.h"

namespace deepinfer::server {

namespace {

std::string_view ReasonName(protocols::FinishReason reason) {
  switch (reason) {
    case protocols::FinishReason::kStop: return "stop";
    case protocols::FinishReason::kLength: return "length";
    case protocols::FinishReason::kContentFilter: return "content_filter";
    case protocols::FinishReason::kToolCalls: return "tool_calls";
  }
  return "stop";
}

class ConversationReply : public Reply {
 public:
  ConversationReply(const protocols::ConvertedRequest& request, const text::Tokenizer& tokenizer)
      : stream_(request, &tokenizer,
                protocols::MakeResponseSetup(request, protocols::MakeResponseId(request.api, RandomBits(), RandomBits()), std::time(nullptr)),
                RandomBits()),
        wants_logprobs_(request.inference.logprobs) {}

  bool is_event_stream() const override { return stream_.is_event_stream(); }
  void Start(int64_t prompt_tokens, int64_t cached_tokens, std::string& out) override { stream_.Start(prompt_tokens, cached_tokens, out); }

  StreamAction Push(const BackendOutput& output, std::string& out) override {
    if (stream_.is_stopped()) return StreamAction::kStop;
    if (output.token != nullptr) {
      const TokenOutput& token = *output.token;
      if (wants_logprobs_) {
        logprobs_.resize(1);
        logprobs_[0].logprob = static_cast<double>(token.logprob);
        logprobs_[0].top.clear();
        for (size_t i = 0; i < token.top_token_ids.size(); ++i) {
          logprobs_[0].top.emplace_back(token.top_token_ids[i], static_cast<double>(token.top_logprobs[i]));
        }
      }
      stream_.PushTokens(std::span(&token.token_id, 1), logprobs_, out);
    } else if (output.num_text_tokens > 0 || !output.text.empty()) {
      stream_.PushText(output.text, output.num_text_tokens, out);
    }
    return stream_.is_stopped() ? StreamAction::kStop : StreamAction::kContinue;
  }

  void EndSample(const BackendOutput& output, std::string& out) override {
    const auto finish = output.is_filtered                                ? protocols::EngineFinish::kContentFilter
                        : output.finish_reason == FinishReason::kLength ? protocols::EngineFinish::kLength
                                                                          : protocols::EngineFinish::kStop;
    stream_.Finish(finish, std::time(nullptr), out);
    reason_ = ReasonName(stream_.ReasonFor(finish));
  }

  void Fail(const Status& status, std::string& out) override { stream_.Fail(status, out); }
  void KeepAlive(std::string& out) override { stream_.KeepAlive(out); }
  int64_t num_output_tokens() const override { return stream_.Usage().completion_tokens; }
  std::string_view reason() const override { return reason_; }

 private:
  protocols::ProtocolStream stream_;
  bool wants_logprobs_;
  std::vector<protocols::SampledLogprob> logprobs_;  // of one token, reused
  std::string_view reason_;
};

}  // namespace

uint64_t RandomBits() {
  thread_local std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return random();
}

std::unique_ptr<Reply> MakeConversationReply(const protocols::ConvertedRequest& request, const text::Tokenizer& tokenizer) {
  return std::make_unique<ConversationReply>(request, tokenizer);
}

}  // namespace deepinfer::server
