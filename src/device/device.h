// SPDX-License-Identifier: Apache-2.0
//
// The device interface: memory, weight handles and every op of the model, declared once. A backend implements all of it;
// model/ calls nothing else. Ops take the concatenated rows T of all sequences of a step (Step in types.h), so prefill
// chunks, decode rows and verification rows may share a call, and no result depends on which rows share it.
// Letters: T rows, H hidden, M streams, D head size, R rotary channels, V vocabulary, E experts, K experts per token,
// J index heads, G new groups. One thread calls a device at a time; ops run in call order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/dtypes.h"
#include "core/status.h"
#include "core/threads.h"
#include "device/types.h"

namespace deepinfer {
class ReadFilter;  // core/async_reader.h
}

namespace deepinfer::device {

// A weight matrix in the form the device's kernels consume, in its stored width.
class Matrix {
 public:
  virtual ~Matrix() = default;
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 protected:
  Matrix(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {}

 private:
  int64_t rows_;
  int64_t cols_;
};

// A table whose rows are read one by one (embedding, Engram). The host mapping must outlive it.
class Table {
 public:
  virtual ~Table() = default;
};

// The experts of one layer: per expert w13 [2I, H] (w1 rows, then w3 rows) and w2 [H, I]; the shared expert likewise.
class ExpertBank {
 public:
  virtual ~ExpertBank() = default;
};
struct HostExpert {
  HostMatrix w1, w3, w2;
};

// How a device reads experts when steps need them instead of keeping all of them in memory.
struct ExpertStreaming {
  struct File {
    const uint8_t* data = nullptr;  // where it is mapped: HostMatrix pointers into it stand for places in the file
    int64_t bytes = 0;
    std::string path;
  };
  std::vector<File> files;
  int64_t budget_bytes = 0;      // for all experts that are kept, and for reading more
  std::string io = "auto";       // auto, uring, threads, mmap
  std::string pack_path;         // file of packed experts, made when missing or stale; empty = none
  std::string fingerprint;       // of the checkpoint, kept in that file
  ReadFilter* filter = nullptr;  // tests: sees every read
};
struct ExpertStreamStats {
  int64_t num_slots = 0;      // 0 = the device keeps all experts in memory
  int64_t num_experts = 0;
  int64_t expert_bytes = 0;   // of one, packed
  int64_t num_hits = 0;       // experts of steps that were there, or on their way
  int64_t num_misses = 0;
  int64_t num_prefetched = 0;  // read before a step asked for them ...
  int64_t num_useful = 0;      // ... and used by the next step
  int64_t num_bytes = 0;       // read
  int64_t wait_ns = 0;         // that steps waited for reads
  std::string io;              // back end
};

// An input of matrix products in the form the device's kernels read (quantised, permuted, ...). Made by Prepare, reused
// from step to step. It may refer to the values it was made from, which stay as they are until its last use.
class Input {
 public:
  virtual ~Input() = default;
};
enum class InputKind {
  kQuantized,  // of FP8 and FP4 weights: FP8 fake quantisation per 32 values where the arithmetic quantises
  kPlain,      // as it is
};

class Device;

// Owned device memory, zeroed at creation, 64-byte aligned.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, void* data, int64_t bytes) : device_(device), data_(data), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// x [T, M*H]: the parameters of one hyper-connection site.
struct HyperConnectionSite {
  const Matrix* fn = nullptr;    // [M*(M+2), M*H] float32
  const float* base = nullptr;   // [M*(M+2)]
  const float* scale = nullptr;  // [3]
  int streams = 4;
  int hidden = 0;
  int sinkhorn_iters = 20;
  float norm_eps = 0;
  float eps = 1e-6f;
};

struct SelectArgs {
  Act query;   // [T, J*KI] rotated and rounded
  Act weight;  // [T, J] with the constant KI^-0.5 * J^-0.5
  int heads = 0;
  int topk = 0;
  KeyCache cache;
  int64_t max_groups = 0;  // at least the number of groups visible to any row
  // Second level of selection. kProduce also fills the candidate lists, kConsume scores only groups inside them.
  enum class Candidates { kNone, kProduce, kConsume };
  Candidates role = Candidates::kNone;
  int block_size = 0;
  int keep_blocks = 0;
  int32_t* candidates = nullptr;      // [T, keep_blocks] ascending block numbers
  int32_t* num_candidates = nullptr;  // [T]; -1 = every block
  int32_t* selected = nullptr;        // [T, topk] ascending groups
  int32_t* num_selected = nullptr;    // [T]
  // Tracing only (null otherwise): all scores, -inf where not visible; block scores, +inf for the newest block.
  float* trace_scores = nullptr;        // [T, trace_groups]
  float* trace_block_scores = nullptr;  // [T, ceil(trace_groups / block_size)]
  int64_t trace_groups = 0;
};

struct AttentionArgs {
  int heads = 0;
  int head_dim = 0;
  int rope_dim = 0;
  Act query;     // [T, heads*D] rotated
  Act new_keys;  // [T, D] the step's own window keys, as cached
  WindowRing ring;
  const KeyCache* compressed = nullptr;  // null: window only
  const int32_t* selected = nullptr;     // [T, selected_stride]
  const int32_t* num_selected = nullptr;
  int selected_stride = 0;
  const float* sink = nullptr;  // [heads]
  const float* rope = nullptr;  // [T, R]: the query rotation, undone on the result
  // Draft block: every row of a sequence sees the last `window` positions before `start` and all rows of the block.
  bool is_draft_block = false;
  Act out;               // [T, heads*D]
  Act trace_unrotated;   // [T, heads*D] the result before the rotation is undone; tracing only
};

struct RouterArgs {
  const Matrix* gate = nullptr;  // [E, H]
  const Input* x = nullptr;      // [T, H], kPlain
  float temperature = 1;
  const float* bias = nullptr;        // [E]
  const float* bias_image = nullptr;  // [E], null = use bias
  const uint8_t* is_image = nullptr;  // [T], null = none
  int num_chosen = 0;                 // K
  float scaling = 1;
  int32_t* experts = nullptr;      // [T, K] best first
  float* weights = nullptr;        // [T, K]
  float* biased_scores = nullptr;  // [T, E]
};

struct ExpertArgs {
  const ExpertBank* bank = nullptr;
  const Input* x = nullptr;  // [T, H], kQuantized
  int num_chosen = 0;
  const int32_t* experts = nullptr;
  const float* weights = nullptr;
  float swiglu_limit = 0;  // <= 0: none
  Act out;                 // [T, H]
};

struct RowBestArgs {
  const float* x = nullptr;  // [rows, width], rows `stride` apart
  int64_t rows = 0, width = 0, stride = 0;
  float inverse_temperature = 1;
  // One mask a row, or none at all: device pointers to a bit for each value, clear = left out; null = nothing is left out.
  std::span<const uint32_t* const> host_masks;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string_view name() const = 0;
  // Bytes of one activation value; `Act`s are created with it.
  virtual int32_t activation_bytes() const = 0;
  // True if device pointers may be read by the host as they are.
  virtual bool has_host_memory() const = 0;
  virtual ThreadPool& pool() = 0;

