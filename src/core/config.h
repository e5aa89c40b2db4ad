// SPDX-License-Identifier: Apache-2.0
//
// Every setting of the program as plain data. The rows of core/option_table.cc bind a flag, an environment name and a key
// of the configuration file to one field here; defaults stand here. A new option is one field and one row.
// Code takes the sub-struct it needs as a const reference; nothing changes a Config after start.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace deepinfer {

struct LogConfig {
  std::string level = "info";   // trace, debug, info, warn, error, off
  std::string format = "text";  // text, json
  bool quiet = false;           // no progress, no informative lines
};

struct OutputConfig {
  bool json = false;  // machine-readable results on stdout
  bool stats = false;
  std::string out;   // result file
  std::string plot;  // .svg or .png
};

// Which checkpoint, where it runs, and in which arithmetic.
struct ModelSourceConfig {
  std::string model = "demo";  // directory, hub id, or "demo"
  std::string revision = "main";
  std::string device = "auto";        // auto, cpu, cuda[:N], ascend[:N]
  std::string numerics = "release";   // release, fp32, plain
  std::string cpu_isa = "auto";       // auto, scalar, avx2, avx512
  std::string load_format = "auto";   // auto, dummy
  std::string kv_format = "fp4";      // fp4, mxfp8: compressed KV records
  int64_t threads = 0;                // 0 = all available cores
  int64_t max_model_len = 0;          // 0 = what the checkpoint allows
  std::string decoder_replay = "auto";  // auto, off, mask, compact; auto = the command's default
  int64_t decoder_replay_keep = 0;    // 0 = 140, or what the window of the checkpoint needs
};

struct SamplingConfig {
  std::optional<int64_t> max_tokens;  // unset = the command's own default
  std::optional<double> temperature;  // unset = 1 (generation_config.json does not override it)
  std::optional<double> top_p;
  std::optional<int64_t> top_k;
  std::optional<double> min_p;
  std::optional<int64_t> seed;  // unset = random
  std::vector<std::string> stop;
  bool ignore_eos = false;
  std::string grammar_regex;  // files
  std::string grammar_json_schema;
  std::string grammar_ebnf;
};

struct ConversationConfig {
  bool chat = false;          // generate: the prompt is one user message
  std::optional<bool> think;  // unset = the protocol's default
  std::optional<int64_t> effort;
  std::string system;
  std::string history_file;
};

// Options of the debug and eval commands.
struct DebugConfig {
  std::string special = "all";  // tokenize: all, none
  bool jsonl = false;
  bool skip_special = false;
  std::string api = "chat";  // chat, responses, messages
  std::string request;
  std::string tools;
  std::string finish = "stop";
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  std::string system_fingerprint;
  bool normalize = false;
  bool accumulate = false;
  std::vector<int64_t> ids;
  std::optional<int64_t> next;
  bool trace = false;
  int64_t chunk = 0;  // 0 = one chunk
  bool decode = false;
  std::string image_embeds;
};

// How requests of the API protocols are read (protocols.md of the specification).
struct ProtocolConfig {
  std::string sampling_policy = "official";      // official, client
  std::string tool_choice_thinking = "reject";  // reject, grammar
  std::string missing_reasoning = "fill";       // fill, reject
};

struct InspectConfig {
  bool verify = false;
};

struct BatchConfig {
  int64_t concurrency = 0;  // 0 = twice the sequences that run together
};

struct BenchConfig {
  int64_t batch = 1;
  int64_t input_tokens = 512;
  int64_t output_tokens = 128;
  int64_t repeats = 5;
};

struct Config {
  std::string config_file;
  LogConfig log;
  OutputConfig output;
  ModelSourceConfig model;
  SamplingConfig sampling;
  ConversationConfig conversation;
  DebugConfig debug;
  ProtocolConfig protocol;
  InspectConfig inspect;
  BatchConfig batch;
  BenchConfig bench;
};

}  // namespace deepinfer
