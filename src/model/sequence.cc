// SPDX-License-Identifier: Apache-2.0
#include "model/sequence.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/check.h"

namespace deepinfer::model {

Sequence::Sequence(BlockPool& pool, const CacheLayout& layout, device::Device& device, int64_t max_length)
    : pool_(pool), layout_(layout), device_(device), max_length_(max_length) {}

Sequence::~Sequence() { Shrink(0); }

bool Sequence::Grow(int64_t length) {
  const int64_t needed = (length + kBlockTokens - 1) / kBlockTokens;
  const int64_t before = num_blocks();
  if (needed <= before) return true;
  if (is_slot_) return false;
  if (needed - before > pool_.num_free()) return false;
  while (num_blocks() < needed) blocks_.push_back(pool_.Allocate());
  device_.Upload(block_table_.as<int32_t>() + before, blocks_.data() + before,
                 (needed - before) * static_cast<int64_t>(sizeof(int32_t)));
  return true;
}

void Sequence::Shrink(int64_t num_blocks_left) {
  if (is_slot_) return;
  while (num_blocks() > num_blocks_left) {
    pool_.Free(blocks_.back());
    blocks_.pop_back();
  }
}

void Sequence::Bind(std::span<const int32_t> history, int64_t valid_start, int64_t decoder_floor) {
  DI_CHECK(is_slot_) << "only slots are bound";
  ids_.assign(history.begin(), history.end());
  is_image_.clear();
  blocks_.clear();
  valid_start_ = valid_start;
  stale_from_ = -1;
  window_floor_ = std::max(valid_start, has_decoder_replay_ ? decoder_floor : 0);
}

void Sequence::SetBlocks(int64_t first, std::span<const int32_t> blocks) {
  DI_CHECK(is_slot_ && first <= num_blocks()) << "block table of " << num_blocks() << " set from " << first;
  const size_t end = static_cast<size_t>(first) + blocks.size();
  if (blocks_.size() < end) blocks_.resize(end);
  std::copy(blocks.begin(), blocks.end(), blocks_.begin() + first);
  device_.Upload(block_table_.as<int32_t>() + first, blocks_.data() + first,
                 static_cast<int64_t>(blocks.size() * sizeof(int32_t)));
}

Status Sequence::CopyStateFrom(const Sequence& other, int64_t length) {
  DI_CHECK(is_slot_ && other.length() - length <= max_backtracking()) << "state of length " << other.length() << " copied at " << length;
  ids_.assign(other.ids_.begin(), other.ids_.begin() + length);
  is_image_ = other.is_image_;
  if (!is_image_.empty()) is_image_.resize(static_cast<size_t>(length));
  blocks_.clear();
  valid_start_ = other.valid_start_;
  window_floor_ = other.window_floor_;
  device_.Copy(state_.data(), other.state_.data(), state_.bytes());
  stale_from_ = other.stale_from_;
  if (stale_from_ < 0) return Status::Ok();
  if (taps_.bytes() < other.taps_.bytes()) {
    DI_ASSIGN_OR_RETURN(taps_, device_.Allocate(other.taps_.bytes()));
  }
  device_.Copy(taps_.data(), other.taps_.data(), other.taps_.bytes());
  return Status::Ok();
}

void Sequence::SaveProducerState(void* to) const { device_.Copy(to, state_.data(), producer_state_bytes()); }

void Sequence::LoadProducerState(const void* from) { device_.Copy(state_.data(), from, producer_state_bytes()); }

Status Sequence::Truncate(int64_t new_length) {
  if (new_length < 0 || new_length > length())
    return InvalidArgument(fmt::format("cannot cut a sequence of {} tokens to {}", length(), new_length));
  if (new_length != 0 && length() - new_length > max_backtracking())
    return InvalidArgument(fmt::format("cannot take back {} tokens: the caches keep {}", length() - new_length, max_backtracking()));
  ids_.resize(static_cast<size_t>(new_length));
  if (!is_image_.empty()) is_image_.resize(static_cast<size_t>(new_length));
  if (new_length == 0) {
    window_floor_ = 0;
    stale_from_ = -1;
  }
  Shrink((new_length + kBlockTokens - 1) / kBlockTokens);
  return Status::Ok();
}

}  // namespace deepinfer::model
