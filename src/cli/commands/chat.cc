// SPDX-License-Identifier: Apache-2.0
//
// chat: a conversation. On a terminal with line editing, dimmed thinking and slash commands; with piped stdin every line
// is a message and only the answers are printed.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/answer_printer.h"
#include "cli/commands.h"
#include "cli/input.h"
#include "cli/engine_options.h"
#include "cli/line_editor.h"
#include "cli/version.h"
#include "core/escape.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/signals.h"
#include "core/terminal.h"
#include "core/utf8.h"

namespace deepinfer::cli {

namespace {

struct SlashCommand {
  std::string_view name;
  std::string_view args;
  std::string_view help;
};

constexpr SlashCommand kSlashCommands[] = {
    {"/help", "", "show this list"},
    {"/reset", "", "forget the conversation; the system message stays"},
    {"/system", "[TEXT]", "show or set the system message"},
    {"/effort", "[1..100]", "show or set the reasoning effort; setting it turns thinking on"},
    {"/think", "[on|off]", "show or set thinking before the answer"},
    {"/save", "FILE", "write the conversation as JSON"},
    {"/image", "FILE", "attach an image (not in this version)"},
    {"/quit", "", "leave; Ctrl-D does too"},
};

std::string_view TrimBlanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Lines of a pipe or file, without a terminal.
class LineReader {
 public:
  // False at the end, or when a line is too long. A last line without a newline counts.
  bool Read(std::string& line) {
    line.clear();
    for (;;) {
      const size_t end = buffer_.find('\n', searched_);
      if (end != std::string::npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        searched_ = 0;
        if (line.ends_with('\r')) line.pop_back();
        return true;
      }
      searched_ = buffer_.size();
      if (static_cast<int64_t>(searched_) > kMaxPromptBytes) {
        is_too_long_ = true;
        return false;
      }
      char bytes[65536];
      const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof(bytes));
      if (n <= 0) {
        line = std::move(buffer_);
        buffer_.clear();
        return !line.empty();
      }
      buffer_.append(bytes, static_cast<size_t>(n));
    }
  }

  bool is_too_long() const { return is_too_long_; }

 private:
  std::string buffer_;
  size_t searched_ = 0;
  bool is_too_long_ = false;
};

class ChatSession {
 public:
  ChatSession(Invocation& invocation, LLM& llm)
      : invocation_(invocation),
        llm_(llm),
        options_(ToChatOptions(invocation.config.conversation)),
        system_(invocation.config.conversation.system),
        json_(invocation.config.output.json),
        interactive_(::isatty(STDIN_FILENO) == 1 && invocation.out.is_terminal() && !json_ && !IsDumbTerminal()),
        styled_(invocation.out.is_terminal() && !json_ && !IsDumbTerminal()) {
    SamplingParams base = LLM::ChatDefaults();
    base.max_tokens = llm.max_model_len();  // the context ends the answer
    params_ = WithSamplingOptions(invocation.config.sampling, base);
  }

  Status Run() { return interactive_ ? RunTerminal() : RunPipe(); }

 private:
  enum class Next { kContinue, kQuit };

  bool IsDumbTerminal() const { return invocation_.environment.Get("TERM").value_or("") == "dumb"; }

  Status RunTerminal() {
    Note(fmt::format("deepinfer {} with {}. /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.", Version(),
                     Escape(invocation_.config.model.model)));
    std::vector<std::string> completions;
    for (const SlashCommand& command : kSlashCommands) {
      completions.push_back(std::string(command.name) + (command.args.empty() ? "" : " "));
    }
    LineEditor editor("\033[1m>\033[0m ", std::move(completions), invocation_.config.conversation.history_file);
    std::string line;
    while (invocation_.out.ok()) {
      const LineEditor::Outcome outcome = editor.Read(line);
      if (outcome == LineEditor::Outcome::kEndOfInput) break;
      if (outcome == LineEditor::Outcome::kInterrupt) {
        if (line.empty()) Note("Ctrl-D or /quit leaves");
        continue;
      }
      Result<Next> next = Handle(line);
      if (!next.ok()) {
        // The conversation goes on: the message is taken back and can be changed.
        std::fputs(("error: " + Escape(next.status().message(), 4096) + "\n").c_str(), stderr);
        continue;
      }
      if (*next == Next::kQuit) break;
    }
    return Status::Ok();
  }

