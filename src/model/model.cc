// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "model/model_impl.h"
#include "model/rope.h"

namespace deepinfer::model {

namespace {

// Rows of one internal step: large enough that every weight is used many times per read, small enough that the step's
// buffers stay bounded. Longer chunks run as several steps, which gives the same numbers.
constexpr int64_t kMaxStepRows = 1024;

}  // namespace

Model::Model() = default;
Model::~Model() = default;

const ModelConfig& Model::config() const { return impl_->config; }
Numerics Model::numerics() const { return impl_->options.numerics; }
int64_t Model::max_model_len() const { return impl_->max_model_len; }

Result<std::unique_ptr<Model>> Model::Load(std::shared_ptr<const Checkpoint> checkpoint, const ModelConfig& config,
                                           std::shared_ptr<device::Device> device, LoadOptions options) {
  DI_RETURN_IF_ERROR(checkpoint->CheckInventory(config, false));
  std::unique_ptr<Model> model(new Model());
  model->impl_ = std::make_unique<Impl>();
  Impl& impl = *model->impl_;
  impl.config = config;
  impl.checkpoint = std::move(checkpoint);
  impl.device = std::move(device);
  impl.options = std::move(options);
  DI_RETURN_IF_ERROR(impl.Init());
  return model;
}

Status Model::Impl::Init() {
  arithmetic.round_bf16 = RoundsToBf16(options.numerics);
  arithmetic.quantize = QuantizesActivations(options.numerics);
  max_model_len = options.max_model_len > 0 ? std::min(options.max_model_len, config.max_position_embeddings)
                                            : config.max_position_embeddings;
  has_draft = options.with_draft && config.num_draft_stages > 0;
  max_step_rows = options.max_step_rows > 0 ? options.max_step_rows : kMaxStepRows;
  if (!config.engram_layer_ids.empty()) {
    if (options.compressed_vocab.empty())
      return InvalidArgument("the model has Engram layers: LoadOptions::compressed_vocab must hold the token map");
    DI_ASSIGN_OR_RETURN(hasher, EngramHasher::Create(config, options.compressed_vocab));
  }
  DI_ASSIGN_OR_RETURN(weights, ModelWeights::Load(*checkpoint, config, *device, has_draft, options.progress));
  DI_RETURN_IF_ERROR(checkpoint->CheckMapped());
  if (hasher.has_value() && options.engram_io != EngramIo::kMmap) {
    if (options.reader == nullptr) return InvalidArgument("LoadOptions::engram_io needs a reader", "reader");
    EngramReadOptions read;
    read.direct = options.engram_io == EngramIo::kDirect;
    read.reader = options.reader;
    DI_ASSIGN_OR_RETURN(engram_reader, EngramReader::Create(*checkpoint, config, max_step_rows * config.engram_num_columns(), read));
    for (int e = 0; e < hasher->num_tables(); ++e) {
      DI_ASSIGN_OR_RETURN(engram_fetched.emplace_back(), device->CreateTable(engram_reader->View(e)));
    }
  }
  DI_RETURN_IF_ERROR(device->FinishWeights());

  const int max_backtracking = std::max(6, config.dspark_block_size + 1);
  if (options.decoder_replay != DecoderReplay::kOff) {
    const int64_t least = config.sliding_window + max_backtracking;
    replay_keep = options.replay_keep_tokens > 0 ? options.replay_keep_tokens : least + 6;
    if (replay_keep < least)
      return InvalidArgument(fmt::format("--decoder-replay-keep is {} but must be at least {}: the window and the tokens that may be taken back", replay_keep, least),
                             "replay_keep_tokens");
    DI_RETURN_IF_ERROR(config.CheckDecoderReplay());
  }
  layout = CacheLayout::Make(config, options.numerics, options.use_fp4_sparse_kv && config.use_fp4_sparse_kv, max_backtracking);
  int64_t num_blocks = (options.cache_tokens + kBlockTokens - 1) / kBlockTokens;
  const bool grows = options.cache_tokens <= 0;
  if (grows) {
    // Address space only: pages cost memory when keys are written to them.
    const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
    num_blocks = std::min(memory / layout.block_stride, 256 * ((max_model_len + kBlockTokens - 1) / kBlockTokens));
  }
  DI_ASSIGN_OR_RETURN(pool, BlockPool::Create(*device, layout.block_stride, std::max<int64_t>(num_blocks, 1), grows));
  for (auto& owner : layout.owners) owner.pool = pool->data();

  const auto upload = [&](const std::vector<float>& values, device::Buffer& buffer) -> Status {
    const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(float));
    DI_ASSIGN_OR_RETURN(buffer, device->Allocate(bytes));
    device->Upload(buffer.data(), values.data(), bytes);
    return Status::Ok();
  };
  DI_RETURN_IF_ERROR(upload(PlainInverseFrequencies(config), inverse_plain));
  DI_RETURN_IF_ERROR(upload(YarnInverseFrequencies(config), inverse_yarn));
  quantized = device->CreateInput();
  plain = device->CreateInput();
  attended = device->CreateInput();
  low = device->CreateInput();
  index_input = device->CreateInput();
  return EnsureWorkspace(16, 4);
}

