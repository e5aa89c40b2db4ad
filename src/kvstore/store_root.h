// SPDX-License-Identifier: Apache-2.0
//
// The directory of a store: its FORMAT file, its secret, the paths of its segments, and the lock that keeps a second process
// out while this object lives.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "kvstore/segment_format.h"

namespace deepinfer::kvstore {

class StoreRoot {
 public:
  // may_create: makes a store of an empty or missing directory. kUnavailable: another process has it; kBadModel: another
  // version, or a directory that is no store.
  static Result<std::unique_ptr<StoreRoot>> Open(const std::string& path, bool may_create);
  StoreRoot(const StoreRoot&) = delete;
  StoreRoot& operator=(const StoreRoot&) = delete;
  ~StoreRoot();

  const std::string& path() const { return path_; }
  const Uuid& uuid() const { return uuid_; }
  std::string quarantine_directory() const { return path_ + "/quarantine"; }
  std::string index_directory() const { return path_ + "/index"; }

  // 32 bytes for tenant salts, made at the first call and kept in SECRET (mode 0600).
  Result<std::array<uint8_t, 32>> MasterSecret() const;

  // "chat/20261201-13/WRITER-SEQ": the stem of a segment, relative to the root. Makes its directory.
  Result<std::string> NewStem(RetentionClass retention, int64_t unix_ns, uint64_t writer_id, uint32_t sequence) const;

 private:
  StoreRoot() = default;
  std::string path_;
  Uuid uuid_{};
  int lock_fd_ = -1;
};

// "20261201-13", in UTC: segments of one hour share a directory.
std::string HourBucket(int64_t unix_ns);
Uuid RandomUuid();

}  // namespace deepinfer::kvstore
