// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/expert_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include <fmt/format.h>

#include "core/check.h"
#include "core/dtypes.h"
#include "core/finite.h"
#include "core/integers.h"
#include "core/log.h"
#include "core/progress.h"
#include "device/expert_slots.h"

namespace deepinfer::cpu {
namespace {

constexpr int64_t kPage = InputFile::kAlignment;
// A layer whose experts have been used that many times on average halves its counts.
constexpr int64_t kAgeingUses = 8;

int64_t RoundDown(int64_t value, int64_t unit) { return value / unit * unit; }

int64_t ValueBytes(const device::HostMatrix& m) {
  switch (m.format) {
    case device::WeightFormat::kF32: return 4 * m.rows * m.cols;
    case device::WeightFormat::kBf16: return 2 * m.rows * m.cols;
    case device::WeightFormat::kFp4Row32: return m.rows * m.cols / 2;
    default: return m.rows * m.cols;
  }
}

int64_t ScaleBytes(const device::HostMatrix& m) {
  if (m.host_scale == nullptr) return 0;
  const int64_t cols = (m.cols + 31) / 32;
  return m.format == device::WeightFormat::kFp8Block32 ? (m.rows + 31) / 32 * cols : m.rows * cols;
}

DType ValueType(const device::HostMatrix& m) {
  switch (m.format) {
    case device::WeightFormat::kF32: return DType::kF32;
    case device::WeightFormat::kBf16: return DType::kBf16;
    case device::WeightFormat::kFp4Row32: return DType::kI8;
    default: return DType::kF8E4M3;
  }
}

const device::HostMatrix& MatrixOf(const device::HostExpert& e, int i) { return i == 0 ? e.w1 : i == 1 ? e.w3 : e.w2; }

// What two experts must share to take turns in a slot.
bool SameShape(const device::HostMatrix& a, const device::HostMatrix& b) {
  return a.format == b.format && a.rows == b.rows && a.cols == b.cols;
}

int64_t NowNs() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace

Status CheckExpertFinite(const device::HostExpert& expert, const std::array<MatrixSource, 3>& sources) {
  constexpr const char* kNames[] = {"w1", "w3", "w2"};
  for (int i = 0; i < 3; ++i) {
    const device::HostMatrix& m = MatrixOf(expert, i);
    const MatrixSource& source = sources[static_cast<size_t>(i)];
    if (FirstNonFinite(ValueType(m), static_cast<const uint8_t*>(source.data), ValueBytes(m)) >= 0 ||
        (source.scale != nullptr && FirstNonFinite(DType::kF8E8M0, source.scale, ScaleBytes(m)) >= 0))
      return BadModel(fmt::format("{} holds a value that is not finite; the file is damaged, download it again", kNames[i]));
  }
  return Status::Ok();
}

Result<std::unique_ptr<ExpertCache>> ExpertCache::Create(device::ExpertStreaming options, ThreadPool& pool) {
  std::unique_ptr<ExpertCache> cache(new ExpertCache(std::move(options), pool));
  cache->is_mapped_ = cache->options_.io == "mmap";
  if (!cache->is_mapped_) {
    AsyncReaderOptions reader;
    reader.backend = cache->options_.io;
    reader.filter = cache->options_.filter;
    DI_ASSIGN_OR_RETURN(cache->reader_, AsyncReader::Create(reader));
  }
  cache->files_.resize(cache->options_.files.size());
  return cache;
}

Status ExpertCache::OpenFile(int32_t file) {
  auto& opened = files_[static_cast<size_t>(file)];
  if (opened != nullptr) return Status::Ok();
  DI_ASSIGN_OR_RETURN(opened, InputFile::Open(options_.files[static_cast<size_t>(file)].path, true));
  if (opened->size() != options_.files[static_cast<size_t>(file)].bytes)
    return BadModel(fmt::format("{} changed its size while the model was loaded; let nothing write to it and start again", opened->path()));
  return Status::Ok();
}

Result<ExpertCache::Part> ExpertCache::Locate(const void* data, int64_t bytes) {
  Part part;
  part.bytes = bytes;
  part.memory = static_cast<const uint8_t*>(data);
  if (is_mapped_ || bytes == 0) return part;
  for (size_t i = 0; i < options_.files.size(); ++i) {
    const auto& file = options_.files[i];
    if (part.memory < file.data || part.memory + bytes > file.data + file.bytes) continue;
    part.file = static_cast<int32_t>(i);
    part.offset = part.memory - file.data;
    DI_RETURN_IF_ERROR(OpenFile(part.file));
    break;
  }
  return part;
}

Result<int> ExpertCache::AddBank(std::span<const device::HostExpert> experts) {
  if (experts.empty()) return -1;
  for (int i = 0; i < 3; ++i) {
    const device::HostExpert& first = banks_.empty() ? experts[0] : banks_[0].experts[0].host;
    for (const auto& e : experts)
      if (!SameShape(MatrixOf(e, i), MatrixOf(first, i))) return -1;
  }
  Bank bank;
  bank.experts.resize(experts.size());
  for (size_t e = 0; e < experts.size(); ++e) {
    bank.experts[e].host = experts[e];
    for (int i = 0; i < 3; ++i) {
      const device::HostMatrix& m = MatrixOf(experts[e], i);
      DI_ASSIGN_OR_RETURN(bank.experts[e].parts[2 * i], Locate(m.host_data, ValueBytes(m)));
      DI_ASSIGN_OR_RETURN(bank.experts[e].parts[2 * i + 1], Locate(m.host_scale, ScaleBytes(m)));
    }
  }
  banks_.push_back(std::move(bank));
  return static_cast<int>(banks_.size()) - 1;
}

Status ExpertCache::Finish() {
  if (banks_.empty()) return Status::Ok();
  if (!options_.pack_path.empty()) DI_RETURN_IF_ERROR(OpenPack());
  DI_RETURN_IF_ERROR(PlaceSlots());
  const int64_t all = stats().num_experts;
  if (reader_ != nullptr) {
    if (pack_ != nullptr) {
      reader_->RegisterMemory(arena_.data(), arena_.bytes());
    } else if (staging_.bytes() > 0) {
      reader_->RegisterMemory(staging_.data(), staging_.bytes());
    }
    if (!reader_->note().empty()) DI_LOG(debug, "expert reads: {}", reader_->note());
  }
  DI_LOG(info, "experts are streamed: {} of {} fit into {}, {} each, {} from the {}", slots_.size(), all, FormatBytes(options_.budget_bytes),
         FormatBytes(slot_bytes_), is_mapped_ ? "mapped" : fmt::format("read ({})", reader_->name()), pack_ != nullptr ? "pack file" : "checkpoint");
  return Status::Ok();
}

Status ExpertCache::OpenPack() {
  const device::HostExpert& any = banks_[0].experts[0].host;
  const MatrixSource w13[] = {SourceOf(any.w1), SourceOf(any.w3)}, w2[] = {SourceOf(any.w2)};
  const int64_t extent = RoundUp(PackedMatrix::StoredBytes(w13) + PackedMatrix::StoredBytes(w2), kPage);
  std::vector<device::HostExpert> experts;
  for (Bank& bank : banks_) {
    bank.first_extent = static_cast<int64_t>(experts.size());
    for (const Expert& e : bank.experts) experts.push_back(e.host);
  }
  PackKey key{options_.fingerprint, static_cast<int64_t>(experts.size()), extent};
  auto opened = PackFile::Open(options_.pack_path, key, !is_mapped_);
  if (!opened.ok()) {
    if (opened.status().code() != StatusCode::kNotFound) DI_LOG(info, "{} is written again: {}", options_.pack_path, opened.status().message());
    const Status written = WritePackFile(options_.pack_path, key, experts, pool_, [this] {
      for (const auto& file : options_.files) madvise(const_cast<uint8_t*>(file.data), static_cast<size_t>(file.bytes), MADV_DONTNEED);
    });
    if (!written.ok() && written.code() == StatusCode::kBadModel) return written;  // the checkpoint, not the pack file
    if (written.ok()) opened = PackFile::Open(options_.pack_path, key, !is_mapped_);
    if (!opened.ok() || !written.ok()) {
      DI_LOG(warn, "experts are read from the checkpoint: {}", (written.ok() ? opened.status() : written).message());
      return Status::Ok();
    }
  }
  pack_ = std::make_unique<PackFile>(std::move(opened).value());
  return Status::Ok();
}

Status ExpertCache::PlaceSlots() {
  const device::HostExpert& any = banks_[0].experts[0].host;
  const MatrixSource w13[] = {SourceOf(any.w1), SourceOf(any.w3)}, w2[] = {SourceOf(any.w2)};
  gate_up_bytes_ = PackedMatrix::StoredBytes(w13);
  slot_bytes_ = RoundUp(gate_up_bytes_ + PackedMatrix::StoredBytes(w2), kPage);
  int64_t num_experts = 0;
  bool needs_staging = false;
  for (const Bank& bank : banks_) {
    num_experts += static_cast<int64_t>(bank.experts.size());
    for (const Expert& e : bank.experts) {
      int64_t bytes = 0;
      for (const Part& part : e.parts) {
        if (part.file < 0 || part.bytes == 0) continue;
        bytes += RoundUp(part.offset + part.bytes, kPage) - RoundDown(part.offset, kPage);
        needs_staging = true;
      }
      staging_bytes_ = std::max(staging_bytes_, bytes);
    }
  }
  if (pack_ != nullptr || !needs_staging) staging_bytes_ = 0;
  const auto [num_slots, num_staging] = device::PlanExpertSlots(options_.budget_bytes, slot_bytes_, staging_bytes_, num_experts);
  if (num_slots < 1)
    return ResourceExhausted(fmt::format("the memory budget leaves {} for experts but one takes {}; raise --memory-budget by at least {}",
                                         FormatBytes(std::max<int64_t>(options_.budget_bytes, 0)), FormatBytes(slot_bytes_ + num_staging * staging_bytes_),
                                         FormatBytes(slot_bytes_ + num_staging * staging_bytes_ - std::max<int64_t>(options_.budget_bytes, 0))));
  num_empty_ = num_slots;
  arena_.Allocate(num_slots * slot_bytes_ + kPage);
  auto* memory = reinterpret_cast<uint8_t*>(RoundUp(reinterpret_cast<int64_t>(arena_.data()), kPage));
  for (int64_t i = 0; i < num_slots; ++i, memory += slot_bytes_) {
    Slot& slot = slots_.emplace_back();
    slot.memory = memory;
    slot.gate_up = PackedMatrix::Place(w13, memory, true);
    slot.down = PackedMatrix::Place(w2, memory + gate_up_bytes_);
  }
  staging_.Allocate(num_staging > 0 ? num_staging * staging_bytes_ + kPage : 0);
  for (int64_t i = num_staging; i-- > 0;) free_staging_.push_back(static_cast<int32_t>(i));
  const int64_t quota = num_slots / static_cast<int64_t>(banks_.size());
  // Two groups are pinned at a time.
  max_group_ = std::max<int64_t>(1, std::min(num_slots / 2, std::max<int64_t>(quota, 8)));
  return Status::Ok();
}

// ---- which expert gives way ---------------------------------------------------------------------------------------------

int32_t ExpertCache::LeastUseful(const Bank& bank, bool is_prefetch) const {
  int32_t best = -1;
  std::pair<uint64_t, int64_t> best_score{};
  for (const int32_t idx : bank.slots) {
    const Slot& slot = slots_[static_cast<size_t>(idx)];
    if (slot.num_pins > 0 || slot.state != Slot::State::kReady) continue;
    const Expert& e = bank.experts[static_cast<size_t>(slot.expert)];
    // The experts of the newest step are likely to be wanted again; only guesses that mostly come true push them out.
    const bool is_recent = e.last_step >= bank.num_steps - 1;
    if (is_prefetch && ((is_recent && !TrustsGuesses()) || std::find(guess_.begin(), guess_.end(), slot.expert) != guess_.end())) continue;
    const std::pair<uint64_t, int64_t> score{uint64_t{e.num_uses} + (is_recent ? 1 : 0), slot.last_use};
    if (best < 0 || score < best_score) {
      best = idx;
      best_score = score;
    }
  }
  return best;
}

int32_t ExpertCache::TakeSlot(int bank_idx, bool is_prefetch) {
  // Never used so far, or its read failed.
  for (size_t i = 0; i < slots_.size() && num_empty_ > 0; ++i) {
    if (slots_[i].state != Slot::State::kEmpty || slots_[i].num_pins > 0) continue;
    return static_cast<int32_t>(i);
  }
  const auto quota = slots_.size() / banks_.size();
  const Bank& own = banks_[static_cast<size_t>(bank_idx)];
  int32_t victim = own.slots.size() >= std::max<size_t>(quota, 1) ? LeastUseful(own, is_prefetch) : -1;
  if (victim < 0 && !is_prefetch) {
    // From the layer that holds the most.
    const Bank* richest = nullptr;
    for (const Bank& bank : banks_) {
      if (richest != nullptr && bank.slots.size() <= richest->slots.size()) continue;
      if (LeastUseful(bank, false) >= 0) richest = &bank;
    }
    if (richest != nullptr) victim = LeastUseful(*richest, false);
  }
  if (victim >= 0) Evict(victim);
  return victim;
}

void ExpertCache::Evict(int32_t slot_idx) {
  Slot& slot = slots_[static_cast<size_t>(slot_idx)];
  if (slot.bank >= 0) {
    Bank& bank = banks_[static_cast<size_t>(slot.bank)];
    std::erase(bank.slots, slot_idx);
    bank.experts[static_cast<size_t>(slot.expert)].slot = -1;
  }
  if (slot.state != Slot::State::kEmpty) ++num_empty_;
  slot.state = Slot::State::kEmpty;
  slot.bank = slot.expert = -1;
  slot.is_prefetch = false;
}

void ExpertCache::Assign(int32_t slot_idx, int bank_idx, int32_t expert) {
  Slot& slot = slots_[static_cast<size_t>(slot_idx)];
  slot.bank = bank_idx;
  slot.expert = expert;
  slot.state = Slot::State::kQueued;
  --num_empty_;
  Bank& bank = banks_[static_cast<size_t>(bank_idx)];
  bank.slots.push_back(slot_idx);
  bank.experts[static_cast<size_t>(expert)].slot = slot_idx;
}

// ---- reads --------------------------------------------------------------------------------------------------------------

void ExpertCache::StartRead(int32_t slot_idx, ReadPriority priority) {
  Slot& slot = slots_[static_cast<size_t>(slot_idx)];
  const Expert& e = ExpertOf(slot);
  slot.batch.Reset();
  if (pack_ != nullptr) {
    slot.state = Slot::State::kReading;
    const int64_t extent = banks_[static_cast<size_t>(slot.bank)].first_extent + slot.expert;
    num_bytes_ += slot_bytes_;
    if (is_mapped_) {
      madvise(const_cast<uint8_t*>(pack_->mapped(extent)), static_cast<size_t>(slot_bytes_), MADV_WILLNEED);
      return;
    }
    const FileRead read{&pack_->file(), pack_->offset(extent), slot_bytes_, slot.memory};
    reader_->Submit({&read, 1}, slot.batch, priority);
    return;
  }
  FileRead reads[kNumParts];
  size_t num_reads = 0;
  bool needs_staging = false;
  for (const Part& part : e.parts) needs_staging |= part.file >= 0 && part.bytes > 0;
  if (needs_staging) {
    if (free_staging_.empty()) {
      slot.state = Slot::State::kQueued;
      queued_.push_back(slot_idx);
      return;
    }
    slot.staging = free_staging_.back();
    free_staging_.pop_back();
    uint8_t* to = reinterpret_cast<uint8_t*>(RoundUp(reinterpret_cast<int64_t>(staging_.data()), kPage)) + slot.staging * staging_bytes_;
    for (const Part& part : e.parts) {
      if (part.file < 0 || part.bytes == 0) continue;
      const int64_t begin = RoundDown(part.offset, kPage), bytes = RoundUp(part.offset + part.bytes, kPage) - begin;
      reads[num_reads++] = {files_[static_cast<size_t>(part.file)].get(), begin, bytes, to, part.offset + part.bytes - begin};
      to += bytes;
      num_bytes_ += bytes;
    }
  }
  if (is_mapped_) {
    for (const Part& part : e.parts) {
      if (part.bytes == 0) continue;
      const int64_t begin = RoundDown(reinterpret_cast<int64_t>(part.memory), kPage);
      madvise(reinterpret_cast<void*>(begin), static_cast<size_t>(reinterpret_cast<int64_t>(part.memory) + part.bytes - begin), MADV_WILLNEED);
      num_bytes_ += part.bytes;
    }
  }
  slot.state = Slot::State::kReading;
  if (num_reads > 0) reader_->Submit({reads, num_reads}, slot.batch, priority);
}

void ExpertCache::StartQueued() {
  while (!queued_.empty() && !free_staging_.empty()) {
    const int32_t idx = queued_.front();
    queued_.pop_front();
    StartRead(idx, ReadPriority::kDemand);
  }
}

void ExpertCache::Sources(const Slot& slot, std::array<MatrixSource, 3>& sources) {
  const Expert& e = ExpertOf(slot);
  const uint8_t* from = slot.staging < 0 ? nullptr
                                         : reinterpret_cast<const uint8_t*>(RoundUp(reinterpret_cast<int64_t>(staging_.data()), kPage)) + slot.staging * staging_bytes_;
  for (int i = 0; i < 3; ++i) {
    MatrixSource& source = sources[static_cast<size_t>(i)];
    source = SourceOf(MatrixOf(e.host, i));
    for (int p = 0; p < 2; ++p) {
      const Part& part = e.parts[2 * i + p];
      if (part.file < 0 || part.bytes == 0) continue;
      const int64_t begin = RoundDown(part.offset, kPage);
      const uint8_t* at = from + (part.offset - begin);
      from += RoundUp(part.offset + part.bytes, kPage) - begin;
      if (p == 0) {
        source.data = at;
      } else {
        source.scale = at;
      }
    }
  }
}

Status ExpertCache::Complete(int32_t slot_idx) {
  Slot& slot = slots_[static_cast<size_t>(slot_idx)];
  Status status = slot.batch.status();
  if (status.ok() && pack_ != nullptr) {
    const int64_t extent = banks_[static_cast<size_t>(slot.bank)].first_extent + slot.expert;
    if (is_mapped_) std::memcpy(slot.memory, pack_->mapped(extent), static_cast<size_t>(slot_bytes_));
    status = pack_->Check(extent, slot.memory);
    if (status.ok() && is_mapped_) status = pack_->file().CheckUnchanged();
    if (status.ok() && is_mapped_ && pack_->is_damaged())
      status = BadModel(fmt::format("{}: the file became shorter or unreadable while it was in use; delete it and start again", pack_->file().path()));
    if (status.ok()) {
      slot.gate_up.Adopt();
      slot.down.Adopt();
    }
  } else if (status.ok()) {
    std::array<MatrixSource, 3> sources;
    Sources(slot, sources);
    status = CheckExpertFinite(ExpertOf(slot).host, sources);
    if (status.ok()) {
      slot.gate_up.Fill({sources.data(), 2}, &pool_);
      slot.down.Fill({sources.data() + 2, 1}, &pool_);
    }
  }
  if (slot.staging >= 0) {
    free_staging_.push_back(slot.staging);
    slot.staging = -1;
  }
  if (slot.is_prefetch) --num_prefetching_;
  const std::string name = fmt::format("reading expert {} of layer {}", slot.expert, slot.bank);
  if (status.ok()) {
    slot.state = Slot::State::kReady;
  } else {
    Evict(slot_idx);
  }
  StartQueued();
  return status.ok() ? status : std::move(status).WithContext(name);
}

// ---- the experts of a step ----------------------------------------------------------------------------------------------

void ExpertCache::Begin(std::span<const int32_t> experts) {
  Bank& bank = banks_[static_cast<size_t>(bank_)];
  Group& group = groups_.emplace_back();
  group.bank = bank_;
  // Those that are there are pinned before others push anything out.
  for (const int32_t expert : experts) {
    Expert& e = bank.experts[static_cast<size_t>(expert)];
    ++e.num_uses;
    if (e.slot < 0) continue;
    Slot& slot = slots_[static_cast<size_t>(e.slot)];
    ++num_hits_;
    if (slot.is_prefetch) {
      ++num_useful_;
      prefetch_useful_ += 1;
      if (slot.state != Slot::State::kReady) --num_prefetching_;
      slot.is_prefetch = false;
      if (slot.state == Slot::State::kReading && reader_ != nullptr) reader_->Promote(slot.batch);
    }
    ++slot.num_pins;
    group.pinned.push_back(e.slot);
    group.slots.push_back(e.slot);
  }
  for (const int32_t expert : experts) {
    Expert& e = bank.experts[static_cast<size_t>(expert)];
    e.last_step = bank.num_steps;
    if (e.slot >= 0) continue;
    ++num_misses_;
    int32_t idx = TakeSlot(bank_, false);
    while (idx < 0) {
      // Everything that is not pinned is a guess under way: finish one.
      const auto it = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.num_pins == 0 && s.state == Slot::State::kReading; });
      DI_CHECK(it != slots_.end()) << "no slot for expert " << expert;
      it->batch.Wait();
      Complete(static_cast<int32_t>(it - slots_.begin())).IgnoreError();  // nobody asked for it
      idx = TakeSlot(bank_, false);
    }
    Assign(idx, bank_, expert);
    Slot& slot = slots_[static_cast<size_t>(idx)];
    ++slot.num_pins;
    group.pinned.push_back(idx);
    group.slots.push_back(idx);
    StartRead(idx, ReadPriority::kDemand);
  }
  bank.uses_since_ageing += static_cast<int64_t>(experts.size());
  if (bank.uses_since_ageing > kAgeingUses * static_cast<int64_t>(bank.experts.size())) {
    bank.uses_since_ageing = 0;
    for (Expert& e : bank.experts) e.num_uses /= 2;
  }
  if (guess_bank_ >= 0) Prefetch(std::exchange(guess_bank_, -1), guess_);
}

