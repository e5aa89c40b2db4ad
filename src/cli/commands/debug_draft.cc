// SPDX-License-Identifier: Apache-2.0
//
// debug draft: what the draft head proposes after --ids and --next.
#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/commands/model_session.h"
#include "core/json.h"
#include "model/sequence.h"

namespace deepinfer::cli {

namespace {

Status Run(Invocation& invocation) {
  const DebugConfig& debug = invocation.config.debug;
  if (!debug.next) return InvalidArgument("--next is missing; give the accepted token that follows --ids");
  DI_ASSIGN_OR_RETURN(const auto engine, LoadEngineFor(invocation, true));
  model::Model& model = engine->model();
  DI_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, IdsOption(invocation, engine->config()));
  if (*debug.next >= engine->config().vocab_size)
    return InvalidArgument(fmt::format("--next: token id {} is outside the vocabulary of {}", *debug.next, engine->config().vocab_size));
  DI_ASSIGN_OR_RETURN(const auto sequence, model.NewSequence());
  model::SequenceChunk chunk;
  chunk.sequence = sequence.get();
  chunk.ids = ids;
  chunk.no_logits = true;
  const auto done = model.Forward({&chunk, 1});
  if (!done.ok()) return done.status();
  DI_ASSIGN_OR_RETURN(const model::DraftResult draft, model.Draft(*sequence, static_cast<int32_t>(*debug.next), true));
  const auto is_finite = [](const std::vector<float>& values) {
    return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
  };
  if (!is_finite(draft.base_logits) || !is_finite(draft.logits) || !is_finite(draft.confidence_logits))
    return Internal("the logits of the draft head are not finite; check the weights with deepinfer inspect --verify");
  invocation.out.Line(DumpJson(Json{{"tokens", draft.tokens}, {"confidence_logits", draft.confidence_logits}}));
  return invocation.out.Check();
}

}  // namespace

Command DebugDraftCommand() {
  return {.name = "debug draft",
          .summary = "greedy drafts after --ids and --next: tokens and confidence logits as JSON",
          .usage = "",
          .run = Run,
          .arg_choices = {},
          .details = {}};
}

}  // namespace deepinfer::cli
