// SPDX-License-Identifier: Apache-2.0
#include "kvstore/block_index.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <shared_mutex>
#include <utility>

#include <fmt/format.h>

#include "kvstore/fields.h"

namespace deepinfer::kvstore {
namespace {

constexpr size_t kEntryBytes = 64;
constexpr size_t kSegmentFixedBytes = 80;
constexpr uint32_t kLruBucketSeconds = 600;
constexpr size_t kLruKeyBytes = 1 + 4 + 32;
constexpr std::string_view kSchema = "deepinfer kv index 1";

std::string_view View(const Key256& key) { return {reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size()}; }
Key256 KeyFrom(std::string_view bytes) {
  Key256 key;
  std::memcpy(key.bytes.data(), bytes.data(), std::min(bytes.size(), key.bytes.size()));
  return key;
}
std::span<uint8_t> Bytes(std::string& text) { return {reinterpret_cast<uint8_t*>(text.data()), text.size()}; }
std::span<const uint8_t> Bytes(std::string_view text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

template <typename T>
std::string BigEndian(T value) {
  std::string text(sizeof(T), '\0');
  for (size_t i = 0; i < sizeof(T); ++i) text[sizeof(T) - 1 - i] = static_cast<char>(value >> (8 * i));
  return text;
}

std::string EncodeEntry(const BlockEntry& entry) {
  std::string text(kEntryBytes, '\0');
  const std::span<uint8_t> out = Bytes(text);
  PutField(out, 0, entry.segment);
  PutField(out, 8, entry.offset);
  PutField(out, 16, entry.stored_len);
  PutField(out, 20, entry.block_index);
  PutField(out, 24, static_cast<uint8_t>(entry.retention));
  PutField(out, 25, entry.flags);
  PutField(out, 28, entry.layout_id);
  PutField(out, 32, entry.created_s);
  PutField(out, 36, entry.last_use_s);
  PutField(out, 40, entry.parent_low64);
  PutField(out, 48, entry.children);
  PutField(out, 52, entry.domain_hash);
  return text;
}

Result<BlockEntry> DecodeEntry(std::string_view text) {
  const std::span<const uint8_t> in = Bytes(text);
  if (in.size() != kEntryBytes || in[24] >= kNumClasses) return BadModel("an entry of the index is damaged");
  BlockEntry entry;
  entry.segment = GetField<uint64_t>(in, 0);
  entry.offset = GetField<uint64_t>(in, 8);
  entry.stored_len = GetField<uint32_t>(in, 16);
  entry.block_index = GetField<uint32_t>(in, 20);
  entry.retention = static_cast<RetentionClass>(in[24]);
  entry.flags = in[25];
  entry.layout_id = GetField<uint32_t>(in, 28);
  entry.created_s = GetField<uint32_t>(in, 32);
  entry.last_use_s = GetField<uint32_t>(in, 36);
  entry.parent_low64 = GetField<uint64_t>(in, 40);
  entry.children = GetField<uint32_t>(in, 48);
  entry.domain_hash = GetField<uint32_t>(in, 52);
  return entry;
}

std::string EncodeRow(const SegmentRow& row) {
  std::string text(kSegmentFixedBytes, '\0');
  const std::span<uint8_t> out = Bytes(text);
  PutField(out, 0, static_cast<uint8_t>(row.state));
  PutField(out, 1, static_cast<uint8_t>(row.retention));
  PutField(out, 8, row.bytes);
  PutField(out, 16, row.live_bytes);
  PutField(out, 24, row.live_count);
  PutField(out, 32, row.created_s);
  PutField(out, 36, row.dying_since_s);
  PutField(out, 48, row.weights_digest.bytes);
  return text + row.stem;
}

Result<SegmentRow> DecodeRow(std::string_view key, std::string_view text) {
  const std::span<const uint8_t> in = Bytes(text);
  if (key.size() != 8 || in.size() < kSegmentFixedBytes || in[0] > 2 || in[1] >= kNumClasses) {
    return BadModel("a segment of the index is damaged");
  }
  SegmentRow row;
  for (const char byte : key) row.id = row.id << 8 | static_cast<uint8_t>(byte);
  row.state = static_cast<SegmentState>(in[0]);
  row.retention = static_cast<RetentionClass>(in[1]);
  row.bytes = GetField<uint64_t>(in, 8);
  row.live_bytes = GetField<uint64_t>(in, 16);
  row.live_count = GetField<uint64_t>(in, 24);
  row.created_s = GetField<uint32_t>(in, 32);
  row.dying_since_s = GetField<uint32_t>(in, 36);
  row.weights_digest.bytes = GetField<std::array<uint8_t, 32>>(in, 48);
  row.stem = text.substr(kSegmentFixedBytes);
  return row;
}

std::string LruKey(const BlockEntry& entry, const Key256& key) {
  return std::string(1, static_cast<char>(entry.retention)) + BigEndian(entry.last_use_s / kLruBucketSeconds) + std::string(View(key));
}

std::string SegmentBlockKey(uint64_t segment, const Key256& key) { return BigEndian(segment) + std::string(View(key)); }

// Whether a segment's or a domain's sum would go below zero says that the index is damaged; sums stop at zero.
uint64_t Minus(uint64_t value, uint64_t part) { return value - std::min(value, part); }

}  // namespace

bool RetentionPolicy::IsExpired(const BlockEntry& entry, uint32_t now_s) const {
  const uint32_t ttl = ttl_s[static_cast<size_t>(entry.retention)];
  return ttl != 0 && uint64_t{entry.last_use_s} + ttl <= now_s;
}

double RetentionPolicy::Age(const BlockEntry& entry, uint32_t now_s) const {
  const uint32_t ttl = ttl_s[static_cast<size_t>(entry.retention)];
  if (ttl == 0 || now_s <= entry.last_use_s) return 0;
  return static_cast<double>(now_s - entry.last_use_s) / ttl;
}

// Entries that were seen lately, so that the prompt of a long conversation is found without a walk through the table for each
// of its blocks. Eight ways; memory is taken as it fills. Thread-safe.
class BlockIndex::EntryCache {
 public:
  static constexpr size_t kNumSlots = size_t{1} << 21;  // 192 MiB when full
  static constexpr size_t kWays = 8;

