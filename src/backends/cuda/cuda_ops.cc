// SPDX-License-Identifier: Apache-2.0
//
// The ops of the device interface: shapes to launches, and which of them run together or beside the others.
#include <algorithm>
#include <cstring>

#include "backends/cuda/cuda_device.h"

namespace deepinfer::cuda {

namespace {

// Steps with more rows make a row's norm or choice once, not in every block.
constexpr int64_t kMaxJoinedRows = 4;

F Of(const Act& x) { return {static_cast<float*>(x.data), x.stride}; }
const CudaMatrix& Of(const device::Matrix& w) { return static_cast<const CudaMatrix&>(w); }
const CudaInput& Of(const device::Input& x) { return static_cast<const CudaInput&>(x); }
bool CanReadInPlace(const Act& x, int64_t cols) {
  return cols % 32 == 0 && x.stride % 4 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

}  // namespace

// ---- embedding and streams ----------------------------------------------------------------------------------------------

void CudaDevice::Embed(const Arithmetic& a, const device::Table& table, const int32_t* ids, const int32_t* image_row,
                       const float* image_embeds, int64_t rows, int streams, int64_t hidden, Act trunk) {
  if (rows <= 0) return;
  // The tables of the step go with it.
  const RopeTableList rope = tables_;
  tables_.count = 0;
  Begin();
  JoinSide();
  LaunchEmbed(stream_, a.round_bf16, static_cast<const CudaTable&>(table).view, ids, image_row, image_embeds, rows, streams, hidden, Of(trunk), rope);
  Check("Embed");
}

void CudaDevice::GatherRows(const Arithmetic& a, const device::Table& table, const int32_t* ids, int64_t rows, int columns,
                            int64_t width, Act out) {
  if (rows <= 0) return;
  Begin();
  Wrote(out.data);
  LaunchGatherRows(stream_, a.round_bf16, static_cast<const CudaTable&>(table).view, ids, rows, columns, width, Of(out));
  Check("GatherRows");
}

void CudaDevice::CopyRows(Act in, const int32_t* rows, int64_t num_rows, int64_t width, Act out) {
  if (num_rows <= 0) return;
  Begin();
  JoinSide();
  Wrote(out.data);
  if (in.data == out.data) {
    // Blocks have no order: through memory of our own.
    F copy{static_cast<float*>(Grow(copy_rows_, num_rows * width * 4)), width};
    if (copy.data == nullptr) return;
    LaunchCopyRows(stream_, Of(in), rows, num_rows, width, copy);
    LaunchCopyRows(stream_, copy, nullptr, num_rows, width, Of(out));
  } else {
    LaunchCopyRows(stream_, Of(in), rows, num_rows, width, Of(out));
  }
  Check("CopyRows");
}

void CudaDevice::CopyFloatRows(const float* in, const int32_t* rows, int64_t num_rows, int64_t width, float* out) {
  CopyRows({const_cast<float*>(in), width, 4}, rows, num_rows, width, {out, width, 4});
}

void CudaDevice::EngramInject(const Arithmetic& a, Act kv, const float* qk, const uint8_t* is_dead, int64_t rows, int streams,
                              int64_t hidden, float eps, Act trunk, float* gate_out) {
  if (rows <= 0) return;
  Begin();
  JoinSide();
  LaunchEngramInject(stream_, a.round_bf16, Of(kv), qk, is_dead, rows, streams, hidden, eps, Of(trunk), gate_out);
  Check("EngramInject");
}

void CudaDevice::HyperConnectionMix(const device::HyperConnectionSite& site, Act trunk, int64_t rows, float* pre, float* post, float* comb) {
  if (rows <= 0) return;
  Begin();
  if (site.streams > 4) return Fail(Unimplemented("the NVIDIA backend takes at most 4 residual streams"));
  auto* partial = static_cast<float*>(Grow(mix_partial_, MixPartialFloats(rows, site) * 4));
  if (partial == nullptr) return;
  side_saw_ = collapsed_;
  LaunchMix(ForkSide(), site, reinterpret_cast<const float*>(Of(*site.fn).view.data), Of(trunk), rows, partial, pre, post, comb);
  Check("HyperConnectionMix");
}

void CudaDevice::CollapseNorm(const Arithmetic& a, Act trunk, const float* pre, int64_t rows, int streams, int64_t hidden,
                              const float* norm, float eps, Act collapsed, Act x) {
  if (rows <= 0) return;
  BeginKeepingExpand();
  JoinSide();
  ExpandPart part;
  if (has_expand_ && expand_.trunk.data == trunk.data && expand_.rows == rows) {
    part = expand_.part;
    has_expand_ = false;
  } else {
    FlushExpand();
  }
  if (collapsed) Wrote(collapsed.data);
  const bool is_released = packs_ && a.round_bf16 && streams == 4 && hidden == kReleasedHidden;
  const QuantizedOut quantized = NewShadow(a, x, rows, hidden, is_released);
  if (is_released) {
    LaunchReleasedCollapse(stream_, a.round_bf16, part, Of(trunk), pre, rows, norm, eps, Of(collapsed), Of(x), quantized);
    collapsed_ = quantized.bf16;
  } else {
    LaunchCollapseNorm(stream_, a.round_bf16, part, Of(trunk), pre, rows, streams, hidden, norm, eps, Of(collapsed), Of(x), quantized);
    collapsed_ = nullptr;
  }
  Check("CollapseNorm");
}

void CudaDevice::Expand(const Arithmetic& a, Act y, const float* post, const float* comb, int64_t rows, int streams, int64_t hidden, Act trunk) {
  if (rows <= 0) return;
  Begin();
  // Most often the next op collapses the expanded streams: one kernel does both.
  has_expand_ = true;
  expand_ = {a.round_bf16, {Of(y), post, comb}, rows, hidden, streams, Of(trunk)};
}

void CudaDevice::StreamMean(const Arithmetic& a, Act trunk, int64_t rows, int streams, int64_t hidden, Act out) {
  if (rows <= 0) return;
  Begin();
  Wrote(out.data);
  LaunchStreamMean(stream_, a.round_bf16, Of(trunk), rows, streams, hidden, Of(out));
  Check("StreamMean");
}

// ---- products, norms ----------------------------------------------------------------------------------------------------

std::unique_ptr<device::Input> CudaDevice::CreateInput() { return std::make_unique<CudaInput>(); }

void CudaDevice::Prepare(const Arithmetic& a, Act x, int64_t rows, int64_t cols, device::InputKind kind, device::Input& input) {
  auto& in = static_cast<CudaInput&>(input);
  in.cols = cols;
  in.view.rows = rows;
  in.has_bf16 = false;
  if (rows <= 0) return;
  if (kind == device::InputKind::kQuantized && a.quantize) {
    in.view.is_bf16 = true;
    in.view.quantize = false;
    for (const Shadow& shadow : shadows_) {
      if (!shadow.is_valid || shadow.of != x.data || shadow.cols != cols || shadow.rows < rows) continue;
      in.view.values = shadow.buffer.data();
      in.view.stride = cols;
      return;
    }
    // Short rows are quantised by whoever reads them.
    constexpr int64_t kShort = 1024;
    if (cols <= kShort && CanReadInPlace(x, cols)) {
      in.view = {x.data, false, true, rows, x.stride};
      return;
    }
    Begin();
    const int64_t padded = (cols + 31) / 32 * 32;
    if (!GrowBuffer(in.own, rows * padded * 2)) return;
    in.view.values = in.own.data();
    in.view.stride = padded;
    LaunchQuantize(stream_, Of(x), rows, cols, {in.own.as<uint16_t>(), padded});
    Check("Prepare");
    return;
  }
  in.view.is_bf16 = in.view.quantize = false;
  for (const Shadow& shadow : shadows_) {
    if (!shadow.has_plain || shadow.of != x.data || shadow.cols != cols || shadow.rows < rows) continue;
    in.view = {shadow.plain.data(), true, false, rows, cols};
    return;
  }
  if (CanReadInPlace(x, cols)) {
    in.view.values = x.data;
    in.view.stride = x.stride;
    return;
  }
  Begin();
  const int64_t padded = (cols + 31) / 32 * 32;
  if (!GrowBuffer(in.own, rows * padded * 4)) return;
  in.view.values = in.own.data();
  in.view.stride = padded;
  LaunchPad(stream_, Of(x), rows, cols, padded, in.own.as<float>());
  Check("Prepare");
}

InputView CudaDevice::Quantized(const InputView& x, int64_t cols) {
  auto* values = static_cast<uint16_t*>(Grow(quantized_, x.rows * cols * 2));
  if (values == nullptr) return {};
  LaunchQuantize(stream_, {static_cast<float*>(const_cast<void*>(x.values)), x.stride}, x.rows, cols, {values, cols});
  return {values, true, false, x.rows, cols};
}

void CudaDevice::MatMulInto(const CudaMatrix& w, const CudaInput& x, int num_groups, bool round, F y) {
  if (x.view.rows <= 0) return;
  if (has_keys_ && num_groups == 1 && !w.packed.is_there() && round == keys_.a.round_bf16 && !x.view.quantize && x.view.rows == keys_.rows &&
      x.view.values == (keys_.norm.quantized.bf16 != nullptr ? static_cast<void*>(keys_.norm.quantized.bf16) : keys_.norm.out.data) &&
      CanJoinNorm(w.view, keys_.norm, keys_.part)) {
    has_keys_ = false;
    Begin();
    Wrote(y.data);
    LaunchNormMatMul(stream_, keys_.a, w.view, keys_.norm, keys_.part, keys_.rows, y);
    Check("MatMul");
    return;
  }
  Begin();
  Wrote(y.data);
  InputView in = x.view;
  if (w.packed.is_there()) {
    in = Bf16Of(x);
    if (in.values != nullptr) PackedMatMul(stream_, w.packed, in, num_groups, round ? OutputType::kFloatRounded : OutputType::kFloat, y.data, y.stride);
    return;
  }
  if (in.quantize && w.view.format != device::WeightFormat::kFp8Block32) {
    in = Quantized(in, x.cols);
    if (in.values == nullptr) return;
  }
  LaunchMatMul(stream_, w.view, in, num_groups, w.cols(), round, y);
  Check("MatMul");
}

void CudaDevice::MatMul(const Arithmetic& a, const device::Matrix& w, const device::Input& x, Act y) {
  if (Of(w).packed.is_there() && !a.round_bf16) return Fail(Internal("the weights are kept for the released arithmetic"));
  MatMulInto(Of(w), Of(x), 1, a.round_bf16, Of(y));
}

void CudaDevice::MatMulFloat(const device::Matrix& w, const device::Input& x, float* y, int64_t stride) {
  MatMulInto(Of(w), Of(x), 1, false, {y, stride});
}

void CudaDevice::MatMulGroups(const Arithmetic& a, const device::Matrix& w, int num_groups, const device::Input& x, Act y) {
  MatMulInto(Of(w), Of(x), num_groups, a.round_bf16, Of(y));
}

void CudaDevice::RmsNorm(const Arithmetic& a, Act in, const float* norm, int64_t rows, int64_t width, float eps, Act out) {
  if (rows <= 0) return;
  Begin();
  const QuantizedOut quantized = NewShadow(a, out, rows, width);
  // The window keys of the same rows often come next: one kernel makes both. The order of the sums depends on the block.
  has_norm_ = true;
  norm_ = {a.round_bf16, rows, {Of(in), norm, width, eps, Of(out), quantized}};
}

void CudaDevice::Scale(const Arithmetic& a, Act x, int64_t rows, int64_t width, float factor) {
  if (rows <= 0) return;
  Begin();
  Wrote(x.data);
  // Weights of index heads: the scores often come next and multiply them on their way.
  has_scale_ = true;
  scale_ = {Of(x), rows, width, {factor, a.round_bf16}};
  if (width > kMaxIndexHeads) FlushJoined();
}

void CudaDevice::AddFloats(const float* x, int64_t rows, int64_t width, int64_t x_stride, float* sum, int64_t sum_stride) {
  if (rows <= 0 || width <= 0) return;
  Begin();
  LaunchAddFloats(stream_, x, rows, width, x_stride, sum, sum_stride);
  Check("AddFloats");
}

bool CudaDevice::UploadMasks(std::span<const uint32_t* const> host_masks, const uint32_t*& one, const uint32_t* const*& all) {
  one = host_masks.empty() ? nullptr : host_masks[0];
  all = nullptr;
  if (std::none_of(host_masks.begin(), host_masks.end(), [one](const uint32_t* other) { return other != one; })) return true;
  const auto bytes = static_cast<int64_t>(host_masks.size() * sizeof(one));
  all = static_cast<const uint32_t* const*>(Grow(best_masks_, bytes));
  if (all == nullptr) return false;
  Upload(best_masks_.buffer.data(), host_masks.data(), bytes);
  Begin();
  return true;
}

void CudaDevice::ArgMax(const device::RowBestArgs& args, int32_t* ids, int64_t ids_stride) {
  if (args.rows <= 0) return;
  Begin();
  const uint32_t* mask = nullptr;
  const uint32_t* const* masks = nullptr;
  if (!UploadMasks(args.host_masks, mask, masks)) return;
  if (mask == nullptr && masks == nullptr) {
    LaunchArgMax(stream_, args.x, args.rows, args.width, args.stride, ids, ids_stride);
  } else {
    LaunchMaskedArgMax(stream_, args, mask, masks, ids, ids_stride);
  }
  Check("ArgMax");
}

void CudaDevice::FindBest(const device::RowBestArgs& args, device::RowBest* host_out) {
  if (args.rows <= 0) return;
  Begin();
  JoinSide();
  const uint32_t* mask = nullptr;
  const uint32_t* const* masks = nullptr;
  if (!UploadMasks(args.host_masks, mask, masks)) return;
  // The kernel writes into the host's memory: nothing is left to fetch.
  const auto bytes = static_cast<size_t>(args.rows) * sizeof(device::RowBest);
  uint8_t* staged = TakeDownload(static_cast<int64_t>(bytes));
  if (staged == nullptr) return Fail(Internal("more rows of logits than can be fetched at once"));
  LaunchFindBest(stream_, args, mask, masks, reinterpret_cast<device::RowBest*>(staged));
  Check("FindBest");
  Sync();
  std::memcpy(host_out, staged, bytes);
}

// ---- rotation, keys, caches ---------------------------------------------------------------------------------------------

void CudaDevice::RopeTable(const int32_t* positions, int64_t count, const float* inv_freq, int rope_dim, float* table) {
  if (count <= 0) return;
  // The tables of a step are asked for one after another: one kernel makes them.
  constexpr int kMost = 4;
  if (tables_.count == kMost || (tables_.count > 0 && tables_.rope_dim != rope_dim)) FlushTables();
  if (tables_.count == 0) Begin();
  tables_.rope_dim = rope_dim;
  tables_.tables[tables_.count++] = {positions, inv_freq, table, count};
}

void CudaDevice::Rope(const Arithmetic& a, Act x, int64_t rows, int heads, int head_dim, int rope_dim, const float* table) {
  if (rows <= 0) return;
  Begin();
  Wrote(x.data);
  // The window keys of the same rows come next: one kernel rotates both.
  has_rope_ = true;
  rope_ = {a, Of(x), rows, heads, head_dim, rope_dim, table};
}

void CudaDevice::IndexQuery(const Arithmetic& a, Act x, int64_t rows, int heads, int dim, int rope_dim, const float* table) {
  if (rows <= 0) return;
  Begin();
  Wrote(x.data);
  LaunchIndexQuery(stream_, a, Of(x), rows, heads, dim, rope_dim, table);
  Check("IndexQuery");
}

void CudaDevice::WindowKeys(const Arithmetic& a, Act raw, const float* norm, float eps, int64_t rows, int head_dim, int rope_dim,
                            const float* table, Act keys) {
  if (rows <= 0) return;
  if (side_has_window_) JoinSide();  // it reads the keys of the call before
  NormPart other;
  if (has_norm_ && norm_.rows == rows && norm_.round == a.round_bf16 && NormThreads(norm_.part.width) == head_dim) {
    has_norm_ = false;
    other = norm_.part;
  }
  Begin();
  Wrote(keys.data);
  if (head_dim % 32 != 0 || head_dim > 1024) return Fail(Unimplemented("the NVIDIA backend takes heads of a multiple of 32 channels, 1024 at most"));
  // The queries' product, which reads the other norm, often comes next: in steps of few rows one kernel does it all.
  has_keys_ = true;
  keys_ = {a, {Of(raw), norm, eps, head_dim, rope_dim, table, Of(keys)}, other, rows};
  if (other.in.data == nullptr || rows > kMaxJoinedRows) FlushJoined();
}

void CudaDevice::StoreWindow(const device::Step& step, const device::WindowRing& ring, int head_dim, Act keys) {
  if (step.num_rows <= 0) return;
  Begin();
  LaunchStoreWindow(ForkSide(), step, ring, head_dim, Of(keys));
  side_has_window_ = true;
  Check("StoreWindow");
}

void CudaDevice::PoolPairs(const Arithmetic& a, const device::Step& step, const float* products, int head_dim, int64_t ring_offset,
                           int ring_rows, const device::NewGroup* groups, int64_t num_groups, Act latent) {
  if (step.num_rows <= 0) return;
  Begin();
  Wrote(latent.data);
  LaunchPoolPairs(stream_, a.round_bf16, step, products, head_dim, ring_offset, ring_rows, groups, num_groups, Of(latent));
  LaunchStorePairs(ForkSide(), step, products, head_dim, ring_offset, ring_rows);
  Check("PoolPairs");
}

void CudaDevice::StoreCompressed(const Arithmetic& a, const device::KeyCache& cache, Act latent, const device::NewGroup* groups,
                                 int64_t num_groups, int rope_dim, const float* table, Act trace_key) {
  if (num_groups <= 0) return;
  IndexKeysPart index;
  if (has_index_keys_ && index_keys_.groups == groups && index_keys_.num_groups == num_groups && index_keys_.table == table &&
      index_keys_.cache.pool == cache.pool && index_keys_.cache.index_offset == cache.index_offset) {
    has_index_keys_ = false;
    index = index_keys_.part;
  }
  Begin();
  Wrote(latent.data);
  LaunchStoreKeys(stream_, a, cache, {Of(latent), Of(trace_key)}, index, groups, num_groups, rope_dim, table);
  Check("StoreCompressed");
}

void CudaDevice::StoreIndexKeys(const Arithmetic& a, const device::KeyCache& cache, Act raw, const float* norm, float eps,
                                const device::NewGroup* groups, int64_t num_groups, int rope_dim, const float* table, Act trace_key) {
  if (num_groups <= 0) return;
  Begin();
  Wrote(raw.data);
  if (cache.index_dim % 32 != 0 || cache.index_dim > 1024) return Fail(Unimplemented("the NVIDIA backend takes index keys of a multiple of 32 channels, 1024 at most"));
  // The main keys of the same groups come next: one kernel stores both.
  has_index_keys_ = true;
  index_keys_ = {a, cache, {Of(raw), norm, eps, Of(trace_key)}, groups, num_groups, rope_dim, table};
}

// ---- attention ----------------------------------------------------------------------------------------------------------

void CudaDevice::Select(const device::Step& step, const device::SelectArgs& args) {
  if (step.num_rows <= 0) return;
  WeightScale scale;
  const bool is_packed = TakesPackedSelect(args);
  if (has_scale_ && !is_packed && scale_.x.data == args.weight.data && scale_.rows == step.num_rows && scale_.width == args.heads && args.heads <= kMaxIndexHeads) {
    has_scale_ = false;
    scale = scale_.scale;
  }
  Begin();
  if (is_packed) return PackedSelect(step, args);
  if (args.heads > kMaxIndexHeads) return Fail(Unimplemented("the NVIDIA backend takes at most 64 index heads"));
  // Scores of as many rows as a fixed amount of memory holds.
  constexpr int64_t kMostScores = int64_t{256} << 20;
  const int64_t stride = std::max<int64_t>(args.max_groups, 1);
  const int64_t blocks = args.block_size > 0 ? (stride + args.block_size - 1) / args.block_size : 1;
  const int64_t at_once = std::clamp<int64_t>(kMostScores / stride, 1, step.num_rows);
  auto* scores = static_cast<float*>(Grow(scores_, at_once * stride * 4));
  auto* block_scores = static_cast<float*>(Grow(block_scores_, at_once * blocks * 4));
  if (scores == nullptr || block_scores == nullptr) return;
  for (int64_t first = 0; first < step.num_rows; first += at_once)
    LaunchSelect(stream_, step, args, first, std::min<int64_t>(at_once, step.num_rows - first), scores, block_scores, scale);
  Check("Select");
}

void CudaDevice::Attention(const Arithmetic& a, const device::Step& step, const device::AttentionArgs& args) {
  if (step.num_rows <= 0) return;
  const bool is_packed = TakesPackedAttention(a, args);
  const bool rotates = has_rope_ && rope_.x.data == args.query.data && rope_.table == args.rope && rope_.rows == step.num_rows &&
                       (is_packed || AttentionRotates(args));
  if (rotates) has_rope_ = false;
  Begin();
  Wrote(args.out.data);
  if (is_packed) return PackedAttention(step, args, rotates);
  if (args.rope_dim % 4 != 0) return Fail(Unimplemented("the NVIDIA backend rotates a multiple of 4 channels"));
  LaunchAttention(stream_, a, step, args, rotates);
  Check("Attention");
}

// ---- experts ------------------------------------------------------------------------------------------------------------

void CudaDevice::Route(const device::RouterArgs& args, int64_t rows) {
  if (rows <= 0) return;
  const int num_experts = static_cast<int>(args.gate->rows());
  if (args.num_chosen <= 32 && !Of(*args.gate).packed.is_there() && IsSmallRouter(Of(*args.gate).view)) {
    Begin();
    // The experts come next: in steps of few rows their first kernel makes the choice.
    has_route_ = true;
    route_ = {{args, Of(*args.gate).view, Of(*args.x).view}, rows};
    if (rows > kMaxJoinedRows || route_.part.x.is_bf16 || route_.part.x.quantize) FlushJoined();
    return;
  }
  MatMulFloat(*args.gate, *args.x, args.biased_scores, num_experts);
  if (num_experts > 1024 || args.num_chosen > 32) return Fail(Unimplemented("the NVIDIA backend takes at most 1024 experts, 32 of them a token"));
  LaunchRouteChoice(stream_, args, num_experts, rows);
  Check("Route");
}

void CudaDevice::Experts(const Arithmetic& a, const device::ExpertArgs& args, int64_t rows) {
  if (rows <= 0) return;
  RoutePart route;
  if (has_route_ && route_.rows == rows && route_.part.args.experts == args.experts && route_.part.args.weights == args.weights &&
      route_.part.args.num_chosen == args.num_chosen && !static_cast<const CudaExpertBank&>(*args.bank).is_packed) {
    has_route_ = false;
    route = route_.part;
  }
  Begin();
  Wrote(args.out.data);
  InputView x = Of(*args.x).view;
  if (x.quantize) x = Quantized(x, Of(*args.x).cols);
  if (x.values == nullptr) return;
  if (const auto& packed = static_cast<const CudaExpertBank&>(*args.bank); packed.is_packed) return PackedExperts(a, packed, args, x, rows);
  const ExpertBankView& bank = static_cast<const CudaExpertBank&>(*args.bank).view;
  auto* act = static_cast<float*>(Grow(act_, rows * (args.num_chosen + 1) * bank.padded_inner * 4));
  if (act == nullptr) return;
  LaunchExperts(stream_, a, bank, args, x, rows, act, Of(args.out), route);
  Check("Experts");
}

}  // namespace deepinfer::cuda
