// SPDX-License-Identifier: Apache-2.0
#include "hub/download.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "core/escape.h"
#include "core/file.h"
#include "core/json.h"
#include "core/progress.h"
#include "hub/hub_api.h"
#include "hub/model_locator.h"
#include "hub/partial_file.h"
#include "net/http_client.h"

namespace deepinfer::hub {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kPartBytes = 32 << 20;
constexpr int64_t kSpareBytes = 64 << 20;  // left free on the disk
constexpr std::chrono::milliseconds kFirstWait{200}, kLongestWait{30'000};

bool Matches(const std::vector<std::string>& patterns, const std::string& path) {
  return std::any_of(patterns.begin(), patterns.end(), [&path](const std::string& pattern) { return ::fnmatch(pattern.c_str(), path.c_str(), 0) == 0; });
}

int64_t FileBytes(const fs::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) ? static_cast<int64_t>(info.st_size) : -1;
}

// One of the files on its way.
struct Job {
  HubFile file;
  std::string path;  // of the bytes: a blob, or the file itself
  std::unique_ptr<PartialFile> partial;  // null: it is there
  int num_open = 0;        // parts that are queued or being fetched
  int num_tries = 1;       // of the whole file
  bool is_sequential = false;  // the server knows no ranges: one connection fetches everything
  std::string sha256;
};

struct Part {
  Job* job = nullptr;
  ByteRange range;
};

class Downloader {
 public:
  Downloader(const DownloadOptions& options, const HubAccess& access, std::string commit, std::vector<Job>& jobs)
      : options_(options), access_(access), commit_(std::move(commit)), jobs_(jobs) {}

  Status Run() {
    for (Job& job : jobs_) {
      num_total_ += job.file.num_bytes;
      num_done_ += job.partial == nullptr ? job.file.num_bytes : job.partial->num_done();
      if (job.partial != nullptr) Enqueue(job);
    }
    Report();
    std::vector<std::thread> threads;
    for (int i = 0; i < options_.num_connections; ++i) threads.emplace_back([this] { Work(); });
    // The caller's flag becomes ours, which also wakes those that wait.
    {
      std::unique_lock lock(mutex_);
      while (!is_stopped_ && num_open_jobs_ > 0) {
        changed_.wait_for(lock, std::chrono::milliseconds(100));
        if (options_.is_cancelled != nullptr && options_.is_cancelled->load()) StopLocked(Cancelled("the download was interrupted; the same command goes on with it"));
      }
      is_stopped_ = true;
      stop_flag_.store(true);
    }
    changed_.notify_all();
    for (std::thread& thread : threads) thread.join();
    return error_;
  }
  int64_t num_fetched() const { return num_fetched_.load(); }

 private:
  void Enqueue(Job& job) {
    std::lock_guard lock(mutex_);
    ++num_open_jobs_;
    EnqueueLocked(job);
  }
  void EnqueueLocked(Job& job) {
    // A file that is complete, or empty, still has to be verified: it gets one part without bytes.
    std::vector<ByteRange> missing = job.partial->Missing(kPartBytes);
    if (missing.empty()) missing.push_back({job.file.num_bytes, job.file.num_bytes});
    job.num_open = static_cast<int>(missing.size());
    for (const ByteRange& range : missing) parts_.push_back({&job, range});
  }

  void StopLocked(const Status& error) {
    if (error_.ok()) error_ = error;
    is_stopped_ = true;
    stop_flag_.store(true);
    changed_.notify_all();
  }