  EntryCache() : slots_(static_cast<Slot*>(std::calloc(kNumSlots, sizeof(Slot)))) { DI_CHECK(slots_ != nullptr) << "no memory"; }

  // Appends the entries of leading keys that are here; false at a replayed one that is not wanted.
  bool Leading(std::span<const Key256> keys, bool clean_only, std::vector<BlockEntry>& found) const {
    const std::shared_lock lock(mutex_);
    for (size_t i = 0; i < keys.size(); ++i) {
      // A key is a random number: what the next ones need is fetched meanwhile.
      if (i + 8 < keys.size()) __builtin_prefetch(&slots_[BucketOf(keys[i + 8])]);
      const Slot* slot = FindSlot(keys[i]);
      if (slot == nullptr) return true;
      if (clean_only && (slot->entry.flags & kFlagReplayed) != 0) return false;
      found.push_back(slot->entry);
    }
    return true;
  }
  // Leading keys that are not here, at most `max` and at least one.
  size_t NumMissing(std::span<const Key256> keys, size_t max) const {
    const std::shared_lock lock(mutex_);
    size_t count = 1;
    while (count < std::min(max, keys.size()) && FindSlot(keys[count]) == nullptr) ++count;
    return count;
  }
  uint64_t version() const { return version_.load(); }
  // What was read from the table when the version was `version`; dropped if something has changed since.
  void Fill(std::span<const Key256> keys, std::span<const BlockEntry> entries, uint64_t version) {
    const std::unique_lock lock(mutex_);
    if (version_ != version) return;
    for (size_t i = 0; i < entries.size(); ++i) Put(keys[i], entries[i]);
  }
  // After the table has them: what a reader filled in meanwhile is written over, what it read before is refused later.
  void Apply(const std::map<std::string, std::optional<BlockEntry>, std::less<>>& blocks) {
    const std::unique_lock lock(mutex_);
    ++version_;
    for (const auto& [text, entry] : blocks) {
      const Key256 key = KeyFrom(text);
      if (entry) {
        Put(key, *entry);
      } else if (Slot* slot = FindSlot(key)) {
        slot->is_used = false;
      }
    }
  }