Status Model::Impl::EnsureWorkspace(int64_t rows, int64_t sequences) {
  if (rows <= ws.rows && sequences <= ws.sequences) return Status::Ok();
  const int64_t t = std::max<int64_t>(rows <= ws.rows ? ws.rows : std::min(std::max(rows, 2 * ws.rows), std::max(rows, max_step_rows)), 16);
  const int64_t s = std::max(sequences, ws.sequences);
  const ModelConfig& c = config;
  const int64_t value = device->activation_bytes();
  const int64_t m = c.hc_mult, h = c.hidden_size, d = c.head_dim, rd = c.qk_rope_head_dim;
  const int64_t stages = c.num_draft_stages;
  Status status;
  const auto make = [&](device::Buffer& buffer, int64_t bytes) {
    if (!status.ok()) return;
    buffer = device::Buffer();
    auto made = device->Allocate(std::max<int64_t>(bytes, 4));
    if (made.ok()) {
      buffer = std::move(made).value();
    } else {
      status = made.status();
    }
  };
  const auto act = [&](device::Buffer& buffer, int64_t n, int64_t width) { make(buffer, n * width * value); };
  const auto ints = [&](device::Buffer& buffer, int64_t n) { make(buffer, n * 4); };
  ints(ws.ids, t);
  ints(ws.positions, t);
  ints(ws.row_sequence, t);
  ints(ws.image_row, t);
  make(ws.is_image, t);
  make(ws.sequence_rows, 2 * s * static_cast<int64_t>(sizeof(device::SequenceRows)));
  ints(ws.engram_rows, t * c.engram_num_columns() * static_cast<int64_t>(c.engram_layer_ids.size()));
  ints(ws.rope_plain, t * rd);
  ints(ws.rope_yarn, t * rd);
  for (int ratio = 1; ratio <= 2; ++ratio) {
    GroupList& list = ws.groups[ratio];
    const int64_t g = t / ratio + s;
    make(list.groups, g * static_cast<int64_t>(sizeof(device::NewGroup)));
    ints(list.positions, g);
    ints(list.rope, g * rd);
  }
  const int64_t g = t + s;
  act(ws.trunk, t, m * h);
  ints(ws.one_hot, t * m);
  for (auto& pre : ws.pre) ints(pre, t * m);
  ints(ws.post, t * m);
  ints(ws.comb, t * m * m);
  act(ws.collapsed, t, h);
  act(ws.x, t, h);
  act(ws.y, t, h);
  act(ws.qa_kv, t, c.q_lora_rank + d);
  act(ws.qr, t, c.q_lora_rank);
  act(ws.q, t, c.num_attention_heads * d);
  act(ws.keys, t, d);
  act(ws.attn_out, t, c.num_attention_heads * d);
  act(ws.o_low, t, c.o_groups * c.o_lora_rank);
  ints(ws.products, t * 2 * d);
  act(ws.latent, g, d);
  act(ws.index_raw, g, c.index_head_dim);
  act(ws.index_q, t, c.index_n_heads * c.index_head_dim);
  act(ws.index_w, t, c.index_n_heads);
  ints(ws.selected, t * c.index_topk);
  ints(ws.num_selected, t);
  ints(ws.candidates, t * std::max(c.candidate_topk_blocks, 1));
  ints(ws.num_candidates, t);
  const int64_t k = std::max(c.num_experts_per_tok, c.dspark_num_experts_per_tok);
  ints(ws.experts, t * k);
  ints(ws.expert_weights, t * k);
  ints(ws.guess_experts, t * k);
  ints(ws.guess_weights, t * k);
  ints(ws.biased, t * std::max(c.n_routed_experts, c.dspark_n_routed_experts));
  if (!c.engram_layer_ids.empty()) {
    act(ws.engram_e, t, c.engram_num_columns() * c.engram_head_dim);
    act(ws.engram_kv, t, (m + 1) * h);
    ints(ws.gate, t * m);
  }
  if (has_draft) {
    const int64_t taps = static_cast<int64_t>(c.dspark_target_layer_ids.size()) * h;
    act(ws.taps, t, taps);
    act(ws.tail_taps, t, taps);
    act(ws.main, t, h);
    act(ws.context_raw, t, stages * d);
    act(ws.context_keys, t, d);
    ints(ws.tail_rope, t * rd);
    make(ws.tail_sequences, s * static_cast<int64_t>(sizeof(device::SequenceRows)));
  }
  ints(ws.head_rows, t);
  act(ws.head_trunk, t, m * h);
  ints(ws.head_pre, t * m);
  act(ws.head_x, t, h);
  DI_RETURN_IF_ERROR(status);
  std::vector<float> one_hot(static_cast<size_t>(t * m), 0.0f);
  for (int64_t i = 0; i < t; ++i) one_hot[static_cast<size_t>(i * m)] = 1.0f;
  device->Upload(ws.one_hot.data(), one_hot.data(), t * m * 4);
  ws.rows = t;
  ws.sequences = s;
  return Status::Ok();
}

