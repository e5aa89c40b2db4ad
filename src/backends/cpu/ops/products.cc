// SPDX-License-Identifier: Apache-2.0
//
// Weights, matrix products, norms.
#include <limits>
#include <cstring>

#include <fmt/format.h>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/cpu_weights.h"

namespace deepinfer::cpu {

MatrixSource SourceOf(const device::HostMatrix& m) {
  MatrixSource s;
  switch (m.format) {
    case device::WeightFormat::kF32: s.format = WeightFormat::kF32; break;
    case device::WeightFormat::kBf16: s.format = WeightFormat::kBf16; break;
    case device::WeightFormat::kFp8Block32: s.format = WeightFormat::kFp8Tile32; break;
    case device::WeightFormat::kFp4Row32: s.format = WeightFormat::kFp4Row32; break;
    case device::WeightFormat::kFp8Row32: DI_CHECK(false) << "row-scaled FP8 is a table format"; break;
  }
  s.rows = m.rows;
  s.cols = m.cols;
  s.data = m.host_data;
  s.scale = m.host_scale;
  return s;
}

namespace {

Rounding RoundingOf(const Arithmetic& a) { return a.round_bf16 ? Rounding::kBf16 : Rounding::kNone; }

const PackedMatrix& Packed(const device::Matrix& w) { return static_cast<const CpuMatrix&>(w).packed(); }
const PreparedActivations& Prepared(const device::Input& x) { return static_cast<const CpuInput&>(x).prepared; }

}  // namespace

Result<std::unique_ptr<device::Matrix>> CpuDevice::CreateMatrix(std::span<const device::HostMatrix> parts) {
  std::vector<MatrixSource> sources;
  int64_t rows = 0;
  for (const auto& part : parts) {
    if (part.cols != parts[0].cols || part.format != parts[0].format)
      return Internal(fmt::format("cannot stack matrices of {} and {} columns", parts[0].cols, part.cols));
    sources.push_back(SourceOf(part));
    rows += part.rows;
  }
  // float32 matrices are hyper-connection weights: used in place, row by row.
  if (parts.size() == 1 && parts[0].format == device::WeightFormat::kF32) {
    return std::unique_ptr<device::Matrix>(
        std::make_unique<CpuMatrix>(rows, parts[0].cols, parts[0].host_data));
  }
  return std::unique_ptr<device::Matrix>(
      std::make_unique<CpuMatrix>(rows, parts[0].cols, PackedMatrix::Pack(sources, pool_.get())));
}

Result<std::unique_ptr<device::Table>> CpuDevice::CreateTable(const device::HostMatrix& table) {
  if (table.format != device::WeightFormat::kBf16 && table.format != device::WeightFormat::kFp8Row32)
    return Unimplemented("tables are bf16 or FP8 with a scale per 32 channels");
  return std::unique_ptr<device::Table>(std::make_unique<CpuTable>(table));
}

Result<std::unique_ptr<device::ExpertBank>> CpuDevice::CreateExperts(std::span<const device::HostExpert> experts,
                                                                     const device::HostExpert& shared) {
  auto bank = std::make_unique<CpuExpertBank>();
  const auto pack = [&](const device::HostExpert& e) {
    CpuExpertBank::Expert packed;
    const MatrixSource w13[] = {SourceOf(e.w1), SourceOf(e.w3)};
    const MatrixSource w2[] = {SourceOf(e.w2)};
    packed.gate_up = PackedMatrix::Pack(w13, pool_.get(), true);
    packed.down = PackedMatrix::Pack(w2, pool_.get());
    return packed;
  };
  bank->shared = pack(shared);
  if (expert_cache_ != nullptr) {
    DI_ASSIGN_OR_RETURN(bank->streamed, expert_cache_->AddBank(experts));
  }
  if (bank->streamed >= 0) {
    bank->views.resize(experts.size());
  } else {
    for (const auto& e : experts) bank->experts.push_back(pack(e));
    for (const auto& e : bank->experts) bank->views.push_back(e.View());
  }
  bank->shared_view = bank->shared.View();
  return std::unique_ptr<device::ExpertBank>(std::move(bank));
}

std::unique_ptr<device::Input> CpuDevice::CreateInput() { return std::make_unique<CpuInput>(); }

void CpuDevice::Prepare(const Arithmetic& a, Act x, int64_t rows, int64_t cols, device::InputKind kind,
                        device::Input& input) {
  const ActivationForm form = kind == device::InputKind::kQuantized && a.quantize ? ActivationForm::kFp8
                              : a.round_bf16                                      ? ActivationForm::kBf16
                                                                                  : ActivationForm::kFloat32;
  static_cast<CpuInput&>(input).prepared.Prepare(*pool_, Row(x, 0), rows, cols, x.stride, form);
}

void CpuDevice::MatMul(const Arithmetic& a, const device::Matrix& w, const device::Input& x, Act y) {
  cpu::MatMul(*pool_, Prepared(x), Packed(w), Row(y, 0), y.stride, RoundingOf(a));
}

void CpuDevice::MatMulFloat(const device::Matrix& w, const device::Input& x, float* y, int64_t stride) {
  cpu::MatMul(*pool_, Prepared(x), Packed(w), y, stride, Rounding::kNone);
}

void CpuDevice::MatMulGroups(const Arithmetic& a, const device::Matrix& w, int num_groups, const device::Input& x, Act y) {
  cpu::GroupedMatMul(*pool_, Prepared(x), Packed(w), num_groups, Row(y, 0), y.stride, RoundingOf(a));
}

void CpuDevice::RmsNorm(const Arithmetic& a, Act in, const float* norm, int64_t rows, int64_t width, float eps, Act out) {
  ForRows(rows, width / 4 + 30, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) row_ops_.rms_norm(Row(in, t), norm, width, eps, a.round_bf16, Row(out, t));
  });
}

void CpuDevice::Scale(const Arithmetic& a, Act x, int64_t rows, int64_t width, float factor) {
  for (int64_t t = 0; t < rows; ++t) row_ops_.scale(Row(x, t), width, factor, a.round_bf16);
}

void CpuDevice::AddFloats(const float* x, int64_t rows, int64_t width, int64_t x_stride, float* sum, int64_t sum_stride) {
  for (int64_t t = 0; t < rows; ++t) row_ops_.add(x + t * x_stride, width, sum + t * sum_stride);
}

void CpuDevice::ArgMax(const device::RowBestArgs& args, int32_t* ids, int64_t ids_stride) {
  for (int64_t t = 0; t < args.rows; ++t) {
    const float* row = args.x + t * args.stride;
    const uint32_t* mask = args.host_masks.empty() ? nullptr : args.host_masks[static_cast<size_t>(t)];
    const auto value = [&](int64_t i) { return mask == nullptr || ((mask[i >> 5] >> (i & 31)) & 1u) != 0 ? row[i] : -std::numeric_limits<float>::infinity(); };
    int64_t best = 0;
    for (int64_t i = 1; i < args.width; ++i)
      if (value(i) > value(best)) best = i;
    ids[t * ids_stride] = static_cast<int32_t>(best);
  }
}

}  // namespace deepinfer::cpu
