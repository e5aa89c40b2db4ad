// SPDX-License-Identifier: Apache-2.0
#include "server/text_request.h"

#include <algorithm>

#include "constrain/structured_output.h"
#include "protocols/answer_grammar.h"

namespace deepinfer::server {

namespace {

// Between interactive (0) and batch (2).
constexpr int kStandardPriority = 1;

Status CheckGrammar(const SamplingParams& params, const GrammarCheck& check) {
  if (!params.so_args) return Status::Ok();
  return check ? check(*params.so_args) : constrain::NoStructuredOutput();
}

}  // namespace

std::optional<engine::CacheMode> EngineCacheMode(const std::optional<protocols::CacheMode>& mode) {
  if (!mode) return std::nullopt;
  switch (*mode) {
    case protocols::CacheMode::kReplay: return engine::CacheMode::kReplay;
    case protocols::CacheMode::kExact: return engine::CacheMode::kExact;
    case protocols::CacheMode::kOff: return engine::CacheMode::kOff;
  }
  return std::nullopt;
}

Result<engine::TextRequest> MakeTextRequest(const protocols::ConvertedRequest& converted, const text::Tokenizer& tokenizer,
                                            const protocols::ConvertOptions& options, int64_t max_model_len, const GrammarCheck& check_grammar) {
  if (!converted.prompt.images.empty()) return Unimplemented("images are not in this version; send text only");
  const protocols::InferenceOptions& inference = converted.inference;
  engine::TextRequest request;
  // Without a grammar compiler offered tools are no constraint that an answer could break.
  if (inference.constraint && (check_grammar || inference.constraint->kind != protocols::ConstraintKind::kToolCall)) {
    const int end_think_id = tokenizer.FindAddedToken(options.tokens.end_think);
    DI_ASSIGN_OR_RETURN(const std::optional<constrain::GrammarSpec> grammar, protocols::AnswerGrammar(converted, end_think_id));
    request.params.so_args = constrain::StructuredOutputOf(*grammar);
    DI_RETURN_IF_ERROR(CheckGrammar(request.params, check_grammar));
  }
  DI_ASSIGN_OR_RETURN(request.prompt_ids, tokenizer.EncodePrompt(converted.prompt.text, converted.prompt.special_ranges));
  request.apply_token_policy = true;
  request.hide_stop_token = true;
  request.cache_mode = EngineCacheMode(converted.cache_mode);
  request.cache_salt = converted.cache_salt;
  SamplingParams& params = request.params;
  DI_ASSIGN_OR_RETURN(params.max_tokens,
                      protocols::ResolveMaxTokens(inference, converted.conversation.thinking, converted.conversation.effort,
                                                  static_cast<int64_t>(request.prompt_ids.size()), max_model_len));
  params.max_tokens = std::min(params.max_tokens, options.max_output_tokens);  // also what the client left to us
  params.temperature = inference.temperature;
  params.top_p = inference.top_p;
  if (inference.seed) params.seq_seed = inference.seed;
  const protocols::ClientSampling& client = inference.client;
  if (client.top_k && *client.top_k > 0) params.top_k = *client.top_k;
  if (client.min_p) params.min_p = *client.min_p;
  if (client.repetition_penalty) params.repetition_penalty = *client.repetition_penalty;
  if (client.frequency_penalty) params.frequency_penalty = *client.frequency_penalty;
  if (client.presence_penalty) params.presence_penalty = *client.presence_penalty;
  for (const auto& [token, bias] : client.logit_bias) params.logit_bias[token] = bias;
  params.top_logprobs = inference.top_logprobs.value_or(0);
  params.priority = converted.priority.value_or(kStandardPriority);
  params.detokenize = false;  // the protocol's stream does it
  return request;
}

Result<std::vector<engine::TextRequest>> MakeTextRequests(const protocols::CompletionRequest& completion, const text::Tokenizer& tokenizer,
                                                          const GrammarCheck& check_grammar) {
  DI_RETURN_IF_ERROR(CheckGrammar(completion.params, check_grammar));
  std::vector<engine::TextRequest> requests;
  for (const protocols::CompletionPrompt& prompt : completion.prompts) {
    engine::TextRequest& request = requests.emplace_back();
    DI_ASSIGN_OR_RETURN(request.prompt_ids, protocols::CompletionPromptIds(prompt, completion.suffix, tokenizer));
    request.params = completion.params;
    request.hide_stop_token = true;
    request.cache_mode = EngineCacheMode(completion.cache_mode);
    request.cache_salt = completion.cache_salt;
  }
  return requests;
}

}  // namespace deepinfer::server
