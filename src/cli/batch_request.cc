// SPDX-License-Identifier: Apache-2.0
#include "cli/batch_request.h"

#include <charconv>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "core/escape.h"
#include "protocols/completion_request.h"
#include "protocols/completion_response.h"
#include "protocols/convert_request.h"
#include "protocols/protocol_stream.h"
#include "server/text_request.h"

namespace deepinfer::cli {

namespace {

// Responses carry no time: a file comes out as the same bytes however often its run was interrupted.
constexpr int64_t kCreated = 0;

// The random part of an id of the batch file.
std::string_view Unique(std::string_view id) { return id.substr(id.rfind('_') + 1); }

class ChatBatchRequest : public BatchRequest {
 public:
  static Result<std::unique_ptr<BatchRequest>> Create(const Json& body, size_t idx, const std::string& id, const BatchContext& context) {
    DI_RETURN_IF_ERROR(context.chat_status);
    DI_ASSIGN_OR_RETURN(const protocols::ConvertedRequest converted,
                        protocols::ConvertParsedRequest(protocols::Api::kChat, body, context.convert));
    DI_ASSIGN_OR_RETURN(engine::TextRequest request,
                        server::MakeTextRequest(converted, context.tokenizer, context.convert, context.max_model_len, context.check_grammar));
    SamplingParams& params = request.params;
    const int64_t num_prompt = static_cast<int64_t>(request.prompt_ids.size());
    if (!converted.inference.max_tokens && context.max_tokens) params.max_tokens = std::min(params.max_tokens, *context.max_tokens);
    if (!params.seq_seed && context.seed) params.seq_seed = *context.seed + idx;
    std::unique_ptr<ChatBatchRequest> made(new ChatBatchRequest(converted, id, num_prompt, context));
    made->request_ = std::move(request);
    return std::unique_ptr<BatchRequest>(std::move(made));
  }

  StreamAction OnUpdate(const StreamUpdate& update) override {
    if (update.token == nullptr || update.token->token_id < 0) return StreamAction::kContinue;
    const TokenOutput& token = *update.token;
    std::vector<protocols::SampledLogprob> logprobs;
    if (wants_logprobs_) {
      protocols::SampledLogprob& sampled = logprobs.emplace_back();
      sampled.logprob = static_cast<double>(token.logprob);
      for (size_t i = 0; i < token.top_token_ids.size(); ++i) {
        sampled.top.emplace_back(token.top_token_ids[i], static_cast<double>(token.top_logprobs[i]));
      }
    }
    stream_.PushTokens(std::span(&token.token_id, 1), logprobs, body_);
    return stream_.is_stopped() ? StreamAction::kStop : StreamAction::kContinue;
  }

 private:
  ChatBatchRequest(const protocols::ConvertedRequest& converted, const std::string& id, int64_t num_prompt, const BatchContext& context)
      : stream_(converted, &context.tokenizer, Setup(converted, id), IdSeed(id)),
        wants_logprobs_(converted.inference.logprobs),
        num_prompt_(num_prompt) {}

  // One body, whatever the request says about streaming.
  static protocols::ResponseSetup Setup(const protocols::ConvertedRequest& converted, const std::string& id) {
    protocols::ResponseSetup setup = protocols::MakeResponseSetup(converted, fmt::format("chatcmpl-{}", Unique(id)), kCreated);
    setup.is_stream = false;
    return setup;
  }

  static uint64_t IdSeed(std::string_view id) {
    const std::string_view hex = Unique(id).substr(0, 16);
    uint64_t seed = 0;
    std::from_chars(hex.data(), hex.data() + hex.size(), seed, 16);
    return seed;
  }

  Json MakeBody(const std::vector<Completion>& samples) override {
    const Completion& sample = samples.front();
    stream_.Start(num_prompt_, sample.usage.cached_tokens, body_);
    const auto finish = sample.finish_reason == FinishReason::kLength ? protocols::EngineFinish::kLength : protocols::EngineFinish::kStop;
    stream_.Finish(finish, kCreated, body_);
    return ParseJson(body_).value();
  }

  protocols::ProtocolStream stream_;  // the output thread's until the request has ended
  std::string body_;                  // the same
  bool wants_logprobs_;
  int64_t num_prompt_;
};

class CompletionBatchRequest : public BatchRequest {
 public:
  static Result<std::unique_ptr<BatchRequest>> Create(const Json& body, size_t idx, const std::string& id, const BatchContext& context) {
    DI_ASSIGN_OR_RETURN(protocols::CompletionRequest parsed, protocols::ConvertCompletionRequest(body, context.convert));
    std::unique_ptr<CompletionBatchRequest> made(new CompletionBatchRequest(context.tokenizer));
    if (parsed.prompts.size() != 1) return InvalidArgument("a line of a batch file holds one prompt; write one line for each", "prompt");
    made->info_ = protocols::MakeCompletionResponseInfo(parsed, fmt::format("cmpl-{}", Unique(id)), kCreated, context.convert, context.tokenizer);
    DI_ASSIGN_OR_RETURN(std::vector<engine::TextRequest> requests,
                        server::MakeTextRequests(parsed, context.tokenizer, context.check_grammar));
    engine::TextRequest& request = made->request_ = std::move(requests.front());
    if (!parsed.has_max_tokens && context.max_tokens) request.params.max_tokens = *context.max_tokens;
    if (!request.params.seq_seed && context.seed) request.params.seq_seed = *context.seed + idx;
    return std::unique_ptr<BatchRequest>(std::move(made));
  }

 private:
  explicit CompletionBatchRequest(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  Json MakeBody(const std::vector<Completion>& samples) override {
    return ParseJson(protocols::CompletionBody(info_, samples, tokenizer_)).value();
  }

  protocols::CompletionResponseInfo info_;
  const text::Tokenizer& tokenizer_;
};

}  // namespace

Result<std::unique_ptr<BatchRequest>> BatchRequest::Create(std::string_view url, const Json& body, size_t idx, const std::string& id,
                                                           const BatchContext& context) {
  if (url == "/v1/chat/completions") return ChatBatchRequest::Create(body, idx, id, context);
  if (url == "/v1/completions") return CompletionBatchRequest::Create(body, idx, id, context);
  return NotFound(fmt::format("url is \"{}\" but must be \"/v1/chat/completions\" or \"/v1/completions\"", Escape(url)));
}

Result<Json> BatchRequest::Body(std::vector<Completion> samples) {
  for (const Completion& sample : samples) {
    switch (sample.finish_reason) {
      case FinishReason::kStop:
      case FinishReason::kLength: break;
      case FinishReason::kInvalidLogits:
        return Internal("the model gave logits that are not finite; check the weights with deepinfer inspect --verify");
      case FinishReason::kStructuredOutputFailed:
        return Internal("the answer could not be held to its grammar; simplify the schema or the pattern");
      case FinishReason::kInsufficientResource:
        return Unavailable("the request was taken off the device for lack of cache memory; lower --concurrency or --max-model-len");
      default: return Internal(fmt::format("the request ended with \"{}\"", FinishReasonName(sample.finish_reason)));
    }
  }
  return MakeBody(samples);
}

}  // namespace deepinfer::cli