  Status RunPipe() {
    LineReader reader;
    std::string line;
    while (invocation_.out.ok() && reader.Read(line)) {
      DI_ASSIGN_OR_RETURN(const Next next, Handle(line));
      if (next == Next::kQuit || invocation_.exit_code != 0) break;
    }
    if (reader.is_too_long()) {
      return BadModel(fmt::format("stdin has a line of more than {} bytes; send shorter messages", kMaxPromptBytes));
    }
    return Status::Ok();
  }

  Result<Next> Handle(std::string_view line) {
    const std::string_view text = TrimBlanks(line);
    if (text.empty()) return Next::kContinue;
    // Two slashes are a message that begins with one.
    if (text.starts_with("//")) return Ask(text.substr(1));
    if (text[0] == '/') return RunSlashCommand(text);
    return Ask(line);
  }

  // Lines about the conversation, not of it: stderr, so that a pipe holds answers only.
  void Note(std::string_view text) const {
    if (invocation_.config.log.quiet) return;
    const bool dim = styled_ && StderrIsTerminal();
    std::fputs((std::string(dim ? "\033[2m" : "") + std::string(text) + (dim ? "\033[0m\n" : "\n")).c_str(), stderr);
  }

  Result<Next> RunSlashCommand(std::string_view text) {
    const size_t blank = text.find_first_of(" \t\n");
    const std::string_view name = text.substr(0, blank);
    const std::string_view argument = blank == std::string_view::npos ? std::string_view() : TrimBlanks(text.substr(blank + 1));
    if (name == "/quit" || name == "/exit") return Next::kQuit;
    if (name == "/help") {
      for (const SlashCommand& command : kSlashCommands) Note(fmt::format("  {:<20} {}", fmt::format("{} {}", command.name, command.args), command.help));
      Note("  Alt-Enter, Ctrl-J or a backslash before Enter begins a new line; //text sends a message that begins with a slash");
      return Next::kContinue;
    }
    if (name == "/reset") {
      messages_.clear();
      Note("the conversation is empty");
      return Next::kContinue;
    }
    if (name == "/system") {
      if (!argument.empty()) system_ = ReplaceInvalidUtf8(argument);
      Note(system_.empty() ? "there is no system message" : "system message: " + EscapeForTerminal(system_));
      return Next::kContinue;
    }
    if (name == "/effort") return SetEffort(argument);
    if (name == "/think") return SetThinking(argument);
    if (name == "/save") return Save(argument);
    if (name == "/image") {
      return Unimplemented("images need the vision encoder, which this version does not have; describe the picture in words");
    }
    std::vector<std::string> known;
    for (const SlashCommand& command : kSlashCommands) known.emplace_back(command.name);
    const std::string near = NearestName(name, known);
    return InvalidArgument(fmt::format("unknown command {}; {}", Escape(name, 32),
                                       near.empty() ? "/help lists the commands" : fmt::format("did you mean {}?", near)));
  }

  Result<Next> SetEffort(std::string_view argument) {
    if (!argument.empty()) {
      int effort = 0;
      const auto [end, error] = std::from_chars(argument.data(), argument.data() + argument.size(), effort);
      if (error != std::errc() || end != argument.data() + argument.size() || effort < 1 || effort > 100) {
        return InvalidArgument(fmt::format("effort is \"{}\" but must be a whole number from 1 to 100", Escape(argument, 32)));
      }
      options_.effort = effort;
      options_.thinking = true;
    }
    Note(fmt::format("reasoning effort: {}{}", options_.effort, options_.thinking ? "" : " (thinking is off)"));
    return Next::kContinue;
  }

  Result<Next> SetThinking(std::string_view argument) {
    if (!argument.empty() && argument != "on" && argument != "off") {
      return InvalidArgument(fmt::format("/think takes on or off, not \"{}\"", Escape(argument, 32)));
    }
    if (!argument.empty()) options_.thinking = argument == "on";
    Note(options_.thinking ? "thinking is on" : "thinking is off");
    return Next::kContinue;
  }

