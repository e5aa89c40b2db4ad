// SPDX-License-Identifier: Apache-2.0
//
// debug tokenize, debug detokenize: text to ids and back, one JSON object a line.
#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands.h"
#include "cli/input.h"
#include "core/base64.h"
#include "core/json.h"
#include "core/log.h"
#include "core/threads.h"
#include "text/tokenizer.h"

namespace deepinfer::cli {

namespace {

// Input that is not what was asked for is a damaged input file, not wrong usage.
Status BadInput(const Status& status) { return BadModel(status.message()); }

class TokenizeRun {
 public:
  TokenizeRun(Invocation& invocation, const text::Tokenizer& tokenizer)
      : invocation_(invocation), tokenizer_(tokenizer), pool_(static_cast<int>(invocation.config.model.threads)) {}

  void Print(std::string_view text) {
    bool replaced = false;
    const std::vector<int32_t> ids = invocation_.config.debug.special == "none" ? tokenizer_.EncodePlain(text, &pool_, &replaced)
                                                                                : tokenizer_.EncodeFull(text, &pool_, &replaced);
    if (replaced && !warned_ && !invocation_.config.log.quiet) {
      DI_LOG(warn, "the input is not valid UTF-8; ill-formed parts became U+FFFD");
      warned_ = true;
    }
    invocation_.out.Line(fmt::format("{{\"ids\":[{}]}}", fmt::join(ids, ",")));
  }

  Status PrintJsonLine(std::string_view line) {
    Result<Json> json = ParseJson(line);
    if (!json.ok()) return BadInput(json.status());
    if (json->is_object()) {
      if (const auto text = json->find("text"); text != json->end() && text->is_string()) {
        Print(text->get_ref<const std::string&>());
        return invocation_.out.Check();
      }
      if (const auto bytes = json->find("bytes_base64"); bytes != json->end() && bytes->is_string()) {
        const Result<std::string> decoded = DecodeBase64(bytes->get_ref<const std::string&>());
        if (!decoded.ok()) return BadInput(decoded.status()).WithContext("bytes_base64");
        Print(*decoded);
        return invocation_.out.Check();
      }
    }
    return BadModel("expected an object with a string \"text\" or \"bytes_base64\"");
  }

 private:
  Invocation& invocation_;
  const text::Tokenizer& tokenizer_;
  ThreadPool pool_;
  bool warned_ = false;
};

Status RunTokenize(Invocation& invocation) {
  DI_ASSIGN_OR_RETURN(const std::string dir, ModelDir(invocation));
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<text::Tokenizer> tokenizer, text::Tokenizer::Load(dir));
  DI_ASSIGN_OR_RETURN(const std::string input, ReadStdin());
  TokenizeRun run(invocation, *tokenizer);
  if (!invocation.config.debug.jsonl) {
    run.Print(input);
    return Status::Ok();
  }
  return ForEachLine(input, [&](std::string_view line, int64_t) { return run.PrintJsonLine(line); });
}

Result<std::vector<int32_t>> ParseIds(std::string_view text) {
  const Result<Json> json = ParseJson(text);
  if (!json.ok()) return BadInput(json.status());
  const Status wrong = BadModel("expected a JSON array of token ids");
  if (!json->is_array()) return wrong;
  std::vector<int32_t> ids;
  ids.reserve(json->size());
  for (const Json& item : *json) {
    if (!item.is_number_integer()) return wrong;
    const auto id = item.get<int64_t>();
    // Ids out of range have no text; they only must not wrap around into range.
    ids.push_back(id < 0 || id > INT32_MAX || item.is_number_unsigned() > (id >= 0) ? -1 : static_cast<int32_t>(id));
  }
  return ids;
}

Status RunDetokenize(Invocation& invocation) {
  DI_ASSIGN_OR_RETURN(const std::string dir, ModelDir(invocation));
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<text::Tokenizer> tokenizer, text::Tokenizer::Load(dir));
  DI_ASSIGN_OR_RETURN(const std::string input, ReadStdin());
  int64_t num_unknown = 0;
  const auto print = [&](std::string_view line) -> Status {
    DI_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ParseIds(line));
    num_unknown += std::count_if(ids.begin(), ids.end(), [&](int32_t id) { return id < 0 || id >= tokenizer->vocab_size(); });
    invocation.out.Line(DumpJson(Json{{"text", tokenizer->Decode(ids, invocation.config.debug.skip_special)}}));
    return invocation.out.Check();
  };
  DI_RETURN_IF_ERROR(invocation.config.debug.jsonl
                         ? ForEachLine(input, [&](std::string_view line, int64_t) { return print(line); })
                         : print(input).WithContext("stdin"));
  if (num_unknown > 0 && !invocation.config.log.quiet) {
    DI_LOG(warn, "{} ids are outside the vocabulary of {} and have no text", num_unknown, tokenizer->vocab_size());
  }
  return Status::Ok();
}

}  // namespace

Command DebugTokenizeCommand() {
  return {.name = "debug tokenize",
          .summary = "token ids of the text on stdin, as {\"ids\": [...]}",
          .usage = "",
          .run = RunTokenize,
          .arg_choices = {},
          .details = "With --jsonl, stdin holds one object a line with `text`, or `bytes_base64` for arbitrary bytes."};
}

Command DebugDetokenizeCommand() {
  return {.name = "debug detokenize",
          .summary = "text of a JSON array of token ids on stdin, as {\"text\": ...}",
          .usage = "",
          .run = RunDetokenize,
          .arg_choices = {},
          .details = "With --jsonl, stdin holds one array a line."};
}

}  // namespace deepinfer::cli
