// SPDX-License-Identifier: Apache-2.0
//
// The CPU backend: activations are float32 in host memory, weights stay packed, every op runs on one thread pool. Ops are
// grouped by subject in ops/*.cc; the arithmetic of one row lives in row_ops.h, heavy kernels in kernels/.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "backends/cpu/expert_cache.h"
#include "backends/cpu/kernels/attention.h"
#include "backends/cpu/kernels/index.h"
#include "backends/cpu/kernels/matmul.h"
#include "backends/cpu/kernels/moe.h"
#include "backends/cpu/row_ops.h"
#include "device/device.h"

namespace deepinfer::cpu {

using device::Act;
using device::Arithmetic;

inline float* Row(const Act& x, int64_t row) { return static_cast<float*>(x.data) + row * x.stride; }

class CpuDevice final : public device::Device {
 public:
  // isa: as in core/cpu_features.h; it becomes the active level of the process.
  static Result<std::unique_ptr<CpuDevice>> Create(int num_threads, std::string_view isa,
                                                   CpuPinning pinning = CpuPinning::kAuto);
  ~CpuDevice() override;

  std::string_view name() const override { return "cpu"; }
  int32_t activation_bytes() const override { return sizeof(float); }
  bool has_host_memory() const override { return true; }
  ThreadPool& pool() override { return *pool_; }

  Result<device::Buffer> Allocate(int64_t bytes) override;
  Result<device::Buffer> Reserve(int64_t bytes) override;
  void Free(void* data, int64_t bytes) override;
  void Upload(void* to, const void* host_from, int64_t bytes) override;
  void Download(void* host_to, const void* from, int64_t bytes) override;
  void Copy(void* to, const void* from, int64_t bytes) override;
  void ReadAct(const Act& x, int64_t rows, int64_t width, float* host_to) override;
  void WriteAct(const Act& x, int64_t rows, int64_t width, const float* host_from) override;

  Result<std::unique_ptr<device::Matrix>> CreateMatrix(std::span<const device::HostMatrix> parts) override;
  Result<std::unique_ptr<device::Table>> CreateTable(const device::HostMatrix& table) override;
  Result<std::unique_ptr<device::ExpertBank>> CreateExperts(std::span<const device::HostExpert> experts,
                                                            const device::HostExpert& shared) override;
  Status StreamExperts(device::ExpertStreaming streaming) override;
  bool streams_experts() const override { return expert_cache_ != nullptr; }
  Status FinishWeights() override { return expert_cache_ != nullptr ? expert_cache_->Finish() : Status::Ok(); }
  void PrefetchExperts(const device::ExpertBank& bank, const int32_t* experts, int64_t count) override;
  Status TakeError() override { return expert_cache_ != nullptr ? expert_cache_->TakeError() : Status::Ok(); }
  device::ExpertStreamStats expert_stats() const override {
    return expert_cache_ != nullptr ? expert_cache_->stats() : device::ExpertStreamStats();
  }

  void Embed(const Arithmetic& a, const device::Table& table, const int32_t* ids, const int32_t* image_row,
             const float* image_embeds, int64_t rows, int streams, int64_t hidden, Act trunk) override;
  void GatherRows(const Arithmetic& a, const device::Table& table, const int32_t* ids, int64_t rows, int columns,
                  int64_t width, Act out) override;
  void CopyRows(Act in, const int32_t* rows, int64_t num_rows, int64_t width, Act out) override;
  void CopyFloatRows(const float* in, const int32_t* rows, int64_t num_rows, int64_t width, float* out) override;
  void EngramInject(const Arithmetic& a, Act kv, const float* qk, const uint8_t* is_dead, int64_t rows, int streams,
                    int64_t hidden, float eps, Act trunk, float* gate_out) override;
  void HyperConnectionMix(const device::HyperConnectionSite& site, Act trunk, int64_t rows, float* pre, float* post,
                          float* comb) override;
  void CollapseNorm(const Arithmetic& a, Act trunk, const float* pre, int64_t rows, int streams, int64_t hidden,
                    const float* norm, float eps, Act collapsed, Act x) override;
  void Expand(const Arithmetic& a, Act y, const float* post, const float* comb, int64_t rows, int streams, int64_t hidden,
              Act trunk) override;
  void StreamMean(const Arithmetic& a, Act trunk, int64_t rows, int streams, int64_t hidden, Act out) override;