  void Work() {
    net::HttpClientOptions client_options = net::HttpClientOptions::FromEnvironment(options_.environment);
    client_options.user_agent = options_.user_agent;
    client_options.is_cancelled = &stop_flag_;
    net::HttpClient client(client_options);
    while (true) {
      Part part;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return is_stopped_ || !parts_.empty(); });
        if (is_stopped_) return;
        part = parts_.front();
        parts_.pop_front();
      }
      const Status status = Fetch(client, part);
      std::unique_lock lock(mutex_);
      if (!status.ok()) return StopLocked(status);
      if (--part.job->num_open > 0) continue;
      lock.unlock();
      const Status end = Complete(*part.job);
      lock.lock();
      if (!end.ok()) return StopLocked(end);
    }
  }

  // A part on its way. Where the server knows no ranges, whoever learns it first owns the file and fetches all of it.
  struct Fetching {
    Job& job;
    ByteRange range;
    bool is_owner = false;
    bool is_over = false;  // another connection owns the file
  };

  Status Fetch(net::HttpClient& client, const Part& part) {
    Fetching fetching{*part.job, part.range};
    int num_failures = 0;
    while (fetching.range.begin < fetching.range.end) {
      {
        std::lock_guard lock(mutex_);
        if (is_stopped_) return Cancelled("cancelled");
        if (part.job->is_sequential && !fetching.is_owner) return Status::Ok();
      }
      bool has_progress = false;
      const Status status = FetchOnce(client, fetching, has_progress);
      if (fetching.is_over) return Status::Ok();
      if (status.ok()) continue;
      if (!IsWorthARetry(status)) return status;
      // Without ranges every try begins anew, so what came before is no progress.
      num_failures = has_progress && !fetching.is_owner ? 0 : num_failures + 1;
      if (num_failures > options_.max_retries) {
        return Unavailable(fmt::format("gave up on {} after {} tries: {}; the same command goes on with it", Escape(part.job->file.path), num_failures, status.message()));
      }
      Wait(num_failures, RetryAfterSeconds(status));
    }
    return Status::Ok();
  }

  void Wait(int num_failures, int64_t asked_s) {
    auto wait = kFirstWait * (int64_t{1} << std::min(num_failures, 10));
    if (wait > kLongestWait) wait = kLongestWait;
    if (asked_s > 0) wait = std::chrono::milliseconds(asked_s * 1000);
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, wait, [this] { return is_stopped_; });
  }

  // Moves range.begin on and records what has come.
  Status FetchOnce(net::HttpClient& client, Fetching& fetching, bool& has_progress) {
    Job& job = fetching.job;
    ByteRange& range = fetching.range;
    int64_t first = range.begin;
    const std::string shown = Escape(job.file.path, 200);
    const auto wrong = [&](const std::string& what) { return BadModel(fmt::format("{} {} for {}", access_.endpoint.HostHeader(), what, shown)); };
    const auto on_head = [&](const net::HttpAnswer& answer) -> Status {
      if (answer.status == 206) {
        const std::string* const given = answer.Find("content-range");
        const std::string wanted = fmt::format("bytes {}-{}/{}", range.begin, range.end - 1, job.file.num_bytes);
        if (given != nullptr && *given == wanted) return Status::Ok();
        return wrong(fmt::format("sends \"{}\" instead of \"{}\"", given == nullptr ? "" : Escape(*given, 100), wanted));
      }
      if (const std::string* const length = answer.Find("content-length"); length != nullptr && *length != std::to_string(job.file.num_bytes)) {
        return wrong(fmt::format("sends {} bytes instead of {}", Escape(*length, 40), job.file.num_bytes));
      }
      if (range.begin == 0 && range.end == job.file.num_bytes) return Status::Ok();
      std::lock_guard lock(mutex_);
      fetching.is_over = job.is_sequential && !fetching.is_owner;
      if (fetching.is_over) return Cancelled("another connection fetches the file");
      job.is_sequential = fetching.is_owner = true;
      range = {0, job.file.num_bytes};
      first = 0;
      return Status::Ok();
    };
    const auto on_body = [&](std::string_view data) -> Status {
      if (static_cast<int64_t>(data.size()) > range.end - range.begin) return wrong("sends more bytes than it should");
      DI_RETURN_IF_ERROR(job.partial->Write(range.begin, data));
      range.begin += static_cast<int64_t>(data.size());
      num_fetched_.fetch_add(static_cast<int64_t>(data.size()));
      num_done_.fetch_add(static_cast<int64_t>(data.size()));
      Report();
      return Status::Ok();
    };
    const Status status = FetchHubBytes(client, access_, options_.id, commit_, job.file, range.begin, range.end, on_head, on_body);
    has_progress = range.begin > first;
    DI_RETURN_IF_ERROR(job.partial->MarkDone(first, range.begin));
    if (status.ok() && range.begin < range.end) return Unavailable(fmt::format("{} ended in front of byte {} of {}", shown, range.begin, range.end));
    return status;
  }

  Status Complete(Job& job) {
    if (!job.partial->is_complete()) return Restart(job, "is not complete");
    DI_ASSIGN_OR_RETURN(const FileHashes hashes, HashFile(job.partial->incomplete_path(), &stop_flag_));
    const bool is_right = job.file.sha256.empty() ? hashes.git_sha1 == job.file.git_sha1 : hashes.sha256 == job.file.sha256;
    if (!is_right) return Restart(job, "does not have the hash that the hub's list says");
    DI_RETURN_IF_ERROR(job.partial->Publish());
    job.sha256 = hashes.sha256;
    std::lock_guard lock(mutex_);
    if (--num_open_jobs_ == 0) changed_.notify_all();
    return Status::Ok();
  }

  // Once more from the beginning: bytes may have been damaged on the way.
  Status Restart(Job& job, std::string_view why) {
    job.partial->Discard();
    if (job.num_tries++ == 2) {
      return BadModel(fmt::format("{} {}, and did not when it was fetched again; the hub, a mirror or a proxy in between damages it", Escape(job.file.path), why));
    }
    num_done_.fetch_sub(job.file.num_bytes);
    std::lock_guard lock(mutex_);
    job.is_sequential = false;
    EnqueueLocked(job);
    changed_.notify_all();
    return Status::Ok();
  }

  void Report() {
    if (options_.on_progress) options_.on_progress(std::min(num_done_.load(), num_total_), num_total_);
  }

  const DownloadOptions& options_;
  const HubAccess& access_;
  const std::string commit_;
  std::vector<Job>& jobs_;
  int64_t num_total_ = 0;
  std::atomic<int64_t> num_done_{0}, num_fetched_{0};
  std::atomic<bool> stop_flag_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Part> parts_;    // GUARDED_BY(mutex_)
  int num_open_jobs_ = 0;     // GUARDED_BY(mutex_)
  bool is_stopped_ = false;   // GUARDED_BY(mutex_)
  Status error_;              // GUARDED_BY(mutex_)
};

