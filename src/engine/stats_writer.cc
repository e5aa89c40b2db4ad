// SPDX-License-Identifier: Apache-2.0
#include "engine/stats_writer.h"

#include <chrono>
#include <exception>
#include <utility>

#include "core/escape.h"
#include "core/log.h"

namespace deepinfer::engine {
namespace {

constexpr size_t kMaxLines = 64;
// Ranks of one machine write one after the other.
constexpr auto kRankOffset = std::chrono::milliseconds(5);
constexpr int kNumRankOffsets = 8;

}  // namespace

StatsWriter::StatsWriter(Sink sink) : sink_(std::move(sink)) {
  if (!sink_) sink_ = [](std::string_view line) { DI_LOG(info, "{}", line); };
  thread_ = std::thread([this] { Loop(); });
}

StatsWriter::~StatsWriter() {
  {
    std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StatsWriter::Push(StatsLine line) {
  {
    std::lock_guard lock(mutex_);
    if (lines_.size() == kMaxLines) lines_.pop_front();
    lines_.push_back(std::move(line));
  }
  changed_.notify_one();
}

void StatsWriter::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !lines_.empty() || stops_; });
    if (lines_.empty()) return;
    const StatsLine line = std::move(lines_.front());
    lines_.pop_front();
    if (const int turn = line.rank % kNumRankOffsets; turn > 0) changed_.wait_for(lock, turn * kRankOffset, [&] { return stops_; });
    lock.unlock();
    Write(line);
    lock.lock();
  }
}

void StatsWriter::Write(const StatsLine& line) {
  try {
    sink_(FormatStats(line));
    sink_(FormatTimers(line));
  } catch (const std::exception& e) {
    DI_LOG(warn, "a statistics line was not written: {}", Escape(e.what()));
  } catch (...) {
    DI_LOG(warn, "a statistics line was not written");
  }
}

}  // namespace deepinfer::engine