 private:
  struct Slot {
    Key256 key;
    BlockEntry entry;
    bool is_used;
  };
  struct Free {
    void operator()(Slot* slots) const { std::free(slots); }
  };
  static size_t BucketOf(const Key256& key) { return static_cast<size_t>(KeyLow64(key) % (kNumSlots / kWays)) * kWays; }
  Slot* FindSlot(const Key256& key) const {
    Slot* bucket = &slots_[BucketOf(key)];
    for (size_t way = 0; way < kWays; ++way) {
      if (bucket[way].is_used && bucket[way].key == key) return &bucket[way];
    }
    return nullptr;
  }
  void Put(const Key256& key, const BlockEntry& entry) {
    Slot* slot = FindSlot(key);
    Slot* bucket = &slots_[BucketOf(key)];
    for (size_t way = 0; slot == nullptr && way < kWays; ++way) {
      if (!bucket[way].is_used) slot = &bucket[way];
    }
    // A full bucket: any of them, by a byte of the key that did not choose the bucket.
    if (slot == nullptr) slot = &bucket[key.bytes[31] % kWays];
    slot->key = key;
    slot->entry = entry;
    slot->is_used = true;
  }

  mutable std::shared_mutex mutex_;
  std::atomic<uint64_t> version_{0};
  std::unique_ptr<Slot[], Free> slots_;
};

BlockIndex::BlockIndex(std::unique_ptr<Table> table, const RetentionPolicy& policy)
    : table_(std::move(table)), policy_(policy), cache_(std::make_unique<EntryCache>()) {}
BlockIndex::~BlockIndex() = default;

// What one call changes, seen by its own later reads, then written at once.
class BlockIndex::Change {
 public:
  explicit Change(BlockIndex& index) : index_(index), live_bytes_(index.live_bytes_), num_blocks_(index.num_blocks_) {}

  Result<std::optional<BlockEntry>> Find(const Key256& key) const {
    if (const auto found = blocks_.find(std::string(View(key))); found != blocks_.end()) return found->second;
    return index_.Find(key);
  }

  // The entry above `child`: its key begins with the eight bytes that the child keeps.
  Result<std::optional<Key256>> FindParent(const BlockEntry& child) const {
    std::optional<Key256> parent;
    if (child.block_index == 0) return parent;
    std::string prefix(8, '\0');
    PutField(Bytes(prefix), 0, child.parent_low64);
    const auto is_parent = [&](const BlockEntry& entry) { return entry.block_index + 1 == child.block_index; };
    for (auto it = blocks_.lower_bound(prefix); it != blocks_.end() && it->first.starts_with(prefix); ++it) {
      if (it->second && is_parent(*it->second)) return std::optional<Key256>(KeyFrom(it->first));
    }
    Status status;
    DI_RETURN_IF_ERROR(index_.table_->Scan(Family::kBlocks, prefix, [&](std::string_view key, std::string_view text) {
      if (!key.starts_with(prefix)) return false;
      if (blocks_.count(std::string(key)) != 0) return true;  // what this change says about it was seen above
      const Result<BlockEntry> entry = DecodeEntry(text);
      if (!entry.ok()) {
        status = entry.status();
        return false;
      }
      if (!is_parent(*entry)) return true;
      parent = KeyFrom(key);
      return false;
    }));
    DI_RETURN_IF_ERROR(status);
    return parent;
  }

  void Set(const Key256& key, const std::optional<BlockEntry>& entry) { blocks_[std::string(View(key))] = entry; }

  Status AddLive(const Key256& key, const BlockEntry& entry) {
    DI_RETURN_IF_ERROR(CountIn(entry.segment, entry, true));
    DI_RETURN_IF_ERROR(CountDomain(entry, true));
    other_.push_back({Family::kSegmentBlocks, SegmentBlockKey(entry.segment, key), ""});
    other_.push_back({Family::kLru, LruKey(entry, key), ""});
    return Status::Ok();
  }
  Status RemoveLive(const Key256& key, const BlockEntry& entry) {
    DI_RETURN_IF_ERROR(CountIn(entry.segment, entry, false));
    DI_RETURN_IF_ERROR(CountDomain(entry, false));
    other_.push_back({Family::kSegmentBlocks, SegmentBlockKey(entry.segment, key), std::nullopt});
    other_.push_back({Family::kLru, LruKey(entry, key), std::nullopt});
    return Status::Ok();
  }

