// SPDX-License-Identifier: Apache-2.0
//
// Ordered tables of byte strings with atomic batches: what the index stands on. RocksDB on disk, a map in memory for tests
// and stores without a directory. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace deepinfer::kvstore {

enum class Family { kBlocks, kSegments, kSegmentBlocks, kLru, kQuota, kMeta };
inline constexpr int kNumFamilies = 6;
std::string_view FamilyName(Family family);

struct TableChange {
  Family family;
  std::string key;
  std::optional<std::string> value;  // none = remove
};

class Table {
 public:
  virtual ~Table() = default;
  virtual Result<std::optional<std::string>> Get(Family family, std::string_view key) const = 0;
  // Calls `visit` for each key in order while it is there; stops at the first that is missing or when `visit` says false.
  virtual Status GetLeading(Family family, std::span<const std::string_view> keys,
                            const std::function<bool(std::string_view value)>& visit) const = 0;
  // In order from `from` on, of the state when it began; `visit` returns false to stop.
  virtual Status Scan(Family family, std::string_view from,
                      const std::function<bool(std::string_view key, std::string_view value)>& visit) const = 0;
  // All or nothing, and durable when it returns.
  virtual Status Write(std::span<const TableChange> changes) = 0;
};

std::unique_ptr<Table> MakeMemoryTable();

// kUnimplemented in a build without RocksDB; kBadModel when the files are damaged; kUnavailable when another process has
// them open.
Result<std::unique_ptr<Table>> OpenRocksTable(const std::string& directory);
bool HasRocksTable();

}  // namespace deepinfer::kvstore
