// SPDX-License-Identifier: Apache-2.0
//
// The NVIDIA backend: float32 activations in GPU memory, packed weights, one stream in call order. Small uploads wait until the
// next op and go up together; a few ops wait for the next one to run as one kernel with it; the mixes of the hyper-connections
// run beside what does not need them. Repeated steps are CUDA graphs. See docs/internals/cuda-backend.md.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/cuda_memory.h"
#include "backends/cuda/cuda_weights.h"
#include "device/device.h"

namespace deepinfer::cuda {

using device::Act;
using device::Arithmetic;

struct CudaOptions {
  int gpu = 0;
  int num_threads = 0;  // of the host pool; 0 = one per core
  CpuPinning pinning = CpuPinning::kAuto;
  bool release_numerics = true;  // weights of the released shapes are kept in the form of kernels/, for this arithmetic alone
  bool batch_invariant = true;   // off: products of many rows sum over K in one go
};

class CudaDevice final : public device::Device {
 public:
  static Result<std::unique_ptr<CudaDevice>> Create(const CudaOptions& options);
  ~CudaDevice() override;

  std::string_view name() const override { return name_; }
  int32_t activation_bytes() const override { return sizeof(float); }
  bool has_host_memory() const override { return false; }
  ThreadPool& pool() override { return *host_pool_; }

  int64_t free_bytes() const override;
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
  Status FinishWeights() override;
  Status TakeError() override;

  bool repeats_steps() const override { return uses_graphs_; }
  bool BeginRepeat(std::span<const int64_t> key) override;
  void EndRepeat() override;

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
  bool finds_best() const override { return true; }
  void FindBest(const device::RowBestArgs& args, device::RowBest* host_out) override;

 private:
  // Memory of the ops themselves; grows between steps.
  struct Scratch {
    device::Buffer buffer;
  };
  // Other forms of an op's result, made with it: quantised, or as bf16 values.
  struct Shadow {
    const void* of = nullptr;
    int64_t rows = 0, cols = 0;
    bool is_valid = false;       // of `quantized`
    bool has_plain = false;      // of `plain`
    bool is_plain_only = false;  // the activation itself was not written
    device::Buffer buffer, plain;
  };
  struct Graph {
    int num_runs = 0;
    cudaGraphExec_t exec = nullptr;
  };

  explicit CudaDevice(const CudaOptions& options);
  Status Init();

  void UseGpu() const;
  // Every op begins with one of these: uploads and waiting ops are started first.
  void Begin();
  // Leaves a waiting expansion, which the caller takes over.
  void BeginKeepingExpand();
  void FlushUploads();
  void FlushTables();
  void FlushNorm();
  void FlushRope();
  // Window keys, index keys, head weights and routers that wait for the product, the main keys, the selection or the experts
  // behind them.
  void FlushJoined();
  void FlushExpand();
  // What runs beside the stream is waited for by it.
  void JoinSide();
  cudaStream_t ForkSide();
  void Check(const char* op);
  void Fail(Status status);
  void Sync();
  // Grown buffers move: graphs that know the old place are thrown away.
  void* Grow(Scratch& scratch, int64_t bytes);
  bool GrowBuffer(device::Buffer& buffer, int64_t bytes);
  void DropGraphs();
  // `out` was written by something that makes no shadow.
  void Wrote(const void* out);
  QuantizedOut NewShadow(const Arithmetic& a, const Act& out, int64_t rows, int64_t cols, bool with_plain = false);
  // The result itself as bf16; null where it cannot be had.
  uint16_t* NewPlainShadow(const Act& out, int64_t rows, int64_t cols);
  Shadow* ShadowOf(const void* out);
  // A form for those who do not quantise what they read.
  InputView Quantized(const InputView& x, int64_t cols);
  // Of every row, on the device: in `one` where all have the same one.
  bool UploadMasks(std::span<const uint32_t* const> host_masks, const uint32_t*& one, const uint32_t* const*& all);
  void MatMulInto(const CudaMatrix& w, const CudaInput& x, int num_groups, bool round, F y);
  Result<device::Buffer> UploadPadded(std::span<const device::HostMatrix> parts, int64_t padded_cols);
  Result<device::Buffer> UploadScales(std::span<const device::HostMatrix> parts, int64_t padded_cols, int32_t& scale_shift);
  // Pinned memory for results, free again with the next Sync().
  uint8_t* TakeDownload(int64_t bytes);
  void UploadLarge(void* to, const void* host_from, int64_t bytes);

