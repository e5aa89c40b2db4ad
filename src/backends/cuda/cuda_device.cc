// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_device.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "backends/cuda/kernels/kernel_set.h"

namespace deepinfer::cuda {

namespace {

constexpr int64_t kUploadRing = int64_t{8} << 20;
constexpr int64_t kSmallUpload = int64_t{256} << 10;  // smaller ones go through the ring
constexpr int64_t kDownloadRing = int64_t{16} << 20;
constexpr size_t kMaxGraphs = 512;

}  // namespace

CudaDevice::CudaDevice(const CudaOptions& options)
    : gpu_(options.gpu),
      is_fast_(!options.batch_invariant),
      name_(fmt::format("cuda:{}", options.gpu)),
      host_pool_(std::make_unique<ThreadPool>(options.num_threads, options.pinning)),
      packs_(options.release_numerics) {}

Result<std::unique_ptr<CudaDevice>> CudaDevice::Create(const CudaOptions& options) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(options));
  DI_RETURN_IF_ERROR(device->Init());
  return device;
}

Status CudaDevice::Init() {
  if (const cudaError_t error = cudaSetDevice(gpu_); error != cudaSuccess) return CudaError(error, fmt::format("cannot use GPU {}", gpu_));
  for (cudaStream_t* stream : {&stream_, &side_})
    if (const cudaError_t error = cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking); error != cudaSuccess)
      return CudaError(error, fmt::format("cannot use GPU {}", gpu_));
  for (cudaEvent_t* event : {&fork_event_, &join_event_})
    if (const cudaError_t error = cudaEventCreateWithFlags(event, cudaEventDisableTiming); error != cudaSuccess)
      return CudaError(error, fmt::format("cannot use GPU {}", gpu_));
  int major = 0, minor = 0;
  for (const auto& [value, attribute] : {std::pair<int*, cudaDeviceAttr>{&major, cudaDevAttrComputeCapabilityMajor}, {&minor, cudaDevAttrComputeCapabilityMinor}})
    if (const cudaError_t error = cudaDeviceGetAttribute(value, attribute, gpu_); error != cudaSuccess)
      return CudaError(error, fmt::format("cannot use GPU {}", gpu_));
  // Few rows and many must come from kernels with the same sums.
  const KernelSet kernels = KernelSetOf(major, minor);
  packs_ = packs_ && kernels.has_stream && kernels.has_wgmma;
  memory_ = std::make_unique<MemoryPool>(stream_);
  DI_RETURN_IF_ERROR(ring_.Create(kUploadRing));
  return download_.Create(kDownloadRing);
}

