// SPDX-License-Identifier: Apache-2.0
//
// The forward pass of the backbone (model.md of the specification, section by section).
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "model/model_impl.h"

namespace deepinfer::model {

using device::Act;
using device::InputKind;

namespace {

int64_t Bytes32(int64_t n) { return n * 4; }

// Steps with more rows want so many experts of the next layer that a guess is of no use.
constexpr int64_t kMaxGuessRows = 4;

// Repeated steps: decode and verification, whose ops are too short for a launch each.
constexpr int64_t kMaxRepeatRows = 512;
constexpr size_t kMaxRepeatRowsPerSequence = 8;

}  // namespace

device::HyperConnectionSite Model::Impl::Site(const SiteWeights& site) const {
  device::HyperConnectionSite s;
  s.fn = site.fn.get();
  s.base = site.base.as<float>();
  s.scale = site.scale.as<float>();
  s.streams = config.hc_mult;
  s.hidden = config.hidden_size;
  s.sinkhorn_iters = config.hc_sinkhorn_iters;
  s.norm_eps = config.rms_norm_eps;
  s.eps = config.hc_eps;
  return s;
}

// ---- metadata of a step -----------------------------------------------------------------------------------------------

Status Model::Impl::BeginStep(std::span<const Piece> pieces, bool is_draft) {
  int64_t rows = 0;
  for (const Piece& piece : pieces) rows += static_cast<int64_t>(piece.ids.size());
  DI_RETURN_IF_ERROR(EnsureWorkspace(rows, static_cast<int64_t>(pieces.size())));

  host_ids.clear();
  host_positions.clear();
  host_row_sequence.clear();
  host_image_row.clear();
  host_is_image.clear();
  host_image_embeds.clear();
  host_sequences.clear();
  for (auto& list : ws.groups) list.host.clear();
  step_has_images = false;
  std::fill(std::begin(step_groups), std::end(step_groups), 0);
  const int64_t h = config.hidden_size;

  for (size_t s = 0; s < pieces.size(); ++s) {
    const Piece& piece = pieces[s];
    const Sequence& sequence = *piece.sequence;
    device::SequenceRows r;
    r.row_begin = static_cast<int32_t>(host_ids.size());
    r.num_rows = static_cast<int32_t>(piece.ids.size());
    r.start = static_cast<int32_t>(sequence.length());
    r.state = sequence.state_.as<uint8_t>();
    r.block_table = sequence.block_table_.as<int32_t>();
    // The producer half sees whole windows; draft keys exist only for rows that ran through the consumer half.
    r.window_floor = static_cast<int32_t>(is_draft ? sequence.window_floor_ : sequence.valid_start_);
    host_sequences.push_back(r);
    for (int32_t i = 0; i < r.num_rows; ++i) {
      const bool is_image = !piece.is_image.empty() && piece.is_image[static_cast<size_t>(i)] != 0;
      host_ids.push_back(piece.ids[static_cast<size_t>(i)]);
      host_positions.push_back(r.start + i);
      host_row_sequence.push_back(static_cast<int32_t>(s));
      host_is_image.push_back(is_image ? 1 : 0);
      host_image_row.push_back(-1);
      if (!is_image) continue;
      step_has_images = true;
      if (piece.image_embeds != nullptr) {
        host_image_row.back() = static_cast<int32_t>(host_image_embeds.size() / static_cast<size_t>(h));
        host_image_embeds.insert(host_image_embeds.end(), piece.image_embeds + i * h, piece.image_embeds + (i + 1) * h);
      }
    }
    if (is_draft) continue;
    for (int ratio = 1; ratio <= 2; ++ratio) {
      const int entries = kBlockTokens / ratio;
      const int32_t end = (r.start + r.num_rows) / ratio;
      step_groups[ratio] = std::max<int64_t>(step_groups[ratio], end);
      for (int32_t g = r.start / ratio; g < end; ++g) {
        // A group is written if its last token is at or above the floor.
        if ((g + 1) * ratio - 1 < piece.write_floor) continue;
        device::NewGroup group;
        group.last_row = r.row_begin + (g + 1) * ratio - 1 - r.start;
        group.sequence = static_cast<int32_t>(s);
        group.position = g * ratio;
        group.block = sequence.blocks_[static_cast<size_t>(g / entries)];
        group.entry = g % entries;
        ws.groups[ratio].host.push_back(group);
      }
    }
  }
  if (!is_draft) {
    consumer_sequences = host_sequences;
    for (size_t s = 0; s < pieces.size(); ++s) consumer_sequences[s].window_floor = static_cast<int32_t>(pieces[s].sequence->window_floor_);
  }
  if (step_repeats) {
    // The number of groups follows from the number of rows: the rest goes to the block that nobody reads.
    size_t most = 0;
    for (const Piece& piece : pieces) most += (piece.ids.size() + 1) / 2;
    ws.groups[2].host.resize(most);
    for (int64_t& groups : step_groups) groups = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(groups)));
  }

  device->Upload(ws.ids.data(), host_ids.data(), Bytes32(rows));
  device->Upload(ws.positions.data(), host_positions.data(), Bytes32(rows));
  device->Upload(ws.row_sequence.data(), host_row_sequence.data(), Bytes32(rows));
  const int64_t sequence_bytes = static_cast<int64_t>(host_sequences.size() * sizeof(device::SequenceRows));
  device->Upload(ws.sequence_rows.data(), host_sequences.data(), sequence_bytes);
  if (!is_draft) device->Upload(ws.sequence_rows.as<uint8_t>() + sequence_bytes, consumer_sequences.data(), sequence_bytes);
  if (step_has_images) {
    device->Upload(ws.is_image.data(), host_is_image.data(), rows);
    device->Upload(ws.image_row.data(), host_image_row.data(), Bytes32(rows));
    const int64_t bytes = static_cast<int64_t>(host_image_embeds.size() * sizeof(float));
    if (image_embeds.bytes() < bytes) {
      image_embeds = device::Buffer();
      DI_ASSIGN_OR_RETURN(image_embeds, device->Allocate(bytes));
    }
    device->Upload(image_embeds.data(), host_image_embeds.data(), bytes);
  }
  step.num_rows = static_cast<int32_t>(rows);
  step.num_sequences = static_cast<int32_t>(pieces.size());
  step.sequences = ws.sequence_rows.as<device::SequenceRows>();
  step.positions = ws.positions.as<int32_t>();
  step.row_sequence = ws.row_sequence.as<int32_t>();

  if (is_draft) return Status::Ok();
  for (int ratio = 1; ratio <= 2; ++ratio) {
    GroupList& list = ws.groups[ratio];
    list.count = static_cast<int64_t>(list.host.size());
    device->Upload(list.groups.data(), list.host.data(), list.count * static_cast<int64_t>(sizeof(device::NewGroup)));
    host_group_positions.clear();
    for (const auto& group : list.host) host_group_positions.push_back(group.position);
    device->Upload(list.positions.data(), host_group_positions.data(), Bytes32(list.count));
  }
  return Status::Ok();
}

