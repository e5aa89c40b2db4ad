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
  std::string cpu_pinning = "auto";   // auto, none, node, core
  std::string cuda_plugin;            // the library of the NVIDIA backend; empty = beside the program
  std::string memory_budget = "auto";  // bytes, as 24GiB
  std::string expert_io = "auto";      // auto, uring, threads, mmap
  std::string pack_cache = "off";      // off, beside, or a directory
  std::string engram_io = "auto";     // auto, mmap, read, direct
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

// The engine that runs many requests at once. An unset value is the default of the command, or of the library.
struct EngineConfig {
  int64_t max_num_seqs = 256;
  std::optional<int64_t> max_num_batched_tokens;
  std::optional<bool> chunked_prefill;
  int64_t lookahead_tokens = 0;
  std::optional<bool> stop_preempted_request;
  std::optional<bool> zero_overhead_scheduling;  // asynchronous steps
  int64_t num_kv_blocks = 0;                     // 0 = from the memory budget
  double gpu_memory_utilization = 0.9;
  double num_state_slots_ratio = 1.2;
  int64_t max_decode_gap_ms = 200;
  int64_t decode_steps_per_prefill = 1;
  std::optional<int64_t> prefill_attempt_interval;  // set = the fixed alternation of 0.1.0
  int64_t prefill_any_attempt_interval = 100;
  std::optional<int64_t> prefill_max_sum_seqlen_k;
  std::string cache_mode = "auto";  // auto, replay, exact, off
  std::string cache_salt;
  int64_t kv_state_every_blocks = 32;
  bool kv_persist_swa = false;
  int64_t kv_replay_tokens = 0;  // 0 = the window
  bool batch_invariant = false;
  bool deterministic = false;
  std::string decode_token_blacklist;  // "3,7-9"
  bool compute_sum_smaller_probs = false;
  std::string logprobs_mode = "processed";  // processed, raw
  int64_t logging_interval_step = 100;
  std::optional<int64_t> num_drafts;
  std::optional<bool> varlen_verify;
  bool prompt_lookup = false;
  std::string spec_verify = "reject";
  std::string dflash_confidence_head_temperature = "1.0";
  std::string decode_perf_cache_dir;
  int64_t decode_perf_cache_ttl_sec = 3600;
};

// Compiling the grammars of structured outputs.
struct GrammarConfig {
  int64_t xgrammar_timeout = 20;  // seconds
  bool xgrammar_disable_cache = false;
  int64_t xgrammar_cache_limit_bytes = int64_t{1} << 30;  // <= 0: no limit
  int64_t so_builder_cpus = 4;
};

// A timeline of the engine's steps on request, over HTTP on the loopback address.
struct ProfileConfig {
  bool http_enable = false;
  int64_t http_port_base = 6070;
  std::string dir;  // empty = the system's temporary folder
};

// Settings that are read and checked but change nothing in this version: what they steer does not exist here yet. The rows
// are in core/option_table_accepted.cc.
struct AcceptedConfig {
  // Speculation.
  int64_t max_backtracking_tokens = 6;
  bool dflash_enforce_eager = false;
  int64_t dflash_cudagraph_batch_size_interval = 8;
  // Graph capture, device memory, sampling on the device.
  int64_t sampler_force_topk = 0;
  bool enforce_eager = false;
  int64_t cudagraph_batch_size_interval = 8;
  int64_t index_attn_memory_limit = int64_t{10} << 30;
  bool engram_force_gpu_storage = false;
  int64_t engram_pad_token = 2;
  std::string jit_cache_dir;
  bool disable_sync_guard = false;
  std::string profile_torch_cuda_memory;
  bool enable_memory_tracing = false;
  // Several devices.
  int64_t nccl_num_sms = 32;
  int64_t userbuffer_comm_sms = 0;
  double gloo_timeout = 14400;
  int64_t nccl_memory_sample_interval_steps = 1000;
  int64_t ringbuffer_warning_interval = 60;
  // Placement of experts.
  int64_t rearrange_p2p_groups = 1;
  int64_t override_num_extra_experts = 0;
  int64_t expert_count_window_size = 100;
  int64_t expert_rearrangement_step_interval = 0;
  bool rearrange_after_prefill_in_normal_engine = false;
  int64_t moe_lb_stat_interval = 128;
  double force_imbalance_ratio = 0;
  bool force_load_balance = false;
  bool show_eplb_detail = false;
  // Structured outputs.
  bool xgrammar_debug = false;
  // Images.
  std::optional<bool> use_multimodal_pool;
  int64_t multimodal_pool_size_gb = 8;
  int64_t multi_modal_buffer_size = 512;
  double multi_modal_worker_timeout = 1800;
  // Stored prefixes, the Python layer.
  bool prefill_store_extra_state = false;
  int64_t prefill_store_extra_size = 128;
  std::string kv_root;
  std::optional<int64_t> kv_capacity_bytes;
  int64_t gc_interval_step = 1000;
};