bool ExpertCache::Next(std::vector<Ready>& ready) {
  Group& group = groups_.front();
  const auto hand_out = [&] {
    std::erase_if(group.slots, [&](int32_t idx) {
      Slot& slot = slots_[static_cast<size_t>(idx)];
      if (slot.state != Slot::State::kReady) return false;
      slot.last_use = ++use_clock_;
      ready.push_back({slot.expert, {&slot.gate_up, &slot.down}});
      return true;
    });
    return !ready.empty();
  };
  if (hand_out()) return true;
  while (!group.slots.empty()) {
    bool any = false;
    for (const int32_t idx : group.slots) {
      if (!HasArrived(slots_[static_cast<size_t>(idx)])) continue;
      if (const Status status = Complete(idx); !status.ok()) {
        if (error_.ok()) error_ = status;
        return false;
      }
      any = true;
    }
    if (any) return hand_out();
    // Idle: pack a guess that has arrived, or sleep for the first that is under way.
    const auto guess = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.num_pins == 0 && HasArrived(s); });
    if (guess != slots_.end()) {
      Complete(static_cast<int32_t>(guess - slots_.begin())).IgnoreError();  // nobody asked for it
      continue;
    }
    auto first = std::find_if(group.slots.begin(), group.slots.end(), [&](int32_t idx) { return slots_[static_cast<size_t>(idx)].state == Slot::State::kReading; });
    const Slot* under_way = first != group.slots.end() ? &slots_[static_cast<size_t>(*first)] : nullptr;
    if (under_way == nullptr) {
      // All wait for staging memory that others hold.
      const auto other = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.staging >= 0; });
      DI_CHECK(other != slots_.end()) << "an expert waits for nothing";
      const int64_t begin_ns = NowNs();
      other->batch.Wait();
      wait_ns_ += NowNs() - begin_ns;
      if (const Status status = Complete(static_cast<int32_t>(other - slots_.begin())); !status.ok() && other->num_pins > 0) {
        if (error_.ok()) error_ = status;
        return false;
      }
      continue;
    }
    const int64_t begin_ns = NowNs();
    under_way->batch.Wait();
    wait_ns_ += NowNs() - begin_ns;
  }
  return false;
}

