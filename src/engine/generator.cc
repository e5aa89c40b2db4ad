// SPDX-License-Identifier: Apache-2.0
#include "engine/generator.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "core/log.h"
#include "engine/text_stream.h"
#include "engine/token_policy.h"
#include "sampling/params.h"

namespace deepinfer {

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone: return "";
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kAbort: return "abort";
    case FinishReason::kTimeout: return "timeout";
    case FinishReason::kPromptLengthExceeded: return "prompt_length_exceeded";
    case FinishReason::kInvalidToken: return "invalid_token";
    case FinishReason::kInvalidLogits: return "error: invalid logits";
    case FinishReason::kInsufficientResource: return "insufficient_system_resource";
    case FinishReason::kInternalError: return "error: internal";
    case FinishReason::kStructuredOutputFailed: return "xgrammar runtime errors or timeout";
  }
  return "";
}

namespace engine {
namespace {

// Logit rows of prompt log probabilities are taken in chunks of at most this size.
constexpr int64_t kMaxPromptLogitBytes = int64_t{64} << 20;
// A prompt is run in chunks of about this time, so that an interrupt is seen soon.
constexpr double kChunkSeconds = 0.1;
constexpr int64_t kFirstChunkTokens = 256, kMinChunkTokens = 64;
// A model whose chunks take longer than this anyway reads its weights most of the time: then few large chunks are best.
constexpr double kSlowChunkSeconds = 2;

uint64_t RandomSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

Generator::Generator(StepRunner& runner, const text::Tokenizer& tokenizer, int eos_token_id, GeneratorOptions options)
    : runner_(runner),
      tokenizer_(tokenizer),
      eos_token_id_(tokenizer.FindAddedToken(kEndOfSentence)),
      eot_token_id_(tokenizer.FindAddedToken(kEndOfTurn)),
      options_(std::move(options)),
      sampler_(runner.vocab_size()),
      policy_mask_(BuildTokenMask(tokenizer, runner.vocab_size(), true, options_.token_blacklist)) {
  if (eos_token_id_ < 0) eos_token_id_ = eos_token_id;
  if (!options_.token_blacklist.empty()) {
    blacklist_mask_ = BuildTokenMask(tokenizer, runner.vocab_size(), false, options_.token_blacklist);
  }
  options_.prefill_chunk_tokens = std::max<int64_t>(options_.prefill_chunk_tokens, 1);
  paced_chunk_tokens_ = std::min(kFirstChunkTokens, options_.prefill_chunk_tokens);
}

Generator::~Generator() = default;

void Generator::PaceChunks(int64_t num_tokens, double elapsed_s) {
  const double wanted = elapsed_s > 0 ? static_cast<double>(num_tokens) * kChunkSeconds / elapsed_s : 1e9;
  int64_t tokens = options_.prefill_chunk_tokens;
  if (elapsed_s < kSlowChunkSeconds && wanted < static_cast<double>(tokens)) {
    tokens = std::max(kMinChunkTokens, static_cast<int64_t>(wanted) / kMinChunkTokens * kMinChunkTokens);
  }
  paced_chunk_tokens_ = std::min(tokens, options_.prefill_chunk_tokens);
}

std::vector<int32_t> Generator::EncodeText(std::string_view text, bool match_added_tokens) const {
  return match_added_tokens ? tokenizer_.EncodeFull(text) : tokenizer_.EncodePlain(text);
}

Status ValidateRequest(const GenerateRequest& request, int vocab_size, int64_t max_model_len, int64_t longest_model_len) {
  if (request.prompt_ids.empty()) {
    return InvalidArgument("the prompt is empty; give at least one token", kPromptField);
  }
  for (size_t i = 0; i < request.prompt_ids.size(); ++i) {
    const int32_t id = request.prompt_ids[i];
    if (id < 0 || id >= vocab_size) {
      return InvalidArgument(fmt::format("prompt token {} has id {} but ids are 0..{}", i, id, vocab_size - 1),
                             kPromptTokensField);
    }
  }
  const int64_t num_prompt_tokens = static_cast<int64_t>(request.prompt_ids.size());
  if (num_prompt_tokens > max_model_len) {
    return Status(StatusCode::kResourceExhausted,
                  fmt::format("the prompt has {} tokens but the context length is {}; shorten it{}",
                              num_prompt_tokens,
                              max_model_len,
                              num_prompt_tokens <= longest_model_len
                                  ? fmt::format(" or start with a larger --max-model-len (at most {})", longest_model_len)
                                  : std::string()),
                  kPromptLengthField);
  }
  return sampling::ValidateSamplingParams(request.params, vocab_size);
}

SamplingParams EffectiveParams(SamplingParams params, bool has_prompt_logits) {
  params = sampling::Normalized(std::move(params));
  if (!params.prompt_logprobs || has_prompt_logits) return params;
  params.prompt_logprobs = false;
  static std::atomic<bool> has_warned{false};
  if (!has_warned.exchange(true))
    DI_LOG(warn, "prompt_logprobs is off: decoder replay drops rows of the prompt; start with --decoder-replay off to get them");
  return params;
}

Status Generator::Validate(const GenerateRequest& request) const {
  return ValidateRequest(request, runner_.vocab_size(), runner_.max_model_len(), runner_.longest_model_len());
}

class Generator::Run {
 public:
  Run(Generator& generator, const GenerateRequest& request, const StreamCallback& callback, const CancelToken* cancel)
      : generator_(generator),
        request_(request),
        params_(EffectiveParams(request.params, generator.runner_.has_prompt_logits())),
        callback_(callback),
        cancel_(cancel),
        text_(generator.tokenizer_, params_, request.hide_stop_token),
        begin_s_(generator.options_.clock->NowSeconds()) {}

