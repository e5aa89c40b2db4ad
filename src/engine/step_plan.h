// SPDX-License-Identifier: Apache-2.0
//
// StepPlan: one step as plain data, complete enough for the compute thread to execute without asking anybody. StepResult:
// what comes back. Both are recycled; their vectors keep their capacity.
//
// Execution order: `ops` in order (a later one may reuse what an earlier one released), then the rows, then `saves`.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/sequence.h"

namespace deepinfer::engine {

enum class StepKind { kNone, kPrefill, kDecode };

struct SlotOp {
  enum class Kind {
    kBind,       // slot `to` starts a sequence: state zeroed, history of ids[begin, begin + count), floors set, no blocks
    kLoadState,  // producer rings of slot `to` from STATE record `from`
    kCopyState,  // slot `to` := slot `from`, its history cut to `count` tokens; no blocks
    kCopyBlock,  // block `to` := block `from`
    kTable,      // blocks of slot `to` from table index `first` on := blocks[begin, begin + count)
  };
  Kind kind = Kind::kBind;
  int32_t from = 0;
  int32_t to = 0;
  int64_t first = 0;
  int64_t begin = 0;
  int64_t count = 0;
  int64_t valid_start = 0;    // kBind: window keys of smaller positions are not visible
  int64_t decoder_floor = 0;  // kBind: the consumer half runs rows from here on
};

struct StepRow {
  Sequence* sequence = nullptr;  // the scheduler's; alive until the step is processed
  void* user = nullptr;          // SequenceSpec::user, for the compute thread
  uint64_t sequence_id = 0;
  uint32_t generation = 0;
  int32_t state_slot = 0;
  // Position of the first token; of a decode row with a step in flight an upper bound: the device knows how many drafts
  // of that step were accepted.
  int64_t start = 0;
  int32_t num_tokens = 0;  // of a decode row: the newest token and the drafts to verify
  // Tokens that the host knows, in StepPlan::ids: all of a prefill row, the first of a decode row; 0 of a decode row: the
  // slot's newest sampled token is fed forward. Drafts are on the device.
  int64_t ids_begin = 0;
  int32_t num_ids = 0;
  int32_t previous_row = -1;  // this sequence's row of the decode step in flight, -1 if it has none
  bool is_last_chunk = false;  // prefill: the prompt is complete, a token is sampled; decode rows always sample
  bool needs_all_rows = false;
  int64_t write_floor = 0;     // no compressed keys are written for positions below it
  // Last chunk of a sequence that is computed again: its output so far, in StepPlan::ids.
  int64_t outputs_begin = 0;
  int32_t num_outputs = 0;
};

struct StateSave {
  int32_t row = 0;
  int64_t position = 0;  // the state after exactly that many tokens; inside the row or at its end
  int32_t record = 0;
};

struct StepPlan {
  uint64_t number = 0;
  StepKind kind = StepKind::kNone;
  std::vector<StepRow> rows;
  std::vector<SlotOp> ops;
  std::vector<StateSave> saves;  // by row, ascending positions
  std::vector<int32_t> ids;
  std::vector<int32_t> blocks;
  int64_t num_tokens = 0;  // of all rows
  int num_drafts = 0;      // drafts to make behind every row that samples; 0 = none
  // While drafting pauses, a step may draft behind its first rows only, to see what drafts are worth.
  int32_t num_probe_rows = 0;  // 0 = no probe
  // Drafts from repeated text (LookupDrafter): one is worth its row from this expected acceptance on, all those before it
  // included; above 1: there are none. They go before the head's drafts where they are worth `head_tokens` or more.
  float lookup_min_rate = 2;
  float head_tokens = 0;
  // Decode: the device hands out the rows again, by confidences that the host does not know yet.
  bool redistributes = false;