  // ---- memory -------------------------------------------------------------------------------------------------------
  // What weights and caches may still take; -1: they lie in the machine's own memory.
  virtual int64_t free_bytes() const { return -1; }
  virtual Result<Buffer> Allocate(int64_t bytes) = 0;
  // Address space of up to `bytes` whose pages cost nothing until written (the block pool).
  virtual Result<Buffer> Reserve(int64_t bytes) = 0;
  virtual void Free(void* data, int64_t bytes) = 0;
  virtual void Upload(void* to, const void* host_from, int64_t bytes) = 0;
  virtual void Download(void* host_to, const void* from, int64_t bytes) = 0;
  // Between two places of the device that do not overlap.
  virtual void Copy(void* to, const void* from, int64_t bytes) = 0;
  // Activations as float32, dense rows of `width` values.
  virtual void ReadAct(const Act& x, int64_t rows, int64_t width, float* host_to) = 0;
  virtual void WriteAct(const Act& x, int64_t rows, int64_t width, const float* host_from) = 0;

  // ---- weights ------------------------------------------------------------------------------------------------------
  // One matrix out of several with equal `cols`, stacked in order.
  virtual Result<std::unique_ptr<Matrix>> CreateMatrix(std::span<const HostMatrix> parts) = 0;
  virtual Result<std::unique_ptr<Table>> CreateTable(const HostMatrix& table) = 0;
  virtual Result<std::unique_ptr<ExpertBank>> CreateExperts(std::span<const HostExpert> experts, const HostExpert& shared) = 0;

  // Experts created from here on are read from their files when a step needs them. An op that meets a read error goes on
  // with void values and leaves the error for TakeError.
  virtual Status StreamExperts(ExpertStreaming) { return Unimplemented("this device keeps all experts in memory"); }
  virtual bool streams_experts() const { return false; }
  // All weights are created.
  virtual Status FinishWeights() { return Status::Ok(); }
  // Experts (host pointer) that a later Experts call of `bank` may want.
  virtual void PrefetchExperts(const ExpertBank&, const int32_t* /*experts*/, int64_t /*count*/) {}
  // Why results since the last call are void; OK when they are not.
  virtual Status TakeError() { return Status::Ok(); }