void Model::Impl::StepTables(bool is_draft) {
  const int rd = config.qk_rope_head_dim;
  device->RopeTable(step.positions, step.num_rows, inverse_plain.as<float>(), rd, ws.rope_plain.as<float>());
  if (is_draft) return;
  device->RopeTable(step.positions, step.num_rows, inverse_yarn.as<float>(), rd, ws.rope_yarn.as<float>());
  for (int ratio = 1; ratio <= 2; ++ratio) {
    const GroupList& list = ws.groups[ratio];
    device->RopeTable(list.positions.as<int32_t>(), list.count, inverse_yarn.as<float>(), rd, list.rope.as<float>());
  }
}

bool Model::Impl::CanRepeat(std::span<const Piece> pieces) const {
  if (!device->repeats_steps() || stage_clock != nullptr) return false;
  int64_t rows = 0;
  for (const Piece& piece : pieces) {
    rows += static_cast<int64_t>(piece.ids.size());
    if (piece.ids.size() > kMaxRepeatRowsPerSequence || rows > kMaxRepeatRows) return false;
    for (const uint8_t is_image : piece.is_image)
      if (is_image != 0) return false;
    // All rows run through both halves and write their groups.
    if (options.decoder_replay == DecoderReplay::kCompact && piece.sequence->window_floor_ > piece.sequence->length()) return false;
    if (piece.write_floor > piece.sequence->length()) return false;
  }
  return true;
}

// Table rows of every token's n-grams (model.md 5.1, 5.2), [table][row][column] on the device.
void Model::Impl::EngramRows(std::span<const Piece> pieces) {
  const size_t columns = static_cast<size_t>(hasher->num_columns()), tables = static_cast<size_t>(hasher->num_tables());
  const size_t rows = static_cast<size_t>(step.num_rows);
  host_engram_rows.resize(rows * tables * columns);
  size_t row = 0;
  for (const Piece& piece : pieces) {
    // The look-back into tokens that are committed already.
    const Sequence& sequence = *piece.sequence;
    EngramHistory history;
    const size_t length = sequence.ids_.size();
    const size_t back = std::min(length, static_cast<size_t>(EngramHistory::kMaxOrder - 1));
    for (size_t p = length - back; p < length; ++p) {
      const bool is_image = !sequence.is_image_.empty() && sequence.is_image_[p] != 0;
      history.Push(is_image ? -1 : hasher->Compress(sequence.ids_[p]));
    }
    hasher->Rows(piece.ids, piece.is_image, &history, host_engram_rows.data() + row * tables * columns);
    row += piece.ids.size();
  }
  host_engram.resize(host_engram_rows.size());
  for (size_t i = 0; i < rows; ++i)
    for (size_t t = 0; t < tables; ++t)
      for (size_t c = 0; c < columns; ++c)
        host_engram[(t * rows + i) * columns + c] = static_cast<int32_t>(host_engram_rows[(i * tables + t) * columns + c]);
  if (engram_reader != nullptr) {
    // Reads of all tables begin here; the layers wait for theirs.
    for (size_t t = 0; t < tables; ++t) {
      int32_t* const of_table = host_engram.data() + t * rows * columns;
      engram_reader->Begin(static_cast<int>(t), {of_table, rows * columns}, of_table);
    }
  }
  device->Upload(ws.engram_rows.data(), host_engram.data(), static_cast<int64_t>(host_engram.size() * sizeof(int32_t)));
}

// ---- attention ----------------------------------------------------------------------------------------------------------

void Model::Impl::RunCompressor(const LayerWeights& w, int layer, Tracer& tracer) {
  const int owner = layout.owner_of_layer[static_cast<size_t>(layer)];
  const device::KeyCache& cache = layout.owners[static_cast<size_t>(owner)];
  const GroupList& list = ws.groups[cache.ratio];
  const auto* groups = list.groups.as<device::NewGroup>();
  const int64_t d = config.head_dim, n = list.count;
  const float eps = config.rms_norm_eps;
  const Act latent = ActOf(ws.latent, d);
  if (cache.ratio == 2) {
    device->MatMulFloat(*w.compressor, *plain, ws.products.as<float>(), 2 * d);
    device->PoolPairs(arithmetic, step, ws.products.as<float>(), config.head_dim,
                      layout.compressor_offset[static_cast<size_t>(owner)], layout.compressor_rows, groups, n, latent);
  } else {
    device->MatMul(arithmetic, *w.compressor, *plain, latent);
  }
  if (n == 0) return;
  if (cache.ratio == 1 && n < step.num_rows) {
    // Some rows write no group: latent[i] becomes the latent of group i, as pooling leaves it for ratio 2.
    host_group_positions.clear();
    for (const auto& group : list.host) host_group_positions.push_back(group.last_row);
    device->Upload(ws.head_rows.data(), host_group_positions.data(), Bytes32(n));
    device->CopyRows(latent, ws.head_rows.as<int32_t>(), n, d, latent);
  }
  device->RmsNorm(arithmetic, latent, w.compressor_norm.as<float>(), n, d, eps, latent);
  const std::string name = tracer.is_on() ? fmt::format("layers.{}.", layer) : std::string();
  if (tracer.is_on()) tracer.Act(name + "attn.latent", latent, {n, d});
  const Act raw = ActOf(ws.index_raw, config.index_head_dim);
  device->Prepare(arithmetic, latent, n, d, InputKind::kPlain, *index_input);
  device->MatMul(arithmetic, *w.index_key, *index_input, raw);
  device->StoreIndexKeys(arithmetic, cache, raw, w.index_key_norm.as<float>(), eps, groups, n, config.qk_rope_head_dim,
                         list.rope.as<float>(), Act());
  device->StoreCompressed(arithmetic, cache, latent, groups, n, config.qk_rope_head_dim, list.rope.as<float>(), Act());
  if (tracer.is_on()) {
    // Both were rounded in place.
    tracer.Act(name + "indexer.key", raw, {n, config.index_head_dim});
    tracer.Act(name + "attn.compressed_key", latent, {n, d});
  }
}