  Result<Next> Save(std::string_view path) {
    if (path.empty()) return InvalidArgument("/save needs a file name");
    Json list = Json::array();
    for (const ChatMessage& message : Conversation()) {
      Json one = {{"role", message.role}, {"content", message.content}};
      if (!message.reasoning_content.empty()) one["reasoning_content"] = message.reasoning_content;
      list.push_back(std::move(one));
    }
    const Json document = {{"model", invocation_.config.model.model}, {"messages", std::move(list)}};
    DI_RETURN_IF_ERROR(WriteFileAtomically(std::string(path), DumpJson(document) + "\n"));
    Note(fmt::format("saved {} messages to {}", document["messages"].size(), Escape(path)));
    return Next::kContinue;
  }

  std::vector<ChatMessage> Conversation() const {
    std::vector<ChatMessage> all;
    if (!system_.empty()) all.push_back({.role = "system", .content = system_});
    all.insert(all.end(), messages_.begin(), messages_.end());
    return all;
  }

  Result<Next> Ask(std::string_view message) {
    messages_.push_back({.role = "user", .content = ReplaceInvalidUtf8(message)});
    AnswerPrinter printer(invocation_.out, styled_);
    CancelToken cancel;
    const InterruptScope interrupt([](void* token) { static_cast<CancelToken*>(token)->Cancel(); }, &cancel);
    if (interactive_ && !invocation_.config.log.quiet) ShowStatusLine("reading ...");
    const auto callback = [&](const ChatDelta& delta) {
      if (!json_) {
        EndStatusLine();
        printer.Delta(delta);
      }
      return invocation_.out.ok() ? StreamAction::kContinue : StreamAction::kAbort;
    };
    Result<ChatCompletion> answer = llm_.Chat(Conversation(), params_, options_, callback, &cancel);
    EndStatusLine();
    if (!json_) printer.Finish();
    if (!answer.ok()) {
      messages_.pop_back();
      return answer.status();
    }
    if (json_) PrintJson(*answer);
    if (invocation_.config.output.stats) {
      const Completion& completion = answer->completion;
      Note(fmt::format("{} prompt tokens, {} output tokens ({}); first token {:.3f} s, {:.1f} tokens/s", completion.usage.prompt_tokens,
                       completion.usage.completion_tokens, answer->finish_reason, completion.timing.ttft_s,
                       completion.timing.tokens_per_s));
    }
    // An answer that was stopped stays in the conversation as far as it went; one without content leaves no trace.
    if (answer->message.content.empty() && answer->message.tool_calls.empty()) {
      messages_.pop_back();
    } else {
      messages_.push_back(answer->message);
    }
    if (cancel.is_cancelled()) {
      Note("(stopped)");
      if (!interactive_) invocation_.exit_code = 130;
    } else if (answer->finish_reason == "length") {
      Note("(the answer reached the token limit; --max-tokens raises it, /reset empties a full context)");
    }
    return Next::kContinue;
  }

  void PrintJson(const ChatCompletion& answer) {
    const Completion& completion = answer.completion;
    invocation_.out.Line(DumpJson(Json{{"text", answer.message.content},
                                       {"reasoning", answer.message.reasoning_content},
                                       {"finish_reason", answer.finish_reason},
                                       {"usage",
                                        {{"prompt_tokens", completion.usage.prompt_tokens},
                                         {"cached_tokens", completion.usage.cached_tokens},
                                         {"completion_tokens", completion.usage.completion_tokens}}}}));
    invocation_.out.Flush();
  }

  Invocation& invocation_;
  LLM& llm_;
  SamplingParams params_;
  ChatOptions options_;
  std::string system_;
  std::vector<ChatMessage> messages_;
  bool json_;
  bool interactive_;
  bool styled_;
};

Status RunChat(Invocation& invocation) {
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<LLM> llm, LoadModel(invocation, Defaults::kProduction));
  return ChatSession(invocation, *llm).Run();
}

}  // namespace

Command ChatCommand() {
  return {.name = "chat",
          .summary = "talk with the model; thinking is shown dimmed, Ctrl-C stops an answer",
          .usage = "",
          .run = RunChat,
          .arg_choices = {},
          .details =
              "With piped stdin every line is a message and the answers are printed; --json prints one object an answer."};
}

}  // namespace deepinfer::cli
