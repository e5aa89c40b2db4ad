// SPDX-License-Identifier: Apache-2.0
//
// eval nll, eval greedy: quality of a checkpoint on token sequences, in the JSON layouts of golden/tiny.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/commands/eval_files.h"
#include "cli/commands/model_session.h"
#include "core/file.h"
#include "core/json.h"
#include "core/progress.h"
#include "model/sequence.h"

namespace deepinfer::cli {

namespace {

// Rows whose logits are held at once.
constexpr size_t kRowsPerPass = 256;

Status NotFinite(size_t position) {
  return Internal(fmt::format("the logits of position {} are not finite; check the weights with deepinfer inspect --verify", position));
}

// log(sum(exp(row))) in float64.
double LogSumExp(std::span<const float> row) {
  const float top = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float x : row) sum += std::exp(static_cast<double>(x) - top);
  return top + std::log(sum);
}

// Mean of -log softmax(logits[t])[ids[t + 1]] over t = 0..len-2.
Result<double> SampleNll(model::Model& model, const std::vector<int32_t>& ids, size_t chunk_size) {
  DI_ASSIGN_OR_RETURN(const auto sequence, model.NewSequence());
  const size_t vocab = static_cast<size_t>(model.config().vocab_size), last = ids.size() - 1;
  double sum = 0;
  for (size_t done = 0; done < last;) {
    const size_t n = std::min(chunk_size, last - done);
    model::SequenceChunk chunk;
    chunk.sequence = sequence.get();
    chunk.ids = std::span(ids).subspan(done, n);
    chunk.all_logits = true;
    DI_ASSIGN_OR_RETURN(const std::span<const float> logits, model.Forward({&chunk, 1}));
    for (size_t t = 0; t < n; ++t) {
      const auto row = logits.subspan(t * vocab, vocab);
      sum += LogSumExp(row) - row[static_cast<size_t>(ids[done + t + 1])];
      if (!std::isfinite(sum)) return NotFinite(done + t);
    }
    done += n;
  }
  return sum / static_cast<double>(last);
}

Status Print(Invocation& invocation, const Json& result) {
  const std::string line = DumpJson(result);
  if (!invocation.config.output.out.empty()) DI_RETURN_IF_ERROR(WriteFileAtomically(invocation.config.output.out, line + "\n"));
  invocation.out.Line(line);
  return invocation.out.Check();
}

Status RunNll(Invocation& invocation) {
  const std::string& path = invocation.args[0];
  DI_ASSIGN_OR_RETURN(const auto inputs, ReadSamples(path));
  DI_ASSIGN_OR_RETURN(const auto engine, LoadEngineFor(invocation, false));
  for (const auto& ids : inputs) DI_RETURN_IF_ERROR(CheckIds(ids, engine->config()));
  const size_t chunk = invocation.config.debug.chunk > 0 ? static_cast<size_t>(invocation.config.debug.chunk) : kRowsPerPass;
  Json values = Json::array();
  double sum = 0, weight = 0;
  for (const auto& ids : inputs) {
    DI_ASSIGN_OR_RETURN(const double nll, SampleNll(engine->model(), ids, chunk));
    values.push_back(nll);
    sum += nll * static_cast<double>(ids.size() - 1);
    weight += static_cast<double>(ids.size() - 1);
  }
  return Print(invocation, Json{{"mean", sum / weight}, {"samples", std::move(values)}});
}

Status RunGreedy(Invocation& invocation) {
  const std::string& path = invocation.args[0];
  DI_ASSIGN_OR_RETURN(const Json file, ReadJsonFile(path));
  if (!file.is_array() || file.empty()) return BadModel(path + ": expected an array of objects with \"prompt_ids\"");
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < file.size(); ++i) {
    DI_ASSIGN_OR_RETURN(prompts.emplace_back(), IdsOf(file[i], "prompt_ids", path, i));
  }
  DI_ASSIGN_OR_RETURN(const auto engine, LoadEngineFor(invocation, false));
  model::Model& model = engine->model();
  const int64_t max_tokens = invocation.config.sampling.max_tokens.value_or(40);
  Json continuations = Json::array();
  for (const auto& prompt : prompts) {
    DI_RETURN_IF_ERROR(CheckIds(prompt, engine->config()));
    DI_ASSIGN_OR_RETURN(const auto sequence, model.NewSequence());
    std::vector<int32_t> ids = prompt, continuation;
    while (static_cast<int64_t>(continuation.size()) < max_tokens) {
      model::SequenceChunk chunk;
      chunk.sequence = sequence.get();
      chunk.ids = ids;
      DI_ASSIGN_OR_RETURN(const std::span<const float> logits, model.Forward({&chunk, 1}));
      const int32_t best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      // NaN anywhere makes the sum NaN, whatever max_element found.
      if (!std::isfinite(LogSumExp(logits))) return NotFinite(prompt.size() + continuation.size() - 1);
      continuation.push_back(best);
      if (best == engine->config().eos_token_id) break;
      ids = {best};
    }
    continuations.push_back(std::move(continuation));
  }
  return Print(invocation, Json{{"continuations", std::move(continuations)}});
}

}  // namespace

Command EvalNllCommand() {
  return {.name = "eval nll",
          .summary = "mean negative log-likelihood per token of the sequences in a JSON file",
          .usage = "FILE",
          .min_args = 1,
          .max_args = 1,
          .run = RunNll,
          .arg_choices = {},
          .details = "FILE holds {\"samples\": [{\"ids\": [...]}, ...]}. Prints {\"mean\": x, \"samples\": [...]}; the mean weighs a\n"
                     "sample by its number of predicted tokens."};
}

Command EvalGreedyCommand() {
  return {.name = "eval greedy",
          .summary = "greedy continuations of the prompts in a JSON file",
          .usage = "FILE",
          .min_args = 1,
          .max_args = 1,
          .run = RunGreedy,
          .arg_choices = {},
          .details = "FILE holds [{\"prompt_ids\": [...]}, ...]. Prints {\"continuations\": [[...], ...]}; a continuation ends after the\n"
                     "end token (included) or --max-tokens."};
}

}  // namespace deepinfer::cli