// One download of a target at a time; ends with the process.
class TargetLock {
 public:
  static Result<std::unique_ptr<TargetLock>> Take(const fs::path& path) {
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return ResourceExhausted(fmt::format("cannot write {}: {}", Escape(path.string()), std::strerror(errno)));
    std::unique_ptr<TargetLock> lock(new TargetLock(fd));
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      return Unavailable(fmt::format("another download to {} is running; wait for it to end", Escape(path.parent_path().string())));
    }
    return lock;
  }
  ~TargetLock() { ::close(fd_); }

 private:
  explicit TargetLock(int fd) : fd_(fd) {}
  int fd_;
};

Status LinkTo(const fs::path& link, const fs::path& target) {
  std::error_code error;
  if (fs::read_symlink(link, error) == target && !error) return Status::Ok();
  fs::create_directories(link.parent_path(), error);
  const fs::path fresh = link.string() + ".new";
  ::unlink(fresh.c_str());
  if (::symlink(target.c_str(), fresh.c_str()) != 0 || ::rename(fresh.c_str(), link.c_str()) != 0) {
    return ResourceExhausted(fmt::format("cannot write {}: {}", Escape(link.string()), std::strerror(errno)));
  }
  return Status::Ok();
}

Status CheckSpace(const fs::path& dir, int64_t needed) {
  std::error_code error;
  fs::path existing = dir;
  while (!existing.empty() && !fs::exists(existing, error) && existing != existing.parent_path()) existing = existing.parent_path();
  struct statvfs info {};
  if (needed == 0 || ::statvfs(existing.empty() ? "." : existing.c_str(), &info) != 0) return Status::Ok();
  const auto free_bytes = static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
  if (needed + kSpareBytes <= free_bytes) return Status::Ok();
  return ResourceExhausted(fmt::format("{} more are needed but the disk of {} has {} free; make room, choose another folder with --dir, or fewer files with --include",
                                       FormatBytes(needed), Escape(dir.string()), FormatBytes(free_bytes)));
}

