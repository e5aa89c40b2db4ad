// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_load.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "core/clock.h"
#include "core/signals.h"

namespace deepinfer::cli {

namespace {

struct Preset {
  std::string_view name;
  int64_t input_tokens, output_tokens;
};
// Workloads of the specification (performance.md 5) that are no more than two lengths.
constexpr std::array<Preset, 3> kPresets = {{{"W1", 512, 256}, {"W2", 2048, 1024}, {"W5", 8192, 1024}}};
constexpr int64_t kRequestsPerPlace = 4;
// How often the loop looks for Ctrl-C.
constexpr std::chrono::milliseconds kPoll{50};

class Loop {
 public:
  Loop(engine::AsyncEngine& engine, const std::vector<LoadRequest>& requests) : engine_(engine), requests_(requests), clients_(requests.size()) {}

  Result<LoadResult> Run(int64_t concurrency) {
    LoadResult result;
    const double begin_s = clock_.NowSeconds();
    InterruptScope interrupt;
    Status status;
    size_t next = 0, num_done = 0;
    while (status.ok() && num_done < requests_.size()) {
      while (status.ok() && next < requests_.size() && next - num_done < static_cast<size_t>(concurrency)) status = Submit(next++);
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kPoll, [&] { return num_ended_ > num_done; });
      num_done = num_ended_;
      if (interrupt.requested()) status = Cancelled("interrupted");
    }
    for (auto& client : clients_) {
      if (!status.ok() && client.handle) client.handle->Cancel();
    }
    for (auto& client : clients_) {
      if (client.handle) client.handle->Wait();
    }
    result.seconds = clock_.NowSeconds() - begin_s;
    engine_.core().WaitIdle();
    DI_RETURN_IF_ERROR(status);
    for (Client& client : clients_) {
      const Completion completion = std::move(client.handle->TakeCompletions().front());
      if (completion.finish_reason != FinishReason::kLength && completion.finish_reason != FinishReason::kStop) {
        return Internal(fmt::format("a request of the workload ended with \"{}\"", FinishReasonName(completion.finish_reason)));
      }
      const std::vector<double>& at = client.token_s;
      result.prompt_tokens += completion.usage.prompt_tokens;
      result.cached_tokens += completion.usage.cached_tokens;
      result.output_tokens += completion.usage.completion_tokens;
      result.ttft_ms.push_back((at.front() - client.begin_s) * 1e3);
      if (at.size() > 1) result.tpot_ms.push_back((at.back() - at.front()) / static_cast<double>(at.size() - 1) * 1e3);
      for (size_t i = 1; i < at.size(); ++i) result.itl_ms.push_back((at[i] - at[i - 1]) * 1e3);
    }
    result.idle_s = idle_s_;
    return result;
  }

 private:
  struct Client {
    std::optional<engine::TextHandle> handle;
    double begin_s = 0;
    std::vector<double> token_s;  // the output thread's until the end
  };

  Status Submit(size_t i) {
    Client& client = clients_[i];
    client.token_s.reserve(static_cast<size_t>(requests_[i].output_tokens));
    engine::TextRequest request;
    request.prompt_ids = requests_[i].prompt_ids;
    request.cache_salt = requests_[i].cache_salt;
    request.params.max_tokens = requests_[i].output_tokens;
    request.params.ignore_eos = requests_[i].ignore_eos;
    request.params.temperature = requests_[i].temperature;
    if (request.params.temperature > 0) request.params.seq_seed = requests_[i].seed;
    request.apply_token_policy = !requests_[i].ignore_eos;
    request.params.so_args = requests_[i].so_args;
    client.begin_s = clock_.NowSeconds();
    {
      std::lock_guard lock(mutex_);
      if (num_submitted_++ == num_ended_ && last_end_s_ > 0) idle_s_ += client.begin_s - last_end_s_;
    }
    DI_ASSIGN_OR_RETURN(client.handle, engine_.Submit(std::move(request), [this, &client](int, const StreamUpdate& update) {
      const double now_s = clock_.NowSeconds();
      if (update.token != nullptr && update.token->token_id >= 0) client.token_s.push_back(now_s);
      if (update.finish_reason != FinishReason::kNone) {
        {
          std::lock_guard lock(mutex_);
          ++num_ended_;
          last_end_s_ = now_s;
        }
        changed_.notify_one();
      }
      return StreamAction::kContinue;
    }));
    return Status::Ok();
  }