CudaDevice::~CudaDevice() {
  if (stream_ != nullptr) Sync();
  DropGraphs();
  for (Scratch* scratch : {&mix_partial_, &copy_rows_, &scores_, &block_scores_, &act_, &quantized_, &plan_, &expert_sums_, &shared_act_,
                           &shared_sums_, &query_, &new_keys_, &splits_, &best_masks_})
    scratch->buffer = device::Buffer();
  dense_workspaces_.clear();
  shadows_.clear();
  memory_.reset();
  if (fork_event_ != nullptr) cudaEventDestroy(fork_event_);
  if (join_event_ != nullptr) cudaEventDestroy(join_event_);
  if (side_ != nullptr) cudaStreamDestroy(side_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

// ---- order of work ------------------------------------------------------------------------------------------------------

void CudaDevice::Fail(Status status) {
  if (error_.ok()) error_ = std::move(status);
}

void CudaDevice::Check(const char* op) {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) Fail(CudaError(error, op));
}

Status CudaDevice::TakeError() {
  Status status = std::move(error_);
  error_ = Status::Ok();
  return status;
}

void CudaDevice::FlushUploads() {
  if (uploads_.count == 0) return;
  JoinSide();  // it may still read what is written now
  LaunchUploads(stream_, uploads_);
  uploads_.count = 0;
  Check("upload");
}

void CudaDevice::FlushTables() {
  if (tables_.count == 0) return;
  LaunchRopeTables(stream_, tables_);
  tables_.count = 0;
  Check("RopeTable");
}

void CudaDevice::FlushNorm() {
  if (!has_norm_) return;
  has_norm_ = false;
  const NormPart& n = norm_.part;
  LaunchRmsNorm(stream_, norm_.round, n.in, n.norm, norm_.rows, n.width, n.eps, n.out, n.quantized);
  Check("RmsNorm");
}

void CudaDevice::FlushRope() {
  if (!has_rope_) return;
  has_rope_ = false;
  LaunchRope(stream_, rope_.a.round_bf16, rope_.x, rope_.rows, rope_.heads, rope_.head_dim, rope_.rope_dim, rope_.table);
  Check("Rope");
}

void CudaDevice::FlushJoined() {
  if (has_keys_) {
    has_keys_ = false;
    const WindowKeysPart& k = keys_.part;
    LaunchWindowKeys(stream_, keys_.a, k.raw, k.norm, k.eps, keys_.rows, k.head_dim, k.rope_dim, k.table, k.keys, keys_.norm);
    Check("WindowKeys");
  }
  if (has_index_keys_) {
    has_index_keys_ = false;
    LaunchStoreKeys(stream_, index_keys_.a, index_keys_.cache, {}, index_keys_.part, index_keys_.groups, index_keys_.num_groups, index_keys_.rope_dim, index_keys_.table);
    Check("StoreIndexKeys");
  }
  if (has_scale_) {
    has_scale_ = false;
    LaunchScale(stream_, scale_.scale.round, scale_.x, scale_.rows, scale_.width, scale_.scale.factor);
    Check("Scale");
  }
  if (has_route_) {
    has_route_ = false;
    LaunchSmallRoute(stream_, route_.part.args, route_.part.gate, route_.part.x, route_.rows);
    Check("Route");
  }
}

void CudaDevice::FlushExpand() {
  if (!has_expand_) return;
  has_expand_ = false;
  JoinSide();
  LaunchExpand(stream_, expand_.round, expand_.part, expand_.rows, expand_.streams, expand_.hidden, expand_.trunk);
  Check("Expand");
}

void CudaDevice::UseGpu() const {
  // The current GPU belongs to the calling thread.
  static thread_local int current = -1;
  if (current == gpu_) return;
  cudaSetDevice(gpu_);
  current = gpu_;
}

void CudaDevice::BeginKeepingExpand() {
  UseGpu();
  FlushUploads();
  FlushTables();
  FlushNorm();
  FlushRope();
  FlushJoined();
}

void CudaDevice::Begin() {
  BeginKeepingExpand();
  FlushExpand();
}

cudaStream_t CudaDevice::ForkSide() {
  cudaEventRecord(fork_event_, stream_);
  cudaStreamWaitEvent(side_, fork_event_, 0);
  side_is_busy_ = true;
  return side_;
}

void CudaDevice::JoinSide() {
  if (!side_is_busy_) return;
  side_is_busy_ = side_has_window_ = false;
  side_saw_ = nullptr;
  cudaEventRecord(join_event_, side_);
  cudaStreamWaitEvent(stream_, join_event_, 0);
}

void CudaDevice::Sync() {
  // Then nothing would be overlapped, and a kept step cannot hold it.
  if (is_capturing_) return Fail(Internal("the host waits inside a kept step"));
  Begin();
  JoinSide();
  if (const cudaError_t error = cudaStreamSynchronize(stream_); error != cudaSuccess) Fail(CudaError(error, "the GPU stopped"));
  ring_.Reset();
  download_.Reset();
}

bool CudaDevice::BeginRepeat(std::span<const int64_t> key) {
  Begin();
  JoinSide();
  if (graphs_.size() >= kMaxGraphs) DropGraphs();
  Graph& graph = graphs_[{key.begin(), key.end()}];
  current_ = &graph;
  if (graph.exec != nullptr) {
    current_ = nullptr;
    if (const cudaError_t error = cudaGraphLaunch(graph.exec, stream_); error != cudaSuccess) Fail(CudaError(error, "cannot run a kept step"));
    return true;
  }
  // The first run sizes the memory of the ops; the second is kept.
  if (++graph.num_runs >= 2) {
    is_capturing_ = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
    Check("begin of a kept step");
  }
  return false;
}

void CudaDevice::EndRepeat() {
  Begin();
  JoinSide();
  Graph* const graph = current_;
  current_ = nullptr;
  if (!is_capturing_) return;
  is_capturing_ = false;
  cudaGraph_t captured = nullptr;
  cudaError_t error = cudaStreamEndCapture(stream_, &captured);
  if (error == cudaSuccess && graph != nullptr) error = cudaGraphInstantiate(&graph->exec, captured, 0);
  if (captured != nullptr) cudaGraphDestroy(captured);
  if (error == cudaSuccess && graph != nullptr) error = cudaGraphLaunch(graph->exec, stream_);
  if (error != cudaSuccess) {
    cudaGetLastError();
    Fail(CudaError(error, "cannot keep a step"));
  }
}

void CudaDevice::DropGraphs() {
  for (auto& [key, graph] : graphs_)
    if (graph.exec != nullptr) cudaGraphExecDestroy(graph.exec);
  graphs_.clear();
  current_ = nullptr;
}

// ---- memory -------------------------------------------------------------------------------------------------------------

int64_t CudaDevice::free_bytes() const {
  UseGpu();
  size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<int64_t>(free) : 0;
}

Result<device::Buffer> CudaDevice::Allocate(int64_t bytes) {
  UseGpu();
  DI_ASSIGN_OR_RETURN(void* data, memory_->Allocate(bytes));
  return device::Buffer(this, data, bytes);
}

Result<device::Buffer> CudaDevice::Reserve(int64_t bytes) {
  // The rest is for buffers of steps and for graphs.
  const int64_t limit = free_bytes() / 20 * 19;
  if (bytes > limit) return ResourceExhausted(fmt::format("the cache of {} bytes does not fit into the {} bytes of free GPU memory; lower --max-model-len or --num-kv-blocks", bytes, limit));
  return Allocate(bytes);
}

void CudaDevice::Free(void* data, int64_t bytes) {
  UseGpu();
  memory_->Free(data, bytes);
}

void CudaDevice::UploadLarge(void* to, const void* host_from, int64_t bytes) {
  if (const cudaError_t error = cudaMemcpyAsync(to, host_from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_); error != cudaSuccess)
    Fail(CudaError(error, "cannot copy to the GPU"));
}

void CudaDevice::Upload(void* to, const void* host_from, int64_t bytes) {
  if (bytes <= 0) return;
  UseGpu();
  FlushTables();
  FlushNorm();
  FlushRope();
  FlushJoined();
  FlushExpand();
  if (is_capturing_) {
    Fail(Internal("an upload inside a kept step"));
    return;
  }
  if (bytes > kSmallUpload || reinterpret_cast<uintptr_t>(to) % 4 != 0) {
    FlushUploads();
    JoinSide();
    UploadLarge(to, host_from, bytes);
    return;
  }
  if (uploads_.count == kMaxUploadPieces) FlushUploads();
  uint8_t* staged = ring_.Take(bytes);
  if (staged == nullptr) {
    Sync();
    staged = ring_.Take(bytes);
  }
  std::memcpy(staged, host_from, static_cast<size_t>(bytes));
  // Blocks of one kernel have no order: a second piece for the same place goes into the next.
  for (int i = 0; i < uploads_.count; ++i) {
    const auto* other = static_cast<const uint8_t*>(uploads_.pieces[i].to);
    if (other < static_cast<uint8_t*>(to) + bytes && static_cast<uint8_t*>(to) < other + uploads_.pieces[i].bytes) {
      FlushUploads();
      break;
    }
  }
  uploads_.pieces[uploads_.count++] = {to, staged, bytes};
}

uint8_t* CudaDevice::TakeDownload(int64_t bytes) {
  uint8_t* staged = download_.Take(bytes);
  if (staged != nullptr) return staged;
  Sync();
  return download_.Take(bytes);
}

void CudaDevice::Download(void* host_to, const void* from, int64_t bytes) {
  Begin();
  JoinSide();
  auto* to = static_cast<uint8_t*>(host_to);
  const auto* at = static_cast<const uint8_t*>(from);
  while (bytes > 0) {
    const int64_t part = std::min(bytes, kDownloadRing);
    uint8_t* staged = TakeDownload(part);
    // A kernel begins sooner than the copy engine.
    constexpr int64_t kSmall = int64_t{128} << 10;
    cudaError_t error = cudaSuccess;
    if (part <= kSmall && part % 16 == 0 && reinterpret_cast<uintptr_t>(at) % 16 == 0) {
      LaunchDownload(stream_, staged, at, part);
      error = cudaGetLastError();
    } else {
      error = cudaMemcpyAsync(staged, at, static_cast<size_t>(part), cudaMemcpyDeviceToHost, stream_);
    }
    if (error != cudaSuccess) Fail(CudaError(error, "cannot copy from the GPU"));
    Sync();
    std::memcpy(to, staged, static_cast<size_t>(part));
    to += part;
    at += part;
    bytes -= part;
  }
}

void CudaDevice::Copy(void* to, const void* from, int64_t bytes) {
  if (bytes <= 0) return;
  Begin();
  JoinSide();
  Wrote(to);
  cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_);
  Check("Copy");
}

