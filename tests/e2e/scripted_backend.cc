// SPDX-License-Identifier: Apache-2.0
#include "e2e/scripted_backend.h"

#include <algorithm>
#include <atomic>
#include <chrono>

namespace deepinfer::server {

// A request that is being played.
class ScriptedBackend::Run : public BackendHandle {
 public:
  Run(ScriptedBackend& owner, std::shared_ptr<const Script> script, BackendCallback callback, int64_t max_tokens, int num_samples)
      : owner_(owner), script_(std::move(script)), callback_(std::move(callback)), max_tokens_(max_tokens), num_samples_(num_samples) {}

  void Cancel() override {
    is_cancelled_.store(true);
    owner_.changed_.notify_all();
  }

  // Plays a piece; false when the request has ended. The player's thread.
  bool Step() {
    if (is_cancelled_.load()) return End(FinishReason::kAbort, false);
    if (script_->is_silent) return true;
    if (piece_ >= script_->pieces.size()) {
      piece_ = 0;
      ++num_repeats_;
    }
    const bool is_over = script_->pieces.empty() || (script_->num_repeats >= 0 && num_repeats_ >= script_->num_repeats);
    if (is_over) return End(script_->finish, script_->is_filtered);
    const Piece& piece = script_->pieces[piece_++];
    for (int sample = 0; sample < num_samples_; ++sample) {
      BackendOutput output = Output(sample);
      if (piece.tokens.empty()) {
        output.text = piece.text;
        output.num_text_tokens = piece.num_text_tokens;
        if (!Push(output)) return false;
      }
      for (const TokenOutput& token : piece.tokens) {
        output.token = &token;
        output.text = owner_.tokenizer_.TokenBytes(token.token_id);
        if (!Push(output)) return false;
      }
    }
    num_tokens_ += static_cast<int64_t>(std::max<size_t>(piece.tokens.size(), 1));
    if (num_tokens_ >= max_tokens_ && script_->num_repeats != 1) return End(FinishReason::kLength, false);
    return true;
  }

 private:
  BackendOutput Output(int sample) const {
    BackendOutput output;
    output.sample = sample;
    output.prompt_tokens = script_->prompt_tokens;
    output.cached_tokens = script_->cached_tokens;
    return output;
  }
  bool Push(const BackendOutput& output) {
    const StreamAction action = callback_(output);
    if (action == StreamAction::kContinue) return true;
    return End(action == StreamAction::kStop ? FinishReason::kStop : FinishReason::kAbort, false);
  }
  bool End(FinishReason reason, bool is_filtered) {
    for (int sample = 0; sample < num_samples_; ++sample) {
      BackendOutput output = Output(sample);
      output.finish_reason = reason;
      output.is_filtered = is_filtered;
      callback_(output);
    }
    callback_ = nullptr;
    return false;
  }

  ScriptedBackend& owner_;
  const std::shared_ptr<const Script> script_;
  BackendCallback callback_;
  const int64_t max_tokens_;
  const int num_samples_;
  std::atomic<bool> is_cancelled_{false};
  size_t piece_ = 0;
  int64_t num_repeats_ = 0, num_tokens_ = 0;
};

ScriptedBackend::ScriptedBackend(const text::Tokenizer& tokenizer, int64_t max_model_len) : tokenizer_(tokenizer), max_model_len_(max_model_len) {
  const auto say = [this](const std::string& text, int64_t num_repeats) {
    auto script = std::make_shared<Script>();
    for (const int32_t id : tokenizer_.EncodeFull(text)) {
      TokenOutput token;
      token.token_id = id;
      token.logprob = -0.5f;
      token.top_token_ids = {id};
      token.top_logprobs = {-0.5f};
      Piece& piece = script->pieces.emplace_back();
      piece.tokens.push_back(token);
    }
    script->num_repeats = num_repeats;
    return script;
  };
  scripts_[""] = say("The capital of France is Paris.", 1);
  scripts_["endless"] = say(" again", -1);
  auto silent = std::make_shared<Script>();
  silent->is_silent = true;
  scripts_["silent"] = silent;
  thread_ = std::thread([this] { Loop(); });
}

ScriptedBackend::~ScriptedBackend() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ScriptedBackend::PlaySteps(const std::vector<std::vector<int32_t>>& steps, double steps_per_s) {
  auto script = std::make_shared<Script>();
  for (const std::vector<int32_t>& ids : steps) {
    Piece& piece = script->pieces.emplace_back();
    for (const int32_t id : ids) piece.tokens.emplace_back().token_id = id;
  }
  std::lock_guard lock(mutex_);
  scripts_[""] = std::move(script);
  step_ns_ = steps_per_s > 0 ? static_cast<int64_t>(1e9 / steps_per_s) : 0;
}

void ScriptedBackend::AddCase(const Json& one) {
  std::string id = one["id"].get<std::string>();
  std::replace(id.begin(), id.end(), '/', '.');
  auto script = std::make_shared<const Script>(ParseCase(one));
  std::lock_guard lock(mutex_);
  scripts_[id] = std::move(script);
}

Json ScriptedBackend::LastRequest() {
  std::lock_guard lock(mutex_);
  return last_request_;
}

ScriptedBackend::Script ScriptedBackend::ParseCase(const Json& json) const {
  Script script;
  for (const Json& chunk : json["chunks"]) {
    Piece& piece = script.pieces.emplace_back();
    if (chunk.contains("text")) {
      piece.text = chunk["text"].get<std::string>();
      piece.num_text_tokens = chunk.value("tokens", int64_t{1});
      continue;
    }
    if (chunk.contains("hex")) {
      const std::string digits = chunk["hex"].get<std::string>();
      for (size_t i = 0; i + 1 < digits.size(); i += 2) piece.text.push_back(static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16)));
      piece.num_text_tokens = chunk.value("tokens", int64_t{0});
      continue;
    }
    const auto logprobs = chunk.find("logprobs");
    for (size_t i = 0; i < chunk["ids"].size(); ++i) {
      TokenOutput& token = piece.tokens.emplace_back();
      token.token_id = chunk["ids"][i].get<int32_t>();
      if (logprobs == chunk.end() || logprobs->is_null()) continue;
      const Json& entry = (*logprobs)[i];
      token.logprob = entry[0].get<float>();
      for (const Json& top : entry[1]) {
        token.top_token_ids.push_back(top[0].get<int32_t>());
        token.top_logprobs.push_back(top[1].get<float>());
      }
    }
  }
  const std::string finish = json["finish"].get<std::string>();
  script.finish = finish == "length" ? FinishReason::kLength : FinishReason::kStop;
  script.is_filtered = finish == "content_filter";
  if (const auto usage = json.find("prompt_usage"); usage != json.end() && usage->is_object()) {
    script.prompt_tokens = usage->value("prompt_tokens", int64_t{-1});
    script.cached_tokens = usage->value("prompt_cache_hit_tokens", int64_t{0});
  }
  return script;
}