  // Returns the parent, whose count of children went down.
  Result<std::optional<Key256>> Remove(const Key256& key, const BlockEntry& entry) {
    DI_RETURN_IF_ERROR(RemoveLive(key, entry));
    DI_ASSIGN_OR_RETURN(const std::optional<Key256> parent, FindParent(entry));
    Set(key, std::nullopt);
    if (parent) {
      DI_ASSIGN_OR_RETURN(std::optional<BlockEntry> above, Find(*parent));
      if (above) {
        above->children -= std::min(above->children, 1u);
        Set(*parent, above);
      }
    }
    return parent;
  }

  Result<SegmentRow*> Row(uint64_t id) {
    if (const auto found = rows_.find(id); found != rows_.end()) return &found->second;
    DI_ASSIGN_OR_RETURN(const std::optional<std::string> text, index_.table_->Get(Family::kSegments, BigEndian(id)));
    if (!text) return BadModel(fmt::format("the index names segment {}, which it does not have", id));
    DI_ASSIGN_OR_RETURN(SegmentRow row, DecodeRow(BigEndian(id), *text));
    return &rows_.emplace(id, std::move(row)).first->second;
  }
  void AddRow(SegmentRow row) { rows_[row.id] = std::move(row); }
  void RemoveRow(uint64_t id) {
    rows_.erase(id);
    other_.push_back({Family::kSegments, BigEndian(id), std::nullopt});
  }
  void SetMeta(std::string key, std::string value) { other_.push_back({Family::kMeta, std::move(key), std::move(value)}); }
  uint64_t live_bytes() const {
    uint64_t sum = 0;
    for (const uint64_t bytes : live_bytes_) sum += bytes;
    return sum;
  }

  Status Write() {
    std::vector<TableChange> changes = std::move(other_);
    for (auto& [key, entry] : blocks_) {
      changes.push_back({Family::kBlocks, key, entry ? std::optional<std::string>(EncodeEntry(*entry)) : std::nullopt});
    }
    for (const auto& [id, row] : rows_) changes.push_back({Family::kSegments, BigEndian(id), EncodeRow(row)});
    for (const auto& [domain, sums] : domains_) {
      std::string text(16, '\0');
      PutField(Bytes(text), 0, sums);
      changes.push_back({Family::kQuota, BigEndian(domain), sums[1] == 0 ? std::nullopt : std::optional<std::string>(text)});
    }
    if (changes.empty()) return Status::Ok();
    DI_RETURN_IF_ERROR(index_.table_->Write(changes));
    index_.cache_->Apply(blocks_);
    index_.live_bytes_ = live_bytes_;
    index_.num_blocks_ = num_blocks_;
    return Status::Ok();
  }

 private:
  Status CountIn(uint64_t segment, const BlockEntry& entry, bool is_added) {
    DI_ASSIGN_OR_RETURN(SegmentRow* const row, Row(segment));
    const uint64_t bytes = RecordBytes(entry.stored_len);
    uint64_t& sum = live_bytes_[static_cast<size_t>(entry.retention)];
    if (is_added) {
      row->live_bytes += bytes;
      ++row->live_count;
      sum += bytes;
      ++num_blocks_;
    } else {
      row->live_bytes = Minus(row->live_bytes, bytes);
      row->live_count = Minus(row->live_count, 1);
      sum = Minus(sum, bytes);
      num_blocks_ = Minus(num_blocks_, 1);
    }
    return Status::Ok();
  }
  Status CountDomain(const BlockEntry& entry, bool is_added) {
    auto found = domains_.find(entry.domain_hash);
    if (found == domains_.end()) {
      DI_ASSIGN_OR_RETURN(const std::optional<std::string> text, index_.table_->Get(Family::kQuota, BigEndian(entry.domain_hash)));
      std::array<uint64_t, 2> sums{};
      if (text && text->size() == 16) sums = GetField<std::array<uint64_t, 2>>(Bytes(std::string_view(*text)), 0);
      found = domains_.emplace(entry.domain_hash, sums).first;
    }
    auto& [bytes, blocks] = found->second;
    bytes = is_added ? bytes + RecordBytes(entry.stored_len) : Minus(bytes, RecordBytes(entry.stored_len));
    blocks = is_added ? blocks + 1 : Minus(blocks, 1);
    return Status::Ok();
  }