void CudaDevice::ReadAct(const Act& x, int64_t rows, int64_t width, float* host_to) {
  if (rows <= 0) return;
  Begin();
  JoinSide();
  for (const Shadow& shadow : shadows_)
    if (shadow.is_plain_only && shadow.of == x.data && shadow.cols == width && shadow.rows >= rows)
      LaunchFromBf16(stream_, shadow.plain.as<uint16_t>(), rows, width, {static_cast<float*>(x.data), x.stride});
  const size_t row = static_cast<size_t>(width) * sizeof(float);
  cudaMemcpy2DAsync(host_to, row, x.data, static_cast<size_t>(x.stride) * sizeof(float), row, static_cast<size_t>(rows), cudaMemcpyDeviceToHost, stream_);
  Check("ReadAct");
  Sync();
}

void CudaDevice::WriteAct(const Act& x, int64_t rows, int64_t width, const float* host_from) {
  if (rows <= 0) return;
  Begin();
  JoinSide();
  Wrote(x.data);
  const size_t row = static_cast<size_t>(width) * sizeof(float);
  cudaMemcpy2DAsync(x.data, static_cast<size_t>(x.stride) * sizeof(float), host_from, row, row, static_cast<size_t>(rows), cudaMemcpyHostToDevice, stream_);
  Check("WriteAct");
  Sync();
}

