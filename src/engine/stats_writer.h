// SPDX-License-Identifier: Apache-2.0
//
// Formats statistics lines and writes them on a thread of its own: whoever pushes one never waits for the terminal.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>

#include "engine/stats_line.h"

namespace deepinfer::engine {

class StatsWriter {
 public:
  using Sink = std::function<void(std::string_view line)>;

  // A null sink writes to the log. What a sink throws is logged.
  explicit StatsWriter(Sink sink);
  // Writes what was pushed, then ends the thread.
  ~StatsWriter();
  StatsWriter(const StatsWriter&) = delete;
  StatsWriter& operator=(const StatsWriter&) = delete;

  // Of many lines that could not be written yet the oldest are dropped.
  void Push(StatsLine line);

 private:
  void Loop();
  void Write(const StatsLine& line);

  Sink sink_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<StatsLine> lines_;  // GUARDED_BY(mutex_)
  bool stops_ = false;           // GUARDED_BY(mutex_)
  std::thread thread_;
};

}  // namespace deepinfer::engine
