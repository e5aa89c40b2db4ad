// SPDX-License-Identifier: Apache-2.0
//
// The text model on one device: weights, and a forward pass over a batch of sequence chunks against paged caches.
// A Sequence owns the cache state of one token sequence (block table, window rings, compressor partial groups, n-gram
// history). Prefill in any chunking and decode one by one give the same numbers as one pass over the whole sequence.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/async_reader.h"
#include "core/status.h"
#include "core/threads.h"
#include "device/types.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/numerics.h"

namespace deepinfer::device {
class Device;
}

namespace deepinfer::model {

// Decoder replay (model.md 10): for prompt tokens other than the last ones the consumer half (layers from the first ratio 1
// on) only has to project its compressed keys. kCompact drops those rows there; kMask computes them and hides their window
// keys (same numbers on the rows that count, for tests); kOff computes everything.
enum class EngramIo { kMmap, kRead, kDirect };

enum class DecoderReplay { kOff, kMask, kCompact };

struct LoadOptions {
  Numerics numerics = Numerics::kRelease;
  bool with_draft = true;
  int64_t max_model_len = 0;         // 0 = the configuration's max_position_embeddings
  // Tokens the paged cache can hold over all sequences; 0 = grows on demand up to max_model_len per sequence.
  int64_t cache_tokens = 0;
  bool use_fp4_sparse_kv = true;     // false: MXFP8 compressed KV
  DecoderReplay decoder_replay = DecoderReplay::kOff;
  int64_t replay_keep_tokens = 0;    // prompt tokens that run through all layers; 0 = W + max_backtracking + 6
  int64_t max_step_rows = 0;         // rows of one internal step (longer chunks are split); 0 = the built-in choice
  // How rows of the n-gram tables are read: through the mapping of their files, by batched reads, or by batched reads past the
  // page cache. The latter two need `reader`.
  EngramIo engram_io = EngramIo::kMmap;
  std::shared_ptr<AsyncReader> reader;
  std::vector<int32_t> compressed_vocab;  // Engram token map, from text::Tokenizer::BuildCompressedVocab().map
  // (bytes done, bytes total); called from the loading thread.
  std::function<void(int64_t, int64_t)> progress;
};

// Receives named float tensors during a forward pass (names of golden/model). Null when not tracing. `inject` may replace
// a value before it is used: returns true when it wrote `data`.
struct TraceSink {
  std::function<void(const std::string& name, std::span<const int64_t> shape, const float* data)> on_float;
  std::function<void(const std::string& name, std::span<const int64_t> shape, const int32_t* data)> on_int;
  std::function<bool(const std::string& name, std::span<const int64_t> shape, float* data)> inject;
};

class Sequence;    // model/sequence.h
class StageClock;  // model/stage_clock.h

// Of the logits just what a greedy choice needs (Model::bests), where the device finds it; they are not downloaded then.
struct GreedyRow {
  bool is_greedy = false;
  float inverse_temperature = 1;  // the same in all chunks of a call
  // Host, a bit a token, clear = left out; null = none. One of few that live as long as the model.
  const std::vector<uint32_t>* mask = nullptr;
};

// One sequence's share of a step: `ids` are appended at the sequence's current length.
struct SequenceChunk {
  Sequence* sequence = nullptr;
  std::span<const int32_t> ids;
  bool all_logits = false;  // logits of every row, else of the last row only
  bool no_logits = false;   // none (a chunk in the middle of a prompt)
  GreedyRow greedy;
  // Decoder replay: length of the whole known token sequence, of which `ids` is a part. 0 = it ends with these ids. Read at
  // the first chunk of a sequence only.
  int64_t known_length = 0;
  // Encoder replay: compressed keys of positions below it exist already and are not written.
  int64_t write_floor = 0;
  // Image rows (optional): is_image[i] != 0 replaces the embedding of row i by image_embeds + i * hidden_size.
  std::span<const uint8_t> is_image = {};
  const float* image_embeds = nullptr;
};

// One sequence's share of a batched draft pass: drafts follow `next_token`, the token behind the sequence's last one.
struct DraftChunk {
  Sequence* sequence = nullptr;
  int32_t next_token = 0;
};

// Draws the drafts of a batched pass, one position after the other.
class DraftChooser {
 public:
  virtual ~DraftChooser() = default;
  // `logits` [tokens.size(), vocab_size] as rows `stride` floats apart: draft `position` (0-based) of every chunk, the bias
  // of the tokens before it included. May change the rows. tokens[i] := the draft of chunk i.
  virtual void Choose(int position, float* logits, int64_t stride, std::span<int32_t> tokens) = 0;
  // True: Choose would take the best token that each chunk's mask leaves (a bit a token; null: all), so the pass may do that by
  // itself. Masks as in GreedyRow.
  virtual bool TakesBest(std::vector<const std::vector<uint32_t>*>& masks) const {
    (void)masks;
    return false;
  }
};

struct DraftResult {
  std::vector<int32_t> tokens;             // the given token, then the drafts
  std::vector<float> confidence_logits;    // one per draft
  std::vector<float> base_logits;          // [block, V], before the Markov bias; filled on request
  std::vector<float> logits;               // [block, V], with the bias of the tokens drafted; filled on request
};

class Model {
 public:
  static Result<std::unique_ptr<Model>> Load(std::shared_ptr<const Checkpoint> checkpoint, const ModelConfig& config,
                                             std::shared_ptr<device::Device> device, LoadOptions options);
  ~Model();

