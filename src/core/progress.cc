// SPDX-License-Identifier: Apache-2.0
#include "core/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>
#include <unistd.h>

#include "core/terminal.h"

namespace deepinfer {

namespace {

constexpr int64_t kFirstBarNs = 300'000'000;
constexpr int64_t kBarIntervalNs = 100'000'000;
constexpr int64_t kLineIntervalNs = 5'000'000'000;

std::string Amount(int64_t value, ProgressUnit unit) { return unit == ProgressUnit::kBytes ? FormatBytes(value) : fmt::format("{}", value); }

std::string Details(int64_t done, int64_t total, double elapsed_s, ProgressUnit unit) {
  std::string text = total > 0 ? fmt::format("{} of {}", Amount(done, unit), Amount(total, unit)) : Amount(done, unit);
  if (elapsed_s >= 0.5 && done > 0) {
    const double rate = static_cast<double>(done) / elapsed_s;
    text += unit == ProgressUnit::kBytes ? fmt::format(", {}/s", FormatBytes(static_cast<int64_t>(rate))) : fmt::format(", {:.3g}/s", rate);
    if (total > done) text += fmt::format(", {} left", FormatDuration(static_cast<double>(total - done) / rate));
  }
  return text;
}

int Percent(int64_t done, int64_t total) {
  const double share = static_cast<double>(done) / static_cast<double>(total);
  return static_cast<int>(std::clamp(share, 0.0, 1.0) * 100.0);
}

}  // namespace

std::string FormatBytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // 999.95 and above would print as 1000.0.
  while (std::fabs(value) >= (unit == 0 ? 1000.0 : 999.95) && unit + 1 < std::size(kUnits)) {
    value /= 1000.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string FormatDuration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e8) return "unknown time";
  const auto total = static_cast<int64_t>(std::llround(seconds));
  if (total < 60) return fmt::format("{} s", total);
  if (total < 3600) return fmt::format("{} min {} s", total / 60, total % 60);
  return fmt::format("{} h {} min", total / 3600, total / 60 % 60);
}

std::string Progress::FormatLine(std::string_view label, int64_t done, int64_t total, double elapsed_s, ProgressUnit unit) {
  if (total <= 0) return fmt::format("{}: {}", label, Details(done, total, elapsed_s, unit));
  return fmt::format("{}: {} % ({})", label, Percent(done, total), Details(done, total, elapsed_s, unit));
}

std::string Progress::FormatBar(std::string_view label, int64_t done, int64_t total, double elapsed_s, ProgressUnit unit, int columns) {
  const std::string details = Details(done, total, elapsed_s, unit);
  const auto width = static_cast<size_t>(std::max(columns, 1) - 1);  // the last column makes some terminals wrap
  if (total <= 0) return fmt::format("{} {}", label, details).substr(0, width);
  const std::string head = fmt::format("{} {:3d} %", label, Percent(done, total));
  const size_t fixed = head.size() + details.size() + 4;
  if (fixed + 10 > width) return fmt::format("{} {}", head, details).substr(0, width);
  const size_t cells = std::min<size_t>(width - fixed, 40);
  const size_t full = static_cast<size_t>(Percent(done, total)) * cells / 100;
  std::string bar(cells, ' ');
  std::fill_n(bar.begin(), full, '=');
  if (full < cells) bar[full] = '>';
  return fmt::format("{} [{}] {}", head, bar, details);
}

Progress::Progress(std::string label, Options options)
    : label_(std::move(label)),
      options_(std::move(options)),
      clock_(options_.clock != nullptr ? *options_.clock : Clock::Steady()),
      is_bar_(!options_.write_line && StderrIsTerminal()),
      start_ns_(clock_.NowNs()),
      last_shown_ns_(start_ns_) {}

Progress::~Progress() {
  if (is_bar_ && !options_.quiet) EndStatusLine();
}

void Progress::Update(int64_t done, int64_t total) {
  if (options_.quiet) return;
  // Whoever is late leaves the display to the thread that shows it.
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  const int64_t now_ns = clock_.NowNs();
  const double elapsed_s = static_cast<double>(now_ns - start_ns_) * 1e-9;
  if (is_bar_) {
    if (now_ns - start_ns_ < kFirstBarNs || now_ns - last_shown_ns_ < kBarIntervalNs) return;
    ShowStatusLine(FormatBar(label_, done, total, elapsed_s, options_.unit, TerminalColumns(STDERR_FILENO)));
  } else {
    if (now_ns - last_shown_ns_ < kLineIntervalNs) return;
    const std::string line = FormatLine(label_, done, total, elapsed_s, options_.unit);
    if (options_.write_line) {
      options_.write_line(line);
    } else {
      std::fprintf(stderr, "%s\n", line.c_str());
    }
  }
  last_shown_ns_ = now_ns;
}

}  // namespace deepinfer