Json ScriptedBackend::SeenRequest(const BackendRequest& request) const {
  Json seen{{"prompt", tokenizer_.Decode(request.text.prompt_ids)}, {"max_tokens", request.text.params.max_tokens}, {"grammar", nullptr}};
  if (const auto& so_args = request.text.params.so_args) {
    seen["grammar"] = Json{{"type", so_args->schema_type}, {"schema", so_args->schema}, {"trigger", so_args->trigger_token_ids}};
  }
  return seen;
}

Result<std::shared_ptr<BackendHandle>> ScriptedBackend::Submit(BackendRequest request, BackendCallback callback) {
  bool is_measurement;
  {
    std::lock_guard lock(mutex_);
    is_measurement = step_ns_ >= 0;
  }
  const Json seen = is_measurement ? Json() : SeenRequest(request);
  std::shared_ptr<const Script> script;
  {
    std::lock_guard lock(mutex_);
    last_request_ = seen;
    const auto found = scripts_.find(request.request_id);
    script = found != scripts_.end() ? found->second : scripts_.at("");
  }
  auto run = std::make_shared<Run>(*this, script, std::move(callback), request.text.params.max_tokens, request.text.params.n);
  {
    std::lock_guard lock(mutex_);
    if (is_stopping_) return Unavailable("stopping");
    arrived_.push_back(run);
    ++num_running_;
  }
  changed_.notify_all();
  return std::shared_ptr<BackendHandle>(std::move(run));
}

void ScriptedBackend::WaitForRunning(int64_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this, count] { return num_running_ == count; });
}

BackendState ScriptedBackend::State() {
  std::lock_guard lock(mutex_);
  BackendState state;
  state.num_running = num_running_;
  return state;
}

void ScriptedBackend::Loop() {
  // Endless and silent scripts do not keep a core busy.
  constexpr std::chrono::microseconds kPace{500};
  auto next_step = std::chrono::steady_clock::now();
  std::vector<std::shared_ptr<Run>> running;
  std::unique_lock lock(mutex_);
  while (true) {
    if (running.empty()) changed_.wait(lock, [this] { return is_stopping_ || !arrived_.empty(); });
    else if (step_ns_ < 0) changed_.wait_for(lock, kPace, [this] { return is_stopping_ || !arrived_.empty(); });
    else if (step_ns_ > 0) changed_.wait_until(lock, next_step, [this] { return is_stopping_; });
    if (step_ns_ > 0) next_step = std::max(next_step + std::chrono::nanoseconds(step_ns_), std::chrono::steady_clock::now());
    running.insert(running.end(), arrived_.begin(), arrived_.end());
    arrived_.clear();
    const bool is_stopping = is_stopping_;
    lock.unlock();
    for (const auto& run : running) {
      if (is_stopping) run->Cancel();
    }
    int64_t num_ended = 0;
    std::erase_if(running, [&num_ended](const std::shared_ptr<Run>& run) {
      const bool has_ended = !run->Step();
      num_ended += has_ended ? 1 : 0;
      return has_ended;
    });
    lock.lock();
    num_running_ -= num_ended;
    if (num_ended > 0) changed_.notify_all();
    if (is_stopping && running.empty()) return;
  }
}

}  // namespace deepinfer::server
