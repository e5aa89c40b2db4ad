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

Status Model::Impl::EnsureDraftBuffers(int64_t rows) {
  const int64_t v = config.vocab_size, cat = config.hidden_size + config.dspark_markov_rank;
  if (ws.draft_logits.bytes() >= rows * v * 4) return Status::Ok();
  DI_ASSIGN_OR_RETURN(ws.draft_logits, device->Allocate(rows * v * 4));
  DI_ASSIGN_OR_RETURN(ws.draft_bias, device->Allocate(v * 4));
  DI_ASSIGN_OR_RETURN(ws.draft_cat, device->Allocate(rows * cat * device->activation_bytes()));
  DI_ASSIGN_OR_RETURN(ws.draft_tokens, device->Allocate((rows + 1) * 4));
  DI_ASSIGN_OR_RETURN(ws.draft_confidence, device->Allocate(rows * 4));
  return Status::Ok();
}

Result<DraftResult> Model::Impl::RunDraft(Sequence& sequence, int32_t next_token, bool want_logits, TraceSink* sink) {
  const int64_t block = config.dspark_block_size, h = config.hidden_size, m = config.hc_mult, v = config.vocab_size;
  const int64_t rank = config.dspark_markov_rank;
  DI_RETURN_IF_ERROR(EnsureDraftBuffers(block));
  draft_ids.assign(static_cast<size_t>(block), config.dspark_noise_token_id);
  draft_ids[0] = next_token;
  Piece piece;
  piece.sequence = &sequence;
  piece.ids = draft_ids;
  DI_RETURN_IF_ERROR(BeginStep({&piece, 1}, true));
  Tracer tracer(sink, *device);

  const Act trunk = ActOf(ws.trunk, m * h);
  device->Embed(arithmetic, *weights.embed, ws.ids.as<int32_t>(), nullptr, nullptr, block, config.hc_mult, h, trunk);
  const float* pre = ws.one_hot.as<float>();
  for (int i = 0; i < config.num_draft_stages; ++i)
    pre = RunLayer(weights.stages[static_cast<size_t>(i)], config.num_hidden_layers + i, true, pre, tracer);

  // [collapsed stream | Markov embedding of the token before] feeds the confidence head.
  const Act cat = ActOf(ws.draft_cat, h + rank), x = ActOf(ws.x, h);
  device->CollapseNorm(arithmetic, trunk, pre, block, config.hc_mult, h, weights.draft_norm.as<float>(), config.rms_norm_eps, cat, x);
  device->Prepare(arithmetic, x, block, h, InputKind::kPlain, *plain);
  float* draft_logits = ws.draft_logits.as<float>();
  device->MatMulFloat(*weights.head, *plain, draft_logits, v);
  tracer.Floats("draft.base_logits", draft_logits, {block, v});

  DraftResult result;
  if (want_logits) {
    result.base_logits.resize(static_cast<size_t>(block * v));
    device->Download(result.base_logits.data(), draft_logits, block * v * 4);
  }
  int32_t* tokens = ws.draft_tokens.as<int32_t>();
  device->Upload(tokens, &next_token, 4);
  for (int64_t j = 0; j < block; ++j) {
    const Act embed = cat.Columns(h).Rows(j);
    device->GatherRows(arithmetic, *weights.markov_embed, tokens + j, 1, 1, rank, embed);
    device->Prepare(arithmetic, embed, 1, rank, InputKind::kPlain, *low);
    device->MatMulFloat(*weights.markov_head, *low, ws.draft_bias.as<float>(), v);
    device->AddFloats(ws.draft_bias.as<float>(), v, draft_logits + j * v);
    device->ArgMax(draft_logits + j * v, 1, v, v, tokens + j + 1, 1);
  }
  device->Prepare(arithmetic, cat, block, h + rank, InputKind::kPlain, *plain);
  device->MatMulFloat(*weights.confidence, *plain, ws.draft_confidence.as<float>(), 1);

  result.tokens.resize(static_cast<size_t>(block + 1));
  device->Download(result.tokens.data(), tokens, (block + 1) * 4);
  result.confidence_logits.resize(static_cast<size_t>(block));
  device->Download(result.confidence_logits.data(), ws.draft_confidence.data(), block * 4);
  if (want_logits) {
    result.logits.resize(static_cast<size_t>(block * v));
    device->Download(result.logits.data(), draft_logits, block * v * 4);
  }
  return result;
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
  DI_RETURN_IF_ERROR(impl.BeginStep({&piece, 1}, true));
  const Act device_taps = impl.ActOf(impl.ws.taps, width);
  impl.device->WriteAct(device_taps, n, width, taps.data() + (num_positions - n) * width);
  Tracer tracer(trace, *impl.device);
  impl.StoreDraftContext(impl.step, device_taps, impl.ws.rope_plain.as<float>(), tracer);
  sequence->ids_.assign(static_cast<size_t>(num_positions), 0);
  return impl.RunDraft(*sequence, next_token, want_logits, trace);
}

}  // namespace deepinfer::model
