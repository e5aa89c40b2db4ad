// SPDX-License-Identifier: Apache-2.0
//
// Sequence::Fabricate: caches of random keys, for measuring steps behind contexts that would take hours to compute.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "model/sequence.h"

namespace deepinfer::model {
namespace {

struct RandomBytes {
  uint64_t state;

  uint64_t Next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  }
  void Fill(uint8_t* to, int64_t bytes) {
    for (; bytes >= 8; bytes -= 8, to += 8) {
      const uint64_t word = Next();
      std::memcpy(to, &word, 8);
    }
    const uint64_t word = Next();
    std::memcpy(to, &word, static_cast<size_t>(bytes));
  }
};

// Codes of one record: any e2m1 pairs; e4m3 of ordinary magnitude, never NaN; small floats.
void FillData(RandomBytes& random, device::KeyFormat format, int64_t n, uint8_t* to) {
  using device::KeyFormat;
  const int64_t bytes = device::KeyDataBytes(format, n);
  if (format == KeyFormat::kFloat) {
    for (int64_t i = 0; i < n; ++i) {
      const float value = static_cast<float>(random.Next() % 256) / 128.0f - 1;
      std::memcpy(to + 4 * i, &value, 4);
    }
    return;
  }
  random.Fill(to, bytes);
  if (format == KeyFormat::kMxFp8) {
    for (int64_t i = 0; i < bytes; ++i) to[i] &= 0xb7;
  }
}

// Scales between 2^-4 and 2^-1: e4m3 for the 16-wide groups, a power of two otherwise.
void FillScales(RandomBytes& random, device::KeyFormat format, int64_t n, uint8_t* to) {
  const int64_t bytes = device::KeyScaleBytes(format, n);
  random.Fill(to, bytes);
  for (int64_t i = 0; i < bytes; ++i) {
    to[i] = static_cast<uint8_t>(format == device::KeyFormat::kFp4E4m3 ? 0x18 + to[i] % 24 : 123 + to[i] % 4);
  }
}

}  // namespace

Status Sequence::Fabricate(std::span<const int32_t> ids, uint64_t seed) {
  if (length() != 0 || is_slot_) return InvalidArgument("only an empty sequence of its own blocks can be fabricated");
  const auto count = static_cast<int64_t>(ids.size());
  if (count > max_length_) return InvalidArgument(fmt::format("a sequence holds {} tokens at most, not {}", max_length_, count));
  if (!Grow(count)) return ResourceExhausted(fmt::format("the cache has no room for {} tokens", count));
  ids_.assign(ids.begin(), ids.end());
  RandomBytes random{seed * 2 + 0x9e3779b97f4a7c15u};
  std::vector<uint8_t> block(static_cast<size_t>(layout_.block_stride));
  for (const int32_t id : blocks_) {
    for (const device::KeyCache& owner : layout_.owners) {
      const int64_t record = device::KeyRecordBytes(owner.main_format, owner.head_dim);
      const int64_t index_data = device::KeyDataBytes(owner.index_format, owner.index_dim);
      const int64_t index_scales = device::KeyScaleBytes(owner.index_format, owner.index_dim);
      for (int64_t e = 0; e < owner.entries_per_block; ++e) {
        uint8_t* main = block.data() + owner.main_offset + e * record;
        FillData(random, owner.main_format, owner.head_dim, main);
        FillScales(random, owner.main_format, owner.head_dim, main + device::KeyDataBytes(owner.main_format, owner.head_dim));
        uint8_t* index = block.data() + owner.index_offset;
        FillData(random, owner.index_format, owner.index_dim, index + e * index_data);
        FillScales(random, owner.index_format, owner.index_dim, index + owner.entries_per_block * index_data + e * index_scales);
      }
    }
    device_.Upload(pool_.data() + id * layout_.block_stride, block.data(), layout_.block_stride);
  }
  // The window rings; partial groups of the compressors are small floats.
  std::vector<uint8_t> state(static_cast<size_t>(state_.bytes()));
  for (const device::WindowRing& ring : layout_.rings) {
    const int dim = layout_.owners.empty() ? 0 : layout_.owners[0].head_dim;
    const int64_t record = device::KeyRecordBytes(ring.format, dim);
    for (int64_t r = 0; r < ring.rows; ++r) {
      uint8_t* at = state.data() + ring.offset + r * record;
      FillData(random, ring.format, dim, at);
      FillScales(random, ring.format, dim, at + device::KeyDataBytes(ring.format, dim));
    }
  }
  for (size_t i = 0; i < layout_.owners.size(); ++i) {
    const int64_t offset = layout_.compressor_offset[i];
    if (offset < 0) continue;
    FillData(random, device::KeyFormat::kFloat, int64_t{layout_.compressor_rows} * 2 * layout_.owners[i].head_dim, state.data() + offset);
  }
  device_.Upload(state_.data(), state.data(), state_.bytes());
  return Status::Ok();
}

}  // namespace deepinfer::model
