// SPDX-License-Identifier: Apache-2.0
#include "engine/async_engine.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "constrain/structured_output.h"
#include "constrain/tokenizer_view.h"
#include "constrain/xgrammar_backend.h"
#include "engine/engine_config.h"
#include "engine/output_queue.h"
#include "engine/text_stream.h"
#include "engine/token_policy.h"
#include "sampling/params.h"

namespace deepinfer::engine {
namespace {

constexpr size_t kMaxSaltBytes = 128;
// Tokens that a completion has room for from the start; longer ones grow.
constexpr int64_t kReservedTokens = 64;

}  // namespace

// ---- one request ----------------------------------------------------------------------------------------------------------

// What the output thread writes and the request's owner reads. The core's callback keeps it alive, never the other way.
class TextHandle::State {
 public:
  State(const text::Tokenizer& tokenizer, const TextRequest& request, const SamplingParams& params, SampleCallback callback,
        double load_s, const Clock& clock)
      : callback_(std::move(callback)), clock_(clock), begin_s_(clock.NowSeconds()) {
    outputs_.Open(params.n);
    samples_.reserve(static_cast<size_t>(params.n));
    for (int i = 0; i < params.n; ++i) {
      Sample& sample = samples_.emplace_back(tokenizer, params, request.hide_stop_token);
      Completion& c = sample.completion;
      c.prompt_ids = request.prompt_ids;
      c.usage.prompt_tokens = static_cast<int64_t>(request.prompt_ids.size());
      c.timing.load_s = load_s;
      c.ids.reserve(static_cast<size_t>(std::min(params.max_tokens, kReservedTokens)));
      c.tokens.reserve(c.ids.capacity());
    }
  }

  StreamAction OnOutput(const CoreOutput& output);

  OutputQueue<TextOutput>& outputs() { return outputs_; }
  std::vector<Completion> Take(uint64_t seed);

 private:
  struct Sample {
    Sample(const text::Tokenizer& tokenizer, const SamplingParams& params, bool hide_stop_token)
        : text(tokenizer, params, hide_stop_token) {}
    Completion completion;
    TextStream text;
    bool is_ended = false;
  };

  // Hands on a token (or none) with its text; the answer to it.
  StreamAction Report(int idx, const TokenOutput* token, std::string text, FinishReason reason);
  void End(Sample& sample);

  const SampleCallback callback_;
  const Clock& clock_;
  const double begin_s_;
  std::vector<Sample> samples_;  // the output thread's until a sample has ended
  bool has_failed_ = false;      // output thread: the callback threw

