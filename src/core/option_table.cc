// SPDX-License-Identifier: Apache-2.0
//
// The rows. Groups and rows stand in the order of --help; docs/options.md is generated from here
// (`deepinfer completion reference > docs/options.md`, checked by tests/cli).
#include "core/option_rows.h"

#include <algorithm>

namespace deepinfer {

namespace {

constexpr double kMaxTokens = kMaxInt32;

// Commands that load a model and run it.
constexpr std::string_view kRunsModel = "generate,chat,serve,batch,eval,bench,debug logits,debug draft";
// Commands that read a model directory.
constexpr std::string_view kReadsModel = "generate,chat,serve,batch,eval,bench,debug,inspect,doctor";
constexpr std::string_view kSamples = "generate,chat";

std::vector<OptionSpec> MainRows() {
  using enum OptionKind;
  return {
      // --- Model ---
      {.name = "model", .group = "Model", .commands = kReadsModel, .field = DI_FIELD(model.model),
       .help = "checkpoint directory, hub id (looked up in the local hub cache), or `demo` for the embedded model",
       .value_name = "DIR|ID|demo", .env_aliases = {"DEEPINFER_HF_MODEL_DIR"}},
      {.name = "revision", .group = "Model", .commands = "generate,chat,serve,batch,eval,bench,debug,inspect,doctor,download", .field = DI_FIELD(model.revision),
       .help = "branch, tag or commit of a hub id; change it to pin a checkpoint", .value_name = "REV"},
      {.name = "device", .group = "Model", .commands = kRunsModel, .field = DI_FIELD(model.device),
       .help = "where the model runs; auto takes the best device found", .value_name = "auto|cpu|cuda[:N]|ascend[:N]",
       .env_aliases = {"DEEPINFER_ACCELERATOR"}},
      {.name = "numerics", .group = "Model", .commands = kRunsModel, .field = DI_FIELD(model.numerics),
       .help = "arithmetic: release = as published, fp32 = without bf16 rounding, plain = float32 without any activation rounding",
       .kind = kChoice, .choices = {"release", "fp32", "plain"}},
      {.name = "load-format", .group = "Model", .commands = "bench", .field = DI_FIELD(model.load_format),
       .help = "auto reads the weights; dummy fills them with seeded random values, to measure speed without a checkpoint",
       .kind = kChoice, .choices = {"auto", "dummy"}},
      {.name = "kv-format", .group = "Model", .commands = "eval,bench,debug logits,debug draft", .field = DI_FIELD(model.kv_format),
       .help = "width of the compressed KV cache; mxfp8 doubles it and is for comparisons", .kind = kChoice,
       .choices = {"fp4", "mxfp8"}},
      {.name = "max-model-len", .group = "Model", .commands = "generate,chat,serve,batch,eval,bench,debug logits,debug draft,inspect", .field = DI_FIELD(model.max_model_len),
       .help = "limit of prompt plus output in tokens; lower it to save memory", .kind = kInt, .value_name = "TOKENS", .min = 0,
       .max = kMaxInt32, .default_text = "what the checkpoint allows"},
      {.name = "threads", .group = "Model", .commands = "generate,chat,serve,batch,eval,bench,debug,inspect,doctor", .field = DI_FIELD(model.threads),
       .help = "compute threads; lower it to leave cores to others", .kind = kInt, .min = 0, .max = 4096,
       .default_text = "all available cores"},
      {.name = "cpu-isa", .group = "Model", .commands = kRunsModel,
       .field = DI_FIELD(model.cpu_isa),
       .help = "instruction set of the CPU kernels; auto takes the best one, the others are for comparisons", .kind = kChoice,
       .choices = {"auto", "scalar", "avx2", "avx512", "amx", "neon", "neon_bf16"}},
      {.name = "cuda-plugin", .group = "Model", .commands = "generate,chat,serve,batch,eval,bench,debug logits,debug draft,doctor", .field = DI_FIELD(model.cuda_plugin),
       .help = "library of the NVIDIA backend (libdeepinfer_cuda.so); must be of the program's own version", .value_name = "FILE",
       .default_text = "beside the program, or in lib/deepinfer"},
      {.name = "cpu-pinning", .group = "Model", .commands = kRunsModel, .field = DI_FIELD(model.cpu_pinning),
       .help = "where compute threads may run: anywhere (none), on their NUMA node, or on one core each; auto = node where there are several",
       .kind = kChoice, .choices = {"auto", "none", "node", "core"}},
      {.name = "memory-budget", .group = "Model", .commands = "generate,chat,serve,batch,eval,bench,debug logits,debug draft,inspect", .field = DI_FIELD(model.memory_budget),
       .help = "memory of the whole process, such as 24GiB: experts that do not fit beside the other weights and caches are read from disk when "
               "a step needs them; auto = what the machine or container has, if the model does not fit",
       .value_name = "SIZE|auto"},
      {.name = "expert-io", .group = "Model", .commands = kRunsModel, .field = DI_FIELD(model.expert_io),
       .help = "how those experts are read: io_uring, threads, or through the page cache (mmap); auto = io_uring where it can be had",
       .kind = kChoice, .choices = {"auto", "uring", "threads", "mmap"}},
      {.name = "pack-cache", .group = "Model", .commands = kRunsModel, .field = DI_FIELD(model.pack_cache),
       .help = "write those experts once in the form of the kernels, beside the checkpoint or into a directory: the size of the experts on disk, "
               "less work per read",
       .value_name = "off|beside|DIR"},
      {.name = "engram-io", .group = "Model", .commands = kRunsModel, .field = DI_FIELD(model.engram_io),
       .help = "how rows of the n-gram tables reach memory: mapped files (mmap), batched reads through the page cache (read) or past it "
               "(direct); auto = mmap where the tables fit into free memory, else read",
       .kind = kChoice, .choices = {"auto", "mmap", "read", "direct"}},

      {.name = "decoder-replay", .group = "Model", .commands = "generate,chat,serve,batch,bench", .field = DI_FIELD(model.decoder_replay),
       .help = "run the layers behind the last key source on the end of a prompt only: off, mask (all rows, narrowed windows) or "
               "compact (rows dropped, faster); auto = compact for `chat`, `serve`, `batch` and `bench` where the checkpoint allows it, off for `generate`",
       .kind = kChoice, .choices = {"auto", "off", "mask", "compact"}, .env_aliases = {"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE"}},
      {.name = "decoder-replay-keep", .group = "Model", .commands = "generate,chat,serve,batch,bench",
       .field = DI_FIELD(model.decoder_replay_keep), .help = "prompt tokens that decoder replay keeps; at least the window + 6",
       .kind = kInt, .value_name = "TOKENS", .min = 0, .max = kMaxInt32, .default_text = "the window + 12: 140 for the released model",
       .env_aliases = {"DEEPINFER_YOCO_PREFILL_KEEP_TOKENS"}},

      // --- Sampling ---
      {.name = "max-tokens", .group = "Sampling", .commands = "generate,chat,batch,eval greedy,eval replay,eval drafts", .field = DI_FIELD(sampling.max_tokens),
       .help = "limit of generated tokens", .kind = kInt, .min = 1, .max = kMaxTokens,
       .default_text = "256 for generate and eval drafts, 40 for eval greedy and eval replay, the rest of the context for chat; for batch what a request names, else its API's"},
      {.name = "temperature", .group = "Sampling", .commands = "generate,chat,eval drafts", .field = DI_FIELD(sampling.temperature),
       .help = "randomness; 0 always takes the most likely token", .kind = kFloat, .min = 0, .max = 100, .default_text = "1; 0 for eval drafts"},
      {.name = "top-p", .group = "Sampling", .commands = kSamples, .field = DI_FIELD(sampling.top_p),
       .help = "keep the most likely tokens whose probabilities reach this sum; 1 keeps all", .kind = kFloat, .min = 0, .max = 1,
       .min_exclusive = true, .default_text = "1; 0.95 for chat and generate --chat"},
      {.name = "top-k", .group = "Sampling", .commands = kSamples, .field = DI_FIELD(sampling.top_k),
       .help = "keep this many most likely tokens; -1 keeps all", .kind = kInt, .min = -1, .max = kMaxInt32,
       .default_text = "-1"},
      {.name = "min-p", .group = "Sampling", .commands = kSamples, .field = DI_FIELD(sampling.min_p),
       .help = "drop tokens less likely than this share of the most likely one; 0 keeps all", .kind = kFloat, .min = 0, .max = 1,
       .default_text = "0"},
      {.name = "seed", .group = "Sampling", .commands = "generate,chat,batch,bench,bench serve,eval replay,eval drafts", .field = DI_FIELD(sampling.seed),
       .help = "random seed; set it to get the same answer again (batch: request i without a seed gets this one plus i)", .kind = kInt, .default_text = "random"},
      {.name = "stop", .group = "Sampling", .commands = "generate", .field = DI_FIELD(sampling.stop),
       .help = "end the output before this text; may be repeated (at most 16)", .kind = kTextList, .value_name = "TEXT"},
      {.name = "ignore-eos", .group = "Sampling", .commands = "generate", .field = DI_FIELD(sampling.ignore_eos),
       .help = "go on after the end token until --max-tokens; for measurements", .kind = kBool},
      {.name = "grammar-regex", .group = "Sampling", .commands = "generate", .field = DI_FIELD(sampling.grammar_regex),
       .help = "output must match the regular expression in this file (not in this version)", .kind = kFile},
      {.name = "grammar-json-schema", .group = "Sampling", .commands = "generate", .field = DI_FIELD(sampling.grammar_json_schema),
       .help = "output must be JSON that satisfies the schema in this file (not in this version)", .kind = kFile},
      {.name = "grammar-ebnf", .group = "Sampling", .commands = "generate", .field = DI_FIELD(sampling.grammar_ebnf),
       .help = "output must match the EBNF grammar in this file (not in this version)", .kind = kFile},

      // --- Conversation ---
      {.name = "chat", .group = "Conversation", .commands = "generate", .field = DI_FIELD(conversation.chat),
       .help = "take the prompt as a user message and answer it, instead of continuing raw text", .kind = kBool},
      {.name = "think", .group = "Conversation", .commands = kSamples, .field = DI_FIELD(conversation.think),
       .help = "think before answering (--no-think answers at once)", .kind = kBool, .default_text = "on"},
      {.name = "effort", .group = "Conversation", .commands = kSamples, .field = DI_FIELD(conversation.effort),
       .help = "reasoning effort, 1 to 100; lower it for shorter thinking", .kind = kInt, .min = 1, .max = 100,
       .default_text = "the model's own"},
      {.name = "system", .group = "Conversation", .commands = kSamples, .field = DI_FIELD(conversation.system),
       .help = "system message of the conversation", .value_name = "TEXT"},
      {.name = "history-file", .group = "Conversation", .commands = "chat", .field = DI_FIELD(conversation.history_file),
       .help = "keep the typed lines in this file between runs of chat", .kind = kFile, .default_text = "not kept"},

      // --- Debug and evaluation ---
      {.name = "special", .group = "Input", .commands = "debug tokenize", .field = DI_FIELD(debug.special),
       .help = "all = added tokens in the text are recognised, none = they are plain text", .kind = kChoice,
       .choices = {"all", "none"}},
      {.name = "jsonl", .group = "Input", .commands = "debug tokenize,debug detokenize", .field = DI_FIELD(debug.jsonl),
       .help = "stdin holds one JSON input a line", .kind = kBool},
      {.name = "skip-special", .group = "Input", .commands = "debug detokenize", .field = DI_FIELD(debug.skip_special),
       .help = "leave special tokens out of the text", .kind = kBool},
      {.name = "api", .group = "Input", .commands = "debug render,debug parse-stream,bench serve", .field = DI_FIELD(debug.api),
       .help = "protocol of the request; completions with `bench serve` only", .kind = kChoice,
       .choices = {"chat", "responses", "messages", "completions"}},
      {.name = "sampling-policy", .group = "Input", .commands = "serve,batch,debug render,debug parse-stream",
       .field = DI_FIELD(protocol.sampling_policy),
       .help = "official = temperature and top_p as the model's vendor sets them, client = as the request says", .kind = kChoice,
       .choices = {"official", "client"}},
      {.name = "tool-choice-thinking", .group = "Input", .commands = "serve,batch,debug render,debug parse-stream",
       .field = DI_FIELD(protocol.tool_choice_thinking),
       .help = "a forced tool choice while thinking: reject the request, or constrain what follows the thinking by a grammar",
       .kind = kChoice, .choices = {"reject", "grammar"}},
      {.name = "missing-reasoning", .group = "Input", .commands = "serve,batch,debug render,debug parse-stream",
       .field = DI_FIELD(protocol.missing_reasoning),
       .help = "with tools and thinking, a history without its reasoning text: fill in an empty one, or reject the request", .kind = kChoice,
       .choices = {"fill", "reject"}},
      {.name = "previous-response-id", .group = "Input", .commands = "serve,debug render,debug parse-stream",
       .field = DI_FIELD(protocol.previous_response_id),
       .help = "a Responses request that continues a stored one: reject it, or answer it without the stored history", .kind = kChoice,
       .choices = {"reject", "ignore"}},
      {.name = "messages-prefill", .group = "Input", .commands = "serve,debug render,debug parse-stream",
       .field = DI_FIELD(protocol.messages_prefill),
       .help = "an assistant message at the end of a Messages request is continued instead of answered", .kind = kBool},
      {.name = "openai-usage-chunk", .group = "Output", .commands = "serve,debug parse-stream",
       .field = DI_FIELD(protocol.openai_usage_chunk),
       .help = "chat streams that include usage end with a chunk without choices, for clients that look for it there", .kind = kBool},
      {.name = "kind", .group = "Input", .commands = "debug grammar", .field = DI_FIELD(debug.kind),
       .help = "what --schema holds", .kind = kChoice, .choices = {"json_schema", "regex", "ebnf", "structural_tag"}},
      {.name = "schema", .group = "Input", .commands = "debug grammar", .field = DI_FIELD(debug.schema),
       .help = "file with the grammar", .kind = kFile},
      {.name = "request", .group = "Input", .commands = "debug parse-stream", .field = DI_FIELD(debug.request),
       .help = "the request that the stream answers (JSON)", .kind = kFile},
      {.name = "tools", .group = "Input", .commands = "debug parse-stream", .field = DI_FIELD(debug.tools),
       .help = "tool definitions (JSON), when there is no --request", .kind = kFile},
      {.name = "finish", .group = "Input", .commands = "debug parse-stream", .field = DI_FIELD(debug.finish),
       .help = "how the stream ends", .kind = kChoice, .choices = {"stop", "length", "content_filter"}},
      {.name = "prompt-tokens", .group = "Input", .commands = "debug parse-stream", .field = DI_FIELD(debug.prompt_tokens),
       .help = "prompt tokens to report in usage", .kind = kInt, .min = 0, .max = kMaxTokens},
      {.name = "cached-tokens", .group = "Input", .commands = "debug parse-stream", .field = DI_FIELD(debug.cached_tokens),
       .help = "cached prompt tokens to report in usage", .kind = kInt, .min = 0, .max = kMaxTokens},
      {.name = "system-fingerprint", .group = "Input", .commands = "debug parse-stream",
       .field = DI_FIELD(debug.system_fingerprint), .help = "system_fingerprint to report", .value_name = "TEXT"},
      {.name = "normalize", .group = "Output", .commands = "debug parse-stream", .field = DI_FIELD(debug.normalize),
       .help = "replace random ids and times by fixed ones, for comparisons", .kind = kBool},
      {.name = "accumulate", .group = "Output", .commands = "debug parse-stream", .field = DI_FIELD(debug.accumulate),
       .help = "print the non-streaming response instead of the events", .kind = kBool},
      {.name = "ids", .group = "Input", .commands = "debug logits,debug draft", .field = DI_FIELD(debug.ids),
       .help = "token ids, separated by commas", .kind = kIntList, .value_name = "1,2,3", .min = 0, .max = kMaxInt32},
      {.name = "next", .group = "Input", .commands = "debug draft", .field = DI_FIELD(debug.next),
       .help = "the accepted token after --ids, from which the drafts start", .kind = kInt, .value_name = "ID", .min = 0,
       .max = kMaxInt32, .default_text = "required"},
      {.name = "image-embeds", .group = "Input", .commands = "debug logits", .field = DI_FIELD(debug.image_embeds),
       .help = "safetensors file with `image` [L] U8 and `embeds` [L, D] F32", .kind = kFile},
      {.name = "chunk", .group = "Execution", .commands = "debug logits,eval", .field = DI_FIELD(debug.chunk),
       .help = "prefill in chunks of this many tokens; the results do not change", .kind = kInt, .min = 0, .max = kMaxInt32,
       .default_text = "one chunk"},
      {.name = "decode", .group = "Execution", .commands = "debug logits", .field = DI_FIELD(debug.decode),
       .help = "feed one token at a time; the results do not change", .kind = kBool},
      {.name = "trace", .group = "Output", .commands = "debug logits", .field = DI_FIELD(debug.trace),
       .help = "store the tensor of every stage in --out too", .kind = kBool},
      {.name = "verify", .group = "Execution", .commands = "inspect,download", .field = DI_FIELD(inspect.verify),
       .help = "read every byte: inspect reports weights that are not finite, download hashes files that are there already", .kind = kBool},

      {.name = "concurrency", .group = "Execution", .commands = "batch,bench serve", .field = DI_FIELD(batch.concurrency),
       .help = "requests at once; lower it to bound what an interrupted `batch` has to do again", .kind = kInt, .min = 0, .max = 65536,
       .default_text = "twice the sequences that run together; `bench serve`: 16, no bound with --request-rate"},

      // --- Benchmarks ---
      {.name = "batch", .group = "Workload", .commands = "bench", .field = DI_FIELD(bench.batch),
       .help = "sequences that run together", .kind = kInt, .min = 1, .max = 65536},
      {.name = "input-tokens", .group = "Workload", .commands = "bench,bench serve", .field = DI_FIELD(bench.input_tokens),
       .help = "prompt tokens per sequence", .kind = kInt, .min = 1, .max = kMaxTokens},
      {.name = "context", .group = "Workload", .commands = "bench steps", .field = DI_FIELD(bench.context),
       .help = "decode at this length behind caches of random keys instead of a prompt, so that even 1048576 tokens take no prefill",
       .kind = kInt, .min = 0, .max = kMaxTokens, .default_text = "0: a prompt of --input-tokens"},
      {.name = "output-tokens", .group = "Workload", .commands = "bench,bench serve", .field = DI_FIELD(bench.output_tokens),
       .help = "generated tokens per sequence", .kind = kInt, .min = 1, .max = kMaxTokens},
      {.name = "repeats", .group = "Workload", .commands = "bench", .field = DI_FIELD(bench.repeats),
       .help = "measurements per point; the median is reported", .kind = kInt, .min = 1, .max = 10000},

      {.name = "requests", .group = "Workload", .commands = "bench throughput,bench sweep,bench drafts,bench structured", .field = DI_FIELD(bench.requests),
       .help = "requests of one repetition; more of them give steadier figures", .kind = kInt, .min = 0, .max = 1000000,
       .default_text = "4 for each of --batch, 2 in a sweep"},
      {.name = "workload", .group = "Workload", .commands = "bench throughput,bench latency,bench sweep", .field = DI_FIELD(bench.workload),
       .help = "fixed = --input-tokens and --output-tokens, or a named load, scaled down to the context: W1 chat 512+256, W2 code 2048+1024, W5 batch 8192+1024", .kind = kChoice,
       .choices = {"fixed", "W1", "W2", "W5"}},
      {.name = "async", .group = "Workload", .commands = "bench throughput,bench latency,bench sweep,bench timeline", .field = DI_FIELD(bench.async_steps),
       .help = "plan a step while the one before runs: on, off, or both in turn with their ratio", .kind = kChoice,
       .choices = {"on", "off", "both"}},
      {.name = "prefix-hit", .group = "Workload", .commands = "bench latency", .field = DI_FIELD(bench.prefix_hit),
       .help = "also time a second request that shares this many percent of the prompt with the first", .kind = kFloat, .value_name = "PERCENT",
       .min = 0, .max = 100},
      {.name = "batches", .group = "Workload", .commands = "bench sweep,bench drafts", .field = DI_FIELD(bench.batches),
       .help = "batch sizes to measure", .kind = kIntList, .value_name = "1,2,4", .min = 1, .max = 65536, .default_text = "--batch"},
      {.name = "inputs", .group = "Workload", .commands = "bench sweep", .field = DI_FIELD(bench.inputs),
       .help = "prompt lengths to measure", .kind = kIntList, .value_name = "128,1024", .min = 1, .max = kMaxTokens,
       .default_text = "--input-tokens"},
      {.name = "outputs", .group = "Workload", .commands = "bench sweep", .field = DI_FIELD(bench.outputs),
       .help = "output lengths to measure", .kind = kIntList, .value_name = "16,64", .min = 1, .max = kMaxTokens,
       .default_text = "--output-tokens"},
      {.name = "steps", .group = "Workload", .commands = "bench timeline", .field = DI_FIELD(bench.steps),
       .help = "neighbouring steps to show", .kind = kInt, .min = 1, .max = 10000},
      {.name = "lengths", .group = "Workload", .commands = "eval replay", .field = DI_FIELD(bench.lengths),
       .help = "tokens of the texts to compare on", .kind = kIntList, .value_name = "1024,4096", .min = 512, .max = kMaxTokens,
       .default_text = "1024,4096,8192"},
      {.name = "hits", .group = "Workload", .commands = "eval replay", .field = DI_FIELD(bench.hits),
       .help = "percent of a text that is in the prefix cache", .kind = kIntList, .value_name = "25,50", .min = 1, .max = 99,
       .default_text = "25,50,90"},
      {.name = "texts", .group = "Workload", .commands = "eval replay", .field = DI_FIELD(bench.texts),
       .help = "texts of each length; more of them give a steadier mean", .kind = kInt, .min = 1, .max = 1000},

      // --- Output ---
      {.name = "out", .group = "Output", .commands = "debug logits,eval,bench,bench serve", .field = DI_FIELD(output.out),
       .help = "write the result to this file", .kind = kFile},
      {.name = "plot", .group = "Output", .commands = "bench,bench serve,eval drafts", .field = DI_FIELD(output.plot),
       .help = "draw the result (.svg)", .kind = kFile},
      {.name = "chrome-trace", .group = "Output", .commands = "bench timeline", .field = DI_FIELD(bench.chrome_trace),
       .help = "write the steps in Chrome's trace format (chrome://tracing, Perfetto)", .kind = kFile},
      {.name = "stats", .group = "Output", .commands = "generate,chat", .field = DI_FIELD(output.stats),
       .help = "print token counts and times on stderr afterwards", .kind = kBool},
      {.name = "json", .group = "Output", .commands = "*", .field = DI_FIELD(output.json),
       .help = "print one JSON document and nothing else on stdout", .kind = kBool},

      // --- General ---
      {.name = "config", .group = "General", .commands = "*", .field = DI_FIELD(config_file),
       .help = "read settings from this TOML file; flags and environment win over it", .kind = kFile},
      {.name = "quiet", .group = "General", .commands = "*", .field = DI_FIELD(log.quiet),
       .help = "no progress and no informative lines on stderr", .kind = kBool},
      {.name = "log-level", .group = "General", .commands = "*", .field = DI_FIELD(log.level),
       .help = "least serious message to log; debug helps to find the cause of a problem", .kind = kChoice,
       .choices = {"trace", "debug", "info", "warn", "error", "off"}, .env_aliases = {"DEEPINFER_CPP_LOG_LEVEL"}},
      {.name = "log-format", .group = "General", .commands = "*", .field = DI_FIELD(log.format),
       .help = "json writes one object a line, for log collectors", .kind = kChoice, .choices = {"text", "json"}},
  };
}

std::vector<OptionSpec> MakeTable() {
  std::vector<OptionSpec> table = MainRows();
  // Behind the model's own rows.
  const auto first_sampling = std::find_if(table.begin(), table.end(), [](const OptionSpec& spec) { return spec.group != "Model"; });
  std::vector<OptionSpec> engine = EngineRows();
  const std::vector<OptionSpec> grammar = GrammarRows();
  engine.insert(engine.end(), grammar.begin(), grammar.end());
  table.insert(first_sampling, engine.begin(), engine.end());
  // Before the rows that every command has.
  const auto first_output = std::find_if(table.begin(), table.end(), [](const OptionSpec& spec) { return spec.name == "batch"; });
  const std::vector<OptionSpec> serve = ServeRows();
  const std::vector<OptionSpec> download = DownloadRows();
  table.insert(table.insert(first_output, serve.begin(), serve.end()) + static_cast<std::ptrdiff_t>(serve.size()), download.begin(), download.end());
  const auto first_after = std::find_if(table.begin(), table.end(), [](const OptionSpec& spec) { return spec.name == "lengths"; });
  const std::vector<OptionSpec> load = LoadRows();
  table.insert(first_after, load.begin(), load.end());
  const std::vector<OptionSpec> accepted = AcceptedRows();
  table.insert(table.end(), accepted.begin(), accepted.end());
  return table;
}

}  // namespace

std::span<const OptionSpec> OptionTable() {
  static const std::vector<OptionSpec> table = MakeTable();
  return table;
}

}  // namespace deepinfer
