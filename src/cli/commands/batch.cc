// SPDX-License-Identifier: Apache-2.0
//
// batch: a file of requests through the engine, many at a time, into a file of results in the same order.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>

#include <fmt/format.h>

#include "cli/batch_file.h"
#include "cli/batch_request.h"
#include "cli/commands.h"
#include "cli/commands/model_session.h"
#include "core/clock.h"
#include "core/escape.h"
#include "core/progress.h"
#include "core/signals.h"
#include "protocols/api.h"
#include "text/prompt_renderer.h"

namespace deepinfer::cli {

namespace {

// Results wait for those before them; more than this many times the concurrency do not wait, new requests do.
constexpr size_t kMaxWaiting = 16;
// How often the main thread looks for Ctrl-C.
constexpr std::chrono::milliseconds kPoll{50};

struct Totals {
  int64_t num_failed = 0, num_written = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
};

class BatchRun {
 public:
  BatchRun(const BatchInput& input, BatchOutput& output, engine::AsyncEngine& engine, const BatchContext& context, size_t concurrency)
      : input_(input), output_(output), engine_(engine), context_(context), concurrency_(concurrency), next_(output.num_done()) {}

  // Until everything is written or `interrupt` is requested.
  Status Run(const InterruptScope& interrupt, Progress& progress) {
    Status status;
    while (status.ok() && output_.num_done() + static_cast<size_t>(totals_.num_written) < input_.size()) {
      if (interrupt.requested()) break;
      while (next_ < input_.size() && num_running_ < concurrency_ && window_.size() < kMaxWaiting * concurrency_) Start(next_++);
      Collect();
      status = WriteFinished();
      progress.Update(static_cast<int64_t>(output_.num_done()) + totals_.num_written, static_cast<int64_t>(input_.size()));
      if (status.ok() && num_running_ > 0 && (num_running_ == concurrency_ || next_ == input_.size())) WaitForOne();
    }
    for (Slot& slot : window_) {
      if (slot.handle) slot.handle->Cancel();
    }
    for (Slot& slot : window_) {
      if (slot.handle) slot.handle->Wait();
    }
    engine_.core().WaitIdle();
    return status;
  }

  const Totals& totals() const { return totals_; }

 private:
  struct Slot {
    size_t idx = 0;
    std::unique_ptr<BatchRequest> request;
    std::optional<engine::TextHandle> handle;  // set while it runs
    std::string line;                          // set when it has ended
  };

  void Start(size_t idx) {
    Slot& slot = window_.emplace_back();
    slot.idx = idx;
    const Result<BatchItem> item = input_.Parse(idx);
    if (!item.ok()) {
      Json line = BatchLine(input_, idx);
      line["response"] = nullptr;
      line["error"] = {{"code", "invalid_request"}, {"message", item.status().message()}};
      slot.line = DumpJson(line);
      ++totals_.num_failed;
      return;
    }
    Result<std::unique_ptr<BatchRequest>> request = BatchRequest::Create(item->url, item->body, idx, input_.id(idx), context_);
    if (!request.ok()) return Answer(slot, request.status());
    slot.request = *std::move(request);
    engine::TextRequest work = slot.request->TakeRequest();
    // `num_open` is the output thread's.
    auto callback = [this, target = slot.request.get(), num_open = work.params.n](int, const StreamUpdate& update) mutable {
      const StreamAction action = target->OnUpdate(update);
      if (update.finish_reason != FinishReason::kNone && --num_open == 0) {
        {
          std::lock_guard lock(mutex_);
          ++num_ends_;
        }
        ended_.notify_one();
      }
      return action;
    };
    Result<engine::TextHandle> handle = engine_.Submit(std::move(work), std::move(callback));
    // Trying again later would not help a prompt that is too long.
    if (!handle.ok() && handle.status().field() == engine::kPromptLengthField) {
      return Answer(slot, InvalidArgument(handle.status().message(), engine::kPromptLengthField));
    }
    if (!handle.ok()) return Answer(slot, handle.status());
    slot.handle = *std::move(handle);
    ++num_running_;
  }

  void WaitForOne() {
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, kPoll, [&] { return num_ends_ > num_collected_; });
  }

  void Collect() {
    for (Slot& slot : window_) {
      if (!slot.handle || !slot.handle->is_done()) continue;
      std::vector<Completion> samples = slot.handle->TakeCompletions();
      slot.handle.reset();
      --num_running_;
      ++num_collected_;
      for (const Completion& sample : samples) totals_.output_tokens += sample.usage.completion_tokens;
      totals_.prompt_tokens += samples.front().usage.prompt_tokens;
      totals_.cached_tokens += samples.front().usage.cached_tokens;
      Answer(slot, slot.request->Body(std::move(samples)));
      slot.request.reset();
    }
  }

  void Answer(Slot& slot, const Result<Json>& body) {
    Json line = BatchLine(input_, slot.idx);
    Json& response = line["response"];
    response["status_code"] = body.ok() ? 200 : protocols::HttpStatus(body.status());
    response["request_id"] = fmt::format("req_{}", std::string_view(input_.id(slot.idx)).substr(std::string_view("batch_req_").size()));
    response["body"] = body.ok() ? *body : protocols::ErrorBody(protocols::Api::kChat, body.status());
    line["error"] = nullptr;
    slot.line = DumpJson(line);
    if (!body.ok()) ++totals_.num_failed;
  }

