// SPDX-License-Identifier: Apache-2.0
#include "protocols/completion_response.h"

#include <utility>

#include <fmt/format.h>

#include "core/json.h"
#include "protocols/api.h"
#include "protocols/completion_logprobs.h"
#include "protocols/json_text.h"
#include "protocols/response_writer.h"

namespace deepinfer::protocols {

namespace {

std::string_view ReasonName(deepinfer::FinishReason reason) { return reason == deepinfer::FinishReason::kLength ? "length" : "stop"; }

// Where a prompt's text begins: behind a BOS, which the server puts in front of texts and clients in front of tokens.
size_t TextBegin(std::span<const int32_t> ids, const text::Tokenizer& tokenizer) {
  return !ids.empty() && ids.front() == tokenizer.FindAddedToken(text::PromptTokens().bos) ? 1 : 0;
}

std::string EchoOf(std::span<const int32_t> ids, const text::Tokenizer& tokenizer) {
  return tokenizer.Decode(ids.subspan(TextBegin(ids, tokenizer)));
}

void AddPromptTokens(const Completion& sample, const text::Tokenizer& tokenizer, CompletionLogprobs& logprobs) {
  const std::vector<int32_t>& ids = sample.prompt_ids;
  for (size_t i = TextBegin(ids, tokenizer); i < ids.size(); ++i) {
    const bool has_value = i > 0 && i - 1 < sample.prompt_logprobs.size();
    logprobs.AddPrompt(ids[i], has_value ? &sample.prompt_logprobs[i - 1] : nullptr);
  }
}

void AppendUsage(const Usage& usage, std::string& out) {
  fmt::format_to(
      std::back_inserter(out),
      R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}}}}})",
      usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens, usage.cached_tokens);
}

// Further samples of a prompt find the first one's: only that one's prompt and its own hit are counted.
void AddUsage(const Usage& sample, bool is_first_of_prompt, Usage& usage) {
  usage.completion_tokens += sample.completion_tokens;
  if (!is_first_of_prompt) return;
  usage.prompt_tokens += sample.prompt_tokens;
  usage.cached_tokens += sample.cached_tokens;
}

void AppendHead(const CompletionResponseInfo& info, std::string& out) {
  out += R"({"id":)";
  AppendJsonString(info.id, out);
  fmt::format_to(std::back_inserter(out), R"(,"object":"text_completion","created":{},"model":)", info.created);
  AppendJsonString(info.model, out);
  out += R"(,"choices":[)";
}

}  // namespace

CompletionResponseInfo MakeCompletionResponseInfo(const CompletionRequest& request,
                                                  std::string id,
                                                  int64_t created,
                                                  const ConvertOptions& options,
                                                  const text::Tokenizer& tokenizer) {
  CompletionResponseInfo info;
  info.id = std::move(id);
  info.created = created;
  info.model = request.model;
  info.logprobs = request.logprobs;
  info.n = request.params.n;
  info.num_choices = request.prompts.size() * static_cast<size_t>(request.params.n);
  if (request.echo) {
    for (const CompletionPrompt& prompt : request.prompts) info.echoes.push_back(prompt.text ? *prompt.text : EchoOf(prompt.ids, tokenizer));
  }
  info.include_usage = request.include_usage;
  info.has_usage_chunk = request.include_usage && options.openai_usage_chunk;
  return info;
}

std::string CompletionBody(const CompletionResponseInfo& info, std::span<const Completion> samples, const text::Tokenizer& tokenizer) {
  std::string out;
  AppendHead(info, out);
  Usage usage;
  for (size_t i = 0; i < samples.size(); ++i) {
    const Completion& sample = samples[i];
    const size_t prompt = i / static_cast<size_t>(info.n);
    if (i > 0) out += ',';
    out += R"({"text":")";
    if (!info.echoes.empty()) text::AppendJsonEscaped(info.echoes[prompt], out);
    text::AppendJsonEscaped(sample.text, out);
    out += R"(","index":)";
    AppendJsonInt(i, out);
    out += R"(,"logprobs":)";
    if (info.logprobs) {
      CompletionLogprobs logprobs(tokenizer, *info.logprobs, 0);
      if (!info.echoes.empty()) AddPromptTokens(sample, tokenizer, logprobs);
      for (const TokenOutput& token : sample.tokens) logprobs.Add(token);
      logprobs.Append(out);
    } else {
      out += "null";
    }
    out += R"(,"finish_reason":)";
    AppendJsonString(ReasonName(sample.finish_reason), out);
    out += '}';
    AddUsage(sample.usage, i % static_cast<size_t>(info.n) == 0, usage);
  }
  out += R"(],"usage":)";
  AppendUsage(usage, out);
  out += '}';
  return out;
}

