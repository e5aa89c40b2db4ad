// SPDX-License-Identifier: Apache-2.0
//
// Private to model.cc, forward.cc and draft.cc: what a Model holds, and the buffers of a step.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "model/cache.h"
#include "model/engram_hash.h"
#include "model/engram_reader.h"
#include "model/model.h"
#include "model/sequence.h"
#include "model/stage_clock.h"
#include "model/trace.h"
#include "model/weights.h"

namespace deepinfer::model {

// New compressed groups of a step, for one ratio.
struct GroupList {
  std::vector<device::NewGroup> host;
  device::Buffer groups;     // NewGroup[capacity]
  device::Buffer positions;  // int32[capacity]
  device::Buffer rope;       // [capacity, R]
  int64_t count = 0;
};

// Buffers sized for a number of rows; grown between steps, never inside one.
struct Workspace {
  int64_t rows = 0;
  int64_t sequences = 0;
  device::Buffer ids, positions, row_sequence, image_row, is_image, sequence_rows, engram_rows;
  device::Buffer rope_plain, rope_yarn;
  GroupList groups[3];  // by ratio (1, 2)
  device::Buffer trunk, one_hot, pre[2], post, comb;
  device::Buffer collapsed, x, y, qa_kv, qr, q, keys, attn_out, attn_trace, o_low;
  device::Buffer products, latent, index_raw, key_trace;
  device::Buffer index_q, index_w, selected, num_selected, candidates, num_candidates;
  device::Buffer experts, expert_weights, guess_experts, guess_weights, biased;
  device::Buffer engram_e, engram_kv, gate;
  device::Buffer taps, tail_taps, tail_rope, tail_sequences, main, context_raw, context_keys;
  device::Buffer draft_cat, draft_logits, draft_bias, draft_tokens, draft_confidence;
  device::Buffer head_rows, head_trunk, head_pre, head_x;
  device::Buffer trace_scores, trace_blocks;
};

// One sequence's rows of a step, host side.
struct Piece {
  Sequence* sequence = nullptr;
  std::span<const int32_t> ids;
  std::span<const uint8_t> is_image;
  const float* image_embeds = nullptr;  // row 0 belongs to ids[0]
  int64_t logits_begin = -1;            // index of the first logits row; -1 = none
  bool all_logits = false;
  int64_t write_floor = 0;
};

struct Model::Impl {
  ModelConfig config;
  LoadOptions options;
  std::shared_ptr<const Checkpoint> checkpoint;
  std::shared_ptr<device::Device> device;
  device::Arithmetic arithmetic;
  int64_t max_model_len = 0;
  bool has_draft = false;
  bool drafts_paused = false;
  // Slots may run that far: rows of drafts that turn out wrong, of steps that were queued before (engine 5).
  int64_t max_slot_len() const { return max_model_len + (has_draft ? 3 * config.dspark_block_size + 1 : 1); }
  int64_t max_step_rows = 0;
  int64_t replay_keep = 0;
  StageClock* stage_clock = nullptr;

  ModelWeights weights;
  CacheLayout layout;
  std::unique_ptr<BlockPool> pool;
  device::Buffer inverse_plain, inverse_yarn;
  std::optional<EngramHasher> hasher;
  std::unique_ptr<EngramReader> engram_reader;  // null: rows come from the mapped tables
  std::vector<std::unique_ptr<device::Table>> engram_fetched;  // its rows, by table

  Workspace ws;
  std::unique_ptr<device::Input> quantized, plain, attended, low, index_input;
  device::Buffer logits;
  int64_t logits_capacity = 0;
  std::vector<float> host_logits;
  std::vector<device::RowBest> bests;
  std::vector<const uint32_t*> best_masks;                                 // by logit row, on the device
  std::map<const std::vector<uint32_t>*, device::Buffer> device_masks;
  std::vector<const std::vector<uint32_t>*> draft_masks;  // of a draft pass

