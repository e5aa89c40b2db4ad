// SPDX-License-Identifier: Apache-2.0
#include "server/backend.h"

namespace deepinfer::server {

namespace {

class EngineHandle : public BackendHandle {
 public:
  explicit EngineHandle(engine::TextHandle handle) : handle_(std::move(handle)) {}
  void Cancel() override { handle_.Cancel(); }

 private:
  engine::TextHandle handle_;
};

class EngineBackend : public Backend {
 public:
  EngineBackend(engine::AsyncEngine& engine, int64_t max_model_len) : engine_(engine), max_model_len_(max_model_len) {}

  Result<std::shared_ptr<BackendHandle>> Submit(BackendRequest request, BackendCallback callback) override {
    auto on_update = [callback = std::move(callback)](int sample, const StreamUpdate& update) {
      BackendOutput output;
      output.sample = sample;
      if (update.token != nullptr && update.token->token_id >= 0) output.token = update.token;
      output.text = update.text;
      if (update.completion != nullptr) output.cached_tokens = update.completion->usage.cached_tokens;
      output.finish_reason = update.finish_reason;
      output.completion = update.completion;
      return callback(output);
    };
    DI_ASSIGN_OR_RETURN(engine::TextHandle handle, engine_.Submit(std::move(request.text), std::move(on_update)));
    return std::shared_ptr<BackendHandle>(std::make_shared<EngineHandle>(std::move(handle)));
  }

  const text::Tokenizer& tokenizer() const override { return engine_.tokenizer(); }
  int64_t max_model_len() const override { return max_model_len_; }
  GrammarCheck grammar_check() const override {
    if (!engine_.has_structured_output()) return nullptr;
    return [this](const StructuredOutput& so_args) { return engine_.CheckStructuredOutput(so_args); };
  }
  BackendState State() override {
    BackendState state;
    state.is_healthy = engine_.core().GetHealth().is_healthy();
    const engine::EngineCore::Snapshot snapshot = engine_.core().Stats();
    state.num_running = snapshot.num_running;
    state.num_waiting = snapshot.num_waiting;
    state.num_used_blocks = snapshot.num_used_blocks;
    state.max_running = engine_.core().options().scheduler.max_num_seqs;
    return state;
  }

 private:
  engine::AsyncEngine& engine_;
  int64_t max_model_len_;
};

}  // namespace

std::unique_ptr<Backend> MakeEngineBackend(engine::AsyncEngine& engine, int64_t max_model_len) {
  return std::make_unique<EngineBackend>(engine, max_model_len);
}

}  // namespace deepinfer::server
