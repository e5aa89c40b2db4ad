// SPDX-License-Identifier: Apache-2.0
#include "server/line_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

#include "core/log.h"

namespace deepinfer::server {

namespace {
constexpr size_t kMaxLines = 65536;
constexpr std::chrono::seconds kSyncInterval{1};
}  // namespace

// Of a file that is there already: the process that wrote it may have been killed.
bool LineFile::EndsInsideLine(int fd, const std::string& path) {
  struct stat info {};
  if (fd == STDERR_FILENO || ::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) return false;
  const int reader = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (reader < 0) return false;
  char last = '\n';
  const bool is_read = ::pread(reader, &last, 1, info.st_size - 1) == 1;
  ::close(reader);
  return is_read && last != '\n';
}

Result<std::unique_ptr<LineFile>> LineFile::Open(const std::string& path, Durability durability) {
  int fd = STDERR_FILENO;
  if (path != "-") {
    fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return InvalidArgument(fmt::format("{}: {}; choose a file that can be written", path, std::strerror(errno)));
  }
  return std::unique_ptr<LineFile>(new LineFile(fd, path, durability));
}

LineFile::LineFile(int fd, std::string path, Durability durability)
    : fd_(fd), path_(std::move(path)), durability_(durability), is_inside_line_(EndsInsideLine(fd, path_)), thread_([this] { Loop(); }) {}

LineFile::~LineFile() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (fd_ != STDERR_FILENO) ::close(fd_);
}

void LineFile::Append(std::string line) {
  std::unique_lock lock(mutex_);
  if (lines_.size() >= kMaxLines) {
    if (durability_ == Durability::kNone) {
      ++num_dropped_;
      return;
    }
    changed_.wait(lock, [this] { return lines_.size() < kMaxLines; });
  }
  lines_.push_back(std::move(line));
  if (lines_.size() == 1) changed_.notify_all();
}

void LineFile::Loop() {
  std::vector<std::string> taken;
  std::string text;
  bool has_failed = false, is_dirty = false;
  auto synced = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  while (true) {
    const auto has_work = [this] { return !lines_.empty() || is_stopping_; };
    if (is_dirty) changed_.wait_until(lock, synced + kSyncInterval, has_work);
    else changed_.wait(lock, has_work);
    const bool is_last = is_stopping_;
    taken.swap(lines_);
    const int64_t num_dropped = std::exchange(num_dropped_, 0);
    lock.unlock();
    changed_.notify_all();
    text.clear();
    // What a full disk has cut off stays a line of its own.
    if (is_inside_line_ && !taken.empty()) text = "\n";
    for (const std::string& line : taken) {
      text += line;
      text += '\n';
    }
    if (num_dropped > 0) text += fmt::format("{{\"dropped_lines\":{}}}\n", num_dropped);
    taken.clear();
    for (size_t done = 0; done < text.size();) {
      const ssize_t size = ::write(fd_, text.data() + done, text.size() - done);
      if (size < 0 && errno == EINTR) continue;
      if (size < 0) {
        if (!has_failed) DI_LOG(error, "{}: {}; lines are lost", path_, std::strerror(errno));
        has_failed = true;
        break;
      }
      done += static_cast<size_t>(size);
      if (size > 0) is_inside_line_ = text[done - 1] != '\n';
      is_dirty = durability_ == Durability::kSync;
    }
    if (is_dirty && (is_last || std::chrono::steady_clock::now() >= synced + kSyncInterval)) {
      if (::fsync(fd_) != 0 && errno != EINVAL && !has_failed) DI_LOG(error, "{}: {}", path_, std::strerror(errno));
      is_dirty = false;
      synced = std::chrono::steady_clock::now();
    }
    lock.lock();
    if (is_last && lines_.empty()) return;
  }
}

}  // namespace deepinfer::server
