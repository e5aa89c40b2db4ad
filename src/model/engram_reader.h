// SPDX-License-Identifier: Apache-2.0
//
// Rows of the n-gram tables fetched from their files by batched asynchronous reads, for machines that cannot keep 203 GB of
// tables in the page cache: one fault after the other through a mapping costs a disk latency per row. A step's rows are
// known from its token ids, so reads of all tables begin before the first layer and a layer waits only for its own. Rows are
// read once per step however many tokens share them, and kept in a bounded cache.
// Row layout (checkpoint.md 6.1): weight row r at data + r * dim, scale row at scale + r * dim / 32.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/async_reader.h"
#include "core/dtypes.h"
#include "core/status.h"
#include "device/device.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/model.h"

namespace deepinfer::model {

struct EngramReadOptions {
  bool direct = false;                        // past the page cache (O_DIRECT): for tables that must not displace other files
  int64_t cache_bytes = int64_t{64} << 20;    // of rows kept from step to step, all tables together
  std::shared_ptr<AsyncReader> reader;
};

// "mmap", "read", "direct", or "auto": mmap when `table_bytes` fit into `free_bytes`, else read.
Result<EngramIo> ParseEngramIo(std::string_view name, int64_t table_bytes, int64_t free_bytes);

struct EngramReadCounts {
  int64_t rows = 0;        // asked for
  int64_t unique = 0;      // after removing repeats inside a step
  int64_t cache_hits = 0;  // of the unique ones
  int64_t wait_ns = 0;     // time that steps waited for reads
};

class EngramReader {
 public:
  // max_rows: the most rows of one Begin. kBadModel when a table is not in the checkpoint's files.
  static Result<std::unique_ptr<EngramReader>> Create(const Checkpoint& checkpoint, const ModelConfig& config, int64_t max_rows,
                                                      EngramReadOptions options);

  // Begins to fetch rows[i] of table `table` (0-based in engram_layer_ids) and sets slots[i] := its row in View(table).
  // The reads of the step before must have been waited for.
  void Begin(int table, std::span<const int32_t> rows, int32_t* slots);
  // Returns when the rows of the last Begin are there. An error names the file; the rows must not be used then.
  Status Wait(int table);
  // The fetched rows as a table; its memory stays the same.
  device::HostMatrix View(int table) const;

  const EngramReadCounts& counts() const { return counts_; }

 private:
  struct Table {
    std::shared_ptr<InputFile> file, scale_file;
    int64_t data_offset = 0, scale_offset = 0;
    std::vector<uint8_t> data, scales;  // [slots, dim], [slots, dim / 32]
    std::vector<int32_t> slot_rows;     // the row in each slot
    std::vector<int32_t> misses;        // slots that are read
    size_t first_miss = 0, last_miss = 0;  // those of the batch: all, or as many as `pages` has room for
    std::vector<uint8_t> pages;         // direct: whole pages around a row and around its scales, per miss of the batch
    ReadBatch batch;
  };

  EngramReader() = default;
  void Submit(Table& table);
  void TakeRows(int table_idx, Table& table);
  uint8_t* CacheEntry(uint64_t key);
  uint8_t* Pages(Table& table, size_t miss) const;

  EngramReadOptions options_;
  int64_t dim_ = 0;
  std::vector<std::unique_ptr<Table>> tables_;
  EngramReadCounts counts_;
  std::vector<FileRead> reads_;
  // Repeats inside a Begin: open addressing, slot + 1.
  std::vector<int32_t> slot_of_;
  // Direct-mapped cache: key (table << 32 | row) + 1 and the row's bytes.
  std::vector<uint64_t> cache_keys_;
  std::vector<uint8_t> cache_rows_;
};

}  // namespace deepinfer::model
