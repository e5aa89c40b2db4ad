// SPDX-License-Identifier: Apache-2.0
#include "kvstore/store_root.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>

#include <fmt/format.h>
#include <openssl/rand.h>

#include "core/file.h"

namespace deepinfer::kvstore {
namespace {

constexpr std::string_view kFormatLine = "DIKV 1\n";

Result<Uuid> ParseFormat(const std::string& path, std::string_view text) {
  const std::string_view first = text.substr(0, std::min(text.find('\n'), text.size()));
  if (!first.starts_with("DIKV ")) return BadModel(fmt::format("{} is not the FORMAT file of a block store", path));
  if (!text.starts_with(kFormatLine)) {
    return BadModel(fmt::format("{} says version \"{}\", this program knows \"DIKV 1\"; use the version that wrote it or another directory",
                                path, first.substr(0, 32)));
  }
  text.remove_prefix(kFormatLine.size());
  Uuid uuid{};
  if (text.size() != 33 || text[32] != '\n') return BadModel(fmt::format("{} is damaged: no identity in its second line", path));
  for (size_t i = 0; i < 32; ++i) {
    const char c = text[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return BadModel(fmt::format("{} is damaged: its second line is no identity", path));
    uuid[i / 2] = static_cast<uint8_t>(uuid[i / 2] << 4 | digit);
  }
  return uuid;
}

}  // namespace

Uuid RandomUuid() {
  Uuid uuid{};
  DI_CHECK(RAND_bytes(uuid.data(), static_cast<int>(uuid.size())) == 1) << "no random bytes";
  return uuid;
}

std::string HourBucket(int64_t unix_ns) {
  const std::time_t seconds = static_cast<std::time_t>(unix_ns / 1'000'000'000);
  std::tm tm{};
  ::gmtime_r(&seconds, &tm);
  return fmt::format("{:04}{:02}{:02}-{:02}", tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour);
}

Result<std::unique_ptr<StoreRoot>> StoreRoot::Open(const std::string& path, bool may_create) {
  std::unique_ptr<StoreRoot> root(new StoreRoot());
  root->path_ = path;
  std::error_code error;
  if (may_create) std::filesystem::create_directories(path, error);
  const std::string lock_path = path + "/LOCK", format_path = path + "/FORMAT";
  const bool has_format = std::filesystem::exists(format_path, error);
  if (!has_format) {
    if (!may_create) return BadModel(fmt::format("{} is no block store: it has no FORMAT file", path));
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      const std::string name = entry.path().filename();
      if (name != "LOCK" && name != "SECRET" && name != "lost+found") {
        return BadModel(fmt::format("{} has no FORMAT file but holds other files; name an empty directory or the store's own", path));
      }
    }
  }
  root->lock_fd_ = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (root->lock_fd_ < 0) return ResourceExhausted(fmt::format("cannot open {}: {}; check its permissions", lock_path, std::strerror(errno)));
  if (::flock(root->lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    return Unavailable(fmt::format("the block store {} is in use by another process (it holds {}); stop it first", path, lock_path));
  }
  // Another process may have made it between the check and the lock.
  if (!std::filesystem::exists(format_path, error)) {
    root->uuid_ = RandomUuid();
    DI_RETURN_IF_ERROR(WriteFileAtomically(format_path, std::string(kFormatLine) + UuidText(root->uuid_) + "\n"));
  } else {
    DI_ASSIGN_OR_RETURN(const std::string text, ReadFile(format_path, 4096));
    DI_ASSIGN_OR_RETURN(root->uuid_, ParseFormat(format_path, text));
  }
  return root;
}

StoreRoot::~StoreRoot() {
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

Result<std::array<uint8_t, 32>> StoreRoot::MasterSecret() const {
  const std::string path = path_ + "/SECRET";
  std::array<uint8_t, 32> secret{};
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    DI_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, 4096));
    if (text.size() != secret.size()) return BadModel(fmt::format("{} has {} bytes instead of 32; restore it or remove it (all blocks will miss)", path, text.size()));
    std::memcpy(secret.data(), text.data(), secret.size());
    return secret;
  }
  DI_CHECK(RAND_bytes(secret.data(), static_cast<int>(secret.size())) == 1) << "no random bytes";
  // Never readable by others, not even for a moment: the file gets its mode before its content and its name last.
  const std::string temporary = path + ".new";
  ::unlink(temporary.c_str());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  bool is_written = fd >= 0 && ::write(fd, secret.data(), secret.size()) == static_cast<ssize_t>(secret.size()) && ::fsync(fd) == 0;
  const int problem = errno;
  if (fd >= 0) ::close(fd);
  if (!is_written || ::rename(temporary.c_str(), path.c_str()) != 0) {
    return ResourceExhausted(fmt::format("cannot write {}: {}", path, std::strerror(is_written ? errno : problem)));
  }
  return secret;
}

Result<std::string> StoreRoot::NewStem(RetentionClass retention, int64_t unix_ns, uint64_t writer_id, uint32_t sequence) const {
  const std::string directory = fmt::format("{}/{}", ClassName(retention), HourBucket(unix_ns));
  std::error_code error;
  std::filesystem::create_directories(path_ + "/" + directory, error);
  if (error) return ResourceExhausted(fmt::format("cannot create {}/{}: {}", path_, directory, error.message()));
  return fmt::format("{}/{:016x}-{:08x}", directory, writer_id, sequence);
}

}  // namespace deepinfer::kvstore
