// SPDX-License-Identifier: Apache-2.0
#include "kvstore/table.h"

#if DEEPINFER_HAVE_ROCKSDB
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#endif

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace deepinfer::kvstore {

#if DEEPINFER_HAVE_ROCKSDB
namespace {

Status FromRocks(const rocksdb::Status& status, const std::string& directory) {
  if (status.ok()) return Status::Ok();
  const std::string text = status.ToString();
  if (status.IsCorruption()) return BadModel(fmt::format("the index in {} is damaged: {}", directory, text));
  // RocksDB reports a lock of another process as an input/output error.
  if (text.find("lock") != std::string::npos) {
    return Unavailable(fmt::format("the index in {} is in use by another process: {}", directory, text));
  }
  if (status.IsNoSpace()) return ResourceExhausted(fmt::format("the index in {} has no space left: {}", directory, text));
  return Internal(fmt::format("the index in {} failed: {}", directory, text));
}

class RocksTable : public Table {
 public:
  static Result<std::unique_ptr<Table>> Open(const std::string& directory) {
    std::unique_ptr<RocksTable> table(new RocksTable());
    table->directory_ = directory;
    rocksdb::DBOptions options;
    options.create_if_missing = true;
    options.create_missing_column_families = true;
    options.info_log_level = rocksdb::WARN_LEVEL;
    options.keep_log_file_num = 2;
    options.max_open_files = 512;
    rocksdb::BlockBasedTableOptions blocks;
    blocks.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
    blocks.block_cache = rocksdb::NewLRUCache(256 << 20);
    blocks.cache_index_and_filter_blocks = false;
    rocksdb::ColumnFamilyOptions family;
    family.table_factory.reset(rocksdb::NewBlockBasedTableFactory(blocks));
    family.compression = rocksdb::kNoCompression;  // keys are hashes
    std::vector<rocksdb::ColumnFamilyDescriptor> families = {{rocksdb::kDefaultColumnFamilyName, family}};
    for (int i = 0; i < kNumFamilies; ++i) families.emplace_back(std::string(FamilyName(static_cast<Family>(i))), family);
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* db = nullptr;
    DI_RETURN_IF_ERROR(FromRocks(rocksdb::DB::Open(options, directory, families, &handles, &db), directory));
    table->db_.reset(db);
    table->handles_ = std::move(handles);
    return std::unique_ptr<Table>(std::move(table));
  }
  ~RocksTable() override {
    for (rocksdb::ColumnFamilyHandle* handle : handles_) db_->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
  }

  Result<std::optional<std::string>> Get(Family family, std::string_view key) const override {
    std::string value;
    const rocksdb::Status status = db_->Get({}, Of(family), Slice(key), &value);
    if (status.IsNotFound()) return std::optional<std::string>();
    DI_RETURN_IF_ERROR(FromRocks(status, directory_));
    return std::optional<std::string>(std::move(value));
  }
  Status GetLeading(Family family, std::span<const std::string_view> keys,
                    const std::function<bool(std::string_view)>& visit) const override {
    constexpr size_t kBatch = 64;  // a superblock
    std::array<rocksdb::Slice, kBatch> slices;
    std::array<rocksdb::PinnableSlice, kBatch> values;
    std::array<rocksdb::Status, kBatch> statuses;
    for (size_t begin = 0; begin < keys.size(); begin += kBatch) {
      const size_t count = std::min(kBatch, keys.size() - begin);
      for (size_t i = 0; i < count; ++i) {
        slices[i] = Slice(keys[begin + i]);
        values[i].Reset();
      }
      db_->MultiGet({}, Of(family), count, slices.data(), values.data(), statuses.data());
      for (size_t i = 0; i < count; ++i) {
        if (statuses[i].IsNotFound()) return Status::Ok();
        DI_RETURN_IF_ERROR(FromRocks(statuses[i], directory_));
        if (!visit(std::string_view(values[i].data(), values[i].size()))) return Status::Ok();
      }
    }
    return Status::Ok();
  }
  Status Scan(Family family, std::string_view from,
              const std::function<bool(std::string_view, std::string_view)>& visit) const override {
    const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator({}, Of(family)));
    for (it->Seek(Slice(from)); it->Valid(); it->Next()) {
      if (!visit({it->key().data(), it->key().size()}, {it->value().data(), it->value().size()})) break;
    }
    return FromRocks(it->status(), directory_);
  }
  Status Write(std::span<const TableChange> changes) override {
    rocksdb::WriteBatch batch;
    for (const TableChange& change : changes) {
      const rocksdb::Status status = change.value ? batch.Put(Of(change.family), change.key, *change.value)
                                                  : batch.Delete(Of(change.family), change.key);
      DI_RETURN_IF_ERROR(FromRocks(status, directory_));
    }
    rocksdb::WriteOptions options;
    options.sync = true;
    return FromRocks(db_->Write(options, &batch), directory_);
  }

 private:
  RocksTable() = default;
  static rocksdb::Slice Slice(std::string_view text) { return {text.data(), text.size()}; }
  rocksdb::ColumnFamilyHandle* Of(Family family) const { return handles_[static_cast<size_t>(family) + 1]; }

  std::string directory_;
  std::unique_ptr<rocksdb::DB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> handles_;
};

}  // namespace

Result<std::unique_ptr<Table>> OpenRocksTable(const std::string& directory) { return RocksTable::Open(directory); }
bool HasRocksTable() { return true; }

#else

Result<std::unique_ptr<Table>> OpenRocksTable(const std::string& directory) {
  return Unimplemented(fmt::format("the index in {} cannot be opened: this program was built without RocksDB; install librocksdb-dev "
                                   "and build it again",
                                   directory));
}
bool HasRocksTable() { return false; }

#endif

}  // namespace deepinfer::kvstore