// Where a model goes: into a folder of its own, or into the hub cache.
struct Target {
  bool is_cache = true;
  fs::path root;      // the folder, or models--owner--name
  fs::path files;     // where paths of the model begin
};

Result<std::vector<Job>> MakeJobs(const DownloadOptions& options, const HubModel& model, const Target& target) {
  std::vector<Job> jobs;
  for (const HubFile& file : model.files) {
    if (!options.include.empty() && !Matches(options.include, file.path)) continue;
    if (Matches(options.exclude, file.path)) continue;
    if (file.path == kManifestName) continue;  // ours has its place
    Job job;
    job.file = file;
    job.path = (target.is_cache ? target.root / "blobs" / file.blob_name() : target.files / file.path).string();
    jobs.push_back(std::move(job));
  }
  if (jobs.empty()) return InvalidArgument(fmt::format("no file of {} matches --include and --exclude", options.id), "include");
  return jobs;
}

// Files that are there and right need nothing; the others get their partial file. A cache names content by its hash and is
// believed unless the caller wants it hashed; files in a folder are hashed.
Status LookAtDisk(const DownloadOptions& options, const Target& target, std::vector<Job>& jobs) {
  for (Job& job : jobs) {
    if (options.is_cancelled != nullptr && options.is_cancelled->load()) return Cancelled("interrupted");
    if (FileBytes(job.path) == job.file.num_bytes) {
      const bool is_believed = target.is_cache && !options.verify && !job.file.sha256.empty();
      if (is_believed) {
        job.sha256 = job.file.sha256;
        continue;
      }
      DI_ASSIGN_OR_RETURN(const FileHashes hashes, HashFile(job.path, options.is_cancelled));
      if (job.file.sha256.empty() ? hashes.git_sha1 == job.file.git_sha1 : hashes.sha256 == job.file.sha256) {
        job.sha256 = hashes.sha256;
        continue;
      }
    }
    DI_ASSIGN_OR_RETURN(job.partial, PartialFile::Open(job.path, job.file.num_bytes, job.file.blob_name()));
  }
  return Status::Ok();
}

Status WriteManifest(const DownloadOptions& options, const std::string& commit, const Target& target, const std::vector<Job>& jobs) {
  Json files = Json::array();
  for (const Job& job : jobs) files.push_back(Json{{"path", job.file.path}, {"num_bytes", job.file.num_bytes}, {"sha256", job.sha256}});
  const Json manifest{{"version", 1}, {"id", options.id}, {"revision", options.revision}, {"commit", commit}, {"files", files}};
  return WriteFileAtomically((target.files / kManifestName).string(), DumpJson(manifest) + "\n");
}

Status LinkSnapshot(const DownloadOptions& options, const std::string& commit, const Target& target, const std::vector<Job>& jobs) {
  for (const Job& job : jobs) {
    fs::path up = "../..";
    for (const char c : job.file.path) {
      if (c == '/') up /= "..";
    }
    DI_RETURN_IF_ERROR(LinkTo(target.files / job.file.path, up / "blobs" / job.file.blob_name()));
  }
  if (options.revision == commit) return Status::Ok();
  const fs::path ref = target.root / "refs" / options.revision;
  std::error_code error;
  fs::create_directories(ref.parent_path(), error);
  return WriteFileAtomically(ref.string(), commit);
}

