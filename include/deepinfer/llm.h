// SPDX-License-Identifier: Apache-2.0
//
// LLM: the library in one class. Load a checkpoint, then generate from text, token ids or a conversation.
//
//   auto llm = deepinfer::LLM::Load({.model = "demo"});
//   if (!llm.ok()) return Fail(llm.status());
//   auto answer = (*llm)->Chat({{.role = "user", .content = "What is the capital of France?"}});
//
// Several prompts given together run together (GenerateBatch); each gets the answer that it gets alone.
//
// Not thread-safe: one call at a time; CancelToken may be used from any thread. Errors are Status values, never exceptions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "deepinfer/engine_options.h"
#include "deepinfer/output.h"
#include "deepinfer/sampling_params.h"

namespace deepinfer {

struct BatchRequest {
  std::vector<int32_t> prompt_ids = {};
  SamplingParams params = {};
};

struct BatchOptions {
  // Called for every token from a thread of the engine, one call at a time, prompts and samples interleaved. Its answer ends
  // that sample; an exception ends that prompt with "abort".
  std::function<StreamAction(size_t prompt, int sample, const StreamUpdate& update)> callback = {};
  // How many prompts from the first on are done; from the calling thread.
  std::function<void(size_t num_done)> progress = {};
  const CancelToken* cancel = nullptr;  // asked by the calling thread
};

struct ToolCall {
  std::string id = {};
  std::string name = {};
  std::string arguments = {};  // JSON text as the model wrote it
};

struct ChatMessage {
  std::string role = {};  // system, user, assistant, tool
  std::string content = {};
  std::string reasoning_content = {};     // assistant: thinking of an earlier turn
  std::vector<ToolCall> tool_calls = {};  // assistant
  std::string tool_call_id = {};          // tool: the call it answers
};

struct ChatOptions {
  bool thinking = true;
  int effort = 75;               // 1..100, used when thinking
  std::string tools_json = {};   // JSON array of Chat Completions tools; empty = none
  // "", auto, none, required, or the name of a tool that has to be called; the last two need thinking off.
  std::string tool_choice = {};
  bool parallel_tool_calls = true;        // false: at most one call
  std::string response_format_json = {};  // response_format of Chat Completions: json_object, json_schema, regex; empty = free
};

// One piece of a streamed answer. Views are valid during the callback only.
struct ChatDelta {
  std::string_view reasoning = {};
  std::string_view content = {};
  int tool_call_idx = -1;               // >= 0: the fields below belong to that call
  std::string_view tool_name = {};      // set when the call begins
  std::string_view tool_arguments = {};  // more of its arguments
};
using ChatCallback = std::function<StreamAction(const ChatDelta&)>;

struct ChatCompletion {
  ChatMessage message;        // role assistant, ready to be appended to the conversation
  std::string finish_reason;  // stop, length, tool_calls, abort, timeout
  Completion completion;      // ids, raw text, usage, timing of the generation
};

class LLM {
 public:
  // stop_preempted_request is taken as false, disable_log_stats as true.
  static Result<std::unique_ptr<LLM>> Load(EngineOptions options = {});
  ~LLM();
  LLM(const LLM&) = delete;
  LLM& operator=(const LLM&) = delete;

  // Continues raw text. Added tokens spelled in the text are matched. params.n is ignored.
  Result<Completion> Generate(std::string_view prompt,
                              const SamplingParams& params = {},
                              const StreamCallback& callback = {},
                              const CancelToken* cancel = nullptr);
  // Token ids are used as they are.
  Result<Completion> GenerateFromIds(std::span<const int32_t> prompt_ids,
                                     const SamplingParams& params = {},
                                     const StreamCallback& callback = {},
                                     const CancelToken* cancel = nullptr);
  // Continues several texts together. Results in the order of the prompts, the first sample of each.
  Result<std::vector<Completion>> Generate(std::span<const std::string> prompts,
                                           const SamplingParams& params = {},
                                           const BatchOptions& options = {});
  // The same for token ids, with parameters of their own and `params.n` samples each. Bad parameters and empty prompts are
  // an error before any work; a prompt that is too long or holds an unknown id gives completions with that finish reason, as
  // does one that fails on the way.
  Result<std::vector<std::vector<Completion>>> GenerateBatch(std::span<const BatchRequest> requests, const BatchOptions& options = {});
  // `params.n` samples of one prompt; sample i uses seed + i. Greedy requests need n = 1.
  Result<std::vector<Completion>> GenerateSamples(std::span<const int32_t> prompt_ids,
                                                  const SamplingParams& params,
                                                  const CancelToken* cancel = nullptr);

  // Answers a conversation: renders it, generates with the token policy of the chat protocols, parses the answer. Stop
  // strings are looked for in the answer's content only. A response format, tools or so_args hold the answer to a grammar;
  // so_args without a trigger begin behind the thinking. One that does not compile is an error.
  Result<ChatCompletion> Chat(const std::vector<ChatMessage>& messages,
                              const SamplingParams& params = ChatDefaults(),
                              const ChatOptions& options = {},
                              const ChatCallback& callback = {},
                              const CancelToken* cancel = nullptr);
  // Whether the grammar of so_args compiles; GenerateBatch and Chat end such requests or refuse them. Errors:
  // kInvalidArgument, kDeadlineExceeded, kUnimplemented (not in this build).
  Status CheckStructuredOutput(const StructuredOutput& so_args);
  // temperature 1, top_p 0.95, max_tokens 1024.
  static SamplingParams ChatDefaults();

  // Of a model whose experts are read from disk (EngineOptions::memory_budget), totals since it was loaded.
  struct ExpertReads {
    int64_t num_in_memory = 0, num_experts = 0;  // both 0: all experts are in memory
    int64_t num_hits = 0, num_misses = 0;        // that steps wanted
    int64_t num_prefetched = 0, num_prefetched_used = 0;
    int64_t num_bytes = 0;
    double wait_s = 0;
  };
  ExpertReads expert_reads() const;

  std::vector<int32_t> Encode(std::string_view text) const;
  // The prompt of a conversation as token ids.
  Result<std::vector<int32_t>> EncodeChat(const std::vector<ChatMessage>& messages, const ChatOptions& options = {}) const;
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const;

  int vocab_size() const;
  int64_t max_model_len() const;
  int eos_token_id() const;
  const std::string& model_dir() const;
  double load_s() const;

 private:
  LLM();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
