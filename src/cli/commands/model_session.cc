// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/model_session.h"

#include <fmt/format.h>

#include "cli/engine_options.h"
#include "cli/input.h"
#include "core/progress.h"

namespace deepinfer::cli {

Result<std::unique_ptr<engine::Engine>> LoadEngineFor(const Invocation& invocation, bool with_draft, Defaults defaults,
                                                      const std::function<void(engine::LoadOptions&)>& adjust) {
  engine::LoadOptions options;
  DI_ASSIGN_OR_RETURN(options.model, ModelDir(invocation));
  options.max_model_len = 0;
  engine::ApplyConfig(invocation.config, defaults, options);
  options.use_fp4_sparse_kv = invocation.config.model.kv_format == "fp4";
  options.with_draft = with_draft;
  // Commands that do not serve write statistics lines only if they are told to.
  options.disable_log_stats = invocation.config.log.quiet || !invocation.sources.IsSet("logging-interval-step");
  Progress progress("loading", {.quiet = invocation.config.log.quiet, .unit = ProgressUnit::kBytes, .clock = nullptr, .write_line = {}});
  options.progress = [&progress](int64_t done, int64_t total) { progress.Update(done, total); };
  if (adjust) adjust(options);
  return engine::LoadEngine(std::move(options));
}

Status CheckIds(std::span<const int32_t> ids, const model::ModelConfig& config) {
  for (const int32_t id : ids)
    if (id < 0 || id >= config.vocab_size)
      return InvalidArgument(fmt::format("token id {} is outside the vocabulary of {}", id, config.vocab_size));
  return Status::Ok();
}

Result<std::vector<int32_t>> IdsOption(const Invocation& invocation, const model::ModelConfig& config) {
  if (invocation.config.debug.ids.empty()) return InvalidArgument("--ids is missing; give token ids as in --ids 1,2,3");
  std::vector<int32_t> ids;
  for (const int64_t id : invocation.config.debug.ids) {
    if (id < 0 || id >= config.vocab_size)
      return InvalidArgument(fmt::format("--ids: token id {} is outside the vocabulary of {}", id, config.vocab_size));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

}  // namespace deepinfer::cli
