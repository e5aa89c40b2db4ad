// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "kvstore/table.h"

namespace deepinfer::kvstore {

std::string_view FamilyName(Family family) {
  static constexpr std::string_view kNames[] = {"blk", "seg", "seglist", "lru", "quota", "meta"};
  return kNames[static_cast<size_t>(family)];
}

namespace {

class MemoryTable : public Table {
 public:
  Result<std::optional<std::string>> Get(Family family, std::string_view key) const override {
    const std::shared_lock lock(mutex_);
    const auto found = Of(family).find(key);
    if (found == Of(family).end()) return std::optional<std::string>();
    return std::optional<std::string>(found->second);
  }
  Status GetLeading(Family family, std::span<const std::string_view> keys,
                    const std::function<bool(std::string_view)>& visit) const override {
    const std::shared_lock lock(mutex_);
    for (const std::string_view key : keys) {
      const auto found = Of(family).find(key);
      if (found == Of(family).end() || !visit(found->second)) break;
    }
    return Status::Ok();
  }
  Status Scan(Family family, std::string_view from,
              const std::function<bool(std::string_view, std::string_view)>& visit) const override {
    const std::shared_lock lock(mutex_);
    for (auto it = Of(family).lower_bound(from); it != Of(family).end(); ++it) {
      if (!visit(it->first, it->second)) break;
    }
    return Status::Ok();
  }
  Status Write(std::span<const TableChange> changes) override {
    const std::unique_lock lock(mutex_);
    for (const TableChange& change : changes) {
      auto& map = maps_[static_cast<size_t>(change.family)];
      if (change.value) {
        map[change.key] = *change.value;
      } else {
        map.erase(change.key);
      }
    }
    return Status::Ok();
  }

 private:
  using Map = std::map<std::string, std::string, std::less<>>;
  const Map& Of(Family family) const { return maps_[static_cast<size_t>(family)]; }

  mutable std::shared_mutex mutex_;
  std::array<Map, kNumFamilies> maps_;
};

}  // namespace

std::unique_ptr<Table> MakeMemoryTable() { return std::make_unique<MemoryTable>(); }

}  // namespace deepinfer::kvstore
