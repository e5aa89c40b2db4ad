// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/experts.h"

#include <algorithm>

#include "backends/cuda/kernels/experts_args.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/numbers.cuh"
#include "backends/cuda/kernels/stream.cuh"

namespace deepinfer::cuda {
namespace {

// Rows an expert, on average, from which wgmma is faster.
constexpr int kWideRowsPerExpert = 10;

// A warp makes the jobs, one pair a lane; at most eight rows, so one tile of tokens a job.
constexpr int kMaxDirectPairs = 32;

bool IsWide(const ExpertsArgs& args) {
  if (args.form != ExpertForm::kAuto) return args.form == ExpertForm::kWide;
  return int64_t{args.rows} * args.num_chosen >= int64_t{kWideRowsPerExpert} * args.num_experts;
}

using GateUp = Geometry<PackedKind::kFp4, 16, 10, 10>;
using Down = Geometry<PackedKind::kFp4, 8, 9, 9>;
constexpr int kGateUpUnits = 2 * kExpertWidth / (16 * GateUp::kRowTiles);
constexpr int kDownUnits = kExpertHidden / (16 * Down::kRowTiles);

int64_t MaxJobs(int64_t rows, int num_chosen, int num_experts) {
  const int64_t pairs = rows * num_chosen;
  return std::min<int64_t>(pairs, num_experts) + pairs / kStreamJobRows + 1;
}
constexpr int64_t Align(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// One block. Slots: a counting sort of the pairs by expert.
constexpr int kPlanThreads = 1024;
__global__ void __launch_bounds__(kPlanThreads) PlanKernel(ExpertPlan plan, const int32_t* chosen, int num_pairs,
                                                           int num_experts, const uint8_t* const* gate_up,
                                                           const uint8_t* const* down, int job_rows) {
  __shared__ int count[kMaxPlannedExperts];
  __shared__ int warp_slots[32], warp_jobs[32];
  const int e = threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  count[e] = 0;
  DependencyLaunch();
  DependencyWait();
  __syncthreads();
  for (int i = threadIdx.x; i < num_pairs; i += kPlanThreads) {
    const int expert = chosen[i];
    if (expert >= 0) atomicAdd(&count[expert], 1);
  }
  __syncthreads();
  const int mine = e < num_experts ? count[e] : 0;
  const int jobs = (mine + job_rows - 1) / job_rows;
  int slots_before = mine, jobs_before = jobs;
  for (int d = 1; d < 32; d *= 2) {
    const int s = __shfl_up_sync(0xffffffffu, slots_before, d), j = __shfl_up_sync(0xffffffffu, jobs_before, d);
    if (lane >= d) slots_before += s, jobs_before += j;
  }
  if (lane == 31) warp_slots[warp] = slots_before, warp_jobs[warp] = jobs_before;
  __syncthreads();
  if (warp == 0) {
    int s = warp_slots[lane], j = warp_jobs[lane];
    for (int d = 1; d < 32; d *= 2) {
      const int s2 = __shfl_up_sync(0xffffffffu, s, d), j2 = __shfl_up_sync(0xffffffffu, j, d);
      if (lane >= d) s += s2, j += j2;
    }
    warp_slots[lane] = s, warp_jobs[lane] = j;
    if (lane == 31) *plan.num_jobs = j;
  }
  __syncthreads();
  const int first_slot = slots_before - mine + (warp > 0 ? warp_slots[warp - 1] : 0);
  const int first_job = jobs_before - jobs + (warp > 0 ? warp_jobs[warp - 1] : 0);
  const uint8_t* const matrices[2] = {e < num_experts ? gate_up[e] : nullptr, e < num_experts ? down[e] : nullptr};
  for (int j = 0; j < jobs; ++j) {
    // Jobs of equal size, so that none is nearly empty.
    const int done = j * mine / jobs, next = (j + 1) * mine / jobs;
    plan.jobs[first_job + j] = {e, first_slot + done, next - done, 0, matrices[0], matrices[1]};
  }
  count[e] = first_slot;
  __syncthreads();
  for (int i = threadIdx.x; i < num_pairs; i += kPlanThreads) {
    const int expert = chosen[i];
    const int slot = expert >= 0 ? atomicAdd(&count[expert], 1) : -1;
    plan.pair_slot[i] = slot;
    if (slot >= 0) plan.slot_pair[slot] = i;
  }
}

// Jobs that a block made itself. A job's rows are the pairs whose bits are set in `unused`.
struct DirectJobs {
  ExpertJob jobs[kMaxDirectPairs];
  int count;
};

// By one warp: the experts in the order in which they first appear.
__device__ __forceinline__ void MakeJobs(const ExpertProductArgs& a, int lane, DirectJobs& to) {
  const int expert = lane < a.direct_pairs ? a.chosen[lane] : -1;
  const uint8_t* const matrix = expert >= 0 ? a.matrices[expert] : nullptr;
  const uint32_t same = __match_any_sync(0xffffffffu, expert);
  const bool is_first = expert >= 0 && __ffs(static_cast<int>(same)) - 1 == lane;
  const uint32_t firsts = __ballot_sync(0xffffffffu, is_first);
  if (is_first) {
    ExpertJob& job = to.jobs[__popc(firsts & ((1u << lane) - 1))];
    job = {expert, 0, __popc(same), static_cast<int32_t>(same), matrix, matrix};
  }
  if (lane == 0) to.count = __popc(firsts);
}

__device__ __forceinline__ int SlotOf(const ExpertJob& job, int token) {
  uint32_t pairs = static_cast<uint32_t>(job.unused);
  if (pairs == 0) return job.first_slot + token;
  for (int i = 0; i < token; ++i) pairs &= pairs - 1;
  return __ffs(static_cast<int>(pairs)) - 1;
}
__device__ __forceinline__ int PairOf(const ExpertProductArgs& a, int slot) { return a.direct_pairs > 0 ? slot : a.slot_pair[slot]; }

// A block's walk through its units of all jobs.
template <typename G, bool kIsGateUp>
struct Walk {
  static constexpr int kUnits = kIsGateUp ? kGateUpUnits : kDownUnits;  // of a job
  const ExpertProductArgs& a;
  const ExpertJob* jobs;
  WarpRing<G>& ring;
  int warp, lane, end;
  // The next chunk to ask for, and how many follow it in its matrix.
  int ahead;
  const uint8_t* ahead_chunk = nullptr;
  int ahead_left = 0;

  __device__ __forceinline__ const uint8_t* NextChunk() {
    if (ahead_left == 0) {
      if (ahead >= end) return nullptr;
      const int job = ahead / kUnits, in_job = ahead - job * kUnits;
      ahead_left = min(end - ahead, kUnits - in_job);
      ahead_chunk = (kIsGateUp ? jobs[job].gate_up : jobs[job].down) + warp * G::kChunkBytes + int64_t{in_job} * G::kUnitBytes;
      ahead += ahead_left;
    }
    --ahead_left;
    const uint8_t* chunk = ahead_chunk;
    ahead_chunk += G::kUnitBytes;
    return chunk;
  }

  // Units [unit, last) of one job.
  template <int kTokenTiles>
  __device__ __forceinline__ void RunJob(BatchBuffers<kTokenTiles>& batches, const ExpertJob& job, int unit, int last) {
    using P = Partials<kTokenTiles>;
    uint32_t x[G::kGroups][kTokenTiles][4];
    const __nv_bfloat16* from[kTokenTiles];
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      const int token = 8 * n + lane / 4;
      from[n] = nullptr;
      if (token < job.count) {
        const int slot = SlotOf(job, token);
        const int64_t row = kIsGateUp ? PairOf(a, slot) / a.num_chosen : slot;
        from[n] = a.x + row * a.ldx + (warp % G::kSlices) * (G::kGroups * 32);
      }
    }
    LoadTokens<G, kTokenTiles, !kIsGateUp>(from, lane, x);
    RunUnits<G, kTokenTiles>(
        ring, batches, x, warp, lane, unit, last, [&](int) { return NextChunk(); },
        [&](const float* buffer, int first, int count, int owner) {
          const int in_job = first % kUnits;
          if constexpr (kIsGateUp) {
            for (int token = owner; token < job.count; token += P::kOwners) {
              const int slot = SlotOf(job, token);
              const float weight = a.weights[PairOf(a, slot)];
              const float* from_unit = buffer + lane / 8 * P::kUnitFloats;
              __nv_bfloat16* to = static_cast<__nv_bfloat16*>(a.out) + int64_t{slot} * kExpertWidth + in_job * 8;
              if (a.round_bf16) {  // quantised when it is read: a block's units need not be whole blocks of 32 channels
                if (lane / 8 >= count) continue;
                const float gate = RoundBf16(SumSlices<G, kTokenTiles>(from_unit, 0, token, lane % 8));
                const float up = RoundBf16(SumSlices<G, kTokenTiles>(from_unit, 0, token, lane % 8 + 8));
                to[lane] = __float2bfloat16_rn(Swiglu(gate, up, a.limit, weight));
              } else {
                const float gate = SumSlices<G, kTokenTiles>(from_unit, 0, token, lane % 8);
                const float up = SumSlices<G, kTokenTiles>(from_unit, 0, token, lane % 8 + 8);
                StoreSwiglu(gate, up, a.limit, weight, false, to, lane);
              }
            }
          } else {
            static_assert(G::kRowTiles == 2);  // a unit is the 32 rows of a warp's lanes
            for (int i = owner; i < count * job.count; i += P::kOwners) {
              const int token = i / count, j = i % count;
              const float sum = SumSlices<G, kTokenTiles>(buffer + j * P::kUnitFloats, lane / 16, token, lane % 16);
              const int64_t at = int64_t{SlotOf(job, token)} * kExpertHidden + (in_job + j) * 32 + lane;
              if (a.round_bf16) {
                static_cast<__nv_bfloat16*>(a.out)[at] = __float2bfloat16_rn(sum);
              } else {
                static_cast<float*>(a.out)[at] = sum;
              }
            }
          }
        });
  }
};

template <typename G, bool kIsGateUp>
__global__ void __launch_bounds__(kStreamThreads, 1) ExpertStreamKernel(const __grid_constant__ ExpertProductArgs a) {
  extern __shared__ __align__(128) uint8_t smem[];
  using Ring = StreamRing<G>;
  constexpr int kUnits = Walk<G, kIsGateUp>::kUnits;
  const int granule = kIsGateUp && !a.round_bf16 ? kBatchUnits : 1;
  __shared__ DirectJobs direct;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* partial = reinterpret_cast<float*>(smem + StreamSmem<G>::kPartialOffset);
  uint64_t* bars = reinterpret_cast<uint64_t*>(smem + StreamSmem<G>::kBatchOffset);
  WarpRing<G> ring;
  ring.Init(smem, warp, lane);
  BatchBuffers<1> one_tile{partial, bars};
  BatchBuffers<2> two_tiles{partial, bars};
  if (threadIdx.x == 0) InitBatchBarriers(bars);
  // The kernel of gate and up lets others begin only after it has waited itself: the one of down may read the plan, and the
  // weights, while that one still runs.
  if constexpr (kIsGateUp) DependencyWait();
  DependencyLaunch();
  if (a.direct_pairs > 0) {
    if (warp == 0) MakeJobs(a, lane, direct);
    __syncthreads();
  }
  const ExpertJob* const jobs = a.direct_pairs > 0 ? direct.jobs : a.jobs;
  const int64_t granules = int64_t{a.direct_pairs > 0 ? direct.count : *a.num_jobs} * (kUnits / granule);
  const int begin = static_cast<int>(blockIdx.x * granules / gridDim.x) * granule;
  const int end = static_cast<int>((blockIdx.x + 1) * granules / gridDim.x) * granule;
  Walk<G, kIsGateUp> walk{a, jobs, ring, warp, lane, end, begin};
  if (lane == 0) {
    for (int i = 0; i < Ring::kDepth; ++i) {
      const uint8_t* chunk = walk.NextChunk();
      if (chunk != nullptr) ring.Fill(i, chunk);
    }
  }
  if constexpr (!kIsGateUp) DependencyWait();
  int tiles = 0;
  for (int unit = begin; unit < end;) {
    const ExpertJob job = jobs[unit / kUnits];
    const int last = min(end, (unit / kUnits + 1) * kUnits);
    const int wanted = job.count <= 8 ? 1 : 2;
    // The two kinds of batches share the buffers.
    if (wanted != tiles) __syncthreads();
    tiles = wanted;
    if (tiles == 1) {
      walk.RunJob(one_tile, job, unit, last);
    } else {
      walk.RunJob(two_tiles, job, unit, last);
    }
    unit = last;
  }
}

template <typename G, bool kIsGateUp>
cudaError_t LaunchStream(const ExpertProductArgs& a, int max_jobs, cudaStream_t stream, bool dependent) {
  const int units = max_jobs * Walk<G, kIsGateUp>::kUnits / (kIsGateUp && !a.round_bf16 ? kBatchUnits : 1);
  const int blocks = std::min(NumMultiprocessors(), units);
  return Launch(ExpertStreamKernel<G, kIsGateUp>, dim3(blocks), dim3(kStreamThreads), StreamSmem<G>::kBytes, stream, dependent, a);
}

// One block per row and 1024 columns; four columns a thread. pair_slot null: pairs are slots.
template <typename T>
__global__ void SumKernel(const T* y, const int32_t* chosen, const int32_t* pair_slot, int num_chosen, const T* shared,
                          int64_t ld_shared, bool round_bf16, void* out, int64_t ldo, OutputType type) {
  DependencyLaunch();
  DependencyWait();
  const int row = blockIdx.x;
  const int col = (blockIdx.y * blockDim.x + threadIdx.x) * 4;
  // Ascending experts: a selection sort of a few numbers, the same in all threads.
  float sum[4] = {0, 0, 0, 0};
  int last = -1;
  for (int i = 0; i < num_chosen; ++i) {
    int best = 0x7fffffff, slot = -1;
    for (int k = 0; k < num_chosen; ++k) {
      const int e = chosen[row * num_chosen + k];
      if (e > last && e < best) best = e, slot = pair_slot != nullptr ? pair_slot[row * num_chosen + k] : row * num_chosen + k;
    }
    if (slot < 0) break;
    last = best;
    const T* from = y + int64_t{slot} * kExpertHidden + col;
    for (int j = 0; j < 4; ++j) sum[j] += static_cast<float>(from[j]);
  }
  if (shared != nullptr) {
    for (int j = 0; j < 4; ++j) sum[j] += static_cast<float>(shared[row * ld_shared + col + j]);
  }
  for (int j = 0; j < 4; ++j) {
    const int64_t at = row * ldo + col + j;
    if (type == OutputType::kBf16) {
      static_cast<__nv_bfloat16*>(out)[at] = __float2bfloat16_rn(sum[j]);
    } else {
      static_cast<float*>(out)[at] = round_bf16 && type == OutputType::kFloatRounded ? RoundBf16(sum[j]) : sum[j];
    }
  }
}

bool IsServed(const ExpertsArgs& args) {
  return args.num_experts > 0 && args.num_experts <= kMaxPlannedExperts && args.num_chosen > 0 && args.num_chosen <= 16 &&
         args.rows >= 0;
}

}  // namespace

int DirectPairs(const ExpertsArgs& args) {
  const int64_t pairs = int64_t{args.rows} * args.num_chosen;
  return !IsWide(args) && args.rows <= 8 && pairs <= kMaxDirectPairs ? static_cast<int>(pairs) : 0;
}

int64_t PlanBytes(int64_t max_rows, int num_chosen, int num_experts) {
  return 256 + Align(MaxJobs(max_rows, num_chosen, num_experts) * static_cast<int64_t>(sizeof(ExpertJob))) +
         2 * Align(max_rows * num_chosen * 4);
}

ExpertPlan PlanViews(void* workspace, int64_t max_rows, int num_chosen, int num_experts) {
  auto* at = static_cast<uint8_t*>(workspace);
  ExpertPlan plan;
  plan.num_jobs = reinterpret_cast<int32_t*>(at);
  at += 256;
  plan.jobs = reinterpret_cast<ExpertJob*>(at);
  at += Align(MaxJobs(max_rows, num_chosen, num_experts) * static_cast<int64_t>(sizeof(ExpertJob)));
  plan.slot_pair = reinterpret_cast<int32_t*>(at);
  at += Align(max_rows * num_chosen * 4);
  plan.pair_slot = reinterpret_cast<int32_t*>(at);
  return plan;
}

cudaError_t LaunchExpertPlan(const ExpertsArgs& args, cudaStream_t stream) {
  if (!IsServed(args)) return cudaErrorInvalidValue;
  if (DirectPairs(args) > 0) return cudaSuccess;
  return Launch(PlanKernel, dim3(1), dim3(kPlanThreads), 0, stream, args.dependent, args.plan, args.chosen,
                args.rows * args.num_chosen, args.num_experts, args.gate_up, args.down,
                !IsWide(args) ? kStreamJobRows : args.fast ? kFastJobRows : kWideJobRows);
}

cudaError_t LaunchExpertGateUp(const ExpertsArgs& args, cudaStream_t stream) {
  if (!IsServed(args)) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  if (IsWide(args)) return LaunchExpertGateUpWide(args, stream);
  return LaunchStream<GateUp, true>(GateUpArgs(args), args.rows * args.num_chosen, stream, args.dependent);
}

cudaError_t LaunchExpertDown(const ExpertsArgs& args, cudaStream_t stream) {
  if (!IsServed(args)) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  if (IsWide(args)) return LaunchExpertDownWide(args, stream);
  return LaunchStream<Down, false>(DownArgs(args), args.rows * args.num_chosen, stream, args.dependent);
}

cudaError_t LaunchExpertSum(const ExpertsArgs& args, cudaStream_t stream) {
  if (!IsServed(args)) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(args.rows), kExpertHidden / 1024);
  const int32_t* const pair_slot = DirectPairs(args) > 0 ? nullptr : args.plan.pair_slot;
  if (args.round_bf16) {
    return Launch(SumKernel<__nv_bfloat16>, grid, dim3(256), 0, stream, args.dependent, static_cast<const __nv_bfloat16*>(args.y),
                  args.chosen, pair_slot, args.num_chosen, static_cast<const __nv_bfloat16*>(args.shared),
                  args.ld_shared, true, args.out, args.ldo, args.out_type);
  }
  return Launch(SumKernel<float>, grid, dim3(256), 0, stream, args.dependent, static_cast<const float*>(args.y), args.chosen,
                pair_slot, args.num_chosen, static_cast<const float*>(args.shared), args.ld_shared, false, args.out,
                args.ldo, args.out_type);
}

}  // namespace deepinfer::cuda
