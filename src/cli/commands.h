// SPDX-License-Identifier: Apache-2.0
//
// The list of commands. To add one: write cli/commands/NAME.cc with `Command NameCommand()`, declare it here and list it
// in commands.cc.
#pragma once

#include <span>

#include "cli/command.h"

namespace deepinfer::cli {

// In the order of --help.
std::span<const Command> Commands();

Command BatchCommand();
Command BenchDraftsCommand();
Command BenchLatencyCommand();
Command BenchServeCommand();
Command BenchStepsCommand();
Command BenchSweepCommand();
Command BenchStructuredCommand();
Command BenchThroughputCommand();
Command BenchTimelineCommand();
Command ChatCommand();
Command CompletionCommand();
Command DebugDetokenizeCommand();
Command DebugDraftCommand();
Command DebugGrammarCommand();
Command DebugLogitsCommand();
Command DebugParseStreamCommand();
Command DebugRenderCommand();
Command DebugTokenizeCommand();
Command DoctorCommand();
Command EvalDraftsCommand();
Command EvalGreedyCommand();
Command EvalNllCommand();
Command EvalReplayCommand();
Command GenerateCommand();
Command InspectCommand();
Command KvStoreGcCommand();
Command KvStorePurgeCommand();
Command KvStoreScrubCommand();
Command KvStoreStatsCommand();
Command ServeCommand();
Command DownloadCommand();

}  // namespace deepinfer::cli