void Model::Impl::RunSelect(const LayerWeights& w, int layer, Tracer& tracer) {
  const int64_t t = step.num_rows;
  const device::KeyCache& cache =
      layout.owners[static_cast<size_t>(layout.owner_of_layer[static_cast<size_t>(layer)])];
  const int j = config.index_n_heads, ki = config.index_head_dim;
  const Act query = ActOf(ws.index_q, int64_t{j} * ki), weight = ActOf(ws.index_w, j);
  // A row that sees at most topk groups reads them all: no scores needed then.
  const bool needs_scores = tracer.is_on() || step_groups[cache.ratio] > config.index_topk;
  const std::string name = tracer.is_on() ? fmt::format("layers.{}.indexer.", layer) : std::string();
  if (needs_scores) {
    device->MatMul(arithmetic, *w.index_query, *low, query);
    device->IndexQuery(arithmetic, query, t, j, ki, config.qk_rope_head_dim, ws.rope_yarn.as<float>());
    device->MatMul(arithmetic, *w.index_weight, *plain, weight);
    device->Scale(arithmetic, weight, t, j, static_cast<float>(1.0 / std::sqrt(static_cast<double>(ki)) / std::sqrt(static_cast<double>(j))));
    if (tracer.is_on()) {
      tracer.Act(name + "query", query, {t, j, ki});
      tracer.Act(name + "weight", weight, {t, j});
    }
  }
  device::SelectArgs args;
  args.query = query;
  args.weight = weight;
  args.heads = j;
  args.topk = config.index_topk;
  args.cache = cache;
  args.max_groups = step_groups[cache.ratio];
  args.selected = ws.selected.as<int32_t>();
  args.num_selected = ws.num_selected.as<int32_t>();
  const int source = config.candidate_source_layer_id;
  if (source >= 0 && layer >= source) {
    args.role = layer == source ? device::SelectArgs::Candidates::kProduce : device::SelectArgs::Candidates::kConsume;
    args.block_size = config.candidate_block_size;
    args.keep_blocks = config.candidate_topk_blocks;
    args.candidates = ws.candidates.as<int32_t>();
    args.num_candidates = ws.num_candidates.as<int32_t>();
  }
  const int64_t groups = step_groups[cache.ratio];
  const int64_t blocks = args.block_size > 0 ? (groups + args.block_size - 1) / args.block_size : 0;
  if (tracer.is_on() && groups > 0) {
    auto scores = device->Allocate(t * groups * 4);
    auto block_scores = device->Allocate(std::max<int64_t>(t * blocks, 1) * 4);
    if (scores.ok() && block_scores.ok()) {
      ws.trace_scores = std::move(scores).value();
      ws.trace_blocks = std::move(block_scores).value();
      args.trace_scores = ws.trace_scores.as<float>();
      if (args.role == device::SelectArgs::Candidates::kProduce) args.trace_block_scores = ws.trace_blocks.as<float>();
      args.trace_groups = groups;
    }
  }
  device->Select(step, args);
  if (!tracer.is_on() || groups == 0) return;

  if (args.trace_scores != nullptr) tracer.Floats(name + "scores", args.trace_scores, {t, groups});
  const auto download = [&](const int32_t* from, int64_t n) {
    std::vector<int32_t> host(static_cast<size_t>(n));
    device->Download(host.data(), from, Bytes32(n));
    return host;
  };
  if (args.role == device::SelectArgs::Candidates::kProduce) {
    if (args.trace_block_scores != nullptr) tracer.Floats(name + "block_scores", args.trace_block_scores, {t, blocks});
    const auto counts = download(args.num_candidates, t);
    const auto lists = download(args.candidates, t * args.keep_blocks);
    std::vector<int32_t> marks(static_cast<size_t>(t * groups), 0);
    for (int64_t i = 0; i < t; ++i) {
      const int64_t visible = (host_positions[static_cast<size_t>(i)] + 1) / cache.ratio;
      const int64_t all = (visible + args.block_size - 1) / args.block_size;
      const int32_t count = counts[static_cast<size_t>(i)];
      for (int64_t c = 0; c < (count < 0 ? all : count); ++c) {
        const int64_t block = count < 0 ? c : lists[static_cast<size_t>(i * args.keep_blocks + c)];
        for (int64_t g = block * args.block_size; g < std::min((block + 1) * args.block_size, groups); ++g)
          marks[static_cast<size_t>(i * groups + g)] = 1;
      }
    }
    tracer.HostInts(name + "candidates", marks, {t, groups});
  }
  const auto counts = download(args.num_selected, t);
  const auto lists = download(args.selected, t * args.topk);
  const int64_t k = std::min<int64_t>(args.topk, groups);
  std::vector<int32_t> selected(static_cast<size_t>(t * k), -1);
  for (int64_t i = 0; i < t; ++i)
    std::copy_n(lists.begin() + i * args.topk, counts[static_cast<size_t>(i)], selected.begin() + i * k);
  tracer.HostInts(name + "selected", selected, {t, k});
}

