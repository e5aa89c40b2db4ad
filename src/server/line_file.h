// SPDX-License-Identifier: Apache-2.0
//
// Lines appended to a file, or to stderr, by a thread of their own, so that nothing waits for a disk. When the queue is full
// lines are dropped and counted, unless they must not be (usage): then the caller waits.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/status.h"

namespace deepinfer::server {

class LineFile {
 public:
  enum class Durability { kNone, kSync };  // kSync: on disk within a second, nothing is dropped

  // `path` "-": stderr. Errors name the file.
  static Result<std::unique_ptr<LineFile>> Open(const std::string& path, Durability durability);
  // Writes what is queued.
  ~LineFile();

  void Append(std::string line);  // without the newline; any thread

 private:
  LineFile(int fd, std::string path, Durability durability);
  void Loop();
  static bool EndsInsideLine(int fd, const std::string& path);

  const int fd_;
  const std::string path_;
  const Durability durability_;
  bool is_inside_line_;  // of the thread, once it runs
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;  // GUARDED_BY(mutex_)
  int64_t num_dropped_ = 0;         // GUARDED_BY(mutex_)
  bool is_stopping_ = false;        // GUARDED_BY(mutex_)
  std::thread thread_;
};

}  // namespace deepinfer::server