// Options of the debug and eval commands.
struct DebugConfig {
  std::string special = "all";  // tokenize: all, none
  bool jsonl = false;
  bool skip_special = false;
  std::string api = "chat";  // chat, responses, messages; bench serve: completions
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
  std::string kind = "json_schema";  // grammar: json_schema, regex, ebnf, structural_tag
  std::string schema;                // grammar: file
};

// How requests of the API protocols are read (protocols.md of the specification).
struct ProtocolConfig {
  std::string sampling_policy = "official";      // official, client
  std::string tool_choice_thinking = "reject";  // reject, grammar
  std::string missing_reasoning = "fill";       // fill, reject
  std::string previous_response_id = "reject";  // reject, ignore
  bool messages_prefill = false;
  bool openai_usage_chunk = false;
};

// The HTTP server (operations.md 1 of the specification).
struct ServeConfig {
  std::string host = "127.0.0.1";
  int64_t port = 8000;
  int64_t admin_port = 9100;  // 0 = none
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::string new_api_key;  // an organisation: make a key and its record, then leave
  std::vector<std::string> served_model_names;  // empty = the defaults of the protocols
  std::vector<std::string> allowed_hosts, allowed_origins;
  std::string tls_cert, tls_key;
  int64_t max_body_mib = 64;
  int64_t max_tools = 1024;
  int64_t max_output_tokens = 393216;
  int64_t max_streams_per_key = 64;
  int64_t max_queued_requests = 4096;
  int64_t ttft_timeout_s = 600;
  int64_t drain_seconds = 600;
  std::string access_log = "-";  // file, "-" = stderr, "off"
  std::string usage_log;         // file; empty = none
  std::string audit_log;         // file; empty = none
  std::string otlp_endpoint;     // empty = no traces
  bool check_config = false;
};

// Fetching a checkpoint from a hub.
struct DownloadConfig {
  std::string dir;  // empty = the hub cache
  std::vector<std::string> include, exclude;
  int64_t connections = 8;
  int64_t max_retries = 8;
};

struct InspectConfig {
  bool verify = false;  // also of download
};

struct BatchConfig {
  int64_t concurrency = 0;  // 0 = twice the sequences that run together
};

struct BenchConfig {
  int64_t batch = 1;
  int64_t input_tokens = 512;
  int64_t context = 0;      // steps: > 0 = decode behind a fabricated cache of that many tokens, without a prompt
  int64_t output_tokens = 128;
  int64_t repeats = 5;
  int64_t requests = 0;     // 0 = some for each place of the batch
  std::string workload = "fixed";  // the lengths above; W1, W2, W5
  std::string async_steps = "on";  // on, off, both
  double prefix_hit = 0;    // percent
  std::vector<int64_t> batches, inputs, outputs;  // sweep; empty = the single values above
  int64_t steps = 20;       // timeline
  std::string chrome_trace;
  std::vector<int64_t> lengths = {1024, 4096, 8192};  // eval replay
  std::vector<int64_t> hits = {25, 50, 90};           // percent
  int64_t texts = 4;
};

// A load for a server that runs (bench serve).
struct ServeLoadConfig {
  std::string url = "http://127.0.0.1:8000";
  std::string model_name;      // empty = the first one that the server lists
  bool with_tool = false;
  int64_t num_prompts = 0;     // 0 = as many as fit into the duration, 100 without one
  int64_t duration_s = 0;      // 0 = until all have ended
  double request_rate = 0;     // arrivals per second; 0 = a new one when one ends
  double disconnect_rate = 0;  // share of the streams that the client leaves
  int64_t idle_connections = 0;
  int64_t big_bodies = 0;
  int64_t big_body_mib = 32;
  double stream_rate = 0;      // steps per second that the server is known to make
};

struct Config {
  std::string config_file;
  LogConfig log;
  OutputConfig output;
  ModelSourceConfig model;
  SamplingConfig sampling;
  EngineConfig engine;
  GrammarConfig grammar;
  ProfileConfig profile;
  AcceptedConfig accepted;
  ConversationConfig conversation;
  DebugConfig debug;
  ProtocolConfig protocol;
  ServeConfig serve;
  DownloadConfig download;
  InspectConfig inspect;
  BatchConfig batch;
  BenchConfig bench;
  ServeLoadConfig load;
};

}  // namespace deepinfer