  // Host staging of the step's metadata, reused.
  std::vector<int32_t> host_ids, host_positions, host_row_sequence, host_image_row, host_engram, host_group_positions,
      host_head_rows, draft_ids, draft_host_tokens;
  std::vector<float> draft_host_logits;
  std::vector<Piece> draft_pieces;
  std::vector<Piece> step_pieces;
  std::vector<int64_t> host_engram_rows;
  std::vector<uint8_t> host_is_image;
  std::vector<float> host_image_embeds;
  std::vector<device::SequenceRows> host_sequences;
  std::vector<device::SequenceRows> consumer_sequences;  // the same for the consumer half, before decoder replay drops rows
  device::Buffer image_embeds;
  device::Step step;
  bool step_has_images = false;
  bool step_keys_done = false;    // the first consumer layer's compressed keys are stored already
  int64_t step_groups[3] = {};  // by ratio: the largest number of groups visible to a row
  bool step_repeats = false;      // its ops depend on `step_key` only (device.h: repeated steps)
  std::vector<int64_t> step_key;

  Status Init();
  Status EnsureWorkspace(int64_t rows, int64_t sequences);
  Status EnsureLogits(int64_t rows);
  device::Act ActOf(const device::Buffer& buffer, int64_t width) const {
    return {buffer.data(), width, device->activation_bytes()};
  }
  int streams() const { return config.hc_mult; }
  void Mark(int layer, Stage stage) {
    if (stage_clock != nullptr) stage_clock->Mark(layer, stage);
  }
  device::HyperConnectionSite Site(const SiteWeights& site) const;

  // Uploads positions, ids and sequence metadata; fills `step`.
  Status BeginStep(std::span<const Piece> pieces, bool is_draft);
  // Rotations of the step's rows and new groups, from what BeginStep uploaded.
  void StepTables(bool is_draft);
  // Whether the ops of a step depend on little more than the number of its rows.
  bool CanRepeat(std::span<const Piece> pieces) const;
  // The rows whose logits are wanted, into host_head_rows. Returns the first logits row, -1 for none.
  int64_t ListHeadRows(std::span<const Piece> pieces);
  void EngramRows(std::span<const Piece> pieces);
  // The device's copy of a mask of GreedyRow; null for null.
  Result<const uint32_t*> DeviceMask(const std::vector<uint32_t>* mask);
  Status DownloadLogits(std::span<const SequenceChunk> chunks, int64_t num_logits);
  Status RunStep(std::span<const Piece> pieces, TraceSink* sink);
  // The ops of a step from the embedding to the logits.
  Status RunStepOps(std::span<const Piece> pieces, Tracer& tracer);
  // One layer on the trunk. `pre` [rows, M] collapses the streams for its attention; the result is the next one's.
  const float* RunLayer(const LayerWeights& w, int layer, bool is_draft, const float* pre, Tracer& tracer);
  void RunAttention(const LayerWeights& w, int layer, bool is_draft, Tracer& tracer);
  // Decoder replay, at the entry of the first consumer layer: drops or hides the rows that need not go further.
  void EnterConsumerHalf(std::span<const Piece> pieces, int next_tap, float* pre, Tracer& tracer);
  void RunCompressor(const LayerWeights& w, int layer, Tracer& tracer);
  void RunSelect(const LayerWeights& w, int layer, Tracer& tracer);
  void RunMoe(const LayerWeights& w, int layer, bool is_draft, Tracer& tracer);
  // Projects taps [rows, targets * H] of the step's rows into the draft rings of the sequences in `tail`.
  void StoreDraftContext(const device::Step& tail, device::Act taps, const float* rope, Tracer& tracer);
  // The rows of the step that stay in the draft rings, then StoreDraftContext.
  void StoreDraftTail(Tracer& tracer);

  int64_t tap_width() const { return static_cast<int64_t>(config.dspark_target_layer_ids.size()) * config.hidden_size; }
  // While drafting is paused: a ring for the taps of every sequence, filled by the step; after the pause: the draft keys of
  // the tokens processed meanwhile.
  Status EnsureTapRings(std::span<const Piece> pieces);
  void KeepTaps(std::span<const Piece> pieces);
  Status CatchUpDraftContext(Sequence& sequence);

  Status EnsureDraftBuffers(int64_t sequences, int64_t num_drafts);
  // The block pass of all chunks, then one draft after the other. Leaves tokens [num_drafts + 1, chunks] and logits
  // [chunks, num_drafts, V] in the workspace. `base_logits`: the logits before the bias, if wanted.
  Status RunDraftBlock(std::span<const DraftChunk> chunks, int num_drafts, DraftChooser* chooser, TraceSink* sink,
                       std::vector<float>* base_logits);
  Result<DraftResult> RunDraft(Sequence& sequence, int32_t next_token, bool want_logits, TraceSink* sink);
};

}  // namespace deepinfer::model