  BlockIndex& index_;
  std::map<std::string, std::optional<BlockEntry>, std::less<>> blocks_;
  std::map<uint64_t, SegmentRow> rows_;
  std::map<uint32_t, std::array<uint64_t, 2>> domains_;
  std::vector<TableChange> other_;  // in order: a later one wins
  std::array<uint64_t, kNumClasses> live_bytes_;
  uint64_t num_blocks_;
};

Result<std::unique_ptr<BlockIndex>> BlockIndex::Open(std::unique_ptr<Table> table, const Uuid& store, const RetentionPolicy& policy) {
  std::unique_ptr<BlockIndex> index(new BlockIndex(std::move(table), policy));
  DI_ASSIGN_OR_RETURN(const std::optional<std::string> schema, index->table_->Get(Family::kMeta, "schema"));
  DI_ASSIGN_OR_RETURN(const std::optional<std::string> owner, index->table_->Get(Family::kMeta, "store"));
  if (!schema) {
    const std::vector<TableChange> changes = {{Family::kMeta, "schema", std::string(kSchema)},
                                              {Family::kMeta, "store", UuidText(store)}};
    DI_RETURN_IF_ERROR(index->table_->Write(changes));
  } else if (*schema != kSchema) {
    return BadModel(fmt::format("it says \"{}\", this program knows \"{}\"; use the version that wrote it or remove it", *schema, kSchema));
  } else if (owner != UuidText(store)) {
    return BadModel("it belongs to another store; the wrong directory may be mounted");
  }
  DI_ASSIGN_OR_RETURN(const std::vector<SegmentRow> rows, index->Segments());
  for (const SegmentRow& row : rows) {
    index->next_segment_ = std::max(index->next_segment_, row.id + 1);
    index->num_blocks_ += row.live_count;
  }
  // An entry may have taken another class than its segment: the sums by class are over the entries.
  Status status;
  DI_RETURN_IF_ERROR(index->ForEach([&](const Key256&, const BlockEntry& entry) {
    index->live_bytes_[static_cast<size_t>(entry.retention)] += RecordBytes(entry.stored_len);
    return true;
  }));
  return index;
}

// ---- lookups --------------------------------------------------------------------------------------------------------------

Status BlockIndex::Lookup(std::span<const Key256> keys, bool clean_only, std::vector<BlockEntry>& found) const {
  constexpr size_t kStep = 64;  // what the cache does not have is asked for a superblock at a time
  const size_t before = found.size();
  while (true) {
    const std::span<const Key256> rest = keys.subspan(found.size() - before);
    if (!cache_->Leading(rest, clean_only, found)) return Status::Ok();
    const size_t done = found.size() - before;
    if (done == keys.size()) return Status::Ok();
    const std::span<const Key256> step = keys.subspan(done, cache_->NumMissing(keys.subspan(done), kStep));
    std::vector<std::string_view> views;
    for (const Key256& key : step) views.push_back(View(key));
    const uint64_t version = cache_->version();
    Status status;
    bool is_ended = false;
    DI_RETURN_IF_ERROR(table_->GetLeading(Family::kBlocks, views, [&](std::string_view text) {
      const Result<BlockEntry> entry = DecodeEntry(text);
      if (!entry.ok()) status = entry.status();
      is_ended = !entry.ok() || (clean_only && (entry->flags & kFlagReplayed) != 0);
      if (!is_ended) found.push_back(*entry);
      return !is_ended;
    }));
    DI_RETURN_IF_ERROR(status);
    const size_t count = found.size() - before - done;
    cache_->Fill(step, std::span(found).last(count), version);
    if (is_ended || count < step.size()) return Status::Ok();
  }
}

Result<std::optional<BlockEntry>> BlockIndex::Find(const Key256& key) const {
  std::vector<BlockEntry> found;
  DI_RETURN_IF_ERROR(Lookup({&key, 1}, false, found));
  return found.empty() ? std::optional<BlockEntry>() : std::optional<BlockEntry>(found[0]);
}

Result<std::vector<SegmentRow>> BlockIndex::Segments() const {
  std::vector<SegmentRow> rows;
  Status status;
  DI_RETURN_IF_ERROR(table_->Scan(Family::kSegments, "", [&](std::string_view key, std::string_view text) {
    Result<SegmentRow> row = DecodeRow(key, text);
    if (!row.ok()) {
      status = row.status();
      return false;
    }
    rows.push_back(std::move(row).value());
    return true;
  }));
  DI_RETURN_IF_ERROR(status);
  return rows;
}

Result<std::optional<SegmentRow>> BlockIndex::Segment(uint64_t id) const {
  DI_ASSIGN_OR_RETURN(const std::optional<std::string> text, table_->Get(Family::kSegments, BigEndian(id)));
  if (!text) return std::optional<SegmentRow>();
  DI_ASSIGN_OR_RETURN(SegmentRow row, DecodeRow(BigEndian(id), *text));
  return std::optional<SegmentRow>(std::move(row));
}

Result<std::vector<Key256>> BlockIndex::KeysOf(uint64_t segment) const {
  std::vector<Key256> keys;
  const std::string prefix = BigEndian(segment);
  DI_RETURN_IF_ERROR(table_->Scan(Family::kSegmentBlocks, prefix, [&](std::string_view key, std::string_view) {
    if (!key.starts_with(prefix)) return false;
    keys.push_back(KeyFrom(key.substr(prefix.size())));
    return true;
  }));
  return keys;
}

Result<uint64_t> BlockIndex::DomainBytes(uint32_t domain_hash) const {
  DI_ASSIGN_OR_RETURN(const std::optional<std::string> text, table_->Get(Family::kQuota, BigEndian(domain_hash)));
  return text && text->size() == 16 ? GetField<uint64_t>(Bytes(std::string_view(*text)), 0) : uint64_t{0};
}

Status BlockIndex::ForEach(const std::function<bool(const Key256&, const BlockEntry&)>& visit) const {
  Status status;
  DI_RETURN_IF_ERROR(table_->Scan(Family::kBlocks, "", [&](std::string_view key, std::string_view text) {
    const Result<BlockEntry> entry = DecodeEntry(text);
    if (!entry.ok()) {
      status = entry.status();
      return false;
    }
    return visit(KeyFrom(key), *entry);
  }));
  return status;
}

uint64_t BlockIndex::live_bytes(RetentionClass retention) const {
  const std::lock_guard lock(mutex_);
  return live_bytes_[static_cast<size_t>(retention)];
}

uint64_t BlockIndex::live_bytes() const {
  const std::lock_guard lock(mutex_);
  uint64_t sum = 0;
  for (const uint64_t bytes : live_bytes_) sum += bytes;
  return sum;
}

uint64_t BlockIndex::num_blocks() const {
  const std::lock_guard lock(mutex_);
  return num_blocks_;
}

// ---- segments -------------------------------------------------------------------------------------------------------------

Result<uint64_t> BlockIndex::AddSegment(SegmentRow row) {
  const std::lock_guard lock(mutex_);
  const uint64_t id = next_segment_++;
  row.id = id;
  Change change(*this);
  change.AddRow(std::move(row));
  DI_RETURN_IF_ERROR(change.Write());
  return id;
}

Status BlockIndex::SealSegment(uint64_t id, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  Change change(*this);
  DI_ASSIGN_OR_RETURN(SegmentRow* const row, change.Row(id));
  row->state = SegmentState::kSealed;
  row->bytes = bytes;
  return change.Write();
}

Status BlockIndex::MarkDying(uint64_t id, uint32_t now_s) {
  const std::lock_guard lock(mutex_);
  Change change(*this);
  DI_ASSIGN_OR_RETURN(SegmentRow* const row, change.Row(id));
  row->state = SegmentState::kDying;
  row->dying_since_s = now_s;
  return change.Write();
}

Status BlockIndex::DropSegment(uint64_t id) {
  DI_ASSIGN_OR_RETURN(const std::vector<Key256> keys, KeysOf(id));
  const std::lock_guard lock(mutex_);
  Change change(*this);
  for (const Key256& key : keys) {
    DI_ASSIGN_OR_RETURN(const std::optional<BlockEntry> entry, change.Find(key));
    if (entry && entry->segment == id) DI_RETURN_IF_ERROR(change.Remove(key, *entry).status());
  }
  change.RemoveRow(id);
  return change.Write();
}

// ---- blocks ---------------------------------------------------------------------------------------------------------------

Status BlockIndex::Commit(std::span<const NewBlock> blocks, std::vector<CommitOutcome>& outcomes) {
  const std::lock_guard lock(mutex_);
  Change change(*this);
  outcomes.clear();
  for (const NewBlock& block : blocks) {
    DI_ASSIGN_OR_RETURN(const std::optional<BlockEntry> old, change.Find(block.key));
    BlockEntry entry = block.entry;
    if (old) {
      if ((old->flags & kFlagReplayed) == 0 || (entry.flags & kFlagReplayed) != 0) {
        outcomes.push_back(CommitOutcome::kExists);
        continue;
      }
      DI_RETURN_IF_ERROR(change.RemoveLive(block.key, *old));
      entry.children = old->children;
      entry.retention = old->retention;
      entry.last_use_s = std::max(entry.last_use_s, old->last_use_s);
      outcomes.push_back(CommitOutcome::kReplaced);
    } else {
      if (entry.block_index > 0) {
        DI_ASSIGN_OR_RETURN(const std::optional<Key256> parent, change.FindParent(entry));
        if (!parent) {
          outcomes.push_back(CommitOutcome::kOrphan);
          continue;
        }
        DI_ASSIGN_OR_RETURN(std::optional<BlockEntry> above, change.Find(*parent));
        ++above->children;
        change.Set(*parent, above);
      }
      entry.children = 0;
      outcomes.push_back(CommitOutcome::kStored);
    }
    DI_RETURN_IF_ERROR(change.AddLive(block.key, entry));
    change.Set(block.key, entry);
  }
  return change.Write();
}

Status BlockIndex::Relocate(std::span<const Move> moves) {
  const std::lock_guard lock(mutex_);
  Change change(*this);
  for (const Move& move : moves) {
    DI_ASSIGN_OR_RETURN(std::optional<BlockEntry> entry, change.Find(move.key));
    if (!entry || entry->segment != move.from_segment || entry->offset != move.from_offset) continue;
    DI_RETURN_IF_ERROR(change.RemoveLive(move.key, *entry));
    entry->segment = move.to_segment;
    entry->offset = move.to_offset;
    DI_RETURN_IF_ERROR(change.AddLive(move.key, *entry));
    change.Set(move.key, entry);
  }
  return change.Write();
}

Status BlockIndex::Touch(std::span<const Key256> keys, RetentionClass retention, uint32_t now_s) {
  const std::lock_guard lock(mutex_);
  Change change(*this);
  const auto end_of = [&](RetentionClass of, uint32_t used_s) {
    const uint32_t ttl = policy_.ttl_s[static_cast<size_t>(of)];
    return ttl == 0 ? UINT64_MAX : uint64_t{used_s} + ttl;
  };
  for (const Key256& key : keys) {
    DI_ASSIGN_OR_RETURN(std::optional<BlockEntry> entry, change.Find(key));
    if (!entry || end_of(retention, now_s) <= end_of(entry->retention, entry->last_use_s)) continue;
    DI_RETURN_IF_ERROR(change.RemoveLive(key, *entry));
    entry->retention = retention;
    entry->last_use_s = now_s;
    DI_RETURN_IF_ERROR(change.AddLive(key, *entry));
    change.Set(key, entry);
  }
  return change.Write();
}

Status BlockIndex::Erase(std::span<const Key256> keys) {
  const std::lock_guard lock(mutex_);
  Change change(*this);
  for (const Key256& key : keys) {
    DI_ASSIGN_OR_RETURN(const std::optional<BlockEntry> entry, change.Find(key));
    if (entry) DI_RETURN_IF_ERROR(change.Remove(key, *entry).status());
  }
  return change.Write();
}

Result<uint64_t> BlockIndex::EraseIf(const std::function<bool(const Key256&, const BlockEntry&)>& is_victim) {
  std::vector<Key256> victims;
  DI_RETURN_IF_ERROR(ForEach([&](const Key256& key, const BlockEntry& entry) {
    if (is_victim(key, entry)) victims.push_back(key);
    return true;
  }));
  constexpr size_t kBatch = 4096;  // bounds the memory of one change
  for (size_t begin = 0; begin < victims.size(); begin += kBatch) {
    DI_RETURN_IF_ERROR(Erase(std::span(victims).subspan(begin, std::min(kBatch, victims.size() - begin))));
  }
  return victims.size();
}

// ---- eviction -------------------------------------------------------------------------------------------------------------

// Removes `key` if it has no children and may go, then its parent if that made it such an entry, and so on.
Result<uint64_t> BlockIndex::EvictUpwards(Change& change, Key256 key, const std::function<bool(const BlockEntry&)>& may_go) {
  uint64_t count = 0;
  while (true) {
    DI_ASSIGN_OR_RETURN(const std::optional<BlockEntry> entry, change.Find(key));
    if (!entry || entry->children > 0 || !may_go(*entry)) return count;
    DI_ASSIGN_OR_RETURN(const std::optional<Key256> parent, change.Remove(key, *entry));
    ++count;
    if (!parent) return count;
    key = *parent;
  }
}

Result<uint64_t> BlockIndex::Expire(uint32_t now_s, uint64_t max_entries) {
  std::vector<Key256> candidates;
  uint64_t looked_at = 0;
  for (int i = 0; i < kNumClasses; ++i) {
    const uint32_t ttl = policy_.ttl_s[static_cast<size_t>(i)];
    if (ttl == 0 || ttl > now_s) continue;
    const std::string prefix(1, static_cast<char>(i));
    const std::string end = prefix + BigEndian((now_s - ttl) / kLruBucketSeconds + 1);
    DI_RETURN_IF_ERROR(table_->Scan(Family::kLru, prefix, [&](std::string_view key, std::string_view) {
      if (key >= end || key.size() != kLruKeyBytes || looked_at++ >= max_entries) return false;
      candidates.push_back(KeyFrom(key.substr(5)));
      return true;
    }));
  }
  const std::lock_guard lock(mutex_);
  Change change(*this);
  uint64_t evicted = 0;
  for (const Key256& key : candidates) {
    DI_ASSIGN_OR_RETURN(const uint64_t count, EvictUpwards(change, key, [&](const BlockEntry& entry) { return policy_.IsExpired(entry, now_s); }));
    evicted += count;
  }
  // What is left has children that live: it is looked at again after a while, so that such entries do not fill every pass.
  for (const Key256& key : candidates) {
    DI_ASSIGN_OR_RETURN(std::optional<BlockEntry> entry, change.Find(key));
    if (!entry || !policy_.IsExpired(*entry, now_s)) continue;
    DI_RETURN_IF_ERROR(change.RemoveLive(key, *entry));
    const uint32_t ttl = policy_.ttl_s[static_cast<size_t>(entry->retention)];
    entry->last_use_s = now_s - ttl + ttl / 16;
    DI_RETURN_IF_ERROR(change.AddLive(key, *entry));
    change.Set(key, entry);
  }
  DI_RETURN_IF_ERROR(change.Write());
  return evicted;
}

Result<uint64_t> BlockIndex::EvictTo(uint64_t target_bytes, uint32_t now_s, uint64_t max_entries) {
  struct Candidate {
    double age;
    Key256 key;
  };
  std::vector<Candidate> candidates;
  for (int i = 0; i < kNumClasses; ++i) {
    if (static_cast<RetentionClass>(i) == RetentionClass::kPinned) continue;
    const std::string prefix(1, static_cast<char>(i));
    std::vector<Key256> keys;
    DI_RETURN_IF_ERROR(table_->Scan(Family::kLru, prefix, [&](std::string_view key, std::string_view) {
      if (!key.starts_with(prefix) || key.size() != kLruKeyBytes || keys.size() >= max_entries) return false;
      keys.push_back(KeyFrom(key.substr(5)));
      return true;
    }));
    for (const Key256& key : keys) {
      DI_ASSIGN_OR_RETURN(const std::optional<BlockEntry> entry, Find(key));
      if (entry) candidates.push_back({policy_.Age(*entry, now_s), key});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.age > b.age; });
  const std::lock_guard lock(mutex_);
  Change change(*this);
  uint64_t evicted = 0;
  for (const Candidate& candidate : candidates) {
    if (change.live_bytes() <= target_bytes) break;
    // A parent that was passed over for its children goes with the last of them.
    DI_ASSIGN_OR_RETURN(const uint64_t count, EvictUpwards(change, candidate.key, [&](const BlockEntry& entry) {
                          return change.live_bytes() > target_bytes && entry.retention != RetentionClass::kPinned &&
                                 policy_.Age(entry, now_s) >= candidate.age;
                        }));
    evicted += count;
  }
  DI_RETURN_IF_ERROR(change.Write());
  return evicted;
}

}  // namespace deepinfer::kvstore