  engine::AsyncEngine& engine_;
  const std::vector<LoadRequest>& requests_;
  const Clock& clock_ = Clock::Steady();
  std::vector<Client> clients_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t num_submitted_ = 0, num_ended_ = 0;  // GUARDED_BY(mutex_)
  double last_end_s_ = 0, idle_s_ = 0;        // GUARDED_BY(mutex_)
};

}  // namespace

Result<LoadSpec> LoadSpecOf(const Invocation& invocation, int64_t max_model_len, int64_t default_concurrency) {
  const BenchConfig& bench = invocation.config.bench;
  LoadSpec spec;
  spec.input_tokens = bench.input_tokens;
  spec.output_tokens = bench.output_tokens;
  spec.concurrency = invocation.sources.IsSet("batch") ? bench.batch : default_concurrency;
  spec.num_requests = bench.requests > 0 ? bench.requests : kRequestsPerPlace * spec.concurrency;
  if (bench.workload != "fixed") {
    if (invocation.sources.IsSet("input-tokens") || invocation.sources.IsSet("output-tokens")) {
      return InvalidArgument("--workload gives the lengths; leave --input-tokens and --output-tokens out");
    }
    for (const Preset& preset : kPresets) {
      if (preset.name != bench.workload) continue;
      const double scale = std::min(1.0, static_cast<double>(max_model_len) / static_cast<double>(preset.input_tokens + preset.output_tokens));
      spec.workload = preset.name;
      spec.input_tokens = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(preset.input_tokens) * scale));
      spec.output_tokens = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(preset.output_tokens) * scale));
    }
  }
  const int64_t needed = spec.input_tokens + spec.output_tokens;
  if (needed > max_model_len) {
    return InvalidArgument(fmt::format("--input-tokens plus --output-tokens is {} but the context holds {}; lower them", needed, max_model_len));
  }
  return spec;
}

Status CheckFits(engine::AsyncEngine& engine, const LoadSpec& spec) {
  const engine::SchedulerOptions& scheduler = engine.core().options().scheduler;
  if (spec.concurrency > scheduler.max_num_seqs) {
    return InvalidArgument(fmt::format("--batch is {} but the engine runs {} sequences together; lower it or raise --max-num-seqs",
                                       spec.concurrency, scheduler.max_num_seqs));
  }
  return Status::Ok();
}

Result<LoadResult> RunLoad(engine::AsyncEngine& engine, StepRecorder& recorder, const std::vector<LoadRequest>& requests, int64_t concurrency) {
  recorder.Take();
  Result<LoadResult> result = Loop(engine, requests).Run(concurrency);
  if (result.ok()) result->steps = recorder.Take();
  return result;
}

StepFigures FiguresOf(const std::vector<engine::StepTiming>& steps, double idle_s) {
  StepFigures figures;
  if (steps.empty()) return figures;
  int64_t num_rows = 0, host_ns = 0, gap_ns = 0, decode_gap_ns = 0, decode_ns = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const engine::StepTiming& step = steps[i];
    const bool is_decode = step.kind == engine::StepKind::kDecode;
    const int64_t gap = i > 0 ? std::max<int64_t>(0, step.run_begin_ns - steps[i - 1].run_end_ns) : 0;
    gap_ns += gap;
    if (!is_decode) {
      ++figures.num_prefill_steps;
      continue;
    }
    ++figures.num_decode_steps;
    num_rows += step.num_rows;
    host_ns += step.schedule_end_ns - step.schedule_begin_ns + step.process_end_ns - step.process_begin_ns;
    if (i > 0 && steps[i - 1].kind == engine::StepKind::kDecode) {
      decode_gap_ns += gap;
      decode_ns += gap + step.run_end_ns - step.run_begin_ns;
    }
  }
  const double span_ns = static_cast<double>(steps.back().run_end_ns - steps.front().run_begin_ns);
  if (num_rows > 0) {
    figures.rows_per_decode_step = static_cast<double>(num_rows) / static_cast<double>(figures.num_decode_steps);
    figures.host_us_per_sequence_step = static_cast<double>(host_ns) / static_cast<double>(num_rows) * 1e-3;
  }
  if (span_ns > 0) figures.exposed_host_share = std::max(0.0, static_cast<double>(gap_ns) - idle_s * 1e9) / span_ns;
  if (decode_ns > 0) figures.exposed_decode_share = static_cast<double>(decode_gap_ns) / static_cast<double>(decode_ns);
  return figures;
}

}  // namespace deepinfer::cli
