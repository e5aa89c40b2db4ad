// SPDX-License-Identifier: Apache-2.0
#include "model/sequence.h"

#include <fmt/format.h>

namespace deepinfer::model {

Sequence::Sequence(BlockPool& pool, const CacheLayout& layout, device::Device& device, int64_t max_length)
    : pool_(pool), layout_(layout), device_(device), max_length_(max_length) {}

Sequence::~Sequence() { Shrink(0); }

bool Sequence::Grow(int64_t length) {
  const int64_t needed = (length + kBlockTokens - 1) / kBlockTokens;
  const int64_t before = num_blocks();
  if (needed <= before) return true;
  if (needed - before > pool_.num_free()) return false;
  while (num_blocks() < needed) blocks_.push_back(pool_.Allocate());
  device_.Upload(block_table_.as<int32_t>() + before, blocks_.data() + before,
                 (needed - before) * static_cast<int64_t>(sizeof(int32_t)));
  return true;
}

void Sequence::Shrink(int64_t num_blocks_left) {
  while (num_blocks() > num_blocks_left) {
    pool_.Free(blocks_.back());
    blocks_.pop_back();
  }
}

Status Sequence::Truncate(int64_t new_length) {
  if (new_length < 0 || new_length > length())
    return InvalidArgument(fmt::format("cannot cut a sequence of {} tokens to {}", length(), new_length));
  if (new_length != 0 && length() - new_length > max_backtracking())
    return InvalidArgument(fmt::format("cannot take back {} tokens: the caches keep {}", length() - new_length, max_backtracking()));
  ids_.resize(static_cast<size_t>(new_length));
  if (!is_image_.empty()) is_image_.resize(static_cast<size_t>(new_length));
  if (new_length == 0) window_floor_ = 0;
  Shrink((new_length + kBlockTokens - 1) / kBlockTokens);
  return Status::Ok();
}

}  // namespace deepinfer::model
