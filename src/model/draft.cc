// SPDX-License-Identifier: Apache-2.0
//
// The draft head (dspark.md 1-4 of the specification): context keys from the taps of the backbone, one bidirectional block
// pass through the stages, then one token after another with the Markov bias.
#include <algorithm>

#include <fmt/format.h>

#include "model/model_impl.h"

namespace deepinfer::model {

using device::Act;
using device::InputKind;

void Model::Impl::StoreDraftContext(const device::Step& tail, Act taps, const float* rope, Tracer& tracer) {
  const int64_t n = tail.num_rows, h = config.hidden_size, d = config.head_dim;
  const int stages = config.num_draft_stages;
  const int64_t width = static_cast<int64_t>(config.dspark_target_layer_ids.size()) * h;
  const Act main = ActOf(ws.main, h), raw = ActOf(ws.context_raw, stages * d), keys = ActOf(ws.context_keys, d);
  device->Prepare(arithmetic, taps, n, width, InputKind::kQuantized, *quantized);
  device->MatMul(arithmetic, *weights.main_proj, *quantized, main);
  device->RmsNorm(arithmetic, main, weights.main_norm.as<float>(), n, h, config.rms_norm_eps, main);
  if (tracer.is_on()) tracer.Act("draft.main", main, {n, h});
  device->Prepare(arithmetic, main, n, h, InputKind::kQuantized, *quantized);
  device->MatMul(arithmetic, *weights.context_keys, *quantized, raw);
  for (int i = 0; i < stages; ++i) {
    device->WindowKeys(arithmetic, raw.Columns(i * d), weights.stages[static_cast<size_t>(i)].kv_norm.as<float>(),
                       config.rms_norm_eps, n, config.head_dim, config.qk_rope_head_dim, rope, keys);
    device->StoreWindow(tail, layout.rings[static_cast<size_t>(config.num_hidden_layers + i)], config.head_dim, keys);
  }
}

void Model::Impl::StoreDraftTail(Tracer& tracer) {
  const int64_t h = config.hidden_size, t = step.num_rows;
  const int64_t width = static_cast<int64_t>(config.dspark_target_layer_ids.size()) * h;
  const Act taps = ActOf(ws.taps, width);
  if (tracer.is_on()) tracer.Act("draft_taps", taps, {t, width});
  const int ring_rows = layout.rings.back().rows;
  const bool is_whole = std::all_of(host_sequences.begin(), host_sequences.end(),
                                    [&](const device::SequenceRows& r) { return r.num_rows <= ring_rows; });
  if (is_whole) {
    StoreDraftContext(step, taps, ws.rope_plain.as<float>(), tracer);
    return;
  }
  // Only the last ring_rows rows of a sequence survive in its ring: project those.
  std::vector<device::SequenceRows> tails;
  std::vector<int32_t> rows;
  for (const device::SequenceRows& r : host_sequences) {
    device::SequenceRows tail = r;
    tail.row_begin = static_cast<int32_t>(rows.size());
    tail.num_rows = std::min(r.num_rows, ring_rows);
    tail.start = r.start + r.num_rows - tail.num_rows;
    for (int i = r.num_rows - tail.num_rows; i < r.num_rows; ++i) rows.push_back(r.row_begin + i);
    tails.push_back(tail);
  }
  const int64_t n = static_cast<int64_t>(rows.size());
  device->Upload(ws.head_rows.data(), rows.data(), n * 4);
  device->Upload(ws.tail_sequences.data(), tails.data(), static_cast<int64_t>(tails.size() * sizeof(device::SequenceRows)));
  const Act tail_taps = ActOf(ws.tail_taps, width);
  device->CopyRows(taps, ws.head_rows.as<int32_t>(), n, width, tail_taps);
  device->CopyFloatRows(ws.rope_plain.as<float>(), ws.head_rows.as<int32_t>(), n, config.qk_rope_head_dim, ws.tail_rope.as<float>());
  device::Step tail;
  tail.num_rows = static_cast<int32_t>(n);
  tail.num_sequences = static_cast<int32_t>(tails.size());
  tail.sequences = ws.tail_sequences.as<device::SequenceRows>();
  StoreDraftContext(tail, tail_taps, ws.tail_rope.as<float>(), tracer);
}

Status Model::Impl::EnsureTapRings(std::span<const Piece> pieces) {
  const int64_t bytes = layout.rings.back().rows * tap_width() * device->activation_bytes();
  for (const Piece& piece : pieces) {
    if (piece.sequence->taps_.bytes() >= bytes) continue;
    DI_ASSIGN_OR_RETURN(piece.sequence->taps_, device->Allocate(bytes));
  }
  return Status::Ok();
}

void Model::Impl::KeepTaps(std::span<const Piece> pieces) {
  const int64_t ring_rows = layout.rings.back().rows, row_bytes = tap_width() * device->activation_bytes();
  const uint8_t* const taps = static_cast<const uint8_t*>(ActOf(ws.taps, tap_width()).data);
  for (size_t s = 0; s < pieces.size(); ++s) {
    // Of the step behind decoder replay: the rows that went through the consumer half.
    const device::SequenceRows& r = host_sequences[s];
    if (r.num_rows == 0) continue;
    Sequence& sequence = *pieces[s].sequence;
    if (sequence.stale_from_ < 0) sequence.stale_from_ = r.start;
    const int64_t end = r.start + r.num_rows;
    for (int64_t p = std::max<int64_t>(r.start, end - ring_rows); p < end;) {
      const int64_t n = std::min(end - p, ring_rows - p % ring_rows);
      device->Copy(sequence.taps_.as<uint8_t>() + p % ring_rows * row_bytes, taps + (r.row_begin + p - r.start) * row_bytes,
                      n * row_bytes);
      p += n;
    }
  }
}

Status Model::Impl::CatchUpDraftContext(Sequence& sequence) {
  if (sequence.stale_from_ < 0) return Status::Ok();
  const int64_t ring_rows = layout.rings.back().rows, row_bytes = tap_width() * device->activation_bytes();
  const int64_t end = sequence.length(), begin = std::max(sequence.stale_from_, end - ring_rows), n = end - begin;
  sequence.stale_from_ = -1;
  if (n <= 0) return Status::Ok();
  DI_RETURN_IF_ERROR(EnsureWorkspace(n, 1));
  const Act taps = ActOf(ws.tail_taps, tap_width());
  std::vector<int32_t> positions;
  for (int64_t p = begin; p < end; ++p) {
    positions.push_back(static_cast<int32_t>(p));
    device->Copy(taps.Rows(p - begin).data, sequence.taps_.as<uint8_t>() + p % ring_rows * row_bytes, row_bytes);
  }
  device->Upload(ws.positions.data(), positions.data(), n * 4);
  device->RopeTable(ws.positions.as<int32_t>(), n, inverse_plain.as<float>(), config.qk_rope_head_dim, ws.tail_rope.as<float>());
  device::SequenceRows rows;
  rows.num_rows = static_cast<int32_t>(n);
  rows.start = static_cast<int32_t>(begin);
  rows.state = sequence.state_.as<uint8_t>();
  rows.block_table = sequence.block_table_.as<int32_t>();
  device->Upload(ws.tail_sequences.data(), &rows, sizeof(rows));
  device::Step tail;
  tail.num_rows = rows.num_rows;
  tail.num_sequences = 1;
  tail.sequences = ws.tail_sequences.as<device::SequenceRows>();
  Tracer tracer(nullptr, *device);
  StoreDraftContext(tail, taps, ws.tail_rope.as<float>(), tracer);
  return Status::Ok();
}

void Model::PauseDrafts(bool is_paused) { impl_->drafts_paused = is_paused; }

Status Model::Impl::EnsureDraftBuffers(int64_t sequences, int64_t num_drafts) {
  const int64_t v = config.vocab_size, cat = config.hidden_size + config.dspark_markov_rank;
  const int64_t drafts = sequences * num_drafts, rows = sequences * config.dspark_block_size;
  const auto make = [&](device::Buffer& buffer, int64_t bytes) -> Status {
    if (buffer.bytes() >= bytes) return Status::Ok();
    buffer = device::Buffer();
    DI_ASSIGN_OR_RETURN(buffer, device->Allocate(bytes));
    return Status::Ok();
  };
  DI_RETURN_IF_ERROR(make(ws.draft_logits, drafts * v * 4));
  DI_RETURN_IF_ERROR(make(ws.draft_bias, sequences * v * 4));
  DI_RETURN_IF_ERROR(make(ws.draft_cat, rows * cat * device->activation_bytes()));
  DI_RETURN_IF_ERROR(make(ws.draft_tokens, (drafts + sequences) * 4));
  return make(ws.draft_confidence, rows * 4);
}

Status Model::Impl::RunDraftBlock(std::span<const DraftChunk> chunks, int num_drafts, DraftChooser* chooser, TraceSink* sink,
                                  std::vector<float>* base_logits) {
  const int64_t block = config.dspark_block_size, h = config.hidden_size, m = config.hc_mult, v = config.vocab_size;
  const int64_t rank = config.dspark_markov_rank, n = static_cast<int64_t>(chunks.size()), drafts = num_drafts;
  DI_RETURN_IF_ERROR(EnsureDraftBuffers(n, drafts));
  for (const DraftChunk& chunk : chunks) DI_RETURN_IF_ERROR(CatchUpDraftContext(*chunk.sequence));
  draft_ids.assign(static_cast<size_t>(n * block), config.dspark_noise_token_id);
  draft_host_tokens.resize(static_cast<size_t>(n));
  draft_pieces.clear();
  for (int64_t s = 0; s < n; ++s) {
    draft_host_tokens[static_cast<size_t>(s)] = draft_ids[static_cast<size_t>(s * block)] = chunks[static_cast<size_t>(s)].next_token;
    Piece& piece = draft_pieces.emplace_back();
    piece.sequence = chunks[static_cast<size_t>(s)].sequence;
    piece.ids = std::span<const int32_t>(draft_ids).subspan(static_cast<size_t>(s * block), static_cast<size_t>(block));
  }
  step_repeats = false;
  DI_RETURN_IF_ERROR(BeginStep(draft_pieces, true));
  StepTables(true);
  Tracer tracer(sink, *device);
  const int64_t rows = n * block;

  const Act trunk = ActOf(ws.trunk, m * h);
  device->Embed(arithmetic, *weights.embed, ws.ids.as<int32_t>(), nullptr, nullptr, rows, config.hc_mult, h, trunk);
  const float* pre = ws.one_hot.as<float>();
  for (int i = 0; i < config.num_draft_stages; ++i)
    pre = RunLayer(weights.stages[static_cast<size_t>(i)], config.num_hidden_layers + i, true, pre, tracer);
  DI_RETURN_IF_ERROR(device->TakeError());

  // [collapsed stream | Markov embedding of the token before] feeds the confidence head.
  const Act cat = ActOf(ws.draft_cat, h + rank);
  Act x = ActOf(ws.x, h);
  device->CollapseNorm(arithmetic, trunk, pre, rows, config.hc_mult, h, weights.draft_norm.as<float>(), config.rms_norm_eps, cat, x);
  if (drafts < block) {
    // The block always has all its rows; only the first ones become drafts.
    host_head_rows.clear();
    for (int64_t i = 0; i < n * drafts; ++i) host_head_rows.push_back(static_cast<int32_t>(i / drafts * block + i % drafts));
    device->Upload(ws.head_rows.data(), host_head_rows.data(), n * drafts * 4);
    device->CopyRows(x, ws.head_rows.as<int32_t>(), n * drafts, h, x);
  }
  device->Prepare(arithmetic, x, n * drafts, h, InputKind::kPlain, *plain);
  float* logits_out = ws.draft_logits.as<float>();
  device->MatMulFloat(*weights.head, *plain, logits_out, v);
  tracer.Floats("draft.base_logits", logits_out, {n * drafts, v});
  if (base_logits != nullptr) {
    base_logits->resize(static_cast<size_t>(n * drafts * v));
    device->Download(base_logits->data(), logits_out, n * drafts * v * 4);
  }

  int32_t* tokens = ws.draft_tokens.as<int32_t>();
  float* bias = ws.draft_bias.as<float>();
  device->Upload(tokens, draft_host_tokens.data(), n * 4);
  const int64_t stride = drafts * v;
  draft_masks.clear();
  const bool takes_best = chooser == nullptr || (!device->has_host_memory() && chooser->TakesBest(draft_masks));
  device::RowBestArgs best{.x = nullptr, .rows = n, .width = v, .stride = stride, .inverse_temperature = 1, .host_masks = {}};
  if (std::any_of(draft_masks.begin(), draft_masks.end(), [](const auto* mask) { return mask != nullptr; })) {
    best_masks.clear();
    for (const std::vector<uint32_t>* mask : draft_masks) {
      DI_ASSIGN_OR_RETURN(const uint32_t* copy, DeviceMask(mask));
      best_masks.push_back(copy);
    }
    best.host_masks = best_masks;
  }
  for (int64_t j = 0; j < drafts; ++j) {
    // Row j of every block.
    const Act embed = Act{cat.Rows(j).Columns(h).data, block * (h + rank), cat.value_bytes};
    device->GatherRows(arithmetic, *weights.markov_embed, tokens + j * n, n, 1, rank, embed);
    device->Prepare(arithmetic, embed, n, rank, InputKind::kPlain, *low);
    device->MatMulFloat(*weights.markov_head, *low, bias, v);
    device->AddFloats(bias, n, v, v, logits_out + j * v, stride);
    if (takes_best) {
      best.x = logits_out + j * v;
      device->ArgMax(best, tokens + (j + 1) * n, 1);
      continue;
    }
    if (device->has_host_memory()) {
      chooser->Choose(static_cast<int>(j), logits_out + j * v, stride, draft_host_tokens);
    } else {
      draft_host_logits.resize(static_cast<size_t>(n * v));
      for (int64_t s = 0; s < n; ++s)
        device->Download(draft_host_logits.data() + s * v, logits_out + s * stride + j * v, v * 4);
      chooser->Choose(static_cast<int>(j), draft_host_logits.data(), v, draft_host_tokens);
    }
    device->Upload(tokens + (j + 1) * n, draft_host_tokens.data(), n * 4);
  }
  device->Prepare(arithmetic, cat, rows, h + rank, InputKind::kPlain, *plain);
  device->MatMulFloat(*weights.confidence, *plain, ws.draft_confidence.as<float>(), 1);
  return Status::Ok();
}

Result<DraftResult> Model::Impl::RunDraft(Sequence& sequence, int32_t next_token, bool want_logits, TraceSink* sink) {
  const int64_t block = config.dspark_block_size, v = config.vocab_size;
  const DraftChunk chunk{&sequence, next_token};
  DraftResult result;
  DI_RETURN_IF_ERROR(RunDraftBlock({&chunk, 1}, config.dspark_block_size, nullptr, sink, want_logits ? &result.base_logits : nullptr));
  result.tokens.resize(static_cast<size_t>(block + 1));
  device->Download(result.tokens.data(), ws.draft_tokens.data(), (block + 1) * 4);
  result.confidence_logits.resize(static_cast<size_t>(block));
  device->Download(result.confidence_logits.data(), ws.draft_confidence.data(), block * 4);
  if (want_logits) {
    result.logits.resize(static_cast<size_t>(block * v));
    device->Download(result.logits.data(), ws.draft_logits.data(), block * v * 4);
  }
  return result;
}

Status Model::DraftBatch(std::span<const DraftChunk> chunks, int num_drafts, DraftChooser* chooser, std::span<int32_t> tokens,
                         std::span<float> confidence_logits) {
  Impl& impl = *impl_;
  const int block = impl.config.dspark_block_size;
  const size_t count = chunks.size() * static_cast<size_t>(std::max(num_drafts, 0));
  if (!impl.has_draft) return InvalidArgument("the model has no draft head loaded");
  if (num_drafts < 1 || num_drafts > block)
    return InvalidArgument(fmt::format("{} drafts asked for but the draft head makes 1 to {}", num_drafts, block), "num_drafts");
  if (tokens.size() < count || confidence_logits.size() < count) return InvalidArgument("the outputs of a draft pass are too small");
  if (chunks.empty()) return Status::Ok();
  for (const DraftChunk& chunk : chunks) {
    if (chunk.sequence == nullptr || chunk.sequence->length() == 0)
      return InvalidArgument("drafting needs at least one processed token");
    if (chunk.next_token < 0 || chunk.next_token >= impl.config.vocab_size)
      return InvalidArgument(fmt::format("token id {} is outside the vocabulary of {}", chunk.next_token, impl.config.vocab_size));
  }
  DI_RETURN_IF_ERROR(impl.RunDraftBlock(chunks, num_drafts, chooser, nullptr, nullptr));
  // On the device: tokens by position, confidences by block row.
  const size_t n = chunks.size(), drafts = static_cast<size_t>(num_drafts), rows = static_cast<size_t>(block);
  impl.draft_ids.resize(n * (drafts + 1));
  impl.device->Download(impl.draft_ids.data(), impl.ws.draft_tokens.data(), static_cast<int64_t>(n * (drafts + 1) * 4));
  impl.draft_host_logits.resize(std::max(impl.draft_host_logits.size(), n * rows));
  impl.device->Download(impl.draft_host_logits.data(), impl.ws.draft_confidence.data(), static_cast<int64_t>(n * rows * 4));
  for (size_t s = 0; s < n; ++s) {
    for (size_t j = 0; j < drafts; ++j) {
      tokens[s * drafts + j] = impl.draft_ids[(j + 1) * n + s];
      confidence_logits[s * drafts + j] = impl.draft_host_logits[s * rows + j];
    }
  }
  return Status::Ok();
}

Result<DraftResult> Model::Draft(Sequence& sequence, int32_t next_token, bool want_logits) {
  Impl& impl = *impl_;
  if (!impl.has_draft) return InvalidArgument("the model has no draft head loaded");
  if (sequence.length() == 0) return InvalidArgument("drafting needs at least one processed token");
  if (next_token < 0 || next_token >= impl.config.vocab_size)
    return InvalidArgument(fmt::format("token id {} is outside the vocabulary of {}", next_token, impl.config.vocab_size));
  return impl.RunDraft(sequence, next_token, want_logits, nullptr);
}

Result<DraftResult> Model::DraftFromTaps(std::span<const float> taps, int64_t num_positions, int32_t next_token,
                                         bool want_logits, TraceSink* trace) {
  Impl& impl = *impl_;
  if (!impl.has_draft) return InvalidArgument("the model has no draft head loaded");
  const int64_t width = static_cast<int64_t>(impl.config.dspark_target_layer_ids.size()) * impl.config.hidden_size;
  if (num_positions < 1 || static_cast<int64_t>(taps.size()) < num_positions * width)
    return InvalidArgument(fmt::format("{} values are no taps of {} positions", taps.size(), num_positions));
  if (next_token < 0 || next_token >= impl.config.vocab_size)
    return InvalidArgument(fmt::format("token id {} is outside the vocabulary of {}", next_token, impl.config.vocab_size));
  DI_ASSIGN_OR_RETURN(auto sequence, NewSequence());
  // A stand-in sequence that only has draft keys.
  const int64_t n = std::min<int64_t>(num_positions, impl.config.sliding_window);
  const std::vector<int32_t> ids(static_cast<size_t>(n), 0);
  sequence->ids_.assign(static_cast<size_t>(num_positions - n), 0);
  Piece piece;
  piece.sequence = sequence.get();
  piece.ids = ids;
  impl.step_repeats = false;
  DI_RETURN_IF_ERROR(impl.BeginStep({&piece, 1}, true));
  impl.StepTables(true);
  const Act device_taps = impl.ActOf(impl.ws.taps, width);
  impl.device->WriteAct(device_taps, n, width, taps.data() + (num_positions - n) * width);
  Tracer tracer(trace, *impl.device);
  impl.StoreDraftContext(impl.step, device_taps, impl.ws.rope_plain.as<float>(), tracer);
  sequence->ids_.assign(static_cast<size_t>(num_positions), 0);
  return impl.RunDraft(*sequence, next_token, want_logits, trace);
}

}  // namespace deepinfer::model