  const ModelConfig& config() const;
  Numerics numerics() const;
  int64_t max_model_len() const;
  bool has_draft_head() const;
  // Prompt tokens that run through all layers; 0 = all of them (decoder replay is off).
  int64_t decoder_keep() const;

  Result<std::unique_ptr<Sequence>> NewSequence();

  // For a scheduler that manages blocks itself: sequences whose blocks are set from outside, and blocks for them.
  Result<std::unique_ptr<Sequence>> NewSlot();
  Result<std::vector<int32_t>> TakeBlocks(int64_t count);
  void ReturnBlocks(std::span<const int32_t> blocks);
  void CopyBlock(int32_t from, int32_t to);
  device::Device& device();

  // Runs the chunks of several sequences in one step. logits: rows of all chunks in order, [rows, V] float32; the span is
  // valid until the next call. Errors: kResourceExhausted (cache full, context exceeded).
  Result<std::span<const float>> Forward(std::span<const SequenceChunk> chunks, TraceSink* trace = nullptr);
  // Of the newest call: by logit row, when a chunk was greedy and the device finds it; empty otherwise, all logits are there
  // then. Logits of greedy rows are not.
  std::span<const device::RowBest> bests() const;

  // Drafts greedily after `next_token` (at position = sequence length), from the taps of the tokens processed so far.
  // `taps` (optional, [length, targets * H]) replaces the sequence's own context: used to compare with golden data.
  Result<DraftResult> Draft(Sequence& sequence, int32_t next_token, bool want_logits = false);
  Result<DraftResult> DraftFromTaps(std::span<const float> taps, int64_t num_positions, int32_t next_token, bool want_logits,
                                    TraceSink* trace = nullptr);

  // Drafts `num_drafts` tokens (at most the configured block) for several sequences together, the same as for each alone.
  // Null chooser: the most likely token. tokens, confidence_logits [chunks, num_drafts].
  Status DraftBatch(std::span<const DraftChunk> chunks, int num_drafts, DraftChooser* chooser, std::span<int32_t> tokens,
                    std::span<float> confidence_logits);

  // While paused, forward passes do not project draft keys: the taps of the newest tokens are kept instead. The first pass
  // or draft after the pause makes up for it; drafts are bitwise those without a pause.
  void PauseDrafts(bool is_paused);

  // Measures the stages of the steps from here on; null ends it. The clock must outlive its use.
  void SetStageClock(StageClock* clock);

 private:
  Model();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::model
