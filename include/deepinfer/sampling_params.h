// SPDX-License-Identifier: Apache-2.0
//
// SamplingParams: how the next token is chosen and when a request ends. Plain data; names and defaults are part of the
// public interface (Python, HTTP and C++ share them). ValidateSamplingParams() of sampling/params.h checks every field and
// reports the first bad one by name and value; the engine calls it before any work.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace deepinfer {

// Below this temperature a request is greedy: argmax, ties to the lowest id, no random number is used.
inline constexpr double kSamplingEps = 1e-5;

// so_args: the output is held to a grammar (docs/guide/structured-outputs.md).
struct StructuredOutput {
  std::string schema_type;   // json, json_object, regex, ebnf, choice, structural_tag, lark
  std::string schema;        // JSON schema, pattern, grammar with rule "root", structural tag, or JSON list of strings
  bool strict = true;        // JSON schema: objects that declare properties are closed
  bool any_order = false;    // their properties may come in any order
  bool any_whitespace = true;
  std::optional<int> max_whitespace_cnt;  // blanks in a row between JSON tokens; unset = no limit
  // The grammar starts behind this sequence of output tokens; empty: at once.
  std::vector<int32_t> trigger_token_ids;
  // When this token is generated before the trigger is complete, the trigger is forced from there on. Needs a trigger.
  std::optional<int32_t> bound_token_id;
  // Not empty: mistakes that end the request with "xgrammar runtime errors or timeout" instead of being refused.
  std::string invalid;
};

struct SamplingParams {
  double temperature = 1.0;  // >= 0; < kSamplingEps means greedy
  double top_p = 1.0;        // (0, 1]; 1 = off
  int64_t top_k = -1;        // -1 = off, else >= 1
  double min_p = 0.0;        // [0, 1]; keep tokens with p >= min_p * p_max, before top-k and top-p
  bool ignore_eos = false;   // the end token does not stop the request
  int64_t max_tokens = 16;   // output tokens; 0 is taken as 1
  int64_t min_tokens = 0;    // end and stop tokens are banned, stop strings not looked for, before that many tokens
  bool logprobs = false;     // accepted for compatibility: the log probability of the chosen token is always returned
  bool prompt_logprobs = false;   // also return the prompt's log probabilities (prompt length - 1 values)
  int top_logprobs = 0;           // best (id, log probability) pairs per output token, at most 1000
  int first_n_token_no_eos = 0;   // 1: the first output token may not be the end token
  std::optional<uint64_t> seq_seed;  // explicit seed: the output depends on nothing but the logits
  // Seed of a request without an explicit one; 0 = the engine draws 64 random bits. Set it to share a drawn seed.
  uint64_t random_seed = 0;
  std::vector<int32_t> golden_token_ids;  // forced output tokens by output position; -1 = free

  double presence_penalty = 0.0;    // [-2, 2], on output tokens
  double frequency_penalty = 0.0;   // [-2, 2], on output tokens
  double repetition_penalty = 1.0;  // > 0, on prompt and output tokens
  std::map<int32_t, double> logit_bias;  // token id -> added logit, values clamped to [-100, 100]
  std::optional<std::vector<int32_t>> allowed_token_ids;  // only these can be sampled
  std::optional<StructuredOutput> so_args;

  std::vector<std::string> stop;          // at most 16 non-empty stop strings
  std::vector<int32_t> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = false;  // of the text only; ids are always complete
  bool detokenize = true;            // false: ids only, no text
  int n = 1;                         // parallel samples; sample i uses seed + i
  int priority = 0;                  // smaller = sooner
  std::string cache_mode;            // replay, exact, off; empty = the engine's

  std::optional<int64_t> max_output_bytes;  // text bytes, ends with "length"
  std::optional<double> timeout_s;          // wall time, ends with "timeout"

  bool is_greedy() const { return temperature < kSamplingEps; }
  bool has_penalties() const {
    return presence_penalty != 0.0 || frequency_penalty != 0.0 || repetition_penalty != 1.0;
  }
};

}  // namespace deepinfer