CompletionStream::CompletionStream(CompletionResponseInfo info, const text::Tokenizer& tokenizer)
    : info_(std::move(info)), tokenizer_(tokenizer), choices_(info_.num_choices) {
  head_ = "data: ";
  AppendHead(info_, head_);
  tail_ = info_.include_usage ? "],\"usage\":null}\n\n" : "]}\n\n";
}

void CompletionStream::Open(std::string& out) const {
  out += head_;
  out += R"({"text":)";
}

// Without an end of the choice.
void CompletionStream::Close(size_t choice, std::string& out) const {
  out += R"(,"index":)";
  AppendJsonInt(choice, out);
  out += R"(,"logprobs":)";
  out += logprobs_.empty() ? std::string_view("null") : std::string_view(logprobs_);
  out += R"(,"finish_reason":)";
}

void CompletionStream::WriteEcho(size_t choice, const Completion* completion, std::string& out) {
  logprobs_.clear();
  if (info_.logprobs && completion != nullptr) {
    CompletionLogprobs logprobs(tokenizer_, *info_.logprobs, 0);
    AddPromptTokens(*completion, tokenizer_, logprobs);
    logprobs.Append(logprobs_);
    choices_[choice].num_characters = logprobs.num_characters();
  }
  Open(out);
  AppendJsonString(info_.echoes[choice / static_cast<size_t>(info_.n)], out);
  Close(choice, out);
  out += "null}";
  out += tail_;
}

void CompletionStream::Write(size_t choice, const StreamUpdate& update, std::string& out) {
  Choice& state = choices_[choice];
  if (state.is_finished) return;
  if (!state.is_started && !info_.echoes.empty()) WriteEcho(choice, update.completion, out);
  state.is_started = true;
  const bool ends = update.finish_reason != deepinfer::FinishReason::kNone;
  logprobs_.clear();
  if (info_.logprobs && update.token != nullptr && update.token->token_id >= 0) {
    CompletionLogprobs logprobs(tokenizer_, *info_.logprobs, state.num_characters);
    logprobs.Add(*update.token);
    logprobs.Append(logprobs_);
    state.num_characters = logprobs.num_characters();
  }
  if (update.text.empty() && logprobs_.empty() && !ends) return;
  Open(out);
  AppendJsonString(update.text, out);
  Close(choice, out);
  if (!ends) {
    out += "null}";
    out += tail_;
    return;
  }
  state.is_finished = true;
  ++num_finished_;
  if (update.completion != nullptr) AddUsage(update.completion->usage, choice % static_cast<size_t>(info_.n) == 0, usage_);
  AppendJsonString(ReasonName(update.finish_reason), out);
  out += '}';
  if (!is_finished()) {
    out += tail_;
    return;
  }
  out += R"(],"usage":)";
  AppendUsage(usage_, out);
  out += "}\n\n";
  if (info_.has_usage_chunk) {
    out += head_;
    out += R"(],"usage":)";
    AppendUsage(usage_, out);
    out += "}\n\n";
  }
  out += "data: [DONE]\n\n";
}

void CompletionStream::Fail(const Status& status, std::string& out) const {
  out += "data: ";
  out += DumpJson(ErrorBody(Api::kChat, status));
  out += "\n\n";
}

void CompletionStream::KeepAlive(std::string& out) { out += kKeepAliveComment; }

}  // namespace deepinfer::protocols