  // ---- released shapes (cuda_released.cc) ----
  // Packs `parts` (of one format and width), if kernels/ has a form for them: `packed` stays empty where not.
  Status Pack(std::span<const device::HostMatrix> parts, RowOrder order, PackedMatrix& packed);
  Status PackInto(std::span<const device::HostMatrix> parts, RowOrder order, const PackedLayout& layout, uint8_t* out, int* error);
  Status PackExperts(std::span<const device::HostExpert> experts, const device::HostExpert& shared, CudaExpertBank& bank);
  // Values as bf16, which they are: rows of `cols`.
  InputView Bf16Of(const CudaInput& x);
  void PackedMatMul(cudaStream_t stream, const PackedMatrix& w, const InputView& x, int num_groups, OutputType out, void* y, int64_t ldy);
  void PackedExperts(const Arithmetic& a, const CudaExpertBank& bank, const device::ExpertArgs& args, const InputView& x, int64_t rows);
  bool TakesPackedSelect(const device::SelectArgs& args) const;
  void PackedSelect(const device::Step& step, const device::SelectArgs& args);
  bool TakesPackedAttention(const Arithmetic& a, const device::AttentionArgs& args) const;
  void PackedAttention(const device::Step& step, const device::AttentionArgs& args, bool rotates);

  int gpu_;
  bool is_fast_;
  std::string name_;
  std::unique_ptr<ThreadPool> host_pool_;
  bool packs_;  // the GPU and the arithmetic are those of kernels/
  cudaStream_t stream_ = nullptr, side_ = nullptr;
  cudaEvent_t fork_event_ = nullptr, join_event_ = nullptr;
  bool side_is_busy_ = false, side_has_window_ = false;
  const void *collapsed_ = nullptr, *side_saw_ = nullptr;  // quantised form of the last collapse, and the one that the side follows
  std::unique_ptr<MemoryPool> memory_;
  PinnedRing ring_;
  PinnedRing download_;
  UploadList uploads_;
  Status error_;

  RopeTableList tables_;
  bool has_norm_ = false;
  struct {
    bool round = false;
    int64_t rows = 0;
    NormPart part;
  } norm_;
  bool has_rope_ = false;
  struct {
    Arithmetic a;
    F x;
    int64_t rows = 0;
    int heads = 0, head_dim = 0, rope_dim = 0;
    const float* table = nullptr;
  } rope_;
  bool has_keys_ = false;
  struct {
    Arithmetic a;
    WindowKeysPart part;
    NormPart norm;
    int64_t rows = 0;
  } keys_;
  bool has_index_keys_ = false;
  struct {
    Arithmetic a;
    device::KeyCache cache;
    IndexKeysPart part;
    const device::NewGroup* groups = nullptr;
    int64_t num_groups = 0;
    int rope_dim = 0;
    const float* table = nullptr;
  } index_keys_;
  bool has_scale_ = false;
  struct {
    F x;
    int64_t rows = 0, width = 0;
    WeightScale scale;
  } scale_;
  bool has_route_ = false;
  struct {
    RoutePart part;
    int64_t rows = 0;
  } route_;
  bool has_expand_ = false;
  struct {
    bool round = false;
    ExpandPart part;
    int64_t rows = 0, hidden = 0;
    int streams = 0;
    F trunk;
  } expand_;

  Scratch mix_partial_, copy_rows_, scores_, block_scores_, act_, quantized_;
  Scratch plan_, expert_sums_, shared_act_, shared_sums_, query_, new_keys_, splits_, best_masks_;
  std::map<int, device::Buffer> dense_workspaces_;  // by the rows of a matrix
  std::vector<Shadow> shadows_;

  bool uses_graphs_ = true;
  std::map<std::vector<int64_t>, Graph> graphs_;
  Graph* current_ = nullptr;
  bool is_capturing_ = false;
};

}  // namespace deepinfer::cuda
