// SPDX-License-Identifier: Apache-2.0
//
// Asks the kernel to read the shards of a checkpoint into the page cache ahead of the loader, in file order, so that the disk
// works while the processors pack. Never more than a window ahead of what the loader has used: memory stays bounded.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace deepinfer::model {

class ReadAhead {
 public:
  struct Extent {
    const uint8_t* begin;  // of a mapped file
    int64_t bytes;
  };
  // Extents in the order in which they will be used, about.
  explicit ReadAhead(std::vector<Extent> extents);
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  ~ReadAhead();

  // So many bytes of the extents have been used in all.
  void Advance(int64_t used_bytes);

 private:
  void Run();

  std::vector<Extent> extents_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t used_bytes_ = 0;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace deepinfer::model
