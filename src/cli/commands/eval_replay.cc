// SPDX-License-Identifier: Apache-2.0
//
// eval replay: what an approximate cache hit costs. Long texts are joined from short samples; a part of each is put into the
// prefix cache; what follows is then computed after a `replay` hit and in `exact` mode, which has the bits of no cache.
#include <algorithm>
#include <cmath>
#include <random>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/commands/eval_files.h"
#include "cli/commands/model_session.h"
#include "core/file.h"
#include "core/json.h"
#include "core/progress.h"
#include "core/signals.h"

namespace deepinfer::cli {

namespace {

// Tokens behind the hit whose loss is reported on its own: there the window rings are the replayed ones.
constexpr size_t kNearTokens = 128;
constexpr int64_t kDefaultGreedyTokens = 40;

// Of both modes after one hit, summed over texts.
struct Row {
  int64_t length = 0, percent = 0, hit_tokens = 0, cached_replay = 0, cached_exact = 0;
  double sum[2] = {0, 0}, near_sum[2] = {0, 0};  // exact, replay
  int64_t num_tokens = 0, num_near = 0;
  int64_t num_greedy = 0, num_equal = 0, num_texts = 0, num_identical = 0;
};

// Samples in random order, one after the other as turns of a conversation are, cut to the length.
std::vector<int32_t> JoinedText(const std::vector<std::vector<int32_t>>& samples, int64_t length, std::mt19937_64& random) {
  std::vector<int32_t> text;
  while (static_cast<int64_t>(text.size()) < length) {
    const std::vector<int32_t>& sample = samples[random() % samples.size()];
    text.insert(text.end(), sample.begin(), sample.end());
  }
  text.resize(static_cast<size_t>(length));
  return text;
}

class ReplayEvaluation {
 public:
  ReplayEvaluation(engine::AsyncEngine& engine, int64_t greedy_tokens) : engine_(engine), greedy_tokens_(greedy_tokens) {}

  // Adds one text to the row.
  Status Add(const std::vector<int32_t>& text, Row& row) {
    const size_t hit = static_cast<size_t>(row.hit_tokens);
    const std::vector<int32_t> begin(text.begin(), text.begin() + static_cast<int64_t>(hit));
    // The last prompt token is computed, what follows is forced.
    const std::vector<int32_t> prompt(text.begin(), text.begin() + static_cast<int64_t>(hit) + 1);
    const std::vector<int32_t> rest(text.begin() + static_cast<int64_t>(hit) + 1, text.end());
    constexpr engine::CacheMode kModes[2] = {engine::CacheMode::kExact, engine::CacheMode::kReplay};
    std::vector<engine::TextHandle> first, forced, greedy;
    const std::string salt = fmt::format("text {}", num_texts_++);
    // Both modes fill a cache of their own.
    for (const engine::CacheMode mode : kModes) {
      DI_ASSIGN_OR_RETURN(first.emplace_back(), Submit(begin, mode, salt, 1, {}));
    }
    for (engine::TextHandle& handle : first) DI_RETURN_IF_ERROR(Wait(handle));
    for (const engine::CacheMode mode : kModes) {
      DI_ASSIGN_OR_RETURN(forced.emplace_back(), Submit(prompt, mode, salt, static_cast<int64_t>(rest.size()), rest));
      DI_ASSIGN_OR_RETURN(greedy.emplace_back(), Submit(prompt, mode, salt, greedy_tokens_, {}));
    }
    std::vector<int32_t> continuation[2];
    for (size_t m = 0; m < 2; ++m) {
      DI_RETURN_IF_ERROR(Wait(forced[m]));
      DI_RETURN_IF_ERROR(Wait(greedy[m]));
      const Completion loss = std::move(forced[m].TakeCompletions().front());
      continuation[m] = std::move(greedy[m].TakeCompletions().front().ids);
      if (loss.ids != rest) return Internal(fmt::format("a forced continuation ended with \"{}\"", FinishReasonName(loss.finish_reason)));
      (m == 0 ? row.cached_exact : row.cached_replay) += loss.usage.cached_tokens;
      for (size_t i = 0; i < loss.tokens.size(); ++i) {
        row.sum[m] -= static_cast<double>(loss.tokens[i].logprob);
        if (i < kNearTokens) row.near_sum[m] -= static_cast<double>(loss.tokens[i].logprob);
      }
    }
    row.num_tokens += static_cast<int64_t>(rest.size());
    row.num_near += static_cast<int64_t>(std::min(rest.size(), kNearTokens));
    const size_t longest = std::max(continuation[0].size(), continuation[1].size());
    const size_t shortest = std::min(continuation[0].size(), continuation[1].size());
    for (size_t i = 0; i < shortest; ++i) row.num_equal += continuation[0][i] == continuation[1][i];
    row.num_greedy += static_cast<int64_t>(longest);
    row.num_identical += continuation[0] == continuation[1];
    ++row.num_texts;
    return Status::Ok();
  }

