// SPDX-License-Identifier: Apache-2.0
//
// What generates: the engine, or a scripted one in tests. Submit from any thread; outputs come on a thread of the backend, one at
// a time for each request.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/status.h"
#include "deepinfer/output.h"
#include "engine/async_engine.h"
#include "server/text_request.h"

namespace deepinfer::server {

struct BackendRequest {
  engine::TextRequest text;
  std::string request_id;
};

struct BackendOutput {
  int sample = 0;
  const TokenOutput* token = nullptr;  // null: none in this output
  std::string_view text;               // detokenised, where the request asks for it; without a token it counts num_text_tokens
  int64_t num_text_tokens = 0;
  int64_t prompt_tokens = -1;  // -1: those of the request
  int64_t cached_tokens = 0;   // known from the first output on
  FinishReason finish_reason = FinishReason::kNone;  // set in the last output of a sample
  bool is_filtered = false;    // with a finish reason: the content filter
  const Completion* completion = nullptr;  // the sample so far, if the backend keeps one
};

using BackendCallback = std::function<StreamAction(const BackendOutput&)>;

class BackendHandle {
 public:
  virtual ~BackendHandle() = default;
  // Ends the samples that still run, within one step; each gets a last output. Any thread, any time.
  virtual void Cancel() = 0;
};

struct BackendState {
  bool is_healthy = true;
  int64_t num_running = 0, num_waiting = 0;
  int max_running = 1;
  int64_t num_used_blocks = -1;  // of the cache, by sequences; -1: there are none
};

class Backend {
 public:
  virtual ~Backend() = default;
  // Errors: kInvalidArgument, kResourceExhausted (too many requests), kUnavailable (draining).
  virtual Result<std::shared_ptr<BackendHandle>> Submit(BackendRequest request, BackendCallback callback) = 0;
  virtual const text::Tokenizer& tokenizer() const = 0;
  virtual int64_t max_model_len() const = 0;
  // Null: no structured outputs.
  virtual GrammarCheck grammar_check() const = 0;
  // Never waits for a step.
  virtual BackendState State() = 0;
};

// On an engine that outlives it.
std::unique_ptr<Backend> MakeEngineBackend(engine::AsyncEngine& engine, int64_t max_model_len);

}  // namespace deepinfer::server