  // ---- repeated steps -----------------------------------------------------------------------------------------------
  // A device whose calls are dear may keep the ops of a step and run them again as one. Between two calls of the same key the
  // ops and their arguments are the same; what differs lies in device memory and was uploaded before.
  virtual bool repeats_steps() const { return false; }
  // True: the ops of `key` ran again, the caller issues none. False: it issues them, then calls EndRepeat(). No upload,
  // download or allocation in between.
  virtual bool BeginRepeat(std::span<const int64_t> /*key*/) { return false; }
  virtual void EndRepeat() {}
  virtual ExpertStreamStats expert_stats() const { return {}; }

  // ---- embedding and streams ----------------------------------------------------------------------------------------
  // trunk[t, j, :] = table[ids[t]] for j in 0..M-1. Rows with image_row[t] >= 0 take image_embeds[image_row[t]] instead,
  // rounded to bf16 where the arithmetic says so. image_row may be null.
  virtual void Embed(const Arithmetic& a, const Table& table, const int32_t* ids, const int32_t* image_row,
                     const float* image_embeds, int64_t rows, int streams, int64_t hidden, Act trunk) = 0;
  // out[t, c*width ..] = table[ids[t, c]], c in 0..columns-1; rounded to bf16 (exact for stored formats in range).
  virtual void GatherRows(const Arithmetic& a, const Table& table, const int32_t* ids, int64_t rows, int columns, int64_t width,
                          Act out) = 0;
  // out[i] = in[rows[i]], i ascending; in place is allowed when rows are ascending.
  virtual void CopyRows(Act in, const int32_t* rows, int64_t num_rows, int64_t width, Act out) = 0;
  virtual void CopyFloatRows(const float* in, const int32_t* rows, int64_t num_rows, int64_t width, float* out) = 0;
  // Engram gate (model.md 5.3): kv [T, (M+1)*H] = M keys, then the value; qk [M, H] = q_weight * k_weight.
  // trunk[t,j] = bf16(trunk + gate * value), gate 0 where is_dead[t]. gate_out [T, M] may be null.
  virtual void EngramInject(const Arithmetic& a, Act kv, const float* qk, const uint8_t* is_dead, int64_t rows, int streams,
                            int64_t hidden, float eps, Act trunk, float* gate_out) = 0;
  // pre [T, M], post [T, M], comb [T, M, M] (from, to), all float32 (model.md 4.1).
  virtual void HyperConnectionMix(const HyperConnectionSite& site, Act trunk, int64_t rows, float* pre, float* post,
                                  float* comb) = 0;
  // collapsed = bf16(sum_j pre[j] * trunk[j]); x = rmsnorm(collapsed, norm). `collapsed` may be null.
  virtual void CollapseNorm(const Arithmetic& a, Act trunk, const float* pre, int64_t rows, int streams, int64_t hidden,
                            const float* norm, float eps, Act collapsed, Act x) = 0;
  // trunk[k] = bf16(post[k]*y + sum_j comb[j][k]*trunk[j]), in place.
  virtual void Expand(const Arithmetic& a, Act y, const float* post, const float* comb, int64_t rows, int streams,
                      int64_t hidden, Act trunk) = 0;
  // out = bf16(mean over streams)
  virtual void StreamMean(const Arithmetic& a, Act trunk, int64_t rows, int streams, int64_t hidden, Act out) = 0;

  // ---- products, norms ----------------------------------------------------------------------------------------------
  virtual std::unique_ptr<Input> CreateInput() = 0;
  // Values [rows, cols] of x.
  virtual void Prepare(const Arithmetic& a, Act x, int64_t rows, int64_t cols, InputKind kind, Input& input) = 0;
  // y = bf16(x W^T) for all rows of `x`.
  virtual void MatMul(const Arithmetic& a, const Matrix& w, const Input& x, Act y) = 0;
  // The same with a float32 result, rows `stride` apart.
  virtual void MatMulFloat(const Matrix& w, const Input& x, float* y, int64_t stride) = 0;
  // Block-diagonal product of a matrix made of `num_groups` parts of equal height: part g maps x columns
  // [g*cols, (g+1)*cols) to y columns [g*rows/num_groups, ...).
  virtual void MatMulGroups(const Arithmetic& a, const Matrix& w, int num_groups, const Input& x, Act y) = 0;
  // out = bf16(norm * (in * rsqrt(mean(in^2) + eps)))
  virtual void RmsNorm(const Arithmetic& a, Act in, const float* norm, int64_t rows, int64_t width, float eps, Act out) = 0;
  // x = bf16(x * factor)
  virtual void Scale(const Arithmetic& a, Act x, int64_t rows, int64_t width, float factor) = 0;

