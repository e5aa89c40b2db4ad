// SPDX-License-Identifier: Apache-2.0
//
// generate: continues raw text, or answers one message with --chat.
#include <cstdio>
#include <unistd.h>

#include <fmt/format.h>

#include "cli/answer_printer.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/input.h"
#include "core/json.h"
#include "core/log.h"
#include "core/signals.h"
#include "core/utf8.h"

namespace deepinfer::cli {

namespace {

constexpr int64_t kDefaultMaxTokens = 256;

Result<std::string> Prompt(const Invocation& invocation) {
  std::string prompt;
  if (!invocation.args.empty()) {
    prompt = invocation.args[0];
  } else if (::isatty(STDIN_FILENO) == 1) {
    return InvalidArgument("no PROMPT given; write deepinfer generate \"text\", or send the text to stdin");
  } else {
    DI_ASSIGN_OR_RETURN(prompt, ReadStdin(kMaxPromptBytes));
  }
  if (prompt.empty()) return InvalidArgument("the prompt is empty; give the text to continue");
  bool replaced = false;
  prompt = ReplaceInvalidUtf8(prompt, &replaced);
  if (replaced && !invocation.config.log.quiet) DI_LOG(warn, "the prompt is not valid UTF-8; ill-formed parts became U+FFFD");
  return prompt;
}

Json ToJson(const Completion& completion) {
  const Timing& timing = completion.timing;
  return Json{{"text", completion.text},
              {"ids", completion.ids},
              {"finish_reason", std::string(FinishReasonName(completion.finish_reason))},
              {"usage",
               {{"prompt_tokens", completion.usage.prompt_tokens},
                {"cached_tokens", completion.usage.cached_tokens},
                {"completion_tokens", completion.usage.completion_tokens}}},
              {"timing", {{"load_s", timing.load_s}, {"ttft_s", timing.ttft_s}, {"tokens_per_s", timing.tokens_per_s}}},
              {"speculation",
               {{"steps", completion.speculation.steps}, {"emitted_per_step", completion.speculation.emitted_per_step}}}};
}

class GenerateRun {
 public:
  GenerateRun(Invocation& invocation, LLM& llm, std::optional<StructuredOutput> grammar)
      : invocation_(invocation),
        llm_(llm),
        grammar_(std::move(grammar)),
        json_(invocation.config.output.json),
        printer_(invocation.out, !json_ && invocation.out.is_terminal()),
        interrupt_([](void* token) { static_cast<CancelToken*>(token)->Cancel(); }, &cancel_) {}

  Status Continue(const std::string& prompt) {
    SamplingParams params;
    params.max_tokens = kDefaultMaxTokens;
    params = WithSamplingOptions(invocation_.config.sampling, params);
    params.so_args = grammar_;
    const auto callback = [this](const StreamUpdate& update) {
      if (!json_) printer_.Raw(update.text);
      return NextAction();
    };
    DI_ASSIGN_OR_RETURN(const Completion completion, llm_.Generate(prompt, params, callback, &cancel_));
    return End(completion, ToJson(completion));
  }

  Status Answer(const std::string& prompt) {
    const ConversationConfig& conversation = invocation_.config.conversation;
    SamplingParams params = WithSamplingOptions(invocation_.config.sampling, LLM::ChatDefaults());
    params.so_args = grammar_;
    std::vector<ChatMessage> messages;
    if (!conversation.system.empty()) messages.push_back({.role = "system", .content = conversation.system});
    messages.push_back({.role = "user", .content = prompt});
    const auto callback = [this](const ChatDelta& delta) {
      if (!json_) printer_.Delta(delta);
      return NextAction();
    };
    DI_ASSIGN_OR_RETURN(const ChatCompletion answer, llm_.Chat(messages, params, ToChatOptions(conversation), callback, &cancel_));
    Json json = ToJson(answer.completion);
    json["text"] = answer.message.content;
    json["finish_reason"] = answer.finish_reason;
    json["reasoning"] = answer.message.reasoning_content;
    if (!answer.message.tool_calls.empty()) {
      json["tool_calls"] = Json::array();
      for (const ToolCall& call : answer.message.tool_calls) {
        json["tool_calls"].push_back({{"id", call.id}, {"name", call.name}, {"arguments", call.arguments}});
      }
    }
    return End(answer.completion, json);
  }

 private:
  // A reader that has gone, or a full disk, ends the work too.
  StreamAction NextAction() const { return invocation_.out.ok() ? StreamAction::kContinue : StreamAction::kAbort; }

  Status End(const Completion& completion, const Json& json) {
    if (json_) {
      invocation_.out.Line(DumpJson(json));
    } else {
      printer_.Finish();
    }
    if (invocation_.config.output.stats) PrintStats(completion);
    if (completion.finish_reason == FinishReason::kInvalidLogits) {
      return Internal("the model gave logits that are not finite; check the weights with deepinfer inspect --verify");
    }
    if (completion.finish_reason == FinishReason::kStructuredOutputFailed) {
      return Internal("the text could not be held to its grammar; the log says why");
    }
    if (completion.finish_reason == FinishReason::kPromptLengthExceeded) {
      return ResourceExhausted(fmt::format("the prompt has {} tokens but the context holds {}; shorten it or raise --max-model-len",
                                           completion.usage.prompt_tokens, llm_.max_model_len()));
    }
    if (cancel_.is_cancelled()) invocation_.exit_code = 130;
    return Status::Ok();
  }

  void PrintStats(const Completion& completion) {
    const Timing& timing = completion.timing;
    std::fputs(fmt::format("{} prompt tokens, {} output tokens ({}); load {:.2f} s, first token {:.3f} s, {:.1f} tokens/s\n",
                           completion.usage.prompt_tokens, completion.usage.completion_tokens,
                           FinishReasonName(completion.finish_reason), timing.load_s, timing.ttft_s, timing.tokens_per_s)
                   .c_str(),
               stderr);
    PrintExpertReads(llm_);
  }

  Invocation& invocation_;
  LLM& llm_;
  const std::optional<StructuredOutput> grammar_;
  bool json_;
  AnswerPrinter printer_;
  CancelToken cancel_;
  InterruptScope interrupt_;
};

Status RunGenerate(Invocation& invocation) {
  DI_ASSIGN_OR_RETURN(std::optional<StructuredOutput> grammar, ReadGrammar(invocation.config.sampling));
  DI_ASSIGN_OR_RETURN(const std::string prompt, Prompt(invocation));
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<LLM> llm, LoadModel(invocation, Defaults::kReference));
  if (grammar) DI_RETURN_IF_ERROR(llm->CheckStructuredOutput(*grammar));
  GenerateRun run(invocation, *llm, std::move(grammar));
  return invocation.config.conversation.chat ? run.Answer(prompt) : run.Continue(prompt);
}

}  // namespace

Command GenerateCommand() {
  return {.name = "generate",
          .summary = "continue a text, or answer one message with --chat",
          .usage = "[PROMPT]",
          .min_args = 0,
          .max_args = 1,
          .run = RunGenerate,
          .arg_choices = {},
          .details = "Without PROMPT the text comes from stdin."};
}

}  // namespace deepinfer::cli