  std::unique_ptr<device::Input> CreateInput() override;
  void Prepare(const Arithmetic& a, Act x, int64_t rows, int64_t cols, device::InputKind kind, device::Input& input) override;
  void MatMul(const Arithmetic& a, const device::Matrix& w, const device::Input& x, Act y) override;
  void MatMulFloat(const device::Matrix& w, const device::Input& x, float* y, int64_t stride) override;
  void MatMulGroups(const Arithmetic& a, const device::Matrix& w, int num_groups, const device::Input& x, Act y) override;
  void RmsNorm(const Arithmetic& a, Act in, const float* norm, int64_t rows, int64_t width, float eps, Act out) override;
  void Scale(const Arithmetic& a, Act x, int64_t rows, int64_t width, float factor) override;

  void RopeTable(const int32_t* positions, int64_t count, const float* inv_freq, int rope_dim, float* table) override;
  void Rope(const Arithmetic& a, Act x, int64_t rows, int heads, int head_dim, int rope_dim, const float* table) override;
  void IndexQuery(const Arithmetic& a, Act x, int64_t rows, int heads, int dim, int rope_dim, const float* table) override;
  void WindowKeys(const Arithmetic& a, Act raw, const float* norm, float eps, int64_t rows, int head_dim, int rope_dim,
                  const float* table, Act keys) override;
  void StoreWindow(const device::Step& step, const device::WindowRing& ring, int head_dim, Act keys) override;
  void PoolPairs(const Arithmetic& a, const device::Step& step, const float* products, int head_dim, int64_t ring_offset,
                 int ring_rows, const device::NewGroup* groups, int64_t num_groups, Act latent) override;
  void StoreCompressed(const Arithmetic& a, const device::KeyCache& cache, Act latent, const device::NewGroup* groups,
                       int64_t num_groups, int rope_dim, const float* table, Act trace_key) override;
  void StoreIndexKeys(const Arithmetic& a, const device::KeyCache& cache, Act raw, const float* norm, float eps,
                      const device::NewGroup* groups, int64_t num_groups, int rope_dim, const float* table,
                      Act trace_key) override;

  void Select(const device::Step& step, const device::SelectArgs& args) override;
  void Attention(const Arithmetic& a, const device::Step& step, const device::AttentionArgs& args) override;
  void Route(const device::RouterArgs& args, int64_t rows) override;
  void Experts(const Arithmetic& a, const device::ExpertArgs& args, int64_t rows) override;
  void AddFloats(const float* x, int64_t rows, int64_t width, int64_t x_stride, float* sum, int64_t sum_stride) override;
  void ArgMax(const device::RowBestArgs& args, int32_t* ids, int64_t ids_stride) override;

 private:
  CpuDevice(int num_threads, CpuPinning pinning);

  // fn(begin, end) over ranges of rows; inline when the whole work is small. `row_cost` is about the nanoseconds of a row.
  template <typename F>
  void ForRows(int64_t rows, int64_t row_cost, F&& fn) {
    constexpr int64_t kTileCost = 20000;
    const int64_t per_tile = row_cost >= kTileCost ? 1 : (kTileCost + row_cost - 1) / row_cost;
    if (rows <= per_tile) {
      if (rows > 0) fn(int64_t{0}, rows);
      return;
    }
    pool_->ParallelFor((rows + per_tile - 1) / per_tile, [&](int64_t tile, int) {
      const int64_t begin = tile * per_tile;
      fn(begin, begin + per_tile < rows ? begin + per_tile : rows);
    });
  }

  // Scratch of one thread, grown on demand.
  float* Scratch(int thread_idx, int slot, int64_t num_floats);

  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<ExpertCache> expert_cache_;  // null: all experts are in memory
  const RowOps& row_ops_;
  struct ThreadScratch {
    std::vector<float> slots[6];
  };
  std::vector<ThreadScratch> scratch_;
  std::vector<float> router_scores_;
  std::vector<float> mix_products_;  // hyper-connections: [rows, outputs]
  MoeExperts moe_;
  SparseAttention attention_;
  // Attention: float32 keys of the step, decoded once and shared by its rows (KeyStride apart), and where each sequence's
  // begin (in keys; -1 = not decoded as a whole).
  AlignedBuffer window_keys_;
  AlignedBuffer compressed_keys_;
  std::vector<int64_t> window_begin_;
  std::vector<int64_t> compressed_begin_;
  std::vector<IndexScorer> scorers_;  // per thread
};

}  // namespace deepinfer::cpu