  // ---- rotation, keys, caches ---------------------------------------------------------------------------------------
  // table[i] = cos of the R/2 angles of positions[i], then their sines; angle = fp32(position) * inv_freq.
  virtual void RopeTable(const int32_t* positions, int64_t count, const float* inv_freq, int rope_dim, float* table) = 0;
  // Rotates the last R channels of each of `heads` vectors of a row.
  virtual void Rope(const Arithmetic& a, Act x, int64_t rows, int heads, int head_dim, int rope_dim, const float* table) = 0;
  // Index queries: rotation, then FP4 fake quantisation per 32 with a power-of-two scale.
  virtual void IndexQuery(const Arithmetic& a, Act x, int64_t rows, int heads, int dim, int rope_dim, const float* table) = 0;
  // Window keys: rmsnorm, rotation, FP8 fake quantisation per 32 over all channels.
  virtual void WindowKeys(const Arithmetic& a, Act raw, const float* norm, float eps, int64_t rows, int head_dim, int rope_dim,
                          const float* table, Act keys) = 0;
  // Writes the last `ring.rows` rows of each sequence into its ring. After the attention of the layer.
  virtual void StoreWindow(const Step& step, const WindowRing& ring, int head_dim, Act keys) = 0;
  // Ratio-2 pooling. products [T, 2*D] float32 = score | value of each row. latent[g] = bf16(softmax-weighted sum of the two
  // tokens of new group g). A first token before the step is read from the compressor ring ([ring_rows, 2*D] float32 at
  // state + ring_offset, row p mod ring_rows); afterwards the last ring_rows rows of each sequence are written to it.
  virtual void PoolPairs(const Arithmetic& a, const Step& step, const float* products, int head_dim, int64_t ring_offset,
                         int ring_rows, const NewGroup* groups, int64_t num_groups, Act latent) = 0;
  // `latent` and `raw` of the next two are overwritten.
  // Rotates latent [G, D] at its group's position (table: [G, R]), rounds and stores it as main record. trace_key: the
  // stored values, may be null.
  virtual void StoreCompressed(const Arithmetic& a, const KeyCache& cache, Act latent, const NewGroup* groups,
                               int64_t num_groups, int rope_dim, const float* table, Act trace_key) = 0;
  // Index keys from raw [G, KI]: rmsnorm, rotation, rounding, store.
  virtual void StoreIndexKeys(const Arithmetic& a, const KeyCache& cache, Act raw, const float* norm, float eps,
                              const NewGroup* groups, int64_t num_groups, int rope_dim, const float* table, Act trace_key) = 0;

  // ---- attention ----------------------------------------------------------------------------------------------------
  // Groups each row may read (model.md 6.5): visible groups g < floor((p+1)/ratio), the topk best by
  // sum_h weight_h * relu(q_h . k_g) in float32; ties: the lower group; sorted ascending.
  virtual void Select(const Step& step, const SelectArgs& args) = 0;
  // Sink softmax over the window and the selected compressed keys, inverse rotation (model.md 6.6).
  virtual void Attention(const Arithmetic& a, const Step& step, const AttentionArgs& args) = 0;

  // ---- experts ------------------------------------------------------------------------------------------------------
  virtual void Route(const RouterArgs& args, int64_t rows) = 0;
  // out = bf16(sum of the chosen experts in ascending id + shared expert) (model.md 7).
  virtual void Experts(const Arithmetic& a, const ExpertArgs& args, int64_t rows) = 0;

  // ---- head ---------------------------------------------------------------------------------------------------------
  // sum[t] += x[t], rows of `width` values.
  virtual void AddFloats(const float* x, int64_t rows, int64_t width, int64_t x_stride, float* sum, int64_t sum_stride) = 0;
  // ids[t * ids_stride] = index of the largest value of row t that its mask leaves, the lower index on ties. The temperature means
  // nothing here.
  virtual void ArgMax(const RowBestArgs& args, int32_t* ids, int64_t ids_stride) = 0;
  // Waits for the result. Devices that work in the host's memory have no use for it.
  virtual bool finds_best() const { return false; }
  virtual void FindBest(const RowBestArgs&, RowBest* /*host_out*/) {}
};

}  // namespace deepinfer::device