  OutputQueue<TextOutput> outputs_;
};

StreamAction TextHandle::State::Report(int idx, const TokenOutput* token, std::string text, FinishReason reason) {
  if (!callback_) {
    TextOutput output;
    output.sample = idx;
    if (token != nullptr) output.token = *token;
    output.text = std::move(text);
    output.finish_reason = reason;
    outputs_.Push(std::move(output));
    return StreamAction::kContinue;
  }
  if (has_failed_) return StreamAction::kAbort;
  StreamUpdate update;
  update.token = token;
  update.text = text;
  update.finish_reason = reason;
  update.completion = &samples_[static_cast<size_t>(idx)].completion;
  if (const auto action = RunOutputCallback([&] { return callback_(idx, update); })) return *action;
  has_failed_ = true;
  return StreamAction::kAbort;
}

void TextHandle::State::End(Sample& sample) {
  FinishFigures(clock_.NowSeconds() - begin_s_, sample.completion);
  sample.is_ended = true;
  outputs_.CloseOne();
}

StreamAction TextHandle::State::OnOutput(const CoreOutput& output) {
  Sample& sample = samples_[static_cast<size_t>(output.sample)];
  // The core still reports the end of a sample that the text layer has ended.
  if (sample.is_ended) return StreamAction::kContinue;
  Completion& c = sample.completion;
  const bool has_token = output.token.token_id >= 0;
  std::string text;
  if (has_token) {
    c.ids.push_back(output.token.token_id);
    c.usage.completion_tokens = static_cast<int64_t>(c.ids.size());
    c.speculation.steps += output.begins_step ? 1 : 0;
    c.tokens.push_back(output.token);
    if (c.ids.size() == 1) c.timing.ttft_s = clock_.NowSeconds() - begin_s_;
    if (output.cached_tokens >= 0) c.usage.cached_tokens = output.cached_tokens;
    if (!output.prompt_logprobs.empty()) c.prompt_logprobs = output.prompt_logprobs;
    if (output.is_stop_token) c.stop_token_id = output.token.token_id;
    c.finish_reason = output.finish_reason;
    // The last token of a failed structured output is no text.
    text = output.finish_reason == FinishReason::kStructuredOutputFailed ? sample.text.Finish(c)
                                                                         : sample.text.Push(output.token.token_id, c);
  } else {
    c.finish_reason = output.finish_reason;
    text = sample.text.Finish(c);
  }
  const bool was_finished = c.finish_reason != FinishReason::kNone;
  StreamAction action = Report(output.sample, has_token ? &c.tokens.back() : nullptr, std::move(text), c.finish_reason);
  if (!was_finished && action == StreamAction::kContinue) return action;
  if (!was_finished) {
    c.finish_reason = action == StreamAction::kStop ? FinishReason::kStop : FinishReason::kAbort;
    Report(output.sample, nullptr, sample.text.Finish(c), c.finish_reason);
  } else {
    // A stop string or the byte limit ends the sample where the core does not know of it.
    action = c.finish_reason == FinishReason::kStop || c.finish_reason == FinishReason::kLength ? StreamAction::kStop : StreamAction::kAbort;
  }
  End(sample);
  return action;
}

std::vector<Completion> TextHandle::State::Take(uint64_t seed) {
  outputs_.Wait();
  std::vector<Completion> completions;
  for (Sample& sample : samples_) {
    completions.push_back(std::move(sample.completion));
    completions.back().seed = seed++;
  }
  return completions;
}

bool TextHandle::Next(TextOutput& output) { return state_->outputs().Next(output); }
void TextHandle::Wait() { state_->outputs().Wait(); }
bool TextHandle::WaitFor(double seconds) { return state_->outputs().WaitFor(seconds); }
bool TextHandle::is_done() const { return state_->outputs().is_done(); }
std::vector<Completion> TextHandle::TakeCompletions() { return state_->Take(core_->seed()); }

// ---- engine ---------------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<AsyncEngine>> AsyncEngine::Create(StepModel& model, const text::Tokenizer& tokenizer, AsyncEngineOptions options) {
  std::unique_ptr<AsyncEngine> engine(new AsyncEngine(model, tokenizer, std::move(options)));
  DI_ASSIGN_OR_RETURN(engine->core_, EngineCore::Create(model, engine->options_.core));
  return engine;
}

AsyncEngine::AsyncEngine(StepModel& model, const text::Tokenizer& tokenizer, AsyncEngineOptions options)
    : model_(model), tokenizer_(tokenizer), options_(std::move(options)), eos_token_id_(tokenizer.FindAddedToken(kEndOfSentence)) {
  if (eos_token_id_ < 0) eos_token_id_ = options_.eos_token_id;
  EngineCoreOptions& core = options_.core;
  core.end_token_id = eos_token_id_;
  core.scheduler.end_token_ids = {eos_token_id_};
  if (const int32_t eot = tokenizer.FindAddedToken(kEndOfTurn); eot >= 0) core.scheduler.end_token_ids.push_back(eot);
  const auto mask = [&](bool apply_policy) {
    return std::make_shared<const std::vector<uint32_t>>(
        BuildTokenMask(tokenizer, model.vocab_size(), apply_policy, options_.token_blacklist));
  };
  policy_mask_ = mask(true);
  if (!options_.token_blacklist.empty()) blacklist_mask_ = mask(false);
  cache_root_ = CacheRoot(options_.cache_salt);
  if (options_.make_grammars == nullptr && constrain::HasXgrammar()) {
    options_.make_grammars = [this] {
      const std::vector<int32_t> end = {eos_token_id_};
      const auto view = [&](constrain::ViewKind kind) { return MakeTokenizerView(tokenizer_, kind, model_.vocab_size(), end); };
      return constrain::MakeXgrammarBackend(view(constrain::ViewKind::kPlain), view(constrain::ViewKind::kTags));
    };
  }
  // Its threads and the backend come into being with the first request that needs them.
  if (options_.make_grammars != nullptr)
    core.grammars = std::make_shared<constrain::CompileService>(options_.make_grammars, options_.grammars);
}