void Model::Impl::RunAttention(const LayerWeights& w, int layer, bool is_draft, Tracer& tracer) {
  const ModelConfig& c = config;
  const int64_t t = step.num_rows, h = c.hidden_size, d = c.head_dim, qr_width = c.q_lora_rank;
  const int ratio = is_draft ? 0 : c.compress_ratios[static_cast<size_t>(layer)];
  const bool is_key_source = ratio > 0 && c.is_kv_source(layer), is_index_source = ratio > 0 && c.is_index_source(layer);
  const float* rope = ratio > 0 ? ws.rope_yarn.as<float>() : ws.rope_plain.as<float>();
  const Act x = ActOf(ws.x, h), qa_kv = ActOf(ws.qa_kv, qr_width + d), qr = ActOf(ws.qr, qr_width);
  const Act q = ActOf(ws.q, c.num_attention_heads * d), keys = ActOf(ws.keys, d);
  const Act out = ActOf(ws.attn_out, c.num_attention_heads * d), low_act = ActOf(ws.o_low, c.o_groups * c.o_lora_rank);
  const std::string name = tracer.is_on() ? fmt::format("layers.{}.attn.", layer) : std::string();

  device->Prepare(arithmetic, x, t, h, InputKind::kQuantized, *quantized);
  device->MatMul(arithmetic, *w.qa_kv, *quantized, qa_kv);
  device->RmsNorm(arithmetic, qa_kv, w.q_norm.as<float>(), t, qr_width, c.rms_norm_eps, qr);
  device->WindowKeys(arithmetic, qa_kv.Columns(qr_width), w.kv_norm.as<float>(), c.rms_norm_eps, t, c.head_dim,
                     c.qk_rope_head_dim, rope, keys);
  device->Prepare(arithmetic, qr, t, qr_width, InputKind::kQuantized, *low);
  device->MatMul(arithmetic, *w.q_b, *low, q);
  if (tracer.is_on()) tracer.Act(name + "window_key", keys, {t, d});
  Mark(layer, Stage::kProjections);
  if (is_key_source || is_index_source) device->Prepare(arithmetic, x, t, h, InputKind::kPlain, *plain);
  if (is_key_source && !(step_keys_done && layer == c.first_consumer_layer())) {
    RunCompressor(w, layer, tracer);
    Mark(layer, Stage::kCompressor);
  }
  if (is_index_source) {
    RunSelect(w, layer, tracer);
    Mark(layer, Stage::kSelect);
  }

  device::AttentionArgs args;
  args.heads = c.num_attention_heads;
  args.head_dim = c.head_dim;
  args.rope_dim = c.qk_rope_head_dim;
  args.query = q;
  args.new_keys = keys;
  args.ring = layout.rings[static_cast<size_t>(layer)];
  if (ratio > 0) {
    args.compressed = &layout.owners[static_cast<size_t>(layout.owner_of_layer[static_cast<size_t>(layer)])];
    args.selected = ws.selected.as<int32_t>();
    args.num_selected = ws.num_selected.as<int32_t>();
    args.selected_stride = c.index_topk;
  }
  args.sink = w.sink.as<float>();
  args.rope = rope;
  args.is_draft_block = is_draft;
  args.out = out;
  if (tracer.is_on()) {
    auto buffer = device->Allocate(t * c.num_attention_heads * d * device->activation_bytes());
    if (buffer.ok()) {
      ws.attn_trace = std::move(buffer).value();
      args.trace_unrotated = ActOf(ws.attn_trace, c.num_attention_heads * d);
    }
  }
  device->Rope(arithmetic, q, t, c.num_attention_heads, c.head_dim, c.qk_rope_head_dim, rope);
  if (tracer.is_on()) tracer.Act(name + "query", q, {t, c.num_attention_heads, d});
  device->Attention(arithmetic, step, args);
  if (!is_draft) device->StoreWindow(step, args.ring, c.head_dim, keys);
  Mark(layer, Stage::kAttention);
  if (tracer.is_on() && args.trace_unrotated)
    tracer.Act(name + "out_before_projection", args.trace_unrotated, {t, c.num_attention_heads, d});
  device->Prepare(arithmetic, out, t, c.num_attention_heads * d, InputKind::kPlain, *attended);
  device->MatMulGroups(arithmetic, *w.o_a, c.o_groups, *attended, low_act);
  device->Prepare(arithmetic, low_act, t, c.o_groups * c.o_lora_rank, InputKind::kQuantized, *low);
  device->MatMul(arithmetic, *w.o_b, *low, ActOf(ws.y, h));
  Mark(layer, Stage::kOutput);
}

// ---- layers ---------------------------------------------------------------------------------------------------------------

void Model::Impl::RunMoe(const LayerWeights& w, int layer, bool is_draft, Tracer& tracer) {
  const int64_t t = step.num_rows, h = config.hidden_size;
  const int draft_k = config.dspark_num_experts_per_tok > 0 ? config.dspark_num_experts_per_tok : config.num_experts_per_tok;
  const int k = is_draft ? draft_k : config.num_experts_per_tok;
  const Act x = ActOf(ws.x, h), y = ActOf(ws.y, h);
  device->Prepare(arithmetic, x, t, h, InputKind::kPlain, *plain);
  device::RouterArgs router;
  router.gate = w.gate.get();
  router.x = plain.get();
  router.temperature = config.gate_temp;
  router.bias = w.gate_bias.as<float>();
  if (!is_draft && step_has_images && w.gate_bias_image.data() != nullptr) {
    router.bias_image = w.gate_bias_image.as<float>();
    router.is_image = ws.is_image.as<uint8_t>();
  }
  router.num_chosen = k;
  router.scaling = config.routed_scaling_factor;
  router.experts = ws.experts.as<int32_t>();
  router.weights = ws.expert_weights.as<float>();
  router.biased_scores = ws.biased.as<float>();
  device->Route(router, t);
  Mark(layer, Stage::kRouter);
  if (tracer.is_on()) {
    const std::string name = fmt::format("layers.{}.router.", layer);
    tracer.Ints(name + "experts", router.experts, {t, k});
    tracer.Floats(name + "weights", router.weights, {t, k});
    tracer.Floats(name + "biased_scores", router.biased_scores, {t, w.gate->rows()});
  }
  device->Prepare(arithmetic, x, t, h, InputKind::kQuantized, *quantized);
  device::ExpertArgs experts;
  experts.bank = w.experts.get();
  experts.x = quantized.get();
  experts.num_chosen = k;
  experts.experts = router.experts;
  experts.weights = router.weights;
  experts.swiglu_limit = config.swiglu_limit;
  experts.out = y;
  if (!is_draft && t <= kMaxGuessRows && device->streams_experts() && layer + 1 < config.num_hidden_layers) {
    // The next layer's router on this layer's input: a cheap guess of what to read next.
    const LayerWeights& next = weights.layers[static_cast<size_t>(layer) + 1];
    router.gate = next.gate.get();
    router.bias = next.gate_bias.as<float>();
    router.bias_image = next.gate_bias_image.data() != nullptr ? next.gate_bias_image.as<float>() : nullptr;
    router.experts = ws.guess_experts.as<int32_t>();
    router.weights = ws.guess_weights.as<float>();
    device->Route(router, t);
    device->PrefetchExperts(*next.experts, router.experts, t * k);
  }
  device->Experts(arithmetic, experts, t);
  Mark(layer, Stage::kExperts);
}