  Result<Completion> Execute();

 private:
  Status Start();
  Status Prefill();
  Status PromptLogprobs(std::span<const float> rows, int64_t first_row, int64_t num_rows);
  // One token from the newest logits: sampled, recorded, checked, reported.
  Status EmitToken(std::span<const float> logits);
  void Prepare(sampling::RowContext& row);
  void CheckStop(int32_t id);
  void Report(const TokenOutput* token, std::string_view text);
  bool ShouldAbort();
  double ElapsedSeconds() const { return generator_.options_.clock->NowSeconds() - begin_s_; }
  bool is_finished() const { return completion_.finish_reason != FinishReason::kNone; }
  bool IsEndToken(int32_t id) const { return id == generator_.eos_token_id_ || id == generator_.eot_token_id_; }
  int64_t num_output() const { return static_cast<int64_t>(completion_.ids.size()); }

  Generator& generator_;
  const GenerateRequest& request_;
  const SamplingParams params_;
  const StreamCallback& callback_;
  const CancelToken* cancel_;
  std::unique_ptr<RunnerSequence> sequence_;
  TextStream text_;
  sampling::TokenCounts counts_;
  std::vector<int32_t> end_bans_;    // while output_len < min_tokens
  std::vector<int32_t> first_bans_;  // of the first token
  std::span<const float> logits_;    // last row of the prompt, then of each step
  Completion completion_;
  double begin_s_ = 0;
};

bool Generator::Run::ShouldAbort() {
  if (cancel_ != nullptr && cancel_->is_cancelled()) {
    completion_.finish_reason = FinishReason::kAbort;
  } else if (params_.timeout_s && ElapsedSeconds() > *params_.timeout_s) {
    completion_.finish_reason = FinishReason::kTimeout;
  }
  return is_finished();
}

Status Generator::Run::Start() {
  completion_.prompt_ids = request_.prompt_ids;
  completion_.usage.prompt_tokens = static_cast<int64_t>(request_.prompt_ids.size());
  completion_.timing.load_s = generator_.options_.load_s;
  completion_.seed = params_.seq_seed         ? *params_.seq_seed
                     : params_.random_seed != 0 ? params_.random_seed
                     : params_.is_greedy()      ? 0
                                                : RandomSeed();
  if (params_.has_penalties()) {
    counts_ = sampling::TokenCounts(generator_.vocab_size());
    counts_.AddPrompt(request_.prompt_ids);
  }
  first_bans_ = {generator_.eos_token_id_};
  end_bans_ = params_.stop_token_ids;
  end_bans_.push_back(generator_.eos_token_id_);
  if (generator_.eot_token_id_ >= 0) end_bans_.push_back(generator_.eot_token_id_);
  const size_t max_output = static_cast<size_t>(
      std::min(params_.max_tokens, generator_.max_model_len() + 1 - completion_.usage.prompt_tokens));
  completion_.ids.reserve(max_output);
  completion_.tokens.reserve(max_output);
  DI_ASSIGN_OR_RETURN(sequence_, generator_.runner_.NewSequence());
  return Status::Ok();
}

Status Generator::Run::PromptLogprobs(std::span<const float> rows, int64_t first_row, int64_t num_rows) {
  const std::vector<int32_t>& ids = request_.prompt_ids;
  const size_t width = static_cast<size_t>(generator_.vocab_size());
  for (int64_t i = 0; i < num_rows; ++i) {
    const size_t next = static_cast<size_t>(first_row + i + 1);
    if (next >= ids.size()) break;
    const std::span<const float> row = rows.subspan(static_cast<size_t>(i) * width, width);
    if (generator_.options_.logprobs_mode == LogprobsMode::kRaw) {
      completion_.prompt_logprobs.push_back(generator_.sampler_.RawLogprob(row, ids[next]));
      continue;
    }
    DI_ASSIGN_OR_RETURN(const std::span<const float> logprobs, generator_.sampler_.Process(row, params_, {}));
    completion_.prompt_logprobs.push_back(std::max(logprobs[static_cast<size_t>(ids[next])], kLogprobFloor));
  }
  return Status::Ok();
}

Status Generator::Run::Prefill() {
  const std::span<const int32_t> ids = request_.prompt_ids;
  size_t max_chunk = ids.size();
  if (params_.prompt_logprobs) {
    const int64_t row_bytes = int64_t{generator_.vocab_size()} * static_cast<int64_t>(sizeof(float));
    max_chunk = static_cast<size_t>(std::max<int64_t>(kMaxPromptLogitBytes / row_bytes, 1));
  }
  for (size_t done = 0; done < ids.size();) {
    if (ShouldAbort()) return Status::Ok();
    const size_t count = std::min({static_cast<size_t>(generator_.paced_chunk_tokens_), max_chunk, ids.size() - done});
    const bool is_last = done + count == ids.size();
    StepChunk chunk;
    chunk.sequence = sequence_.get();
    chunk.ids = ids.subspan(done, count);
    chunk.known_length = static_cast<int64_t>(ids.size());
    chunk.logits = params_.prompt_logprobs ? LogitRows::kAll : is_last ? LogitRows::kLast : LogitRows::kNone;
    const double start_s = generator_.options_.clock->NowSeconds();
    DI_ASSIGN_OR_RETURN(logits_, generator_.runner_.Forward({&chunk, 1}));
    // Short remainders say nothing about a chunk.
    if (count >= kMinChunkTokens) generator_.PaceChunks(static_cast<int64_t>(count), generator_.options_.clock->NowSeconds() - start_s);
    if (params_.prompt_logprobs) {
      DI_RETURN_IF_ERROR(PromptLogprobs(logits_, static_cast<int64_t>(done), static_cast<int64_t>(count)));
    }
    done += count;
  }
  logits_ = logits_.last(static_cast<size_t>(generator_.vocab_size()));
  return Status::Ok();
}

void Generator::Run::Prepare(sampling::RowContext& row) {
  row.seed = completion_.seed;
  row.position = static_cast<int32_t>(completion_.usage.prompt_tokens + num_output());
  row.draw_mode = params_.seq_seed ? sampling::DrawMode::kRace : sampling::DrawMode::kInverseCdf;
  row.allowed_mask = request_.apply_token_policy ? generator_.policy_mask_ : generator_.blacklist_mask_;
  if (num_output() < params_.min_tokens) {
    row.banned_ids = end_bans_;
  } else if (num_output() == 0 && params_.first_n_token_no_eos == 1) {
    row.banned_ids = first_bans_;
  }
  if (params_.has_penalties()) row.counts = &counts_;
  const size_t idx = completion_.ids.size();
  if (idx < params_.golden_token_ids.size()) row.forced_id = params_.golden_token_ids[idx];
  row.logprobs_mode = generator_.options_.logprobs_mode;
  row.compute_sum_smaller_probs = generator_.options_.compute_sum_smaller_probs;
}

// The checks that need no text, in the order of the specification; the first match wins.
void Generator::Run::CheckStop(int32_t id) {
  if (!params_.ignore_eos && IsEndToken(id)) {
    completion_.finish_reason = FinishReason::kStop;
    completion_.stop_token_id = id;
  } else if (std::find(params_.stop_token_ids.begin(), params_.stop_token_ids.end(), id) !=
             params_.stop_token_ids.end()) {
    completion_.finish_reason = FinishReason::kStop;
    completion_.stop_token_id = id;
  } else if (completion_.usage.prompt_tokens + num_output() > generator_.max_model_len() ||
             num_output() >= params_.max_tokens) {
    completion_.finish_reason = FinishReason::kLength;
  }
}

void Generator::Run::Report(const TokenOutput* token, std::string_view text) {
  if (!callback_) return;
  StreamUpdate update;
  update.token = token;
  update.text = text;
  update.finish_reason = completion_.finish_reason;
  update.completion = &completion_;
  const bool was_finished = is_finished();
  const StreamAction action = callback_(update);
  if (was_finished || action == StreamAction::kContinue) return;
  completion_.finish_reason = action == StreamAction::kStop ? FinishReason::kStop : FinishReason::kAbort;
  const std::string rest = text_.Finish(completion_);
  StreamUpdate last;
  last.text = rest;
  last.finish_reason = completion_.finish_reason;
  last.completion = &completion_;
  callback_(last);
}

Status Generator::Run::EmitToken(std::span<const float> logits) {
  sampling::RowContext row;
  Prepare(row);
  DI_ASSIGN_OR_RETURN(sampling::SampledToken sampled, generator_.sampler_.Sample(logits, params_, row));
  if (params_.has_penalties()) counts_.AddOutput(sampled.id);
  completion_.ids.push_back(sampled.id);
  if (num_output() == 1) completion_.timing.ttft_s = ElapsedSeconds();
  TokenOutput& output = completion_.tokens.emplace_back();
  output.token_id = sampled.id;
  output.logprob = sampled.logprob;
  output.sum_smaller_probs = sampled.sum_smaller_probs;
  output.top_token_ids = std::move(sampled.top_ids);
  output.top_logprobs = std::move(sampled.top_logprobs);
  output.num_output_tokens = num_output();
  CheckStop(sampled.id);
  const std::string text = text_.Push(sampled.id, completion_);
  Report(&output, text);
  return Status::Ok();
}

Result<Completion> Generator::Run::Execute() {
  DI_RETURN_IF_ERROR(Start());
  DI_RETURN_IF_ERROR(Prefill());
  if (!is_finished()) DI_RETURN_IF_ERROR(EmitToken(logits_));
  while (!is_finished()) {
    if (ShouldAbort()) {
      const std::string rest = text_.Finish(completion_);
      Report(nullptr, rest);
      break;
    }
    StepChunk chunk;
    chunk.sequence = sequence_.get();
    chunk.ids = std::span<const int32_t>(completion_.ids).last(1);
    DI_ASSIGN_OR_RETURN(logits_, generator_.runner_.Forward({&chunk, 1}));
    DI_RETURN_IF_ERROR(EmitToken(logits_));
  }
  FinishFigures(ElapsedSeconds(), completion_);
  return std::move(completion_);
}

Result<Completion> Generator::Generate(const GenerateRequest& request,
                                       const StreamCallback& callback,
                                       const CancelToken* cancel) {
  DI_RETURN_IF_ERROR(Validate(request));
  Run run(*this, request, callback, cancel);
  return run.Execute();
}

}  // namespace engine
}  // namespace deepinfer
