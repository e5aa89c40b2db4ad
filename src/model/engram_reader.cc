// SPDX-License-Identifier: Apache-2.0
#include "model/engram_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include <fmt/format.h>

#include "core/check.h"
#include "core/clock.h"

namespace deepinfer::model {
namespace {

constexpr int64_t kPage = InputFile::kAlignment;
// Misses whose whole pages are in memory at a time: 16 KiB each with rows of 256 bytes.
constexpr size_t kDirectMisses = 2048;

uint64_t Mix(uint64_t key) {
  key *= 0x9e3779b97f4a7c15ull;
  return key ^ key >> 29;
}

uint64_t CacheKey(int table_idx, int32_t row) { return (static_cast<uint64_t>(table_idx) << 32 | static_cast<uint32_t>(row)) + 1; }

int64_t PageBegin(int64_t offset) { return offset / kPage * kPage; }
// Pages that [offset, offset + bytes) can touch, wherever it begins.
int64_t PageSpan(int64_t bytes) { return (bytes + 2 * (kPage - 1)) / kPage * kPage; }

// The file and the position in it of a tensor.
Status Locate(const Checkpoint& checkpoint, const std::string& name, bool direct, std::map<int, std::shared_ptr<InputFile>>& files,
              std::shared_ptr<InputFile>& file, int64_t& offset) {
  DI_ASSIGN_OR_RETURN(const TensorView view, checkpoint.Get(name));
  if (view.shard_idx < 0 || view.shard_idx >= static_cast<int>(checkpoint.shards().size()))
    return BadModel(fmt::format("tensor {} is in no file; its rows cannot be read from disk", name));
  const SafetensorsFile& shard = checkpoint.shards()[static_cast<size_t>(view.shard_idx)];
  std::shared_ptr<InputFile>& opened = files[view.shard_idx];
  if (opened == nullptr) {
    DI_ASSIGN_OR_RETURN(opened, InputFile::Open(shard.path(), direct));
  }
  file = opened;
  if (file->size() != shard.file_bytes())
    return BadModel(fmt::format("{}: has {} bytes and had {} when its header was read; do not replace files in use", shard.path(),
                                file->size(), shard.file_bytes()));
  offset = shard.OffsetInFile(view);
  return Status::Ok();
}

}  // namespace

Result<EngramIo> ParseEngramIo(std::string_view name, int64_t table_bytes, int64_t free_bytes) {
  if (name == "mmap") return EngramIo::kMmap;
  if (name == "read") return EngramIo::kRead;
  if (name == "direct") return EngramIo::kDirect;
  if (name == "auto" || name.empty()) return table_bytes <= free_bytes ? EngramIo::kMmap : EngramIo::kRead;
  return InvalidArgument(fmt::format("engram-io must be auto, mmap, read or direct, got \"{}\"", name), "engram_io");
}

Result<std::unique_ptr<EngramReader>> EngramReader::Create(const Checkpoint& checkpoint, const ModelConfig& config,
                                                           int64_t max_rows, EngramReadOptions options) {
  std::unique_ptr<EngramReader> reader(new EngramReader());
  reader->options_ = std::move(options);
  reader->dim_ = config.engram_head_dim;
  std::map<int, std::shared_ptr<InputFile>> files;  // by shard
  for (const int layer : config.engram_layer_ids) {
    auto table = std::make_unique<Table>();
    const std::string name = fmt::format("layers.{}.engram.embed", layer);
    const bool direct = reader->options_.direct;
    DI_RETURN_IF_ERROR(Locate(checkpoint, name + ".weight", direct, files, table->file, table->data_offset));
    DI_RETURN_IF_ERROR(Locate(checkpoint, name + ".scale", direct, files, table->scale_file, table->scale_offset));
    table->data.resize(static_cast<size_t>(max_rows * reader->dim_));
    table->scales.resize(static_cast<size_t>(max_rows * (reader->dim_ / 32)));
    table->slot_rows.reserve(static_cast<size_t>(max_rows));
    table->misses.reserve(static_cast<size_t>(max_rows));
    if (direct) {
      const size_t misses = std::min(static_cast<size_t>(max_rows), kDirectMisses);
      table->pages.resize(misses * static_cast<size_t>(PageSpan(reader->dim_) + PageSpan(reader->dim_ / 32)) + kPage);
    }
    reader->tables_.push_back(std::move(table));
  }
  reader->slot_of_.reserve(std::bit_ceil(static_cast<size_t>(std::max<int64_t>(2 * max_rows, 16))));
  reader->reads_.reserve(static_cast<size_t>(2 * max_rows));
  const int64_t row_bytes = reader->dim_ + reader->dim_ / 32;
  const int64_t entries = std::max<int64_t>(0, reader->options_.cache_bytes) / (row_bytes + static_cast<int64_t>(sizeof(uint64_t)));
  if (entries > 0) {
    reader->cache_keys_.resize(std::bit_floor(static_cast<size_t>(entries)));
    reader->cache_rows_.resize(reader->cache_keys_.size() * static_cast<size_t>(row_bytes));
  }
  return reader;
}

device::HostMatrix EngramReader::View(int table) const {
  const Table& t = *tables_[static_cast<size_t>(table)];
  return {device::WeightFormat::kFp8Row32, static_cast<int64_t>(t.data.size()) / dim_, dim_, t.data.data(), t.scales.data(), true};
}

uint8_t* EngramReader::CacheEntry(uint64_t key) {
  return cache_rows_.data() + (Mix(key) & (cache_keys_.size() - 1)) * static_cast<size_t>(dim_ + dim_ / 32);
}

uint8_t* EngramReader::Pages(Table& table, size_t miss) const {
  const auto base = reinterpret_cast<uintptr_t>(table.pages.data());
  const uintptr_t aligned = (base + kPage - 1) / kPage * kPage;
  return reinterpret_cast<uint8_t*>(aligned) + miss * static_cast<size_t>(PageSpan(dim_) + PageSpan(dim_ / 32));
}

void EngramReader::Begin(int table_idx, std::span<const int32_t> rows, int32_t* slots) {
  Table& table = *tables_[static_cast<size_t>(table_idx)];
  table.batch.Wait();
  table.batch.Reset();
  const size_t scale_bytes = static_cast<size_t>(dim_ / 32), row_bytes = static_cast<size_t>(dim_);
  DI_CHECK(rows.size() * row_bytes <= table.data.size()) << rows.size() << " rows";
  table.slot_rows.clear();
  table.misses.clear();
  const size_t places = std::bit_ceil(std::max<size_t>(2 * rows.size(), 16));
  slot_of_.assign(places, 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const int32_t row = rows[i];
    size_t place = Mix(static_cast<uint32_t>(row)) & (places - 1);
    while (slot_of_[place] != 0 && table.slot_rows[static_cast<size_t>(slot_of_[place] - 1)] != row) place = (place + 1) & (places - 1);
    if (slot_of_[place] == 0) {
      table.slot_rows.push_back(row);
      slot_of_[place] = static_cast<int32_t>(table.slot_rows.size());
      const size_t slot = table.slot_rows.size() - 1;
      const uint64_t key = CacheKey(table_idx, row);
      if (!cache_keys_.empty() && cache_keys_[Mix(key) & (cache_keys_.size() - 1)] == key) {
        const uint8_t* const entry = CacheEntry(key);
        std::memcpy(table.data.data() + slot * row_bytes, entry, row_bytes);
        std::memcpy(table.scales.data() + slot * scale_bytes, entry + row_bytes, scale_bytes);
        ++counts_.cache_hits;
      } else {
        table.misses.push_back(static_cast<int32_t>(slot));
      }
    }
    slots[i] = slot_of_[place] - 1;
  }
  counts_.rows += static_cast<int64_t>(rows.size());
  counts_.unique += static_cast<int64_t>(table.slot_rows.size());
  table.first_miss = table.last_miss = 0;
  Submit(table);
}

void EngramReader::Submit(Table& table) {
  const size_t row_bytes = static_cast<size_t>(dim_), scale_bytes = static_cast<size_t>(dim_ / 32);
  table.first_miss = table.last_miss;
  table.last_miss = options_.direct ? std::min(table.misses.size(), table.first_miss + kDirectMisses) : table.misses.size();
  reads_.clear();
  for (size_t i = table.first_miss; i < table.last_miss; ++i) {
    const auto slot = static_cast<size_t>(table.misses[i]);
    const int64_t row = table.slot_rows[slot];
    const int64_t data_at = table.data_offset + row * dim_, scale_at = table.scale_offset + row * (dim_ / 32);
    if (options_.direct) {
      // Whole pages around the row; the last one may reach past the end of the file.
      const auto read = [](InputFile* file, int64_t at, int64_t bytes, uint8_t* to) {
        const int64_t begin = PageBegin(at), end = PageBegin(at + bytes + kPage - 1);
        return FileRead{file, begin, end - begin, to, at + bytes - begin};
      };
      uint8_t* const pages = Pages(table, i - table.first_miss);
      reads_.push_back(read(table.file.get(), data_at, dim_, pages));
      reads_.push_back(read(table.scale_file.get(), scale_at, dim_ / 32, pages + PageSpan(dim_)));
    } else {
      reads_.push_back({table.file.get(), data_at, dim_, table.data.data() + slot * row_bytes});
      reads_.push_back({table.scale_file.get(), scale_at, dim_ / 32, table.scales.data() + slot * scale_bytes});
    }
  }
  if (!reads_.empty()) options_.reader->Submit(reads_, table.batch);
}

Status EngramReader::Wait(int table_idx) {
  Table& table = *tables_[static_cast<size_t>(table_idx)];
  while (table.first_miss < table.misses.size()) {
    if (!table.batch.is_done()) {
      const double begin = Clock::Steady().NowSeconds();
      table.batch.Wait();
      counts_.wait_ns += static_cast<int64_t>((Clock::Steady().NowSeconds() - begin) * 1e9);
    }
    if (const Status status = table.batch.status(); !status.ok()) {
      table.first_miss = table.misses.size();
      return status;
    }
    TakeRows(table_idx, table);
    Submit(table);
  }
  return Status::Ok();
}

// What the batch has read goes to its slots and into the cache.
void EngramReader::TakeRows(int table_idx, Table& table) {
  const size_t row_bytes = static_cast<size_t>(dim_), scale_bytes = static_cast<size_t>(dim_ / 32);
  for (size_t i = table.first_miss; i < table.last_miss; ++i) {
    const auto slot = static_cast<size_t>(table.misses[i]);
    const int32_t row = table.slot_rows[slot];
    uint8_t* const data = table.data.data() + slot * row_bytes;
    uint8_t* const scales = table.scales.data() + slot * scale_bytes;
    if (options_.direct) {
      const int64_t data_at = table.data_offset + row * dim_, scale_at = table.scale_offset + row * (dim_ / 32);
      const uint8_t* const pages = Pages(table, i - table.first_miss);
      std::memcpy(data, pages + (data_at - PageBegin(data_at)), row_bytes);
      std::memcpy(scales, pages + PageSpan(dim_) + (scale_at - PageBegin(scale_at)), scale_bytes);
    }
    if (cache_keys_.empty()) continue;
    const uint64_t key = CacheKey(table_idx, row);
    cache_keys_[Mix(key) & (cache_keys_.size() - 1)] = key;
    uint8_t* const entry = CacheEntry(key);
    std::memcpy(entry, data, row_bytes);
    std::memcpy(entry + row_bytes, scales, scale_bytes);
  }
}

}  // namespace deepinfer::model
