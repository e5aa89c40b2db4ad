// SPDX-License-Identifier: Apache-2.0
//
// AsyncEngine: many requests at once, from text or token ids to text. Puts the text layer on EngineCore: token policy,
// incremental detokenising, stop strings, usage and timing. All of that runs on the core's output thread, never between two
// steps. A request's text and tokens are those that Generator gives for it, whatever runs beside it.
//
// Submit and the handles' methods may be called from any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "constrain/compile_service.h"
#include "core/status.h"
#include "deepinfer/output.h"
#include "engine/engine_core.h"
#include "engine/generator.h"
#include "engine/prefix_key.h"
#include "engine/step_model.h"
#include "text/tokenizer.h"

namespace deepinfer::engine {

struct AsyncEngineOptions {
  EngineCoreOptions core;          // the end tokens are filled in
  int eos_token_id = -1;           // of the configuration; counts if the tokenizer has no end-of-sentence token
  int64_t longest_model_len = 0;   // what max_model_len can be raised to, for messages
  std::vector<int32_t> token_blacklist;  // never generated
  double load_s = 0;               // copied into every Timing
  // Root of the keys of cached prefixes, with the secret and the domain that keep tenants apart.
  CacheFingerprint fingerprint;
  std::vector<uint8_t> cache_secret;
  std::string isolation_domain = "public";
  std::string cache_salt;  // of requests that name none
  // Of the grammars of so_args. Without a factory that of the grammar library, if this build has it.
  constrain::CompileServiceOptions grammars;
  constrain::CompileService::BackendFactory make_grammars;
};

struct TextRequest : GenerateRequest {
  std::optional<CacheMode> cache_mode;  // unset = that of params, or the engine's
  std::vector<int64_t> chunk_checkpoints;  // ascending prompt lengths at which a prefill step has to end
  std::string cache_salt;               // prefixes are shared with requests of the same salt only; at most 128 bytes; empty =
                                        // the engine's
  std::shared_ptr<RequestProbe> probe;  // may be null
};

// What a request without a callback hands over.
struct TextOutput {
  int sample = 0;  // of params.n
  std::optional<TokenOutput> token;  // unset: text that was held back, or the end
  std::string text;
  FinishReason finish_reason = FinishReason::kNone;  // set in the last output of a sample
};

// Called on the output thread for every token, samples interleaved. Its answer ends that sample; what it throws ends the
// whole request with "abort". Other requests never notice.
using SampleCallback = std::function<StreamAction(int sample, const StreamUpdate& update)>;

// A request in the engine. Dropping the handle does not end the request.
class TextHandle {
 public:
  // Waits for the next output of a request without callback; false when all samples have ended and everything was taken.
  bool Next(TextOutput& output);
  void Wait();
  // Waits at most that long; true if all samples have ended.
  bool WaitFor(double seconds);
  bool is_done() const;
  // Ends the samples that still run. Each gets one last output with `reason`.
  void Cancel(FinishReason reason = FinishReason::kAbort) { core_->Cancel(reason); }
  // Waits for the end; one completion per sample. They can be taken once.
  std::vector<Completion> TakeCompletions();
  uint64_t seed() const { return core_->seed(); }

 private:
  friend class AsyncEngine;
  class State;
  std::shared_ptr<State> state_;
  std::shared_ptr<RequestHandle> core_;
};

class AsyncEngine {
 public:
  // `model` and `tokenizer` outlive the engine.
  static Result<std::unique_ptr<AsyncEngine>> Create(StepModel& model, const text::Tokenizer& tokenizer, AsyncEngineOptions options);
  // Aborts what runs; every handle gets its last outputs.
  ~AsyncEngine();
  AsyncEngine(const AsyncEngine&) = delete;
  AsyncEngine& operator=(const AsyncEngine&) = delete;

  // Errors: those of ValidateRequest, kResourceExhausted (too many requests), kUnavailable (draining).
  Result<TextHandle> Submit(TextRequest request, SampleCallback callback = {});
  // Raw text; added tokens spelled in it are matched.
  Result<TextHandle> Submit(std::string_view text, const SamplingParams& params, SampleCallback callback = {});

  // Whether the grammar of a request compiles; waits for it. What compiles is kept for the request. Errors:
  // kInvalidArgument (the grammar), kDeadlineExceeded, kUnimplemented (not in this build).
  Status CheckStructuredOutput(const StructuredOutput& so_args);
  bool has_structured_output() const { return options_.core.grammars != nullptr; }

  EngineCore& core() { return *core_; }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  int eos_token_id() const { return eos_token_id_; }
  // Root of the keys of requests with that salt.
  Key256 CacheRoot(std::string_view cache_salt) const;

 private:
  AsyncEngine(StepModel& model, const text::Tokenizer& tokenizer, AsyncEngineOptions options);

  StepModel& model_;
  const text::Tokenizer& tokenizer_;
  AsyncEngineOptions options_;
  int eos_token_id_ = -1;
  Key256 cache_root_;  // of the engine's own salt
  std::shared_ptr<const std::vector<uint32_t>> policy_mask_, blacklist_mask_;  // the latter null without a blacklist
  std::unique_ptr<EngineCore> core_;
};

}  // namespace deepinfer::engine