void ExpertCache::End() {
  const Group group = std::move(groups_.front());
  groups_.pop_front();
  for (const int32_t idx : group.pinned) {
    Slot& slot = slots_[static_cast<size_t>(idx)];
    --slot.num_pins;
    if (slot.num_pins > 0 || slot.state == Slot::State::kReady || slot.state == Slot::State::kEmpty) continue;
    // Given up after an error: nothing of it may stay half read.
    std::erase(queued_, idx);
    if (slot.state == Slot::State::kReading) {
      slot.batch.Wait();
      Complete(idx).IgnoreError();  // the first error stands already
    } else {
      Evict(idx);
    }
  }
}

void ExpertCache::Prefetch(int bank_idx, std::span<const int32_t> experts) {
  if (slots_.size() < banks_.size() * 2 || is_mapped_) return;
  // Guesses that rarely come true cost more than they give: only try now and then whether that has changed.
  ++prefetch_calls_;
  if (prefetch_issued_ > 32 && prefetch_useful_ < 0.4 * prefetch_issued_ && prefetch_calls_ % 16 != 0) return;
  Bank& bank = banks_[static_cast<size_t>(bank_idx)];
  const int32_t most = static_cast<int32_t>(std::min<size_t>(pack_ != nullptr ? 8 : 3, slots_.size() / 4));
  for (const int32_t expert : experts) {
    if (expert < 0 || bank.experts[static_cast<size_t>(expert)].slot >= 0) continue;
    if (num_prefetching_ >= most) return;
    // Staging memory for reads that a step waits for stays free.
    if (pack_ == nullptr && free_staging_.size() < 2) return;
    const int32_t idx = TakeSlot(bank_idx, true);
    if (idx < 0) return;
    Assign(idx, bank_idx, expert);
    Slot& slot = slots_[static_cast<size_t>(idx)];
    slot.is_prefetch = true;
    slot.last_use = ++use_clock_;
    ++num_prefetching_;
    ++num_prefetched_;
    prefetch_issued_ += 1;
    if (prefetch_issued_ > 512) {
      prefetch_issued_ /= 2;
      prefetch_useful_ /= 2;
    }
    StartRead(idx, ReadPriority::kPrefetch);
  }
}

device::ExpertStreamStats ExpertCache::stats() const {
  device::ExpertStreamStats s;
  s.num_slots = static_cast<int64_t>(slots_.size());
  for (const Bank& bank : banks_) s.num_experts += static_cast<int64_t>(bank.experts.size());
  s.expert_bytes = slot_bytes_;
  s.num_hits = num_hits_;
  s.num_misses = num_misses_;
  s.num_prefetched = num_prefetched_;
  s.num_useful = num_useful_;
  s.num_bytes = num_bytes_;
  s.wait_ns = wait_ns_;
  s.io = is_mapped_ ? "mmap" : std::string(reader_->name());
  return s;
}

}  // namespace deepinfer::cpu