AsyncEngine::~AsyncEngine() {
  core_.reset();
  // Nobody asks for the tokenizer any more.
  if (options_.core.grammars != nullptr) options_.core.grammars->Shutdown();
}

Status AsyncEngine::CheckStructuredOutput(const StructuredOutput& so_args) {
  if (options_.core.grammars == nullptr) return constrain::NoStructuredOutput();
  const constrain::GrammarSpec spec = constrain::GrammarSpecOf(so_args);
  if (!spec.invalid.empty()) return InvalidArgument(spec.invalid, "so_args");
  return options_.core.grammars->Compile(spec).status();
}

Key256 AsyncEngine::CacheRoot(std::string_view cache_salt) const {
  return RootKey(options_.fingerprint, TenantSalt(options_.cache_secret, options_.isolation_domain, cache_salt));
}

Result<TextHandle> AsyncEngine::Submit(TextRequest request, SampleCallback callback) {
  const int64_t limit = core_->options().scheduler.prompt_limit();
  DI_RETURN_IF_ERROR(ValidateRequest(request, model_.vocab_size(), limit, options_.longest_model_len));
  if (request.cache_salt.size() > kMaxSaltBytes) {
    return InvalidArgument(fmt::format("cache_salt has {} bytes but may have at most {}", request.cache_salt.size(), kMaxSaltBytes),
                           "cache_salt");
  }
  if (!request.cache_mode && !request.params.cache_mode.empty()) {
    DI_ASSIGN_OR_RETURN(request.cache_mode, ParseCacheMode(request.params.cache_mode));
  }
  for (size_t i = 0; i < request.chunk_checkpoints.size(); ++i) {
    if (request.chunk_checkpoints[i] > (i == 0 ? 0 : request.chunk_checkpoints[i - 1])) continue;
    return InvalidArgument(fmt::format("chunk_checkpoints holds {} at index {} but must ascend from above 0", request.chunk_checkpoints[i], i),
                           "chunk_checkpoints");
  }
  TextHandle handle;
  handle.state_ = std::make_shared<TextHandle::State>(tokenizer_, request, sampling::Normalized(request.params), std::move(callback),
                                                      options_.load_s, *core_->options().clock);
  EngineRequest core;
  core.prompt_ids = std::move(request.prompt_ids);
  core.params = std::move(request.params);
  core.allowed_mask = request.apply_token_policy ? policy_mask_ : blacklist_mask_;
  core.cache_mode = request.cache_mode;
  core.chunk_checkpoints = std::move(request.chunk_checkpoints);
  core.probe = std::move(request.probe);
  core.cache_root = request.cache_salt.empty() ? cache_root_ : CacheRoot(request.cache_salt);
  DI_ASSIGN_OR_RETURN(handle.core_, core_->Submit(std::move(core), [state = handle.state_](const CoreOutput& output) {
    return state->OnOutput(output);
  }));
  return handle;
}

Result<TextHandle> AsyncEngine::Submit(std::string_view text, const SamplingParams& params, SampleCallback callback) {
  TextRequest request;
  request.prompt_ids = tokenizer_.EncodeFull(text);
  request.params = params;
  return Submit(std::move(request), std::move(callback));
}

}  // namespace deepinfer::engine