Result<HubModel> FetchList(const DownloadOptions& options, const HubAccess& access) {
  net::HttpClientOptions client_options = net::HttpClientOptions::FromEnvironment(options.environment);
  client_options.user_agent = options.user_agent;
  client_options.is_cancelled = options.is_cancelled;
  net::HttpClient client(client_options);
  auto wait = kFirstWait;
  for (int i = 0;; ++i, wait = std::min<std::chrono::milliseconds>(2 * wait, kLongestWait)) {
    Result<HubModel> model = FetchHubModel(client, access, options.id, options.revision);
    if (model.ok() || !IsWorthARetry(model.status()) || i == options.max_retries) return model;
    const int64_t asked_s = RetryAfterSeconds(model.status());
    const auto end = std::chrono::steady_clock::now() + (asked_s > 0 ? std::chrono::milliseconds(asked_s * 1000) : wait);
    while (std::chrono::steady_clock::now() < end) {
      if (options.is_cancelled != nullptr && options.is_cancelled->load()) return Cancelled("interrupted");
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(end - std::chrono::steady_clock::now(), std::chrono::milliseconds(50)));
    }
  }
}

}  // namespace

Result<DownloadReport> Download(const DownloadOptions& options) {
  if (!IsHubId(options.id)) {
    return InvalidArgument(fmt::format("\"{}\" is no hub id; give OWNER/NAME, such as deepseek-ai/DeepSeek-V4.1-Flash-1017", Escape(options.id, 100)));
  }
  DI_ASSIGN_OR_RETURN(const HubAccess access, HubAccess::FromEnvironment(options.environment));
  Target target;
  target.is_cache = options.dir.empty();
  if (access.is_offline) {
    Result<std::string> dir = ResolveModelDir(target.is_cache ? options.id : options.dir, {.environment = options.environment, .revision = options.revision, .binary_dir = {}});
    if (!dir.ok()) return BadModel(fmt::format("HF_HUB_OFFLINE is set, so nothing is fetched, and {}", dir.status().message()));
    DownloadReport report;
    report.dir = *dir;
    return report;
  }
  DI_ASSIGN_OR_RETURN(const HubModel model, FetchList(options, access));
  std::string folder = "models--" + options.id;
  folder.replace(folder.find('/'), 1, "--");
  target.root = target.is_cache ? fs::path(HubCacheDir(options.environment)) / folder : fs::path(options.dir);
  target.files = target.is_cache ? target.root / "snapshots" / model.commit : target.root;
  DI_ASSIGN_OR_RETURN(std::vector<Job> jobs, MakeJobs(options, model, target));
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<TargetLock> lock, TargetLock::Take(target.root / ".deepinfer-download.lock"));
  DI_RETURN_IF_ERROR(LookAtDisk(options, target, jobs));
  int64_t num_needed = 0;
  DownloadReport report;
  for (const Job& job : jobs) {
    report.num_bytes += job.file.num_bytes;
    if (job.partial != nullptr) num_needed += job.file.num_bytes - job.partial->num_done();
  }
  DI_RETURN_IF_ERROR(CheckSpace(target.root, num_needed));
  Downloader downloader(options, access, model.commit, jobs);
  DI_RETURN_IF_ERROR(downloader.Run());
  if (target.is_cache) DI_RETURN_IF_ERROR(LinkSnapshot(options, model.commit, target, jobs));
  DI_RETURN_IF_ERROR(WriteManifest(options, model.commit, target, jobs));
  report.dir = target.files.string();
  report.commit = model.commit;
  report.num_files = static_cast<int64_t>(jobs.size());
  report.num_fetched_bytes = downloader.num_fetched();
  return report;
}

}  // namespace deepinfer::hub