const float* Model::Impl::RunLayer(const LayerWeights& w, int layer, bool is_draft, const float* pre, Tracer& tracer) {
  const int64_t t = step.num_rows, h = config.hidden_size, m = config.hc_mult;
  const Act trunk = ActOf(ws.trunk, m * h), x = ActOf(ws.x, h), y = ActOf(ws.y, h);
  float* attn_pre = ws.pre[0].as<float>();
  float* ffn_pre = ws.pre[1].as<float>();
  float* post = ws.post.as<float>();
  float* comb = ws.comb.as<float>();
  const std::string name = tracer.is_on() ? fmt::format("layers.{}.", layer) : std::string();
  const auto trace_mix = [&](const char* site, float* site_pre) {
    if (!tracer.is_on()) return;
    tracer.Floats(name + site + ".pre", site_pre, {t, m});
    tracer.Floats(name + site + ".post", post, {t, m});
    tracer.Floats(name + site + ".comb", comb, {t, m, m});
  };

  // What follows waits for the collapsed streams, not for the mix.
  device->CollapseNorm(arithmetic, trunk, pre, t, config.hc_mult, h, w.attn_norm.as<float>(), config.rms_norm_eps, Act(), x);
  device->HyperConnectionMix(Site(w.hc_attn), trunk, t, attn_pre, post, comb);
  trace_mix("hc_attn", attn_pre);
  if (tracer.is_on()) tracer.Act(name + "attn.input", x, {t, h});
  Mark(layer, Stage::kHyperConnections);
  RunAttention(w, layer, is_draft, tracer);
  if (tracer.is_on()) tracer.Act(name + "attn.output", y, {t, h});
  device->Expand(arithmetic, y, post, comb, t, config.hc_mult, h, trunk);
  if (tracer.is_on()) tracer.Act(name + "after_attn", trunk, {t, m, h});

  device->CollapseNorm(arithmetic, trunk, attn_pre, t, config.hc_mult, h, w.ffn_norm.as<float>(), config.rms_norm_eps, Act(), x);
  device->HyperConnectionMix(Site(w.hc_ffn), trunk, t, ffn_pre, post, comb);
  trace_mix("hc_ffn", ffn_pre);
  if (tracer.is_on()) tracer.Act(name + "ffn.input", x, {t, h});
  Mark(layer, Stage::kHyperConnections);
  RunMoe(w, layer, is_draft, tracer);
  if (tracer.is_on()) tracer.Act(name + "ffn.output", y, {t, h});
  device->Expand(arithmetic, y, post, comb, t, config.hc_mult, h, trunk);
  if (tracer.is_on()) tracer.Act(name + "output", trunk, {t, m, h});
  Mark(layer, Stage::kHyperConnections);
  return ffn_pre;
}

void Model::Impl::EnterConsumerHalf(std::span<const Piece> pieces, int next_tap, float* pre, Tracer& tracer) {
  const int64_t h = config.hidden_size, m = config.hc_mult, t = step.num_rows;
  const int layer = config.first_consumer_layer();
  const Act trunk = ActOf(ws.trunk, m * h);
  std::vector<int32_t>& kept = host_head_rows;
  kept.clear();
  std::vector<device::SequenceRows> sequences = host_sequences;
  for (size_t s = 0; s < pieces.size(); ++s) {
    device::SequenceRows& r = sequences[s];
    r.window_floor = static_cast<int32_t>(pieces[s].sequence->window_floor_);
    if (options.decoder_replay != DecoderReplay::kCompact) continue;
    int32_t dropped = std::clamp(r.window_floor - r.start, 0, r.num_rows);
    // A row whose logits are wanted stays, whatever its position.
    if (dropped == r.num_rows && pieces[s].logits_begin >= 0) --dropped;
    for (int32_t i = dropped; i < r.num_rows; ++i) kept.push_back(r.row_begin + i);
    r.row_begin = static_cast<int32_t>(kept.size()) - (r.num_rows - dropped);
    r.start += dropped;
    r.num_rows -= dropped;
  }
  const int64_t n = static_cast<int64_t>(kept.size());
  if (options.decoder_replay == DecoderReplay::kCompact && n < t) {
    // The layer's compressed keys come from all rows.
    const LayerWeights& w = weights.layers[static_cast<size_t>(layer)];
    const Act x = ActOf(ws.x, h);
    device->CollapseNorm(arithmetic, trunk, pre, t, config.hc_mult, h, w.attn_norm.as<float>(), config.rms_norm_eps, Act(), x);
    device->Prepare(arithmetic, x, t, h, InputKind::kPlain, *plain);
    RunCompressor(w, layer, tracer);
    step_keys_done = true;

    device->Upload(ws.head_rows.data(), kept.data(), Bytes32(n));
    const int32_t* rows = ws.head_rows.as<int32_t>();
    device->CopyRows(trunk, rows, n, m * h, trunk);
    device->CopyFloatRows(pre, rows, n, m, pre);
    device->CopyFloatRows(ws.rope_plain.as<float>(), rows, n, config.qk_rope_head_dim, ws.rope_plain.as<float>());
    device->CopyFloatRows(ws.rope_yarn.as<float>(), rows, n, config.qk_rope_head_dim, ws.rope_yarn.as<float>());
    if (next_tap > 0) {
      const int64_t width = static_cast<int64_t>(config.dspark_target_layer_ids.size()) * h;
      device->CopyRows(ActOf(ws.taps, width), rows, n, width, ActOf(ws.taps, width));
    }
    for (int64_t i = 0; i < n; ++i) {
      const size_t from = static_cast<size_t>(kept[static_cast<size_t>(i)]), to = static_cast<size_t>(i);
      host_positions[to] = host_positions[from];
      host_row_sequence[to] = host_row_sequence[from];
      host_is_image[to] = host_is_image[from];
    }
    device->Upload(ws.positions.data(), host_positions.data(), Bytes32(n));
    device->Upload(ws.row_sequence.data(), host_row_sequence.data(), Bytes32(n));
    if (step_has_images) device->Upload(ws.is_image.data(), host_is_image.data(), n);
    step.num_rows = static_cast<int32_t>(n);
  }
  if (n == t || options.decoder_replay != DecoderReplay::kCompact) {
    // No row was dropped: BeginStep has uploaded these.
    host_sequences = consumer_sequences;
    step.sequences = ws.sequence_rows.as<device::SequenceRows>() + step.num_sequences;
    return;
  }
  host_sequences = sequences;
  device->Upload(ws.sequence_rows.data(), host_sequences.data(),
                 static_cast<int64_t>(host_sequences.size() * sizeof(device::SequenceRows)));
}

