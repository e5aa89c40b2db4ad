// SPDX-License-Identifier: Apache-2.0
//
// Stores in temporary directories, chains of keys, payloads that follow from their key, and a file system that fails.
#pragma once

#include <cerrno>
#include <csignal>
#include <functional>
#include <random>

#include <unistd.h>

#include "kvstore/block_store.h"
#include "temporary_dir.h"

namespace deepinfer::kvstore::testing {

using deepinfer::testing::TemporaryDir;

constexpr uint32_t kPayload = 1000;

class AtomicClock : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_.load(); }
  void AdvanceMs(int64_t ms) { now_ns_ += ms * 1'000'000; }

 private:
  std::atomic<int64_t> now_ns_{1};
};

inline std::vector<uint8_t> PayloadOf(const Key256& key, size_t bytes = kPayload) {
  std::mt19937_64 random(KeyLow64(key));
  std::vector<uint8_t> payload(bytes);
  for (uint8_t& byte : payload) byte = static_cast<uint8_t>(random());
  return payload;
}

// The keys of a prompt of `count` blocks; prompts with the same `seed` share their front.
inline std::vector<Key256> ChainOf(int seed, size_t count, const Key256& root = {}) {
  std::vector<Key256> keys;
  Key256 parent = root;
  for (size_t i = 0; i < count; ++i) {
    const std::vector<int32_t> tokens(128, seed);
    parent = BlockKey(parent, static_cast<int64_t>(i), tokens, {});
    keys.push_back(parent);
  }
  return keys;
}

inline void OfferChain(BlockStore& store, const std::vector<Key256>& keys, size_t begin = 0, RetentionClass retention = RetentionClass::kChat,
                       uint32_t domain = 1, size_t payload_bytes = kPayload) {
  for (size_t i = begin; i < keys.size(); ++i) {
    const std::vector<uint8_t> payload = PayloadOf(keys[i], payload_bytes);
    OfferedBlock block;
    block.key = keys[i];
    block.parent = i == 0 ? Key256() : keys[i - 1];
    block.block_index = static_cast<uint32_t>(i);
    block.retention = retention;
    block.domain_hash = domain;
    block.payload = payload;
    store.Offer({&block, 1});
  }
}

// Blocks that a lookup and a load bring, each of which is compared with what was offered; -1 when one is wrong.
inline int64_t LoadChain(BlockStore& store, const std::vector<Key256>& keys, LoadStop* stop = nullptr, int64_t deadline_ns = INT64_MAX,
                         size_t payload_bytes = kPayload) {
  HitPlan plan = store.Lookup(keys);
  std::vector<std::vector<uint8_t>> buffers(plan.num_blocks(), std::vector<uint8_t>(payload_bytes));
  std::vector<std::span<uint8_t>> dst(buffers.begin(), buffers.end());
  const LoadResult result = store.Load(plan, dst, deadline_ns);
  store.Release(plan);
  if (stop != nullptr) *stop = result.stop;
  for (size_t i = 0; i < result.num_ok_blocks; ++i) {
    if (buffers[i] != PayloadOf(keys[i], payload_bytes)) return -1;
  }
  return static_cast<int64_t>(result.num_ok_blocks);
}

// Fails or ends the process at a chosen call.
class FaultyFiles : public FileOps {
 public:
  // Called before and after every call with its number, 2n and 2n+1.
  std::function<void(int)> at;
  std::atomic<bool> is_full{false};
  std::atomic<int> num_calls{0};

  int Create(const std::string& path) override { return Do<int>([&] { return FileOps::Create(path); }); }
  ssize_t Pwrite(int fd, const void* data, size_t bytes, int64_t offset) override {
    return Do<ssize_t>([&]() -> ssize_t {
      if (is_full) return -ENOSPC;
      return FileOps::Pwrite(fd, data, bytes, offset);
    });
  }
  int Truncate(int fd, int64_t bytes) override { return Do<int>([&] { return FileOps::Truncate(fd, bytes); }); }
  int SyncData(int fd) override { return Do<int>([&] { return FileOps::SyncData(fd); }); }
  int Rename(const std::string& from, const std::string& to) override { return Do<int>([&] { return FileOps::Rename(from, to); }); }
  int Unlink(const std::string& path) override { return Do<int>([&] { return FileOps::Unlink(path); }); }
  int SyncDirectory(const std::string& path) override { return Do<int>([&] { return FileOps::SyncDirectory(path); }); }

 private:
  template <typename T>
  T Do(const std::function<T()>& call) {
    const int number = num_calls++;
    if (at) at(2 * number);
    const T result = call();
    if (at) at(2 * number + 1);
    return result;
  }
};

inline StoreOptions OptionsFor(const TemporaryDir& dir, bool index_in_memory = false) {
  StoreOptions options;
  options.root = dir.path() + "/store";
  options.index_in_memory = index_in_memory || !HasRocksTable();
  options.payload_bytes = kPayload;
  options.segment_bytes = 1 << 20;
  options.run_gc = false;
  return options;
}

inline std::vector<std::string> FilesWith(const std::string& root, const std::string& extension) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    const std::string path = entry.path();
    if (entry.path().extension() == extension && path.find("/quarantine/") == std::string::npos && path.find("/index/") == std::string::npos) {
      paths.push_back(path);
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace deepinfer::kvstore::testing
