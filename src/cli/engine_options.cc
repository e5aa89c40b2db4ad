// SPDX-License-Identifier: Apache-2.0
#include "cli/engine_options.h"

#include <cstdio>

#include <fmt/format.h>

#include "cli/input.h"
#include "core/file.h"
#include "core/progress.h"

namespace deepinfer::cli {
namespace {

// The compiler has limits of its own, with better messages.
constexpr int64_t kMaxGrammarBytes = int64_t{16} << 20;

}  // namespace

Result<std::unique_ptr<LLM>> LoadModel(const Invocation& invocation, Defaults defaults) {
  EngineOptions options;
  DI_ASSIGN_OR_RETURN(options.model, ModelDir(invocation));
  options.max_model_len = 0;
  engine::ApplyConfig(invocation.config, defaults, options);
  // One conversation at a time.
  if (!invocation.sources.IsSet("max-num-seqs")) options.max_num_seqs = 1;
  Progress progress("loading", {.quiet = invocation.config.log.quiet, .unit = ProgressUnit::kBytes, .clock = nullptr, .write_line = {}});
  options.progress = [&progress](int64_t done, int64_t total) { progress.Update(done, total); };
  return LLM::Load(std::move(options));
}

void PrintExpertReads(const LLM& llm) {
  const LLM::ExpertReads reads = llm.expert_reads();
  if (reads.num_in_memory == 0) return;
  const int64_t wanted = reads.num_hits + reads.num_misses;
  std::fputs(fmt::format("experts: {} of {} fit into memory, {:.1f} % of {} were there, {} read, waited {:.2f} s, {} of {} read ahead were used\n",
                         reads.num_in_memory, reads.num_experts, wanted > 0 ? 100.0 * static_cast<double>(reads.num_hits) / static_cast<double>(wanted) : 0.0, wanted,
                         FormatBytes(reads.num_bytes), reads.wait_s, reads.num_prefetched_used, reads.num_prefetched)
                 .c_str(),
             stderr);
}

std::string DecoderReplayOf(const ModelSourceConfig& config, Defaults defaults) {
  return config.decoder_replay == "auto" && defaults == Defaults::kReference ? "off" : config.decoder_replay;
}

SamplingParams WithSamplingOptions(const SamplingConfig& config, SamplingParams base) {
  if (config.max_tokens) base.max_tokens = *config.max_tokens;
  if (config.temperature) base.temperature = *config.temperature;
  if (config.top_p) base.top_p = *config.top_p;
  if (config.top_k) base.top_k = *config.top_k;
  if (config.min_p) base.min_p = *config.min_p;
  if (config.seed) base.seq_seed = static_cast<uint64_t>(*config.seed);  // modulo 2^64, as the library documents
  base.stop = config.stop;
  base.ignore_eos = config.ignore_eos;
  return base;
}

ChatOptions ToChatOptions(const ConversationConfig& config) {
  ChatOptions options;
  if (config.think) options.thinking = *config.think;
  if (config.effort) options.effort = static_cast<int>(*config.effort);
  return options;
}

protocols::ConvertOptions ToConvertOptions(const ProtocolConfig& config, const ServeConfig& serve) {
  protocols::ConvertOptions options;
  if (!serve.served_model_names.empty()) options.served_models = serve.served_model_names;
  options.max_tools = static_cast<size_t>(serve.max_tools);
  options.max_output_tokens = serve.max_output_tokens;
  if (config.sampling_policy == "client") options.sampling_policy = protocols::SamplingPolicy::kClient;
  options.tool_choice_thinking_grammar = config.tool_choice_thinking == "grammar";
  options.reject_missing_reasoning = config.missing_reasoning == "reject";
  options.ignore_previous_response_id = config.previous_response_id == "ignore";
  options.messages_prefill = config.messages_prefill;
  options.openai_usage_chunk = config.openai_usage_chunk;
  return options;
}

Result<std::optional<StructuredOutput>> ReadGrammar(const SamplingConfig& config) {
  struct Given {
    const char* option;
    const char* schema_type;
    const std::string& path;
  };
  const Given all[] = {{"--grammar-regex", "regex", config.grammar_regex},
                       {"--grammar-json-schema", "json", config.grammar_json_schema},
                       {"--grammar-ebnf", "ebnf", config.grammar_ebnf}};
  std::optional<StructuredOutput> so_args;
  for (const Given& given : all) {
    if (given.path.empty()) continue;
    Result<std::string> text = ReadFile(given.path, kMaxGrammarBytes);
    if (!text.ok()) return Status(text.status()).WithContext(given.option);
    so_args.emplace();
    so_args->schema_type = given.schema_type;
    so_args->schema = *std::move(text);
    // A pattern file ends with a newline that its author did not mean.
    if (so_args->schema_type == "regex" && so_args->schema.ends_with('\n')) so_args->schema.pop_back();
  }
  return so_args;
}

}  // namespace deepinfer::cli