bool CudaDevice::GrowBuffer(device::Buffer& buffer, int64_t bytes) {
  if (buffer.bytes() >= bytes) return true;
  if (is_capturing_) {
    Fail(Internal("memory asked for inside a kept step"));
    return false;
  }
  Sync();
  DropGraphs();
  buffer = device::Buffer();
  auto made = Allocate(bytes + bytes / 4);
  if (!made.ok()) {
    Fail(made.status());
    return false;
  }
  buffer = std::move(made).value();
  return true;
}

void* CudaDevice::Grow(Scratch& scratch, int64_t bytes) { return GrowBuffer(scratch.buffer, bytes) ? scratch.buffer.data() : nullptr; }

void CudaDevice::Wrote(const void* out) {
  for (Shadow& shadow : shadows_)
    if (shadow.of == out) shadow.is_valid = shadow.has_plain = shadow.is_plain_only = false;
}

CudaDevice::Shadow* CudaDevice::ShadowOf(const void* out) {
  Wrote(out);
  for (Shadow& s : shadows_)
    if (s.of == out) return &s;
  constexpr size_t kMaxShadows = 16;
  if (shadows_.size() >= kMaxShadows) {
    // Models come and go: those of the oldest buffers are of no use.
    Sync();
    DropGraphs();
    shadows_.erase(shadows_.begin());
  }
  Shadow* shadow = &shadows_.emplace_back();
  shadow->of = out;
  return shadow;
}

QuantizedOut CudaDevice::NewShadow(const Arithmetic& a, const Act& out, int64_t rows, int64_t cols, bool with_plain) {
  if (!a.quantize || cols % 32 != 0) {
    Wrote(out.data);
    return {};
  }
  Shadow* shadow = ShadowOf(out.data);
  if (!GrowBuffer(shadow->buffer, rows * cols * 2) || (with_plain && !GrowBuffer(shadow->plain, rows * cols * 2))) return {};
  shadow->rows = rows;
  shadow->cols = cols;
  shadow->is_valid = true;
  shadow->has_plain = with_plain;
  return {shadow->buffer.as<uint16_t>(), cols, with_plain ? shadow->plain.as<uint16_t>() : nullptr};
}

uint16_t* CudaDevice::NewPlainShadow(const Act& out, int64_t rows, int64_t cols) {
  Shadow* shadow = ShadowOf(out.data);
  if (!GrowBuffer(shadow->plain, rows * cols * 2)) return nullptr;
  shadow->rows = rows;
  shadow->cols = cols;
  shadow->has_plain = shadow->is_plain_only = true;
  return shadow->plain.as<uint16_t>();
}

}  // namespace deepinfer::cuda
