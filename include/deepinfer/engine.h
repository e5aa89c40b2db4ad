// SPDX-License-Identifier: Apache-2.0
//
// Engine: many requests on one model, from any thread. What a server builds on.
//
//   auto engine = deepinfer::Engine::Start({.model = "demo"});
//   auto request = (*engine)->Submit("The capital of France is", params);
//   deepinfer::Piece piece;
//   while (request->Next(piece)) std::fputs(piece.text.c_str(), stdout);
//
// All methods of Engine and Request may be called from several threads. A request's output does not depend on what runs
// beside it. Errors are Status values, never exceptions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "deepinfer/engine_options.h"
#include "deepinfer/output.h"
#include "deepinfer/sampling_params.h"

namespace deepinfer {

// One output of a request without a callback.
struct Piece {
  int sample = 0;                    // of params.n
  std::optional<TokenOutput> token;  // unset: text that was held back, or the end
  std::string text;                  // whole UTF-8 characters; may be empty
  FinishReason finish_reason = FinishReason::kNone;  // set in the last piece of a sample
};

// Called on a thread of the engine for every output, one call at a time, samples interleaved; `update.completion` is the
// sample so far. Its answer ends that sample; what it throws ends the request with "abort". It may submit and cancel
// requests but must not wait for one.
using PieceCallback = std::function<StreamAction(int sample, const StreamUpdate& update)>;

// A request in the engine; copies name the same request. Dropping all of them does not end it.
class Request {
 public:
  // Waits for the next output of a request without callback; false when all samples have ended and everything was taken.
  bool Next(Piece& piece);
  // Waits until all samples have ended.
  void Wait();
  bool WaitFor(double seconds);  // true if they have
  bool is_done() const;
  // Ends the samples that still run; each gets one last output with "abort". Safe at any time, also after the end.
  void Cancel();
  // Waits for the end; one completion per sample. They can be taken once.
  std::vector<Completion> TakeCompletions();
  uint64_t seed() const;  // of sample 0; sample i has seed + i

 private:
  friend class Engine;
  struct State;
  std::shared_ptr<State> state_;
};

struct GenerationRequest {
  std::vector<int32_t> prompt_ids = {};
  SamplingParams params = {};
  std::string cache_salt = {};  // share prompt beginnings with requests of the same salt only; empty = the engine's
  std::vector<int64_t> chunk_checkpoints = {};  // ascending prompt lengths at which a prefill step has to end
};

struct EngineStats {
  int64_t num_running = 0, num_waiting = 0;  // sequences
  int64_t num_unfinished = 0;                // samples admitted and not ended
  int64_t num_steps = 0, num_prefill_steps = 0, num_decode_steps = 0;
  int64_t num_finished = 0, num_aborted = 0, num_preempted = 0;
  int64_t num_prefill_tokens = 0, num_cached_tokens = 0, num_output_tokens = 0;
  int64_t num_blocks = 0, num_used_blocks = 0, num_cached_blocks = 0;
  int64_t num_state_slots = 0, num_used_state_slots = 0;
  double last_step_age_s = 0;  // since the newest step, or since the start
  bool is_healthy = true;      // false: there is work and no step for a minute
};

class Engine {
 public:
  // Loads the model and makes the caches.
  static Result<std::unique_ptr<Engine>> Start(EngineOptions options = {});
  // Aborts what runs: every request gets its last outputs.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Errors, with the field named: kInvalidArgument (prompt, parameters), kResourceExhausted (prompt too long, too many
  // requests), kUnavailable (draining).
  Result<Request> Submit(GenerationRequest request, PieceCallback callback = {});
  // Raw text; added tokens spelled in it are matched.
  Result<Request> Submit(std::string_view text, const SamplingParams& params = {}, PieceCallback callback = {});

  // Whether the grammar of so_args compiles, for callers that want to know before they submit; waits for it. Errors:
  // kInvalidArgument, kDeadlineExceeded (xgrammar_timeout), kUnimplemented (not in this build).
  Status CheckStructuredOutput(const StructuredOutput& so_args);

  // Admits nothing any more and waits until everything has ended.
  void Drain();
  EngineStats Stats();

  std::vector<int32_t> Encode(std::string_view text) const;
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const;
  int vocab_size() const;
  int eos_token_id() const;
  int64_t max_model_len() const;
  int64_t prompt_limit() const;
  int64_t max_num_batched_tokens() const;
  int max_num_seqs() const;
  double load_s() const;

 private:
  Engine();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
