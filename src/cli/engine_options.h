// SPDX-License-Identifier: Apache-2.0
//
// From the program's options to those of the library.
#pragma once

#include "cli/command.h"
#include "deepinfer/llm.h"
#include "engine/engine_config.h"
#include "protocols/convert_options.h"

namespace deepinfer::cli {

using engine::Defaults;

// Resolves --model and loads it, with a progress bar.
Result<std::unique_ptr<LLM>> LoadModel(const Invocation& invocation, Defaults defaults);

// One line on stderr about experts that were read from disk; nothing when all are in memory.
void PrintExpertReads(const LLM& llm);

// --decoder-replay in the library's terms.
std::string DecoderReplayOf(const ModelSourceConfig& config, Defaults defaults);

// Options that were given replace the fields of `base`.
SamplingParams WithSamplingOptions(const SamplingConfig& config, SamplingParams base);

ChatOptions ToChatOptions(const ConversationConfig& config);

protocols::ConvertOptions ToConvertOptions(const ProtocolConfig& config, const ServeConfig& serve = {});

// The grammar file that was given, if one was.
Result<std::optional<StructuredOutput>> ReadGrammar(const SamplingConfig& config);

}  // namespace deepinfer::cli
