// SPDX-License-Identifier: Apache-2.0
//
// Progress of long work on stderr: a bar on a terminal, a plain line every 5 s otherwise, nothing when quiet. Work that
// ends within 0.3 s shows nothing at all.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "core/clock.h"

namespace deepinfer {

enum class ProgressUnit { kItems, kBytes };

class Progress {
 public:
  struct Options {
    bool quiet = false;
    ProgressUnit unit = ProgressUnit::kItems;
    // For tests; the defaults are stderr and the machine's clock.
    const Clock* clock = nullptr;
    std::function<void(std::string_view)> write_line;  // set: plain lines go here, and there is no bar
  };

  Progress(std::string label, Options options);
  ~Progress();  // erases the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // May be called from any thread and as often as you like; total 0 = unknown.
  void Update(int64_t done, int64_t total);

  // "loading  42% [=====>    ] 1.2 of 2.9 GB, 1.1 GB/s, 2 s left", at most `columns` wide.
  static std::string FormatBar(std::string_view label, int64_t done, int64_t total, double elapsed_s, ProgressUnit unit, int columns);
  static std::string FormatLine(std::string_view label, int64_t done, int64_t total, double elapsed_s, ProgressUnit unit);

 private:
  std::string label_;
  Options options_;
  const Clock& clock_;
  bool is_bar_;
  std::mutex mutex_;
  int64_t start_ns_;
  int64_t last_shown_ns_;  // guarded by mutex_
};

// "17 B", "1.2 MB": decimal units.
std::string FormatBytes(int64_t bytes);
// "3 s", "2 min 5 s", "1 h 3 min".
std::string FormatDuration(double seconds);

}  // namespace deepinfer
