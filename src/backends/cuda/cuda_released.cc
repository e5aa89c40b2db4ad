// SPDX-License-Identifier: Apache-2.0
//
// The released shapes on the kernels of kernels/: weights on their way into the packed form, and ops that have it. Everything
// else belongs to ops/. Which of the two serves an op follows from the model alone, never from the rows of a call.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "backends/cuda/cuda_device.h"
#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/indexer.h"

namespace deepinfer::cuda {

namespace {

using device::HostMatrix;
using device::WeightFormat;

constexpr int kMaxPackSources = 4;

// Of dense matrices.
bool KindOf(WeightFormat format, PackedKind& kind) {
  switch (format) {
    case WeightFormat::kFp8Block32: kind = PackedKind::kFp8; return true;
    case WeightFormat::kBf16: kind = PackedKind::kBf16; return true;
    default: return false;
  }
}

int64_t DataBytes(const HostMatrix& m) { return m.rows * WeightRowBytes(m.format, m.cols); }
int64_t ScaleBytes(const HostMatrix& m) {
  if (m.host_scale == nullptr) return 0;
  return (m.format == WeightFormat::kFp8Block32 ? (m.rows + 31) / 32 : m.rows) * (m.cols / 32);
}

// Row blocks that follow one another in the checkpoint are one source.
std::vector<HostMatrix> Joined(std::span<const HostMatrix> parts) {
  std::vector<HostMatrix> joined;
  for (const HostMatrix& part : parts) {
    if (!joined.empty()) {
      HostMatrix& last = joined.back();
      const bool starts_tile = part.format != WeightFormat::kFp8Block32 || last.rows % 32 == 0;
      if (starts_tile && static_cast<const uint8_t*>(last.host_data) + DataBytes(last) == part.host_data &&
          (last.host_scale == nullptr || last.host_scale + ScaleBytes(last) == part.host_scale)) {
        last.rows += part.rows;
        continue;
      }
    }
    joined.push_back(part);
  }
  return joined;
}

DenseArgs ProductOf(const PackedMatrix& w, const InputView& x) {
  DenseArgs args;
  args.layout = w.layout;
  args.weights = w.data.as<uint8_t>();
  args.x = static_cast<const __nv_bfloat16*>(x.values);
  args.ldx = x.stride;
  args.tokens = static_cast<int>(x.rows);
  args.workspace = w.workspace;
  args.dependent = true;
  return args;
}

// The kernels for many rows know these; those for few rows know more.
bool HasBothForms(PackedKind kind, int64_t cols) { return kind != PackedKind::kBf16 || cols == 5120; }

}  // namespace

// ---- weights ------------------------------------------------------------------------------------------------------------

Status CudaDevice::PackInto(std::span<const HostMatrix> parts, RowOrder order, const PackedLayout& layout, uint8_t* out, int* error) {
  PackSource sources[kMaxPackSources];
  std::vector<device::Buffer> staged;
  for (size_t i = 0; i < parts.size(); ++i) {
    const HostMatrix& part = parts[i];
    DI_ASSIGN_OR_RETURN(device::Buffer data, Allocate(DataBytes(part)));
    UploadLarge(data.data(), part.host_data, DataBytes(part));
    sources[i].data = data.as<uint8_t>();
    sources[i].rows = static_cast<int>(part.rows);
    staged.push_back(std::move(data));
    if (part.host_scale == nullptr) continue;
    DI_ASSIGN_OR_RETURN(device::Buffer scale, Allocate(ScaleBytes(part)));
    UploadLarge(scale.data(), part.host_scale, ScaleBytes(part));
    sources[i].scale = scale.as<uint8_t>();
    staged.push_back(std::move(scale));
  }
  if (const cudaError_t status = LaunchPack(layout, order, sources, static_cast<int>(parts.size()), out, error, stream_); status != cudaSuccess)
    return CudaError(status, "cannot pack weights");
  return TakeError();
}

Status CudaDevice::Pack(std::span<const HostMatrix> given, RowOrder order, PackedMatrix& packed) {
  PackedKind kind;
  if (!packs_ || !KindOf(given[0].format, kind) || !HasBothForms(kind, given[0].cols)) return Status::Ok();
  const std::vector<HostMatrix> parts = order == RowOrder::kStacked ? Joined(given) : std::vector<HostMatrix>(given.begin(), given.end());
  if (parts.size() > kMaxPackSources) return Status::Ok();
  int64_t rows = 0;
  for (const HostMatrix& part : parts) {
    // Sources are cut into row tiles of 16, and FP8 into tiles of 32 with one scale.
    if (parts.size() > 1 && part.rows % (kind == PackedKind::kFp8 ? 32 : 16) != 0) return Status::Ok();
    rows += part.rows;
  }
  const PackedLayout layout = LayoutOf(kind, static_cast<int>(rows), static_cast<int>(parts[0].cols));
  if (!layout.valid()) return Status::Ok();
  DI_ASSIGN_OR_RETURN(device::Buffer data, Allocate(layout.bytes()));
  DI_ASSIGN_OR_RETURN(device::Buffer error, Allocate(sizeof(int)));
  DI_RETURN_IF_ERROR(PackInto(parts, order, layout, data.as<uint8_t>(), error.as<int>()));
  int has_large_scale = 0;
  if (kind != PackedKind::kBf16) Download(&has_large_scale, error.data(), sizeof(int));
  DI_RETURN_IF_ERROR(TakeError());
  if (has_large_scale != 0) return Status::Ok();
  if (const int64_t bytes = DenseWorkspaceBytes(layout); bytes > 0) {
    device::Buffer& workspace = dense_workspaces_[layout.rows];
    if (workspace.data() == nullptr) {
      DI_ASSIGN_OR_RETURN(workspace, Allocate(bytes));
    }
    packed.workspace = workspace.data();
  }
  packed.layout = layout;
  packed.data = std::move(data);
  return Status::Ok();
}

Status CudaDevice::PackExperts(std::span<const device::HostExpert> experts, const device::HostExpert& shared, CudaExpertBank& bank) {
  const auto is_released = [](const device::HostExpert& e, WeightFormat format) {
    const auto is = [format](const HostMatrix& m, int rows, int cols) { return m.format == format && m.rows == rows && m.cols == cols; };
    return is(e.w1, kExpertWidth, kExpertHidden) && is(e.w3, kExpertWidth, kExpertHidden) && is(e.w2, kExpertHidden, kExpertWidth);
  };
  if (!packs_ || experts.size() > kMaxPlannedExperts || !is_released(shared, WeightFormat::kFp8Block32)) return Status::Ok();
  for (const auto& e : experts)
    if (!is_released(e, WeightFormat::kFp4Row32)) return Status::Ok();

  const HostMatrix shared_up[2] = {shared.w1, shared.w3};
  DI_RETURN_IF_ERROR(Pack(shared_up, RowOrder::kInterleaved, bank.packed_shared_gate_up));
  DI_RETURN_IF_ERROR(Pack({&shared.w2, 1}, RowOrder::kStacked, bank.packed_shared_down));
  if (!bank.packed_shared_gate_up.is_there() || !bank.packed_shared_down.is_there()) return Status::Ok();

  const PackedLayout up = ExpertGateUpLayout(), down = ExpertDownLayout();
  const auto count = static_cast<int64_t>(experts.size());
  DI_ASSIGN_OR_RETURN(device::Buffer up_data, Allocate(count * up.bytes()));
  DI_ASSIGN_OR_RETURN(device::Buffer down_data, Allocate(count * down.bytes()));
  DI_ASSIGN_OR_RETURN(device::Buffer error, Allocate(sizeof(int)));
  std::vector<const uint8_t*> pointers(static_cast<size_t>(2 * count));
  for (int64_t i = 0; i < count; ++i) {
    const device::HostExpert& e = experts[static_cast<size_t>(i)];
    const HostMatrix gate_up[2] = {e.w1, e.w3};
    uint8_t* up_at = up_data.as<uint8_t>() + i * up.bytes();
    uint8_t* down_at = down_data.as<uint8_t>() + i * down.bytes();
    DI_RETURN_IF_ERROR(PackInto(gate_up, RowOrder::kInterleaved, up, up_at, error.as<int>()));
    DI_RETURN_IF_ERROR(PackInto({&e.w2, 1}, RowOrder::kStacked, down, down_at, error.as<int>()));
    pointers[static_cast<size_t>(i)] = up_at;
    pointers[static_cast<size_t>(count + i)] = down_at;
  }
  int has_large_scale = 0;
  Download(&has_large_scale, error.data(), sizeof(int));
  DI_RETURN_IF_ERROR(TakeError());
  if (has_large_scale != 0) return Status::Ok();
  const auto bytes = static_cast<int64_t>(pointers.size() * sizeof(pointers[0]));
  DI_ASSIGN_OR_RETURN(bank.pointers, Allocate(bytes));
  Upload(bank.pointers.data(), pointers.data(), bytes);
  bank.packed_gate_up = std::move(up_data);
  bank.packed_down = std::move(down_data);
  bank.is_packed = true;
  return Status::Ok();
}

// ---- products -----------------------------------------------------------------------------------------------------------

InputView CudaDevice::Bf16Of(const CudaInput& x) {
  if (x.view.is_bf16) return x.view;
  if (x.view.quantize) return Quantized(x.view, x.cols);
  if (!x.has_bf16) {
    if (!GrowBuffer(x.bf16, x.view.rows * x.cols * 2)) return {};
    LaunchToBf16(stream_, {static_cast<float*>(const_cast<void*>(x.view.values)), x.view.stride}, x.view.rows, x.cols, x.bf16.as<uint16_t>());
    x.has_bf16 = true;
  }
  return {x.bf16.data(), true, false, x.view.rows, x.cols};
}

void CudaDevice::PackedMatMul(cudaStream_t stream, const PackedMatrix& w, const InputView& x, int num_groups, OutputType out, void* y, int64_t ldy) {
  DenseArgs args = ProductOf(w, x);
  args.num_groups = num_groups;
  args.y = y;
  args.ldy = ldy;
  args.out = out;
  args.fast = is_fast_;
  if (const cudaError_t error = LaunchDense(args, stream); error != cudaSuccess) Fail(CudaError(error, "MatMul"));
}

// ---- experts ------------------------------------------------------------------------------------------------------------

void CudaDevice::PackedExperts(const Arithmetic& a, const CudaExpertBank& bank, const device::ExpertArgs& args, const InputView& x, int64_t rows) {
  const int64_t pairs = rows * args.num_chosen, value_bytes = a.round_bf16 ? 2 : 4;
  const int num_experts = bank.view.num_experts;
  void* plan = Grow(plan_, PlanBytes(rows, args.num_chosen, num_experts));
  auto* act = static_cast<__nv_bfloat16*>(Grow(act_, pairs * kExpertWidth * 2));
  void* sums = Grow(expert_sums_, pairs * kExpertHidden * value_bytes);
  auto* shared_act = static_cast<__nv_bfloat16*>(Grow(shared_act_, rows * kExpertWidth * 2));
  void* shared_sums = Grow(shared_sums_, rows * kExpertHidden * value_bytes);
  if (plan == nullptr || act == nullptr || sums == nullptr || shared_act == nullptr || shared_sums == nullptr) return;

  DenseArgs up = ProductOf(bank.packed_shared_gate_up, x);
  up.tokens = static_cast<int>(rows);
  up.y = shared_act;
  up.ldy = kExpertWidth;
  up.swiglu = true;
  up.swiglu_limit = args.swiglu_limit;
  up.round_bf16 = a.round_bf16;
  up.fast = is_fast_;

  ExpertsArgs e;
  e.plan = PlanViews(plan, rows, args.num_chosen, num_experts);
  e.num_experts = num_experts;
  e.num_chosen = args.num_chosen;
  e.rows = static_cast<int>(rows);
  e.chosen = args.experts;
  e.weights = args.weights;
  e.gate_up = bank.gate_up_of();
  e.down = bank.down_of();
  e.x = up.x;
  e.ldx = x.stride;
  e.swiglu_limit = args.swiglu_limit;
  e.round_bf16 = a.round_bf16;
  e.act = act;
  e.y = sums;
  e.shared = shared_sums;
  e.ld_shared = kExpertHidden;
  e.out = args.out.data;
  e.ldo = args.out.stride;
  e.out_type = a.round_bf16 ? OutputType::kFloatRounded : OutputType::kFloat;
  e.dependent = true;
  e.fast = is_fast_;

  // The shared expert waits for the collapsed streams alone: beside the router, where the other stream has seen them.
  const cudaStream_t shared_stream = side_is_busy_ && side_saw_ == x.values ? side_ : stream_;
  cudaError_t error = LaunchDense(up, shared_stream);
  if (error == cudaSuccess)
    PackedMatMul(shared_stream, bank.packed_shared_down, {shared_act, true, false, rows, kExpertWidth}, 1,
                 a.round_bf16 ? OutputType::kBf16 : OutputType::kFloat, shared_sums, kExpertHidden);
  if (error == cudaSuccess) error = LaunchExpertPlan(e, stream_);
  if (error == cudaSuccess) error = LaunchExpertGateUp(e, stream_);
  if (error == cudaSuccess) error = LaunchExpertDown(e, stream_);
  if (shared_stream != stream_) JoinSide();
  if (error == cudaSuccess) error = LaunchExpertSum(e, stream_);
  if (error != cudaSuccess) Fail(CudaError(error, "Experts"));
}

// ---- selection, attention -----------------------------------------------------------------------------------------------

bool CudaDevice::TakesPackedSelect(const device::SelectArgs& args) const {
  return packs_ && args.heads == kIndexHeads && args.cache.index_dim == kIndexDim && args.cache.index_format == device::KeyFormat::kFp4Pow2 &&
         args.cache.entries_per_block % 16 == 0 && args.topk <= 2048 && args.keep_blocks <= 2048 &&
         (args.role == device::SelectArgs::Candidates::kNone || args.block_size == 8) && args.trace_scores == nullptr;
}

void CudaDevice::PackedSelect(const device::Step& step, const device::SelectArgs& args) {
  constexpr int64_t kMostBytes = int64_t{1} << 30;  // of scores; the rest of the rows come after
  const auto groups = static_cast<int>(std::max<int64_t>(args.max_groups, 1));
  const int64_t at_once = std::clamp<int64_t>(kMostBytes / IndexerWorkspaceBytes(1, groups), 1, step.num_rows);
  const int64_t width = int64_t{args.heads} * args.cache.index_dim;
  // Rows that read every group need no scores, and come without queries.
  const bool has_scores = groups > args.topk;
  void* workspace = Grow(scores_, IndexerWorkspaceBytes(at_once, groups));
  auto* query = static_cast<uint16_t*>(Grow(query_, step.num_rows * width * 2));
  if (workspace == nullptr || query == nullptr) return;
  if (has_scores) LaunchToBf16(stream_, {static_cast<float*>(args.query.data), args.query.stride}, step.num_rows, width, query);
  for (int64_t first = 0; first < step.num_rows; first += at_once) {
    IndexerArgs i;
    i.rows = static_cast<int>(std::min<int64_t>(at_once, step.num_rows - first));
    i.sequences = step.sequences;
    i.positions = step.positions + first;
    i.row_sequence = step.row_sequence + first;
    i.cache = args.cache;
    i.max_groups = groups;
    i.query = reinterpret_cast<const __nv_bfloat16*>(query) + first * width;
    i.ldq = width;
    i.weight = static_cast<const float*>(args.weight.data) + first * args.weight.stride;
    i.weight_is_float = true;
    i.ldw = args.weight.stride;
    i.topk = args.topk;
    i.keep_blocks = args.keep_blocks;
    switch (args.role) {
      case device::SelectArgs::Candidates::kNone: i.role = IndexerArgs::Role::kNone; break;
      case device::SelectArgs::Candidates::kProduce: i.role = IndexerArgs::Role::kProduce; break;
      case device::SelectArgs::Candidates::kConsume: i.role = IndexerArgs::Role::kConsume; break;
    }
    if (args.candidates != nullptr) i.candidates = args.candidates + first * args.keep_blocks;
    if (args.num_candidates != nullptr) i.num_candidates = args.num_candidates + first;
    i.selected = args.selected + first * args.topk;
    i.num_selected = args.num_selected + first;
    i.workspace = workspace;
    i.dependent = true;
    if (const cudaError_t error = LaunchIndexer(i, stream_); error != cudaSuccess) return Fail(CudaError(error, "Select"));
  }
}

bool CudaDevice::TakesPackedAttention(const Arithmetic& a, const device::AttentionArgs& args) const {
  return packs_ && a.round_bf16 && args.heads == kAttentionHeads && args.head_dim == kAttentionDim && args.rope_dim % 8 == 0 &&
         args.ring.format == device::KeyFormat::kMxFp8 &&
         (args.compressed == nullptr || args.compressed->main_format == device::KeyFormat::kFp4E4m3 ||
          args.compressed->main_format == device::KeyFormat::kMxFp8);
}

void CudaDevice::PackedAttention(const device::Step& step, const device::AttentionArgs& args, bool rotates) {
  const int64_t width = int64_t{args.heads} * args.head_dim;
  const int max_keys = args.ring.window + (args.is_draft_block ? step.num_rows : 0) + (args.compressed != nullptr ? args.selected_stride : 0);
  auto* query = static_cast<uint16_t*>(Grow(query_, step.num_rows * width * 2));
  auto* keys = static_cast<uint16_t*>(Grow(new_keys_, step.num_rows * args.head_dim * 2));
  void* workspace = Grow(splits_, AttentionWorkspaceBytes(max_keys));
  if (query == nullptr || keys == nullptr || workspace == nullptr) return;
  LaunchAttentionInputs(stream_, {static_cast<float*>(args.query.data), args.query.stride}, step.num_rows, args.heads, args.head_dim, args.rope_dim,
                        rotates ? args.rope : nullptr, query, {static_cast<float*>(args.new_keys.data), args.new_keys.stride}, keys);
  SparseAttentionArgs s;
  s.rows = step.num_rows;
  s.sequences = step.sequences;
  s.positions = step.positions;
  s.row_sequence = step.row_sequence;
  s.ring = args.ring;
  s.has_compressed = args.compressed != nullptr;
  if (args.compressed != nullptr) s.compressed = *args.compressed;
  s.selected = args.selected;
  s.num_selected = args.num_selected;
  s.selected_stride = args.selected_stride;
  s.max_keys = max_keys;
  s.is_draft_block = args.is_draft_block;
  s.query = reinterpret_cast<const __nv_bfloat16*>(query);
  s.ldq = width;
  s.new_keys = reinterpret_cast<const __nv_bfloat16*>(keys);
  s.ldk = args.head_dim;
  s.sink = args.sink;
  s.rope = args.rope;
  s.rope_dim = args.rope_dim;
  if (args.trace_unrotated) {
    s.out = args.out.data;
    s.ldo = args.out.stride;
    s.out_type = OutputType::kFloatRounded;
    s.unrotated = args.trace_unrotated.data;
  } else {
    // Who reads the result wants bf16.
    s.out = NewPlainShadow(args.out, step.num_rows, width);
    s.ldo = width;
    s.out_type = OutputType::kBf16;
    if (s.out == nullptr) return;
  }
  s.workspace = workspace;
  s.dependent = true;
  if (const cudaError_t error = LaunchSparseAttention(s, stream_); error != cudaSuccess) Fail(CudaError(error, "Attention"));
}

}  // namespace deepinfer::cuda