Status Model::Impl::EnsureLogits(int64_t rows) {
  if (rows <= logits_capacity) return Status::Ok();
  logits = device::Buffer();
  logits_capacity = 0;
  DI_ASSIGN_OR_RETURN(logits, device->Allocate(rows * config.vocab_size * static_cast<int64_t>(sizeof(float))));
  logits_capacity = rows;
  return Status::Ok();
}

bool Model::has_draft_head() const { return impl_->has_draft; }

int64_t Model::decoder_keep() const { return impl_->options.decoder_replay == DecoderReplay::kOff ? 0 : impl_->replay_keep; }

Result<std::unique_ptr<Sequence>> Model::NewSequence() {
  Impl& impl = *impl_;
  std::unique_ptr<Sequence> sequence(new Sequence(*impl.pool, impl.layout, *impl.device, impl.max_model_len));
  const int64_t max_blocks = (impl.max_slot_len() + kBlockTokens - 1) / kBlockTokens;
  DI_ASSIGN_OR_RETURN(sequence->block_table_, impl.device->Allocate(max_blocks * static_cast<int64_t>(sizeof(int32_t))));
  DI_ASSIGN_OR_RETURN(sequence->state_, impl.device->Allocate(impl.layout.state_bytes));
  return sequence;
}

Result<std::unique_ptr<Sequence>> Model::NewSlot() {
  DI_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> sequence, NewSequence());
  sequence->is_slot_ = true;
  sequence->has_decoder_replay_ = impl_->options.decoder_replay != DecoderReplay::kOff;
  return sequence;
}

Result<std::vector<int32_t>> Model::TakeBlocks(int64_t count) {
  BlockPool& pool = *impl_->pool;
  if (count > pool.num_free())
    return ResourceExhausted(fmt::format("the cache has {} free blocks of {}, {} are needed; lower --num-kv-blocks or --max-model-len, or give the process more memory",
                                         pool.num_free(), pool.num_blocks(), count));
  std::vector<int32_t> blocks;
  while (static_cast<int64_t>(blocks.size()) < count) blocks.push_back(pool.Allocate());
  return blocks;
}

void Model::ReturnBlocks(std::span<const int32_t> blocks) {
  for (size_t i = blocks.size(); i-- > 0;) impl_->pool->Free(blocks[i]);
}

void Model::CopyBlock(int32_t from, int32_t to) {
  uint8_t* data = impl_->pool->data();
  const int64_t stride = impl_->layout.block_stride;
  impl_->device->Copy(data + to * stride, data + from * stride, impl_->layout.block_payload_bytes);
}

device::Device& Model::device() { return *impl_->device; }

void Model::SetStageClock(StageClock* clock) { impl_->stage_clock = clock; }

}  // namespace deepinfer::model