int64_t Model::Impl::ListHeadRows(std::span<const Piece> pieces) {
  host_head_rows.clear();
  int64_t first_logits = -1;
  for (size_t s = 0; s < pieces.size(); ++s) {
    const Piece& piece = pieces[s];
    if (piece.logits_begin < 0) continue;
    if (first_logits < 0) first_logits = piece.logits_begin;
    const device::SequenceRows& r = host_sequences[s];
    if (piece.all_logits) {
      for (int32_t i = 0; i < r.num_rows; ++i) host_head_rows.push_back(r.row_begin + i);
    } else {
      host_head_rows.push_back(r.row_begin + r.num_rows - 1);
    }
  }
  return first_logits;
}

Status Model::Impl::RunStep(std::span<const Piece> pieces, TraceSink* sink) {
  if (stage_clock != nullptr) stage_clock->Begin();
  if (has_draft && drafts_paused) DI_RETURN_IF_ERROR(EnsureTapRings(pieces));
  if (has_draft && !drafts_paused)
    for (const Piece& piece : pieces) DI_RETURN_IF_ERROR(CatchUpDraftContext(*piece.sequence));
  step_repeats = sink == nullptr && CanRepeat(pieces);
  DI_RETURN_IF_ERROR(BeginStep(pieces, false));
  Tracer tracer(sink, *device);
  if (hasher.has_value()) {
    EngramRows(pieces);
    if (tracer.is_on())
      tracer.HostInts("engram_rows", {host_engram_rows.begin(), host_engram_rows.end()},
                      {step.num_rows, hasher->num_tables(), config.engram_num_columns()});
  }
  if (step_repeats) {
    const int64_t first_logits = ListHeadRows(pieces), n = static_cast<int64_t>(host_head_rows.size());
    if (n != step.num_rows) device->Upload(ws.head_rows.data(), host_head_rows.data(), Bytes32(n));
    if (engram_reader != nullptr)
      for (int e = 0; e < hasher->num_tables(); ++e) DI_RETURN_IF_ERROR(engram_reader->Wait(e));
    step_key = {step.num_rows, step.num_sequences, ws.groups[2].count, step_groups[1], step_groups[2], first_logits, n,
                drafts_paused ? 1 : 0, reinterpret_cast<intptr_t>(ws.ids.data()), reinterpret_cast<intptr_t>(ws.trunk.data()),
                reinterpret_cast<intptr_t>(logits.data())};
    if (!device->BeginRepeat(step_key)) {
      const Status status = RunStepOps(pieces, tracer);
      device->EndRepeat();
      DI_RETURN_IF_ERROR(status);
    }
  } else {
    DI_RETURN_IF_ERROR(RunStepOps(pieces, tracer));
  }
  if (has_draft && drafts_paused && step.num_rows > 0) KeepTaps(pieces);
  return Status::Ok();
}

