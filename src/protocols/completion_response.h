// SPDX-License-Identifier: Apache-2.0
//
// Samples -> the response of a Completions request (protocols.md 8): one body, or the chunks of a stream. Choices are numbered
// prompt by prompt, n each.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "deepinfer/output.h"
#include "protocols/completion_request.h"
#include "text/tokenizer.h"

namespace deepinfer::protocols {

struct CompletionResponseInfo {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::optional<int> logprobs;  // as in the request
  int n = 1;                    // samples of each prompt
  size_t num_choices = 1;
  // Of each prompt, with echo: its text as the client sees it.
  std::vector<std::string> echoes;
  bool include_usage = false;
  bool has_usage_chunk = false;  // a last chunk without choices that holds the usage
};

CompletionResponseInfo MakeCompletionResponseInfo(const CompletionRequest& request,
                                                  std::string id,
                                                  int64_t created,
                                                  const ConvertOptions& options,
                                                  const text::Tokenizer& tokenizer);

// `samples` have ended with "stop" or "length", one for each choice.
std::string CompletionBody(const CompletionResponseInfo& info, std::span<const Completion> samples, const text::Tokenizer& tokenizer);

// Appends events to the caller's buffer. Choices may run in any order; one thread at a time.
class CompletionStream {
 public:
  // `tokenizer` must outlive the stream.
  CompletionStream(CompletionResponseInfo info, const text::Tokenizer& tokenizer);

  // A token or text of a choice, or its end with "stop" or "length"; `update.completion` is set then. The end of the last choice
  // ends the stream.
  void Write(size_t choice, const StreamUpdate& update, std::string& out);
  void Fail(const Status& status, std::string& out) const;
  static void KeepAlive(std::string& out);

  bool is_finished() const { return num_finished_ == choices_.size(); }

 private:
  struct Choice {
    bool is_started = false;
    bool is_finished = false;
    int64_t num_characters = 0;  // of the tokens so far
  };

  void Open(std::string& out) const;
  void Close(size_t choice, std::string& out) const;
  void WriteEcho(size_t choice, const Completion* completion, std::string& out);

  const CompletionResponseInfo info_;
  const text::Tokenizer& tokenizer_;
  std::string head_;  // up to the text
  std::string tail_;  // after the choice
  std::string logprobs_;
  std::vector<Choice> choices_;
  size_t num_finished_ = 0;
  Usage usage_;  // of the finished choices
};

}  // namespace deepinfer::protocols
