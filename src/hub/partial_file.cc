// SPDX-License-Identifier: Apache-2.0
#include "hub/partial_file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "core/ascii.h"
#include "core/check.h"
#include "core/escape.h"
#include "core/file.h"
#include "core/json.h"

namespace deepinfer::hub {

namespace {

constexpr size_t kHashBytes = 1 << 20;
constexpr int64_t kMaxJournalBytes = 4 << 20;

Status WriteError(const std::string& path) {
  return ResourceExhausted(fmt::format("cannot write {}: {}", Escape(path), std::strerror(errno)));
}

class Digest {
 public:
  explicit Digest(const EVP_MD* algorithm) : context_(EVP_MD_CTX_new()) {
    DI_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_, algorithm, nullptr) == 1) << "the hash function is missing";
  }
  ~Digest() { EVP_MD_CTX_free(context_); }
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  void Add(std::string_view bytes) { DI_CHECK(EVP_DigestUpdate(context_, bytes.data(), bytes.size()) == 1) << "hashing failed"; }
  std::string Hex() {
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    DI_CHECK(EVP_DigestFinal_ex(context_, hash, &size) == 1) << "hashing failed";
    return ToHex({hash, size});
  }

 private:
  EVP_MD_CTX* context_;
};

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

Result<FileHashes> HashFile(const std::string& path, const std::atomic<bool>* is_cancelled) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  struct stat info {};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0) return BadModel(fmt::format("cannot read {}: {}", Escape(path), std::strerror(errno)));
  Digest sha256(EVP_sha256()), sha1(EVP_sha1());
  sha1.Add(fmt::format("blob {}", info.st_size));
  sha1.Add(std::string_view("\0", 1));
  std::string buffer(kHashBytes, '\0');
  while (true) {
    if (is_cancelled != nullptr && is_cancelled->load(std::memory_order_relaxed)) return Cancelled("cancelled");
    const ssize_t size = ::read(file.fd, buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return BadModel(fmt::format("cannot read {}: {}", Escape(path), std::strerror(errno)));
    if (size == 0) break;
    const std::string_view bytes(buffer.data(), static_cast<size_t>(size));
    sha256.Add(bytes);
    // Large files are known by their SHA-256; the second hash would only cost time.
    if (info.st_size <= static_cast<off_t>(64 * kHashBytes)) sha1.Add(bytes);
  }
  return FileHashes{sha256.Hex(), sha1.Hex()};
}

PartialFile::PartialFile(std::string path, int64_t num_bytes, std::string tag, int fd)
    : path_(std::move(path)),
      incomplete_path_(path_ + ".incomplete"),
      journal_path_(incomplete_path_ + ".json"),
      tag_(std::move(tag)),
      num_bytes_(num_bytes),
      fd_(fd) {}

PartialFile::~PartialFile() { ::close(fd_); }

Result<std::unique_ptr<PartialFile>> PartialFile::Open(const std::string& path, int64_t num_bytes, const std::string& tag) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const std::string incomplete = path + ".incomplete";
  const int fd = ::open(incomplete.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) return WriteError(incomplete);
  std::unique_ptr<PartialFile> file(new PartialFile(path, num_bytes, tag, fd));
  file->ReadJournal();
  return file;
}

void PartialFile::ReadJournal() {
  struct stat info {};
  const bool has_bytes = ::fstat(fd_, &info) == 0 && info.st_size == num_bytes_;
  const Result<std::string> text = ReadFile(journal_path_, kMaxJournalBytes);
  const Result<Json> json = text.ok() ? ParseJson(*text) : Result<Json>(text.status());
  if (has_bytes && json.ok() && json->is_object() && json->value("tag", Json()) == tag_ && json->value("num_bytes", Json()) == num_bytes_) {
    const auto done = json->find("done");
    if (done != json->end() && done->is_array()) {
      for (const Json& range : *done) {
        if (!range.is_array() || range.size() != 2 || !range[0].is_number_unsigned() || !range[1].is_number_unsigned()) continue;
        const auto begin = range[0].get<int64_t>(), end = range[1].get<int64_t>();
        if (begin >= 0 && begin < end && end <= num_bytes_) done_.Add(begin, end);
      }
      return;
    }
  }
  Discard();
}

void PartialFile::Discard() {
  std::lock_guard lock(mutex_);
  done_ = {};
  ::unlink(journal_path_.c_str());
  // Both may fail on a full disk; the write that follows says so.
  if (::ftruncate(fd_, 0) != 0 || ::ftruncate(fd_, num_bytes_) != 0) return;
}

Status PartialFile::Write(int64_t offset, std::string_view data) {
  while (!data.empty()) {
    const ssize_t size = ::pwrite(fd_, data.data(), data.size(), offset);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return WriteError(incomplete_path_);
    data.remove_prefix(static_cast<size_t>(size));
    offset += size;
  }
  return Status::Ok();
}

Status PartialFile::MarkDone(int64_t begin, int64_t end) {
  if (begin >= end) return Status::Ok();
  if (::fdatasync(fd_) != 0) return WriteError(incomplete_path_);
  std::lock_guard lock(mutex_);
  done_.Add(begin, end);
  Json ranges = Json::array();
  for (const ByteRange& range : done_.ranges()) ranges.push_back({range.begin, range.end});
  return WriteFileAtomically(journal_path_, DumpJson(Json{{"tag", tag_}, {"num_bytes", num_bytes_}, {"done", ranges}}));
}

std::vector<ByteRange> PartialFile::Missing(int64_t max_bytes) const {
  std::lock_guard lock(mutex_);
  return done_.Missing(num_bytes_, max_bytes);
}

int64_t PartialFile::num_done() const {
  std::lock_guard lock(mutex_);
  return done_.num_bytes();
}

Status PartialFile::Publish() {
  if (::fdatasync(fd_) != 0 || ::rename(incomplete_path_.c_str(), path_.c_str()) != 0) return WriteError(path_);
  ::unlink(journal_path_.c_str());
  return Status::Ok();
}

}  // namespace deepinfer::hub
