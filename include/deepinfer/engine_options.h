// SPDX-License-Identifier: Apache-2.0
//
// EngineOptions: which model, on what, and how many requests share it. Names and defaults are those of the engine arguments
// of 0.1.0 where it has them. The program's options and the DEEPINFER_ variables set the same fields.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/status.h"

namespace deepinfer {

struct EngineOptions {
  // The DEEPINFER_ variables of the environment applied to the defaults, read once here. Errors begin with the variable.
  static Result<EngineOptions> FromEnvironment();

  std::string model = "demo";          // a directory, a hub id whose files are in the local cache, or "demo"
  std::string revision = "main";       // of a hub id
  std::string device = "auto";         // auto, cpu, cuda[:N], ascend[:N]
  std::string numerics = "release";    // release, fp32, plain
  std::string cpu_pinning = "auto";    // auto, none, node, core: where compute threads may run
  std::string cuda_plugin;             // file of the NVIDIA backend; empty = beside the program or library
  // Memory of the process ("24GiB"). Experts that do not fit beside the other weights and the caches are read from disk when a
  // step needs them. auto: what the machine or the container has.
  std::string memory_budget = "auto";
  std::string expert_io = "auto";      // auto, uring, threads, mmap: how those experts are read
  std::string pack_cache = "off";      // off, beside (the checkpoint), or a directory: a file of packed experts, made once
  std::string engram_io = "auto";      // auto, mmap, read, direct: how rows of the n-gram tables reach memory
  std::string cpu_isa = "auto";        // auto, scalar, avx2, avx512
  std::string load_format = "auto";    // auto; dummy = seeded weights, for measurements
  int num_threads = 0;                 // 0 = one per available core
  int64_t max_model_len = 4096;        // prompt and output together; 0 = the model's own maximum, which also caps it
  bool fit_max_model_len = false;      // with 0: no more than the cache of the memory found has room for
  int64_t prefill_chunk_tokens = 2048;  // of single requests without prefix cache
  // Decoder replay (specification, engine 11): the layers behind the last key source run on the last decoder_replay_keep
  // tokens of a prompt only. off gives the numbers of the reference; mask, compact (faster, same numbers as mask); auto =
  // compact where the checkpoint allows it.
  std::string decoder_replay = "off";
  int64_t decoder_replay_keep = 0;     // 0 = window + 12
  bool raw_logprobs = false;           // log probabilities of the untouched logits
  bool compute_sum_smaller_probs = false;
  std::string decode_token_blacklist;  // ids that are never generated: "3,7-9"

  // --- Requests that run together ---
  int max_num_seqs = 256;              // lowered, with a line in the log, where their window states do not fit into memory
  int64_t max_num_batched_tokens = 0;  // tokens of a step; 0 = the largest of max_model_len, 4096 and max_num_seqs
  bool chunked_prefill = false;        // prompts longer than max_num_batched_tokens take several steps
  int64_t lookahead_tokens = 0;        // smallest part of a prompt that shares a step
  bool stop_preempted_request = true;  // end a request that lost its cache blocks, instead of computing it again (LLM: false)
  bool zero_overhead_scheduling = true;  // plan a step while the one before runs
  int64_t max_decode_gap_ms = 200;     // how long a prefill step may keep running answers waiting; 0 = no limit
  int64_t decode_steps_per_prefill = 1;
  std::optional<int64_t> prefill_attempt_interval;  // set = the fixed alternation of 0.1.0 (70 there)
  int64_t prefill_any_attempt_interval = 100;
  int64_t prefill_max_sum_seqlen_k = int64_t{1} << 30;
  int64_t max_queued_requests = 4096;  // admitted and not ended; more are refused

  // --- Memory ---
  double gpu_memory_utilization = 0.9;  // share of the device's memory, or of the machine's
  int64_t num_kv_blocks = 0;            // blocks of 128 tokens; 0 = what that memory allows
  double num_state_slots_ratio = 1.2;

  // --- Shared beginnings of prompts ---
  std::string cache_mode = "off";       // replay, exact, off
  std::string cache_salt;               // of requests that name none
  int64_t kv_state_every_blocks = 32;
  bool kv_persist_swa = false;          // keep window states whatever cache_mode is
  int64_t kv_replay_tokens = 0;         // 0 = the window
  bool batch_invariant = false;         // no approximate cache hits: replay runs as exact or off
  bool deterministic = false;           // the same and exact verification of drafts

  // --- Grammars of structured outputs ---
  double xgrammar_timeout = 20;  // seconds that a request waits for its grammar
  int64_t xgrammar_cache_limit_bytes = int64_t{1} << 30;  // of compiled grammars that are kept; <= 0: no limit
  bool xgrammar_disable_cache = false;
  int so_builder_cpus = 4;       // threads that compile, once a request needs one
  // --- Drafts (specification, engine 12) ---
  int num_drafts = 0;                   // verified per step; 0 = none, -1 = what the draft head was trained for, 5 at most
  bool varlen_verify = false;           // as many as pay, by confidence and measured cost
  bool prompt_lookup = false;           // also draft what followed the newest tokens where they stood before
  std::string spec_verify = "reject";   // of requests without a seed: reject keeps the distribution, exact every token
  std::string confidence_temperature = "1.0";  // of the draft head: one number, or one per draft
  std::string decode_perf_cache_dir;    // where the measured cost of steps is kept; empty = nowhere
  int64_t decode_perf_cache_ttl_sec = 3600;

  int64_t logging_interval_step = 100;  // steps between statistics lines; 0 = none
  bool disable_log_stats = false;
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress = {};  // while loading
};

}  // namespace deepinfer