  bool is_empty() const { return rows.empty(); }
  bool Drafts(size_t row) const { return num_drafts > 0 && (num_probe_rows == 0 || row < static_cast<size_t>(num_probe_rows)); }
  std::span<const int32_t> IdsOf(const StepRow& row) const {
    return std::span<const int32_t>(ids).subspan(static_cast<size_t>(row.ids_begin), static_cast<size_t>(row.num_ids));
  }
  void Clear() {
    kind = StepKind::kNone;
    rows.clear();
    ops.clear();
    saves.clear();
    ids.clear();
    blocks.clear();
    num_tokens = 0;
    num_drafts = 0;
    num_probe_rows = 0;
    lookup_min_rate = 2;
    head_tokens = 0;
    redistributes = false;
  }
};

enum class RowOutcome : uint8_t {
  kOk,
  kInvalidLogits,  // not finite: ends this row's request only
  kInternalError,  // the step did not run
  kConstraintFailed,  // the sequence's structured output cannot go on; the row's output 0 is a token without meaning
};

struct StepResult {
  // Per row: the sampled tokens (accepted drafts, then one more) and what belongs to them, `stride` apart.
  int32_t stride = 1;
  std::vector<int32_t> tokens;
  std::vector<int32_t> num_tokens;  // 0 where the row failed or does not sample
  std::vector<RowOutcome> outcome;
  std::vector<TokenOutput> outputs;  // log probabilities, if the sampler gives them
  // Per row: rows verified besides the first, and what the drafts made behind it are expected to be worth (stride - 1
  // acceptance probabilities each; NaN where there is no draft).
  std::vector<int32_t> num_verified;
  std::vector<float> confidences;
  std::vector<float> verified_confidences;  // of the drafts that were verified, laid out alike; NaN: not the head's
  // Statistics over the verified drafts: sum of |estimated acceptance - confidence|.
  double confidence_error = 0;
  // Of prompt tokens: values[i] belongs to the token at first_position + 1 + i.
  struct PromptLogprobs {
    int32_t row = 0;
    int64_t first_position = 0;
    std::vector<float> values;
  };
  std::vector<PromptLogprobs> prompt_logprobs;
  int64_t num_lookup_verified = 0, num_lookup_accepted = 0;  // drafts from repeated text
  int64_t duration_ns = 0;          // of the step on the device
  int64_t forward_ns = 0, sample_ns = 0, draft_ns = 0;  // its parts

  TokenOutput& OutputOf(int32_t row, int32_t token) {
    return outputs[static_cast<size_t>(row) * static_cast<size_t>(stride) + static_cast<size_t>(token)];
  }

  void Reset(size_t num_rows, int32_t max_tokens_per_row) {
    stride = max_tokens_per_row;
    tokens.assign(num_rows * static_cast<size_t>(stride), -1);
    num_tokens.assign(num_rows, 0);
    outcome.assign(num_rows, RowOutcome::kOk);
    outputs.resize(num_rows * static_cast<size_t>(stride));
    num_verified.assign(num_rows, 0);
    confidences.assign(num_rows * static_cast<size_t>(stride - 1), std::numeric_limits<float>::quiet_NaN());
    verified_confidences.assign(confidences.size(), 0.0f);
    confidence_error = 0;
    num_lookup_verified = num_lookup_accepted = 0;
    prompt_logprobs.clear();
    duration_ns = forward_ns = sample_ns = draft_ns = 0;
  }
};

// What happened to a sequence. Tokens come in order; the last event of a sequence, and only that one, has a finish reason.
struct SequenceEvent {
  uint64_t id = 0;
  std::shared_ptr<void> user;
  int32_t token = -1;      // -1: no token
  int32_t row = -1;        // of the processed step
  int32_t token_in_row = 0;
  int64_t num_output = 0;  // output tokens so far
  int64_t cached_tokens = -1;  // with the first event that has a token
  FinishReason finish_reason = FinishReason::kNone;
  bool is_stop_token = false;  // `token` ended the sequence by being an end or stop token
};

}  // namespace deepinfer::engine