Status Model::Impl::RunStepOps(std::span<const Piece> pieces, Tracer& tracer) {
  int64_t t = step.num_rows;
  const int64_t h = config.hidden_size, m = config.hc_mult;
  const Act trunk = ActOf(ws.trunk, m * h);
  const int columns = config.engram_num_columns();
  StepTables(false);
  device->Embed(arithmetic, *weights.embed, ws.ids.as<int32_t>(), step_has_images ? ws.image_row.as<int32_t>() : nullptr,
                image_embeds.as<float>(), t, config.hc_mult, h, trunk);
  if (tracer.is_on()) tracer.Act("embedding", trunk, {t, h});
  Mark(config.num_hidden_layers, Stage::kInput);

  const float* pre = ws.one_hot.as<float>();
  int next_tap = 0;
  step_keys_done = false;
  const int replay_layer = options.decoder_replay != DecoderReplay::kOff ? config.first_consumer_layer() : -1;
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    const LayerWeights& w = weights.layers[static_cast<size_t>(layer)];
    if (const int e = config.engram_index(layer); e >= 0) {
      const int64_t width = int64_t{columns} * config.engram_head_dim;
      const Act found = ActOf(ws.engram_e, width), kv = ActOf(ws.engram_kv, (m + 1) * h);
      const device::Table* table = w.engram_table.get();
      if (engram_reader != nullptr) {
        if (!step_repeats) DI_RETURN_IF_ERROR(engram_reader->Wait(e));
        table = engram_fetched[static_cast<size_t>(e)].get();
      }
      device->GatherRows(arithmetic, *table, ws.engram_rows.as<int32_t>() + int64_t{e} * t * columns, t, columns,
                         config.engram_head_dim, found);
      device->Prepare(arithmetic, found, t, width, InputKind::kQuantized, *quantized);
      device->MatMul(arithmetic, *w.engram_kv, *quantized, kv);
      device->EngramInject(arithmetic, kv, w.engram_qk.as<float>(), step_has_images ? ws.is_image.as<uint8_t>() : nullptr, t,
                           config.hc_mult, h, config.rms_norm_eps, trunk, ws.gate.as<float>());
      if (tracer.is_on()) {
        tracer.Floats(fmt::format("layers.{}.engram.gate", layer), ws.gate.as<float>(), {t, m});
        tracer.Act(fmt::format("layers.{}.engram.output", layer), trunk, {t, m, h});
      }
      Mark(layer, Stage::kEngram);
    }
    if (layer == replay_layer) {
      // `pre` is the ffn buffer of the layer before, or the constant one in front of layer 0 (no producer half).
      if (layer > 0) EnterConsumerHalf(pieces, next_tap, ws.pre[1].as<float>(), tracer);
      t = step.num_rows;
      if (t == 0) return Status::Ok();
    }
    if (has_draft && next_tap < static_cast<int>(config.dspark_target_layer_ids.size()) &&
        config.dspark_target_layer_ids[static_cast<size_t>(next_tap)] == layer) {
      const int64_t width = static_cast<int64_t>(config.dspark_target_layer_ids.size()) * h;
      device->StreamMean(arithmetic, trunk, t, config.hc_mult, h, ActOf(ws.taps, width).Columns(next_tap * h));
      ++next_tap;
    }
    pre = RunLayer(w, layer, false, pre, tracer);
  }
  if (has_draft) {
    if (!drafts_paused) StoreDraftTail(tracer);
    Mark(config.num_hidden_layers, Stage::kDraftContext);
  }

  // Head, for the rows asked for.
  const int64_t first_logits = ListHeadRows(pieces), n = static_cast<int64_t>(host_head_rows.size());
  if (n == 0) return Status::Ok();
  Act head_trunk = trunk;
  const float* head_pre = pre;
  if (n != t) {
    if (!step_repeats) device->Upload(ws.head_rows.data(), host_head_rows.data(), Bytes32(n));
    head_trunk = ActOf(ws.head_trunk, m * h);
    device->CopyRows(trunk, ws.head_rows.as<int32_t>(), n, m * h, head_trunk);
    device->CopyFloatRows(pre, ws.head_rows.as<int32_t>(), n, m, ws.head_pre.as<float>());
    head_pre = ws.head_pre.as<float>();
  }
  const Act collapsed = ActOf(ws.collapsed, h), x = ActOf(ws.head_x, h);
  device->CollapseNorm(arithmetic, head_trunk, head_pre, n, config.hc_mult, h, weights.norm.as<float>(), config.rms_norm_eps,
                       collapsed, x);
  if (tracer.is_on()) {
    tracer.Act("final.collapsed", collapsed, {n, h});
    tracer.Act("final.normed", x, {n, h});
  }
  device->Prepare(arithmetic, x, n, h, InputKind::kPlain, *plain);
  device->MatMulFloat(*weights.head, *plain, logits.as<float>() + first_logits * config.vocab_size, config.vocab_size);
  Mark(config.num_hidden_layers, Stage::kHead);
  return Status::Ok();
}

Result<const uint32_t*> Model::Impl::DeviceMask(const std::vector<uint32_t>* mask) {
  if (mask == nullptr) return static_cast<const uint32_t*>(nullptr);
  device::Buffer& copy = device_masks[mask];
  if (copy.data() == nullptr) {
    const int64_t bytes = (config.vocab_size + 31) / 32 * 4;
    DI_ASSIGN_OR_RETURN(copy, device->Allocate(bytes));
    device->Upload(copy.data(), mask->data(), bytes);
  }
  return copy.as<const uint32_t>();
}

// Runs of rows that are wanted whole, and what there is to know of the others.
Status Model::Impl::DownloadLogits(std::span<const SequenceChunk> chunks, int64_t num_logits) {
  const int64_t v = config.vocab_size;
  const auto rows_of = [](const SequenceChunk& chunk) -> int64_t {
    return chunk.no_logits ? 0 : chunk.all_logits ? static_cast<int64_t>(chunk.ids.size()) : 1;
  };
  float inverse_temperature = 0;
  best_masks.clear();
  for (const SequenceChunk& chunk : chunks) {
    const uint32_t* mask = nullptr;
    if (chunk.greedy.is_greedy && !chunk.no_logits) {
      inverse_temperature = chunk.greedy.inverse_temperature;
      DI_ASSIGN_OR_RETURN(mask, DeviceMask(chunk.greedy.mask));
    }
    best_masks.insert(best_masks.end(), static_cast<size_t>(rows_of(chunk)), mask);
  }
  const bool has_best = inverse_temperature != 0 && device->finds_best();
  int64_t row = 0, begin = 0;
  const auto download = [&](int64_t end) {
    if (end > begin)
      device->Download(host_logits.data() + begin * v, logits.as<float>() + begin * v, (end - begin) * v * static_cast<int64_t>(sizeof(float)));
  };
  for (const SequenceChunk& chunk : chunks) {
    const int64_t rows = rows_of(chunk);
    if (has_best && chunk.greedy.is_greedy) {
      download(row);
      begin = row + rows;
    }
    row += rows;
  }
  download(row);
  if (!has_best) return Status::Ok();
  bests.resize(static_cast<size_t>(num_logits));
  const bool is_masked = std::any_of(best_masks.begin(), best_masks.end(), [](const uint32_t* mask) { return mask != nullptr; });
  device->FindBest({.x = logits.as<float>(),
                    .rows = num_logits,
                    .width = v,
                    .stride = v,
                    .inverse_temperature = inverse_temperature,
                    .host_masks = is_masked ? std::span<const uint32_t* const>(best_masks) : std::span<const uint32_t* const>()},
                   bests.data());
  return device->TakeError();
}