 private:
  Result<engine::TextHandle> Submit(const std::vector<int32_t>& prompt, engine::CacheMode mode, const std::string& salt, int64_t max_tokens,
                                    std::vector<int32_t> forced) {
    engine::TextRequest request;
    request.prompt_ids = prompt;
    request.cache_mode = mode;
    request.cache_salt = fmt::format("{} {}", salt, mode == engine::CacheMode::kExact ? "exact" : "replay");
    request.params.max_tokens = max_tokens;
    request.params.ignore_eos = true;
    // Forced tokens are reported with their probability at temperature 1.
    request.params.temperature = forced.empty() ? 0 : 1;
    request.params.seq_seed = 0;
    request.params.golden_token_ids = std::move(forced);
    request.params.detokenize = false;
    return engine_.Submit(std::move(request));
  }

  Status Wait(engine::TextHandle& handle) {
    while (!handle.WaitFor(0.05)) {
      if (!interrupt_.requested()) continue;
      handle.Cancel();
      return Cancelled("interrupted");
    }
    return Status::Ok();
  }

  engine::AsyncEngine& engine_;
  int64_t greedy_tokens_;
  int64_t num_texts_ = 0;
  InterruptScope interrupt_;
};

Status RunReplay(Invocation& invocation) {
  const Config& config = invocation.config;
  DI_ASSIGN_OR_RETURN(const auto samples, ReadSamples(invocation.args[0]));
  DI_ASSIGN_OR_RETURN(const auto engine, LoadEngineFor(invocation, false, Defaults::kProduction, [](engine::LoadOptions& options) {
    options.num_drafts = 0;
                        // Exact hits end at kept states.
                        options.kv_persist_swa = true;
                        options.kv_state_every_blocks = 1;
                        options.cache_mode = "replay";
                      }));
  DI_RETURN_IF_ERROR(engine->config().CheckDecoderReplay());
  for (const auto& ids : samples) DI_RETURN_IF_ERROR(CheckIds(ids, engine->config()));
  DI_ASSIGN_OR_RETURN(engine::AsyncEngine* const async, engine->async_engine());
  const int64_t keep = async->core().options().scheduler.decoder_keep;
  if (keep == 0) return InvalidArgument("exact hits need decoder replay; leave --decoder-replay out or give compact");
  for (const int64_t length : config.bench.lengths) {
    if (length > engine->model().max_model_len()) {
      return InvalidArgument(fmt::format("--lengths has {} tokens but the context holds {}; lower it", length, engine->model().max_model_len()));
    }
  }
  ReplayEvaluation evaluation(*async, config.sampling.max_tokens.value_or(kDefaultGreedyTokens));
  std::vector<Row> rows;
  {
    Progress progress("eval replay", {.quiet = config.log.quiet, .unit = ProgressUnit::kItems, .clock = nullptr, .write_line = {}});
    const int64_t total = static_cast<int64_t>(config.bench.lengths.size() * config.bench.hits.size()) * config.bench.texts;
    int64_t done = 0;
    for (const int64_t length : config.bench.lengths) {
      std::mt19937_64 random(static_cast<uint64_t>(config.sampling.seed.value_or(0)) * 1'000'003u + static_cast<uint64_t>(length));
      std::vector<std::vector<int32_t>> texts;
      for (int64_t t = 0; t < config.bench.texts; ++t) texts.push_back(JoinedText(samples, length, random));
      for (const int64_t percent : config.bench.hits) {
        Row& row = rows.emplace_back();
        row.length = length;
        row.percent = percent;
        row.hit_tokens = std::max<int64_t>(length * percent / 100 / engine::kTokensPerBlock, 1) * engine::kTokensPerBlock;
        for (const auto& text : texts) {
          const Status status = evaluation.Add(text, row);
          if (!status.ok()) {
            async->core().WaitIdle();
            return status;
          }
          progress.Update(++done, total);
        }
      }
    }
  }

  Json list = Json::array();
  for (const Row& row : rows) {
    const double n = static_cast<double>(row.num_tokens), near = static_cast<double>(row.num_near), texts = static_cast<double>(row.num_texts);
    list.push_back({{"length", row.length},
                    {"hit_percent", row.percent},
                    {"hit_tokens", row.hit_tokens},
                    {"texts", row.num_texts},
                    {"cached_tokens", {{"exact", static_cast<double>(row.cached_exact) / texts}, {"replay", static_cast<double>(row.cached_replay) / texts}}},
                    {"nll", {{"exact", row.sum[0] / n}, {"replay", row.sum[1] / n}, {"difference", (row.sum[1] - row.sum[0]) / n}}},
                    {"nll_next_128",
                     {{"exact", row.near_sum[0] / near}, {"replay", row.near_sum[1] / near}, {"difference", (row.near_sum[1] - row.near_sum[0]) / near}}},
                    {"token_agreement", static_cast<double>(row.num_equal) / static_cast<double>(row.num_greedy)},
                    {"identical_continuations", static_cast<double>(row.num_identical) / texts}});
  }
  const Json report = {{"eval", "replay"},
                       {"model", config.model.model},
                       {"numerics", config.model.numerics},
                       {"decoder_replay_keep", keep},
                       {"seed", config.sampling.seed.value_or(0)},
                       {"rows", list}};
  if (!config.output.out.empty()) DI_RETURN_IF_ERROR(WriteFileAtomically(config.output.out, DumpJson(report) + "\n"));
  if (config.output.json) {
    invocation.out.Line(DumpJson(report));
    return invocation.out.Check();
  }
  invocation.out.Line(fmt::format("{:>7} {:>5} {:>7} {:>11} {:>11} {:>11} {:>12} {:>10} {:>10}", "tokens", "hit %", "hit", "nll exact", "nll replay",
                                  "difference", "next 128", "agreement", "identical"));
  for (const Json& row : list) {
    invocation.out.Line(fmt::format("{:>7} {:>5} {:>7} {:>11.5f} {:>11.5f} {:>+11.5f} {:>+12.5f} {:>9.1f}% {:>9.1f}%", row["length"].get<int64_t>(),
                                    row["hit_percent"].get<int64_t>(), row["hit_tokens"].get<int64_t>(), row["nll"]["exact"].get<double>(),
                                    row["nll"]["replay"].get<double>(), row["nll"]["difference"].get<double>(),
                                    row["nll_next_128"]["difference"].get<double>(), row["token_agreement"].get<double>() * 100,
                                    row["identical_continuations"].get<double>() * 100));
  }
  return invocation.out.Check();
}

}  // namespace

Command EvalReplayCommand() {
  return {.name = "eval replay",
          .summary = "loss and greedy tokens after a replayed cache hit, against an exact one",
          .usage = "FILE",
          .min_args = 1,
          .max_args = 1,
          .run = RunReplay,
          .arg_choices = {},
          .details = "FILE holds {\"samples\": [{\"ids\": [...]}, ...]}. They are joined to --texts texts of each of --lengths, and --hits\n"
                     "percent of each are in the prefix cache. Both modes run with decoder replay. Prints the mean negative\n"
                     "log-likelihood of what follows the hit, of its first 128 tokens the difference, and how many greedy tokens agree."};
}

}  // namespace deepinfer::cli
