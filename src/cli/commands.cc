// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.h"

#include <vector>

namespace deepinfer::cli {

std::span<const Command> Commands() {
  static const std::vector<Command> commands = {
      GenerateCommand(),
      ChatCommand(),
      ServeCommand(),
      BatchCommand(),
      DownloadCommand(),
      InspectCommand(),
      DoctorCommand(),
      EvalNllCommand(),
      EvalGreedyCommand(),
      EvalReplayCommand(),
      EvalDraftsCommand(),
      BenchThroughputCommand(),
      BenchLatencyCommand(),
      BenchServeCommand(),
      BenchStepsCommand(),
      BenchSweepCommand(),
      BenchStructuredCommand(),
      BenchDraftsCommand(),
      BenchTimelineCommand(),
      DebugTokenizeCommand(),
      DebugDetokenizeCommand(),
      DebugRenderCommand(),
      DebugParseStreamCommand(),
      DebugLogitsCommand(),
      DebugDraftCommand(),
      DebugGrammarCommand(),
      KvStoreStatsCommand(),
      KvStoreScrubCommand(),
      KvStoreGcCommand(),
      KvStorePurgeCommand(),
      CompletionCommand(),
  };
  return commands;
}

}  // namespace deepinfer::cli
