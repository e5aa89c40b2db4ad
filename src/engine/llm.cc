// SPDX-License-Identifier: Apache-2.0
#include "deepinfer/llm.h"

#include <algorithm>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "constrain/structured_output.h"
#include "constrain/xgrammar_backend.h"
#include "core/json.h"
#include "device/device.h"
#include "engine/async_engine.h"
#include "engine/load.h"
#include "protocols/answer_grammar.h"
#include "protocols/convert_request.h"
#include "sampling/params.h"
#include "text/output_parser.h"
#include "text/prompt_renderer.h"

namespace deepinfer {

namespace {

// How often a call that waits for the engine asks its cancel token.
constexpr double kCancelPollSeconds = 0.02;

}  // namespace

struct LLM::Impl {
  std::unique_ptr<engine::Engine> engine;
  text::PromptTokens prompt_tokens;
  Status prompt_tokens_status;  // a checkpoint without chat tokens can still continue raw text

  // One request, in the calling thread's time: by itself, or through the engine where a prefix cache or drafts can help.
  Result<Completion> Run(engine::GenerateRequest request, const StreamCallback& callback, const CancelToken* cancel);
  bool uses_engine = false;

  Result<protocols::ConvertedRequest> Convert(const std::vector<ChatMessage>& messages,
                                              const SamplingParams& params,
                                              const ChatOptions& options) const;
  // What holds the answer to what the conversation asks for.
  Result<std::optional<StructuredOutput>> AnswerGrammar(const protocols::ConvertedRequest& converted, const SamplingParams& params);
};

namespace {

Json MessageJson(const ChatMessage& message) {
  Json json;
  json["role"] = message.role;
  json["content"] = message.content;
  if (message.role == "assistant") {
    if (!message.reasoning_content.empty()) json["reasoning_content"] = message.reasoning_content;
    for (const ToolCall& call : message.tool_calls) {
      json["tool_calls"].push_back(
          {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    }
  }
  if (message.role == "tool") json["tool_call_id"] = message.tool_call_id;
  return json;
}

// "call_" + two-digit index + "_" + 20 letters or digits + 4 digits, as the protocols write it.
std::string NewToolCallId(int index) {
  static constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device device;
  std::string id = fmt::format("call_{:02}_", index);
  for (int i = 0; i < 20; ++i) id += kAlphabet[device() % 62];
  for (int i = 0; i < 4; ++i) id += kAlphabet[52 + device() % 10];
  return id;
}

// Builds the assistant message from what the parser recognises and passes every piece on.
class MessageBuilder : public text::ParserSink {
 public:
  explicit MessageBuilder(const ChatCallback& callback) : callback_(callback) { message_.role = "assistant"; }

  void OnText(text::Channel channel, std::string_view text, uint64_t, bool) override {
    ChatDelta delta;
    if (channel == text::Channel::kReasoning) {
      message_.reasoning_content += text;
      delta.reasoning = text;
    } else {
      message_.content += text;
      delta.content = text;
    }
    Send(delta);
  }
  void OnToolCall(std::string_view name) override {
    ToolCall& call = message_.tool_calls.emplace_back();
    call.id = NewToolCallId(static_cast<int>(message_.tool_calls.size()) - 1);
    call.name = name;
    ChatDelta delta;
    delta.tool_call_idx = static_cast<int>(message_.tool_calls.size()) - 1;
    delta.tool_name = name;
    Send(delta);
  }
  void OnArguments(std::string_view json_text) override {
    if (message_.tool_calls.empty()) return;
    message_.tool_calls.back().arguments += json_text;
    ChatDelta delta;
    delta.tool_call_idx = static_cast<int>(message_.tool_calls.size()) - 1;
    delta.tool_arguments = json_text;
    Send(delta);
  }
  void OnToolCallEnd() override {}
  void OnStop(size_t stop_idx, uint64_t) override { stop_idx_ = stop_idx; }

  // The strongest answer of the callback so far.
  StreamAction action() const { return action_; }
  ChatMessage& message() { return message_; }
  std::optional<size_t> stop_idx() const { return stop_idx_; }

 private:
  void Send(const ChatDelta& delta) {
    if (!callback_ || action_ != StreamAction::kContinue) return;
    action_ = callback_(delta);
  }

  const ChatCallback& callback_;
  ChatMessage message_;
  StreamAction action_ = StreamAction::kContinue;
  std::optional<size_t> stop_idx_;
};

}  // namespace

LLM::LLM() : impl_(std::make_unique<Impl>()) {}
LLM::~LLM() = default;

Result<std::unique_ptr<LLM>> LLM::Load(EngineOptions options) {
  engine::LoadOptions load;
  static_cast<EngineOptions&>(load) = std::move(options);
  load.stop_preempted_request = false;
  load.disable_log_stats = true;
  const bool uses_engine = load.cache_mode != "off" || load.num_drafts != 0;
  load.max_queued_requests = int64_t{1} << 40;  // the caller holds them all anyway
  std::unique_ptr<LLM> llm(new LLM());
  llm->impl_->uses_engine = uses_engine;
  DI_ASSIGN_OR_RETURN(llm->impl_->engine, engine::LoadEngine(std::move(load)));
  Result<text::PromptTokens> tokens = text::PromptTokens::FromTokenizer(llm->impl_->engine->tokenizer());
  if (tokens.ok()) {
    llm->impl_->prompt_tokens = *std::move(tokens);
  } else {
    llm->impl_->prompt_tokens_status = tokens.status();
  }
  return llm;
}

Result<Completion> LLM::Generate(std::string_view prompt,
                                 const SamplingParams& params,
                                 const StreamCallback& callback,
                                 const CancelToken* cancel) {
  return GenerateFromIds(Encode(prompt), params, callback, cancel);
}

Result<Completion> LLM::GenerateFromIds(std::span<const int32_t> prompt_ids,
                                        const SamplingParams& params,
                                        const StreamCallback& callback,
                                        const CancelToken* cancel) {
  engine::GenerateRequest request;
  request.prompt_ids.assign(prompt_ids.begin(), prompt_ids.end());
  request.params = params;
  return impl_->Run(std::move(request), callback, cancel);
}

Result<Completion> LLM::Impl::Run(engine::GenerateRequest request, const StreamCallback& callback, const CancelToken* cancel) {
  if (!uses_engine && !request.params.so_args) return engine->generator().Generate(request, callback, cancel);
  DI_ASSIGN_OR_RETURN(engine::AsyncEngine* const async, engine->async_engine());
  engine::TextRequest text;
  static_cast<engine::GenerateRequest&>(text) = std::move(request);
  text.params.n = 1;
  DI_ASSIGN_OR_RETURN(engine::TextHandle handle, async->Submit(std::move(text), [&](int, const StreamUpdate& update) {
    return callback ? callback(update) : StreamAction::kContinue;
  }));
  while (!handle.WaitFor(kCancelPollSeconds)) {
    if (cancel != nullptr && cancel->is_cancelled()) handle.Cancel();
  }
  std::vector<Completion> completions = handle.TakeCompletions();
  async->core().WaitIdle();
  return std::move(completions.front());
}

Result<std::vector<Completion>> LLM::GenerateSamples(std::span<const int32_t> prompt_ids,
                                                     const SamplingParams& params,
                                                     const CancelToken* cancel) {
  std::vector<Completion> completions;
  SamplingParams sample = params;
  for (int i = 0; i < params.n; ++i) {
    if (params.seq_seed) {
      sample.seq_seed = *params.seq_seed + static_cast<uint64_t>(i);
    } else if (params.random_seed != 0 || i > 0) {
      const uint64_t first = params.random_seed != 0 ? params.random_seed : completions[0].seed;
      sample.random_seed = first + static_cast<uint64_t>(i);
    }
    DI_ASSIGN_OR_RETURN(Completion completion, GenerateFromIds(prompt_ids, sample, {}, cancel));
    completions.push_back(std::move(completion));
  }
  if (completions.empty()) return InvalidArgument(fmt::format("n is {} but must be in [1, 16384]", params.n), "n");
  return completions;
}

Result<std::vector<Completion>> LLM::Generate(std::span<const std::string> prompts,
                                              const SamplingParams& params,
                                              const BatchOptions& options) {
  std::vector<BatchRequest> requests;
  for (const std::string& prompt : prompts) requests.push_back({Encode(prompt), params});
  DI_ASSIGN_OR_RETURN(std::vector<std::vector<Completion>> samples, GenerateBatch(requests, options));
  std::vector<Completion> completions;
  for (std::vector<Completion>& of_prompt : samples) completions.push_back(std::move(of_prompt.front()));
  return completions;
}

Result<std::vector<std::vector<Completion>>> LLM::GenerateBatch(std::span<const BatchRequest> requests, const BatchOptions& options) {
  std::vector<std::vector<Completion>> results(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const BatchRequest& request = requests[i];
    const auto named = [&](Status status) { return std::move(status.WithContext(fmt::format("prompt {}", i))); };
    if (Status status = sampling::ValidateSamplingParams(request.params, vocab_size()); !status.ok()) return named(std::move(status));
    engine::GenerateRequest checked;
    checked.prompt_ids = request.prompt_ids;
    Status status = impl_->engine->generator().Validate(checked);
    if (status.ok()) continue;
    const bool is_too_long = status.field() == engine::kPromptLengthField;
    if (!is_too_long && status.field() != engine::kPromptTokensField) return named(std::move(status));
    // This prompt cannot run; that is no reason to lose the others.
    Completion& refused = results[i].emplace_back();
    refused.prompt_ids = request.prompt_ids;
    refused.usage.prompt_tokens = static_cast<int64_t>(request.prompt_ids.size());
    refused.finish_reason = is_too_long ? FinishReason::kPromptLengthExceeded : FinishReason::kInvalidToken;
    refused.timing.load_s = load_s();
  }
  for (size_t i = 0; i < requests.size() && options.callback; ++i) {
    if (results[i].empty()) continue;
    StreamUpdate update;
    update.finish_reason = results[i][0].finish_reason;
    options.callback(i, 0, update);
  }
  DI_ASSIGN_OR_RETURN(engine::AsyncEngine* const engine, impl_->engine->async_engine());
  std::vector<std::optional<engine::TextHandle>> handles(requests.size());
  Status status;
  for (size_t i = 0; i < requests.size() && status.ok(); ++i) {
    if (!results[i].empty()) continue;
    engine::TextRequest request;
    request.prompt_ids = requests[i].prompt_ids;
    request.params = requests[i].params;
    Result<engine::TextHandle> handle = engine->Submit(std::move(request), [i, &options](int sample, const StreamUpdate& update) {
      return options.callback ? options.callback(i, sample, update) : StreamAction::kContinue;
    });
    if (handle.ok()) {
      handles[i] = std::move(handle).value();
    } else {
      status = handle.status();
    }
  }
  bool is_cancelled = !status.ok();
  const auto cancel_all = [&] {
    for (auto& handle : handles) {
      if (handle) handle->Cancel();
    }
  };
  if (is_cancelled) cancel_all();
  for (size_t i = 0; i < requests.size(); ++i) {
    while (handles[i] && !handles[i]->WaitFor(kCancelPollSeconds)) {
      if (is_cancelled || options.cancel == nullptr || !options.cancel->is_cancelled()) continue;
      is_cancelled = true;
      cancel_all();
    }
    if (handles[i]) results[i] = handles[i]->TakeCompletions();
    if (options.progress && !is_cancelled) options.progress(i + 1);
  }
  // The model is free for other calls, and no callback refers to `options`.
  engine->core().WaitIdle();
  if (!status.ok()) return status;
  return results;
}

SamplingParams LLM::ChatDefaults() {
  SamplingParams params;
  params.temperature = 1.0;
  params.top_p = 0.95;
  params.max_tokens = 1024;
  return params;
}

Result<protocols::ConvertedRequest> LLM::Impl::Convert(const std::vector<ChatMessage>& messages,
                                                       const SamplingParams& params,
                                                       const ChatOptions& options) const {
  DI_RETURN_IF_ERROR(prompt_tokens_status);
  protocols::ConvertOptions convert;
  convert.tokens = prompt_tokens;
  Json body;
  body["model"] = convert.served_models.front();
  body["messages"] = Json::array();
  for (const ChatMessage& message : messages) body["messages"].push_back(MessageJson(message));
  body["thinking"] = {{"type", options.thinking ? "enabled" : "disabled"}};
  if (options.thinking) body["reasoning_effort"] = options.effort;
  if (!options.tools_json.empty()) {
    Result<Json> tools = ParseJson(options.tools_json);
    if (!tools.ok()) return Status(tools.status()).WithContext("tools");
    body["tools"] = *std::move(tools);
  }
  if (options.tool_choice == "auto" || options.tool_choice == "none" || options.tool_choice == "required") {
    body["tool_choice"] = options.tool_choice;
  } else if (!options.tool_choice.empty()) {
    body["tool_choice"] = {{"type", "function"}, {"function", {{"name", options.tool_choice}}}};
  }
  if (!options.parallel_tool_calls) body["parallel_tool_calls"] = false;
  if (!options.response_format_json.empty()) {
    Result<Json> format = ParseJson(options.response_format_json);
    if (!format.ok()) return Status(format.status()).WithContext("response_format");
    body["response_format"] = *std::move(format);
  }
  if (!params.stop.empty()) body["stop"] = params.stop;
  DI_ASSIGN_OR_RETURN(protocols::ConvertedRequest request, protocols::ConvertParsedRequest(protocols::Api::kChat, body, convert));
  if (!request.prompt.images.empty()) return Unimplemented("images are not supported yet; send text only");
  return request;
}

Status LLM::CheckStructuredOutput(const StructuredOutput& so_args) {
  DI_ASSIGN_OR_RETURN(engine::AsyncEngine* const async, impl_->engine->async_engine());
  return async->CheckStructuredOutput(so_args);
}

Result<std::optional<StructuredOutput>> LLM::Impl::AnswerGrammar(const protocols::ConvertedRequest& converted,
                                                                 const SamplingParams& params) {
  const int end_think_id = engine->tokenizer().FindAddedToken(prompt_tokens.end_think);
  std::optional<StructuredOutput> so_args = params.so_args;
  const auto& constraint = converted.inference.constraint;
  if (so_args) {
    const bool is_thinking = converted.prompt.stage == text::InitialStage::kReasoningStart;
    if (is_thinking && so_args->trigger_token_ids.empty()) so_args->trigger_token_ids = {end_think_id};
  } else if (constraint && (constrain::HasXgrammar() || constraint->kind != protocols::ConstraintKind::kToolCall)) {
    // Without a grammar compiler offered tools are no constraint that an answer could break.
    DI_ASSIGN_OR_RETURN(const std::optional<constrain::GrammarSpec> spec, protocols::AnswerGrammar(converted, end_think_id));
    so_args = constrain::StructuredOutputOf(*spec);
  }
  if (!so_args) return so_args;
  DI_ASSIGN_OR_RETURN(engine::AsyncEngine* const async, engine->async_engine());
  DI_RETURN_IF_ERROR(async->CheckStructuredOutput(*so_args));
  return so_args;
}

Result<ChatCompletion> LLM::Chat(const std::vector<ChatMessage>& messages,
                                 const SamplingParams& params,
                                 const ChatOptions& options,
                                 const ChatCallback& callback,
                                 const CancelToken* cancel) {
  DI_ASSIGN_OR_RETURN(protocols::ConvertedRequest converted, impl_->Convert(messages, params, options));
  engine::GenerateRequest request;
  DI_ASSIGN_OR_RETURN(
      request.prompt_ids,
      impl_->engine->tokenizer().EncodePrompt(converted.prompt.text, converted.prompt.special_ranges));
  request.params = params;
  DI_ASSIGN_OR_RETURN(request.params.so_args, impl_->AnswerGrammar(converted, params));
  request.params.stop.clear();  // the parser looks for them, in the answer's content only
  request.params.detokenize = true;
  request.params.skip_special_tokens = false;  // the parser reads the marks
  request.apply_token_policy = true;
  request.hide_stop_token = true;

  MessageBuilder builder(callback);
  text::OutputParser parser(converted.parsing, builder);
  DI_ASSIGN_OR_RETURN(Completion completion,
                      impl_->Run(
                          std::move(request),
                          [&](const StreamUpdate& update) {
                            parser.Push(update.text);
                            return parser.is_stopped() ? StreamAction::kStop : builder.action();
                          },
                          cancel));
  parser.Finish();
  ChatCompletion answer;
  answer.message = std::move(builder.message());
  if (builder.stop_idx()) completion.stop_string = converted.parsing.stop_sequences[*builder.stop_idx()];
  const bool is_natural_end = completion.finish_reason == FinishReason::kStop && !builder.stop_idx();
  answer.finish_reason =
      is_natural_end && parser.num_tool_calls() > 0 ? "tool_calls" : std::string(FinishReasonName(completion.finish_reason));
  answer.completion = std::move(completion);
  return answer;
}

std::vector<int32_t> LLM::Encode(std::string_view text) const { return impl_->engine->generator().EncodeText(text); }

Result<std::vector<int32_t>> LLM::EncodeChat(const std::vector<ChatMessage>& messages, const ChatOptions& options) const {
  DI_ASSIGN_OR_RETURN(protocols::ConvertedRequest converted, impl_->Convert(messages, {}, options));
  return impl_->engine->tokenizer().EncodePrompt(converted.prompt.text, converted.prompt.special_ranges);
}

std::string LLM::Decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  return impl_->engine->tokenizer().Decode(ids, skip_special_tokens);
}

int LLM::vocab_size() const { return impl_->engine->config().vocab_size; }
int64_t LLM::max_model_len() const { return impl_->engine->model().max_model_len(); }
int LLM::eos_token_id() const { return impl_->engine->generator().eos_token_id(); }
const std::string& LLM::model_dir() const { return impl_->engine->model_dir(); }
LLM::ExpertReads LLM::expert_reads() const {
  const device::ExpertStreamStats s = impl_->engine->model().device().expert_stats();
  if (s.num_slots == 0) return {};
  return {s.num_slots, s.num_experts, s.num_hits, s.num_misses, s.num_prefetched, s.num_useful, s.num_bytes, 1e-9 * static_cast<double>(s.wait_ns)};
}

double LLM::load_s() const { return impl_->engine->load_s(); }

}  // namespace deepinfer
