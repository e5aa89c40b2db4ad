// SPDX-License-Identifier: Apache-2.0
#include "deepinfer/engine.h"

#include <utility>

#include "engine/async_engine.h"
#include "engine/load.h"

namespace deepinfer {
namespace {

// A step older than this while there is work means that something is stuck.
constexpr double kStuckSeconds = 60;

}  // namespace

struct Request::State {
  engine::TextHandle handle;
};

struct Engine::Impl {
  std::unique_ptr<engine::Engine> loaded;
  engine::AsyncEngine* async = nullptr;  // part of `loaded`
  const Clock* clock = &Clock::Steady();
  int64_t started_ns = 0;
};

bool Request::Next(Piece& piece) {
  engine::TextOutput output;
  if (!state_->handle.Next(output)) return false;
  piece.sample = output.sample;
  piece.token = std::move(output.token);
  piece.text = std::move(output.text);
  piece.finish_reason = output.finish_reason;
  return true;
}

void Request::Wait() { state_->handle.Wait(); }
bool Request::WaitFor(double seconds) { return state_->handle.WaitFor(seconds); }
bool Request::is_done() const { return state_->handle.is_done(); }
void Request::Cancel() { state_->handle.Cancel(); }
std::vector<Completion> Request::TakeCompletions() { return state_->handle.TakeCompletions(); }
uint64_t Request::seed() const { return state_->handle.seed(); }

Engine::Engine() : impl_(std::make_unique<Impl>()) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::Start(EngineOptions options) {
  engine::LoadOptions load;
  static_cast<EngineOptions&>(load) = std::move(options);
  std::unique_ptr<Engine> engine(new Engine());
  Impl& impl = *engine->impl_;
  impl.started_ns = impl.clock->NowNs();
  DI_ASSIGN_OR_RETURN(impl.loaded, engine::LoadEngine(std::move(load)));
  DI_ASSIGN_OR_RETURN(impl.async, impl.loaded->async_engine());
  return engine;
}

Result<Request> Engine::Submit(GenerationRequest request, PieceCallback callback) {
  engine::TextRequest text;
  text.prompt_ids = std::move(request.prompt_ids);
  text.params = std::move(request.params);
  text.cache_salt = std::move(request.cache_salt);
  text.chunk_checkpoints = std::move(request.chunk_checkpoints);
  Request handle;
  DI_ASSIGN_OR_RETURN(engine::TextHandle submitted, impl_->async->Submit(std::move(text), std::move(callback)));
  handle.state_ = std::make_shared<Request::State>();
  handle.state_->handle = std::move(submitted);
  return handle;
}

Result<Request> Engine::Submit(std::string_view text, const SamplingParams& params, PieceCallback callback) {
  GenerationRequest request;
  request.prompt_ids = Encode(text);
  request.params = params;
  return Submit(std::move(request), std::move(callback));
}

Status Engine::CheckStructuredOutput(const StructuredOutput& so_args) { return impl_->async->CheckStructuredOutput(so_args); }

void Engine::Drain() { impl_->async->core().Drain(); }

EngineStats Engine::Stats() {
  const engine::EngineCore::Snapshot snapshot = impl_->async->core().Stats();
  const engine::SchedulerOptions& scheduler = impl_->async->core().options().scheduler;
  EngineStats stats;
  stats.num_running = snapshot.num_running;
  stats.num_waiting = snapshot.num_waiting;
  stats.num_unfinished = snapshot.num_live;
  stats.num_steps = snapshot.num_steps;
  stats.num_prefill_steps = snapshot.stats.num_prefill_steps;
  stats.num_decode_steps = snapshot.stats.num_decode_steps;
  stats.num_finished = snapshot.stats.num_finished;
  stats.num_aborted = snapshot.stats.num_aborted;
  stats.num_preempted = snapshot.stats.num_preempted;
  stats.num_prefill_tokens = snapshot.stats.num_prefill_tokens;
  stats.num_cached_tokens = snapshot.stats.num_cached_tokens;
  stats.num_output_tokens = snapshot.stats.num_output_tokens;
  stats.num_blocks = scheduler.num_blocks - 1;
  stats.num_used_blocks = snapshot.num_used_blocks;
  stats.num_cached_blocks = snapshot.num_cached_blocks;
  stats.num_state_slots = scheduler.num_state_slots() - 1;
  stats.num_used_state_slots = snapshot.num_used_slots;
  const int64_t last_ns = snapshot.last_step_ns > 0 ? snapshot.last_step_ns : impl_->started_ns;
  stats.last_step_age_s = static_cast<double>(impl_->clock->NowNs() - last_ns) * 1e-9;
  stats.is_healthy = snapshot.num_live == 0 || stats.last_step_age_s <= kStuckSeconds;
  return stats;
}

std::vector<int32_t> Engine::Encode(std::string_view text) const { return impl_->async->tokenizer().EncodeFull(text); }

std::string Engine::Decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  return impl_->async->tokenizer().Decode(ids, skip_special_tokens);
}

int Engine::vocab_size() const { return impl_->loaded->config().vocab_size; }
int Engine::eos_token_id() const { return impl_->async->eos_token_id(); }
int64_t Engine::max_model_len() const { return impl_->async->core().options().scheduler.max_model_len; }
int64_t Engine::prompt_limit() const { return impl_->async->core().options().scheduler.prompt_limit(); }
int64_t Engine::max_num_batched_tokens() const { return impl_->async->core().options().scheduler.max_num_batched_tokens; }
int Engine::max_num_seqs() const { return impl_->async->core().options().scheduler.max_num_seqs; }
double Engine::load_s() const { return impl_->loaded->load_s(); }

}  // namespace deepinfer