  Status WriteFinished() {
    while (!window_.empty() && !window_.front().line.empty()) {
      DI_RETURN_IF_ERROR(output_.Append(window_.front().line));
      window_.pop_front();
      ++totals_.num_written;
    }
    return Status::Ok();
  }

  const BatchInput& input_;
  BatchOutput& output_;
  engine::AsyncEngine& engine_;
  const BatchContext& context_;
  const size_t concurrency_;
  size_t next_;
  size_t num_running_ = 0;
  std::deque<Slot> window_;  // started and not written, in order
  Totals totals_;

  std::mutex mutex_;
  std::condition_variable ended_;
  int64_t num_ends_ = 0;  // GUARDED_BY(mutex_) requests whose last token has been handed on
  int64_t num_collected_ = 0;
};

Status RunBatch(Invocation& invocation) {
  const Config& config = invocation.config;
  const std::string &input_path = invocation.args[0], &output_path = invocation.args[1];
  const bool writes_stdout = output_path == "-";
  if (writes_stdout && config.output.json) {
    return InvalidArgument("--json prints figures to stdout, where the results go; name an output file, or leave --json out");
  }
  DI_ASSIGN_OR_RETURN(const BatchInput input, BatchInput::Open(input_path));
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<BatchOutput> output, BatchOutput::Open(output_path, input_path, input, invocation.out));
  const size_t total = input.size(), before = output->num_done();
  const auto say = [&](const std::string& text) {
    if (!config.log.quiet) std::fputs((text + "\n").c_str(), stderr);
  };
  Totals totals;
  double seconds = 0;
  bool is_interrupted = false;
  if (before == total) {
    say(fmt::format("{} holds the results of all {} requests already", Escape(output_path), total));
  } else {
    if (before > 0) say(fmt::format("{} holds {} of {} results; going on after them", Escape(output_path), before, total));
    // Loading ends at once on Ctrl-C; nothing is lost by it.
    DI_ASSIGN_OR_RETURN(const auto engine, LoadEngineFor(invocation, false, Defaults::kProduction));
    DI_ASSIGN_OR_RETURN(engine::AsyncEngine* const async, engine->async_engine());
    BatchContext context(engine->tokenizer(), ToConvertOptions(config.protocol));
    // A file made for this model may call it what the command line calls it.
    context.convert.served_models.push_back(config.model.model);
    Result<text::PromptTokens> tokens = text::PromptTokens::FromTokenizer(engine->tokenizer());
    if (tokens.ok()) context.convert.tokens = *std::move(tokens);
    else context.chat_status = tokens.status();
    context.max_model_len = engine->model().max_model_len();
    if (async->has_structured_output())
      context.check_grammar = [async](const StructuredOutput& so_args) { return async->CheckStructuredOutput(so_args); };
    context.max_tokens = config.sampling.max_tokens;
    if (config.sampling.seed) context.seed = static_cast<uint64_t>(*config.sampling.seed);
    // Some more than run together, so that a place never stays empty.
    const size_t concurrency = config.batch.concurrency > 0
                                   ? static_cast<size_t>(config.batch.concurrency)
                                   : 2 * static_cast<size_t>(async->core().options().scheduler.max_num_seqs);
    InterruptScope interrupt;
    BatchRun run(input, *output, *async, context, concurrency);
    const double begin_s = Clock::Steady().NowSeconds();
    {
      Progress progress("requests", {.quiet = config.log.quiet, .unit = ProgressUnit::kItems, .clock = nullptr, .write_line = {}});
      DI_RETURN_IF_ERROR(run.Run(interrupt, progress));
    }
    DI_RETURN_IF_ERROR(output->Finish());
    seconds = Clock::Steady().NowSeconds() - begin_s;
    totals = run.totals();
    const size_t done = before + static_cast<size_t>(totals.num_written);
    is_interrupted = done < total;
    if (is_interrupted) {
      std::fputs(fmt::format("interrupted after {} of {} requests; {}\n", done, total,
                             output->is_resumable() ? "run the same command again to go on" : "this output cannot be continued").c_str(),
                 stderr);
      invocation.exit_code = 130;
    } else {
      say(fmt::format("{} requests in {:.1f} s, {} failed; {} prompt tokens ({} cached), {} output tokens, {:.1f} tokens/s",
                      totals.num_written, seconds, totals.num_failed, totals.prompt_tokens, totals.cached_tokens, totals.output_tokens,
                      seconds > 0 ? static_cast<double>(totals.output_tokens) / seconds : 0.0));
    }
  }
  if (config.output.json) {
    invocation.out.Line(DumpJson(Json{{"requests", total},
                                      {"done_before", before},
                                      {"done", totals.num_written},
                                      {"failed", totals.num_failed},
                                      {"interrupted", is_interrupted},
                                      {"prompt_tokens", totals.prompt_tokens},
                                      {"cached_tokens", totals.cached_tokens},
                                      {"output_tokens", totals.output_tokens},
                                      {"seconds", seconds}}));
  }
  return invocation.out.Check();
}

}  // namespace

Command BatchCommand() {
  return {.name = "batch",
          .summary = "answer a file of requests, many at a time",
          .usage = "INPUT.jsonl OUTPUT.jsonl",
          .min_args = 2,
          .max_args = 2,
          .run = RunBatch,
          .arg_choices = {},
          .details = "INPUT holds one request a line: {\"custom_id\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\" or\n"
                     "\"/v1/completions\", \"body\"}. OUTPUT gets one line for each, in the same order, as they become final. An output\n"
                     "that an interrupted run left is continued. - is stdin or stdout."};
}

}  // namespace deepinfer::cli
