// SPDX-License-Identifier: Apache-2.0
//
// Experts of a model that is larger than its memory: a bounded arena of slots, each of which holds one expert in the packed
// form of the kernels, filled from the checkpoint (read and packed on arrival) or from a pack file when a step needs it.
// One thread (the one that runs steps) calls it; stats() may be called by any.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/cpu/expert_pack.h"
#include "backends/cpu/kernels/aligned_buffer.h"
#include "backends/cpu/kernels/matmul.h"
#include "backends/cpu/kernels/moe.h"
#include "core/async_reader.h"
#include "core/status.h"
#include "core/threads.h"
#include "device/device.h"

namespace deepinfer::cpu {

// How a HostMatrix is packed.
MatrixSource SourceOf(const device::HostMatrix& matrix);
// kBadModel when the values or scales at `sources` (w1, w3, w2) are no numbers.
Status CheckExpertFinite(const device::HostExpert& expert, const std::array<MatrixSource, 3>& sources);

class ExpertCache final : public ExpertSource {
 public:
  static Result<std::unique_ptr<ExpertCache>> Create(device::ExpertStreaming options, ThreadPool& pool);

  // The experts of one layer; returns its number. -1: they have another shape than those before and are not taken.
  Result<int> AddBank(std::span<const device::HostExpert> experts);
  // All banks are there: sizes the slots, opens or writes the pack file. kResourceExhausted: not even one expert fits.
  Status Finish();

  // The bank that the calls of ExpertSource mean.
  void SelectBank(int bank) { bank_ = bank; }
  int64_t max_group() const override { return max_group_; }
  bool can_overlap() const override { return slots_.size() > 1; }
  void Begin(std::span<const int32_t> experts) override;
  bool Next(std::vector<Ready>& ready) override;
  void End() override;
  // All groups of a step of the selected bank have ended.
  void EndStep() { ++banks_[static_cast<size_t>(bank_)].num_steps; }

  // Experts that a later step of `bank` may want: read behind those that the next call of Begin wants.
  void Guess(int bank, std::span<const int32_t> experts) {
    guess_bank_ = bank;
    guess_.assign(experts.begin(), experts.end());
  }

  bool has_error() const { return !error_.ok(); }
  // The error that made Next return false; cleared.
  Status TakeError() { return std::exchange(error_, Status::Ok()); }
  device::ExpertStreamStats stats() const;

 private:
  static constexpr int kNumParts = 6;  // w1, w3, w2: values and scales
  struct Part {
    int32_t file = -1;  // -1: in memory
    int64_t offset = 0;
    int64_t bytes = 0;
    const uint8_t* memory = nullptr;
  };
  struct Expert {
    device::HostExpert host;
    Part parts[kNumParts];
    int32_t slot = -1;
    uint32_t num_uses = 0;
    int64_t last_step = -1;  // of its bank
  };
  struct Bank {
    std::vector<Expert> experts;
    std::vector<int32_t> slots;  // that hold experts of it
    int64_t num_steps = 0;
    int64_t uses_since_ageing = 0;
    int64_t first_extent = 0;  // in the pack file
  };
  struct Slot {
    enum class State { kEmpty, kQueued, kReading, kReady };
    State state = State::kEmpty;
    int32_t bank = -1;
    int32_t expert = -1;
    int32_t num_pins = 0;
    int32_t staging = -1;
    bool is_prefetch = false;  // and not used since
    int64_t last_use = 0;
    uint8_t* memory = nullptr;
    PackedMatrix gate_up, down;
    ReadBatch batch;
  };
  struct Group {
    int bank;
    std::vector<int32_t> slots;  // not handed out yet
    std::vector<int32_t> pinned;
  };

  ExpertCache(device::ExpertStreaming options, ThreadPool& pool) : options_(std::move(options)), pool_(pool) {}
  Result<Part> Locate(const void* data, int64_t bytes);
  Status OpenFile(int32_t file);
  Status PlaceSlots();
  Status OpenPack();
  Expert& ExpertOf(const Slot& slot) { return banks_[static_cast<size_t>(slot.bank)].experts[static_cast<size_t>(slot.expert)]; }
  // An unpinned slot for an expert of `bank`, emptied; -1: none (prefetch only).
  int32_t TakeSlot(int bank, bool is_prefetch);
  bool TrustsGuesses() const { return prefetch_issued_ > 16 && prefetch_useful_ > 0.6 * prefetch_issued_; }
  // For a guess, guess_ has all of it: none of them gives way to another.
  int32_t LeastUseful(const Bank& bank, bool is_prefetch) const;
  void Evict(int32_t slot_idx);
  void Assign(int32_t slot_idx, int bank, int32_t expert);
  void StartRead(int32_t slot_idx, ReadPriority priority);
  void StartQueued();
  bool HasArrived(const Slot& slot) const { return slot.state == Slot::State::kReading && slot.batch.is_done(); }
  void Prefetch(int bank, std::span<const int32_t> experts);
  // Turns what has arrived into a usable expert.
  Status Complete(int32_t slot_idx);
  void Sources(const Slot& slot, std::array<MatrixSource, 3>& sources);

  device::ExpertStreaming options_;
  ThreadPool& pool_;
  bool is_mapped_ = false;  // read through the page cache, packed from the mapping
  std::vector<std::shared_ptr<InputFile>> files_;  // as options_.files, opened when first used
  std::unique_ptr<PackFile> pack_;
  std::vector<Bank> banks_;
  int64_t slot_bytes_ = 0;
  int64_t gate_up_bytes_ = 0;
  int64_t staging_bytes_ = 0;
  int64_t max_group_ = 1;
  AlignedBuffer arena_;
  AlignedBuffer staging_;
  std::deque<Slot> slots_;
  std::vector<int32_t> free_staging_;
  std::deque<int32_t> queued_;  // slots that wait for staging memory
  int64_t num_empty_ = 0;
  int32_t num_prefetching_ = 0;  // under way
  int bank_ = 0;
  std::deque<Group> groups_;
  int guess_bank_ = -1;
  std::vector<int32_t> guess_;
  int64_t use_clock_ = 0;
  double prefetch_issued_ = 0, prefetch_useful_ = 0;  // fading
  int64_t prefetch_calls_ = 0;
  Status error_;
  std::unique_ptr<AsyncReader> reader_;  // goes before the memory that it writes to

  std::atomic<int64_t> num_hits_{0}, num_misses_{0}, num_prefetched_{0}, num_useful_{0}, num_bytes_{0}, wait_ns_{0};
};

}  // namespace deepinfer::cpu