std::span<const device::RowBest> Model::bests() const { return impl_->bests; }

Result<std::span<const float>> Model::Forward(std::span<const SequenceChunk> chunks, TraceSink* trace) {
  Impl& impl = *impl_;
  impl.bests.clear();
  // Everything that can fail is checked before any cache changes.
  int64_t num_logits = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const SequenceChunk& chunk = chunks[i];
    if (chunk.sequence == nullptr || chunk.ids.empty()) return InvalidArgument(fmt::format("chunk {} has no sequence or no tokens", i));
    for (size_t j = 0; j < i; ++j)
      if (chunks[j].sequence == chunk.sequence) return InvalidArgument("a sequence appears twice in one step");
    if (!chunk.is_image.empty() && chunk.is_image.size() != chunk.ids.size())
      return InvalidArgument(fmt::format("chunk {} has {} image marks for {} tokens", i, chunk.is_image.size(), chunk.ids.size()));
    for (const int32_t id : chunk.ids)
      if (id < 0 || id >= impl.config.vocab_size)
        return InvalidArgument(fmt::format("token id {} is outside the vocabulary of {}", id, impl.config.vocab_size), "ids");
    const int64_t length = chunk.sequence->length() + static_cast<int64_t>(chunk.ids.size());
    if (length > (chunk.sequence->is_slot_ ? impl.max_slot_len() : impl.max_model_len))
      return ResourceExhausted(fmt::format("{} tokens do not fit into the context of {}; shorten the prompt{}", length, impl.max_model_len,
                                           impl.max_model_len < impl.config.max_position_embeddings ? " or raise --max-model-len" : ""));
    if (chunk.all_logits && !chunk.no_logits && impl.options.decoder_replay == DecoderReplay::kCompact) {
      const int64_t start = chunk.sequence->length(), known = std::max(chunk.known_length, static_cast<int64_t>(chunk.ids.size()));
      if (start < (start > 0 || chunk.sequence->is_slot_ ? chunk.sequence->window_floor_ : known - impl.replay_keep))
        return InvalidArgument("logits of all prompt positions need decoder replay off or mask");
    }
    if (!chunk.no_logits) num_logits += chunk.all_logits ? static_cast<int64_t>(chunk.ids.size()) : 1;
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    Sequence& sequence = *chunks[i].sequence;
    if (sequence.Grow(sequence.length() + static_cast<int64_t>(chunks[i].ids.size()))) continue;
    for (size_t j = 0; j < i; ++j)
      chunks[j].sequence->Shrink((chunks[j].sequence->length() + kBlockTokens - 1) / kBlockTokens);
    return ResourceExhausted(fmt::format("the cache of {} blocks is full; {} are free", impl.pool->num_blocks(), impl.pool->num_free()));
  }
  DI_RETURN_IF_ERROR(impl.EnsureLogits(num_logits));
  if (impl.options.decoder_replay != DecoderReplay::kOff) {
    for (const SequenceChunk& chunk : chunks) {
      if (chunk.sequence->length() > 0 || chunk.sequence->is_slot_) continue;
      const int64_t known = std::max(chunk.known_length, static_cast<int64_t>(chunk.ids.size()));
      chunk.sequence->window_floor_ = std::max<int64_t>(0, known - impl.replay_keep);
    }
  }

  // Steps of at most max_step_rows rows; a chunk may spread over several.
  std::vector<Piece>& pieces = impl.step_pieces;
  size_t next = 0;
  int64_t offset = 0, logits_row = 0;
  while (next < chunks.size()) {
    pieces.clear();
    int64_t room = impl.max_step_rows;
    while (next < chunks.size() && room > 0) {
      const SequenceChunk& chunk = chunks[next];
      const int64_t left = static_cast<int64_t>(chunk.ids.size()) - offset;
      const int64_t n = std::min(left, room);
      Piece piece;
      piece.sequence = chunk.sequence;
      piece.ids = chunk.ids.subspan(static_cast<size_t>(offset), static_cast<size_t>(n));
      if (!chunk.is_image.empty()) piece.is_image = chunk.is_image.subspan(static_cast<size_t>(offset), static_cast<size_t>(n));
      if (chunk.image_embeds != nullptr) piece.image_embeds = chunk.image_embeds + offset * impl.config.hidden_size;
      piece.all_logits = chunk.all_logits;
      piece.write_floor = chunk.write_floor;
      if (!chunk.no_logits && (chunk.all_logits || n == left)) {
        piece.logits_begin = logits_row;
        logits_row += chunk.all_logits ? n : 1;
      }
      pieces.push_back(piece);
      room -= n;
      offset += n;
      if (n == left) {
        ++next;
        offset = 0;
      }
    }
    Status status = impl.RunStep(pieces, trace);
    // Taken even when the step failed for another reason: it belongs to no later one.
    if (Status read = impl.device->TakeError(); status.ok()) status = std::move(read);
    DI_RETURN_IF_ERROR(status);
    for (const Piece& piece : pieces) {
      Sequence& sequence = *piece.sequence;
      const size_t before = sequence.ids_.size();
      sequence.ids_.insert(sequence.ids_.end(), piece.ids.begin(), piece.ids.end());
      if (!piece.is_image.empty() || !sequence.is_image_.empty()) {
        sequence.is_image_.resize(before, 0);
        if (piece.is_image.empty()) {
          sequence.is_image_.resize(sequence.ids_.size(), 0);
        } else {
          sequence.is_image_.insert(sequence.is_image_.end(), piece.is_image.begin(), piece.is_image.end());
        }
      }
    }
  }
  DI_RETURN_IF_ERROR(impl.checkpoint->CheckMapped());
  const size_t values = static_cast<size_t>(num_logits * impl.config.vocab_size);
  if (impl.device->has_host_memory()) return std::span<const float>(impl.logits.as<float>(), values);
  impl.host_logits.resize(values);
  DI_RETURN_IF_ERROR(impl.DownloadLogits(chunks, num_logits));
  return std::span<const float>(impl.host_logits);
}

}  // namespace deepinfer::model
