// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/expert_pack.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "backends/cpu/expert_cache.h"
#include "core/integers.h"
#include "core/log.h"
#include "core/mapping_guard.h"
#include "core/progress.h"

namespace deepinfer::cpu {
namespace {

constexpr uint32_t kVersion = 1;
constexpr int64_t kFlushBytes = int64_t{256} << 20;  // written pages that may wait for the disk

struct Header {
  char magic[8] = {'D', 'I', 'E', 'X', 'P', 'E', 'R', 'T'};
  uint32_t version = kVersion;
  uint32_t fingerprint_bytes = 0;
  uint64_t layout = 0;
  int64_t num_experts = 0;
  int64_t extent_bytes = 0;
  int64_t data_offset = 0;
  uint64_t table_checksum = 0;
  char fingerprint[256] = {};
  uint64_t checksum = 0;  // of everything before
};
static_assert(sizeof(Header) < 4096);

uint64_t HeaderChecksum(const Header& header) {
  return PackChecksum(reinterpret_cast<const uint8_t*>(&header), static_cast<int64_t>(offsetof(Header, checksum)));
}

// What the packed form of this program and processor is: a small matrix of every format, packed. Changes with the layout.
uint64_t LayoutId() {
  uint64_t id = 0;
  std::vector<uint8_t> values(64 * 64 * 4 + 64), scales(64 * 64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint8_t>(i * 7 + i / 251);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(100 + i % 50);
  for (const WeightFormat format : {WeightFormat::kFp8Tile32, WeightFormat::kFp4Row32, WeightFormat::kBf16, WeightFormat::kF32}) {
    const MatrixSource halves[] = {{format, 64, 64, values.data(), scales.data()}, {format, 64, 64, values.data() + 64, scales.data()}};
    std::vector<uint8_t> memory(static_cast<size_t>(PackedMatrix::StoredBytes(halves)) + 64);
    auto* aligned = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
    PackedMatrix packed = PackedMatrix::Place(halves, aligned, true);
    packed.Fill(halves, nullptr);
    id = id * 31 + PackChecksum(aligned, packed.bytes());
  }
  return id;
}

constexpr int64_t kMostExperts = int64_t{1} << 24;

int64_t DataOffset(int64_t num_experts) { return RoundUp(InputFile::kAlignment + 8 * num_experts, InputFile::kAlignment); }

struct AlignedBytes {
  explicit AlignedBytes(int64_t bytes) : data(static_cast<uint8_t*>(std::aligned_alloc(InputFile::kAlignment, static_cast<size_t>(bytes)))) {}
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  ~AlignedBytes() { std::free(data); }
  uint8_t* data;
};

// Temporary files of writers that are gone.
void RemoveLeftovers(const std::string& path) {
  const std::filesystem::path target(path);
  const std::string prefix = target.filename().string() + ".tmp-";
  std::error_code ignored;  // an unreadable folder shows when the file is created
  for (const auto& entry : std::filesystem::directory_iterator(target.parent_path(), ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const long pid = std::strtol(name.c_str() + prefix.size(), nullptr, 10);
    if (pid > 0 && ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) std::filesystem::remove(entry.path(), ignored);
  }
}

class Writer {
 public:
  explicit Writer(std::string path) : path_(std::move(path)), temporary_(fmt::format("{}.tmp-{}", path_, ::getpid())) {}
  ~Writer() {
    if (fd_ >= 0) ::close(fd_);
    if (is_named_ && !is_kept_) ::unlink(temporary_.c_str());
  }
  Status Create() {
    // Without a name until it is whole, where the file system can: then no way to end leaves it behind.
    fd_ = ::open(std::filesystem::path(path_).parent_path().c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0644);
    if (fd_ >= 0) return Status::Ok();
    is_named_ = true;
    fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    return fd_ < 0 ? Error("create", errno) : Status::Ok();
  }
  Status Write(int64_t offset, const void* data, int64_t bytes) {
    const auto* from = static_cast<const uint8_t*>(data);
    while (bytes > 0) {
      const ssize_t n = ::pwrite(fd_, from, static_cast<size_t>(bytes), offset);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Error("write", errno);
      from += n;
      offset += n;
      bytes -= n;
    }
    return Status::Ok();
  }
  // What was written so far leaves the page cache.
  Status Flush() {
    if (::fdatasync(fd_) != 0) return Error("write", errno);
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
    return Status::Ok();
  }
  Status Keep() {
    if (::fsync(fd_) != 0) return Error("write", errno);
    if (!is_named_) {
      const std::string open_file = fmt::format("/proc/self/fd/{}", fd_);
      if (::linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) != 0) return Error("name", errno);
      is_named_ = true;
    }
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) return Error("rename to", errno);
    is_kept_ = true;
    return Status::Ok();
  }

 private:
  Status Error(const char* what, int error) const {
    const char* remedy = error == ENOSPC || error == EDQUOT ? "free some space or choose another folder (--pack-cache)"
                                                            : "choose a folder that can be written (--pack-cache)";
    return ResourceExhausted(fmt::format("cannot {} {}: {}; {}", what, path_, std::strerror(error), remedy));
  }
  std::string path_, temporary_;
  int fd_ = -1;
  bool is_named_ = false;
  bool is_kept_ = false;
};

}  // namespace

uint64_t PackChecksum(const uint8_t* bytes, int64_t num_bytes) {
  constexpr uint64_t kPrime = 0x9e3779b97f4a7c15u;
  uint64_t lanes[4] = {1, 2, 3, 4};
  int64_t at = 0;
  for (; at + 32 <= num_bytes; at += 32) {
    uint64_t words[4];
    std::memcpy(words, bytes + at, 32);
    for (int i = 0; i < 4; ++i) lanes[i] = std::rotl((lanes[i] ^ words[i]) * kPrime, 29);
  }
  uint64_t hash = static_cast<uint64_t>(num_bytes);
  for (; at < num_bytes; ++at) hash = (hash ^ bytes[at]) * kPrime;
  for (const uint64_t lane : lanes) hash = std::rotl((hash ^ lane) * kPrime, 31);
  return hash ^ (hash >> 32);
}

Result<PackFile> PackFile::Open(const std::string& path, const PackKey& key, bool direct) {
  std::error_code missing;
  if (!std::filesystem::exists(path, missing)) return NotFound("it is not there yet");
  PackFile pack;
  DI_ASSIGN_OR_RETURN(pack.file_, InputFile::Open(path, direct));
  DI_ASSIGN_OR_RETURN(pack.map_, MappedFile::Open(path));
  const auto stale = [&](const char* why) { return BadModel(fmt::format("the file that is there {}", why)); };
  Header header;
  if (pack.map_.size() < InputFile::kAlignment) return stale("is no pack file");
  std::memcpy(static_cast<void*>(&header), pack.map_.data(), sizeof header);
  if (std::memcmp(header.magic, Header().magic, sizeof header.magic) != 0) return stale("is no pack file");
  if (header.checksum != HeaderChecksum(header)) return stale("has a damaged header");
  if (header.version != kVersion) return stale("has another version");
  if (header.layout != LayoutId()) return stale("was packed for another program or processor");
  // One with the experts of draft layers behind the others serves without them too.
  if (header.num_experts < key.num_experts || header.num_experts > kMostExperts || header.extent_bytes != key.extent_bytes ||
      std::string_view(header.fingerprint, std::min<size_t>(header.fingerprint_bytes, sizeof header.fingerprint)) != key.fingerprint)
    return stale("belongs to another checkpoint");
  pack.data_offset_ = header.data_offset;
  pack.extent_bytes_ = header.extent_bytes;
  if (header.data_offset != DataOffset(header.num_experts) || pack.map_.size() != pack.offset(header.num_experts)) return stale("has the wrong size");
  pack.checksums_.resize(static_cast<size_t>(header.num_experts));
  std::memcpy(pack.checksums_.data(), pack.map_.data() + InputFile::kAlignment, pack.checksums_.size() * 8);
  if (PackChecksum(reinterpret_cast<const uint8_t*>(pack.checksums_.data()), 8 * header.num_experts) != header.table_checksum)
    return stale("has a damaged table");
  pack.is_checked_.resize(pack.checksums_.size());
  if (direct) pack.map_ = MappedFile();
  return pack;
}

Status PackFile::Check(int64_t extent, const uint8_t* bytes) {
  if (is_checked_[static_cast<size_t>(extent)]) return Status::Ok();
  if (PackChecksum(bytes, extent_bytes_) != checksums_[static_cast<size_t>(extent)])
    return BadModel(fmt::format("{} is damaged at byte {}: the checksum does not fit; delete the file, it is made again", file_->path(), offset(extent)));
  is_checked_[static_cast<size_t>(extent)] = true;
  return Status::Ok();
}

Status WritePackFile(const std::string& path, const PackKey& key, std::span<const device::HostExpert> experts, ThreadPool& pool,
                     const std::function<void()>& release) {
  if (key.fingerprint.size() > sizeof(Header::fingerprint)) return Internal("the fingerprint of the checkpoint is too long");
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return ResourceExhausted(fmt::format("{} is a folder; move it away or choose another one (--pack-cache)", path));
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);  // creating the file tells
  RemoveLeftovers(path);
  const int64_t data_offset = DataOffset(key.num_experts), total = data_offset + key.num_experts * key.extent_bytes;
  struct statvfs space {};
  if (::statvfs(std::filesystem::path(path).parent_path().c_str(), &space) == 0 && static_cast<int64_t>(space.f_bavail * space.f_frsize) < total)
    return ResourceExhausted(fmt::format("{} needs {} but its disk has {} free; free some space or choose another folder (--pack-cache)", path,
                                         FormatBytes(total), FormatBytes(static_cast<int64_t>(space.f_bavail * space.f_frsize))));
  Writer writer(path);
  DI_RETURN_IF_ERROR(writer.Create());
  DI_LOG(info, "writing {}: {}, once", path, FormatBytes(total));
  AlignedBytes memory(key.extent_bytes);
  if (memory.data == nullptr) return ResourceExhausted("no memory to pack an expert");
  std::memset(memory.data, 0, static_cast<size_t>(key.extent_bytes));
  std::vector<uint64_t> checksums;
  int64_t unflushed = 0;
  constexpr size_t kProgressParts = 20;
  size_t told = 0;
  for (size_t e = 0; e < experts.size(); ++e) {
    const MatrixSource w13[] = {SourceOf(experts[e].w1), SourceOf(experts[e].w3)}, w2[] = {SourceOf(experts[e].w2)};
    DI_RETURN_IF_ERROR(CheckExpertFinite(experts[e], {{w13[0], w13[1], w2[0]}}).WithContext(fmt::format("packing expert {}", e)));
    PackedMatrix gate_up = PackedMatrix::Place(w13, memory.data, true);
    gate_up.Fill(w13, &pool);
    PackedMatrix down = PackedMatrix::Place(w2, memory.data + gate_up.bytes());
    down.Fill(w2, &pool);
    checksums.push_back(PackChecksum(memory.data, key.extent_bytes));
    DI_RETURN_IF_ERROR(writer.Write(data_offset + static_cast<int64_t>(e) * key.extent_bytes, memory.data, key.extent_bytes));
    unflushed += key.extent_bytes;
    if (unflushed < kFlushBytes) continue;
    if (const size_t part = kProgressParts * (e + 1) / experts.size(); part > told) {
      told = part;
      DI_LOG(info, "writing {}: {} % of {}", path, 100 * part / kProgressParts, FormatBytes(total));
    }
    DI_RETURN_IF_ERROR(writer.Flush());
    release();
    unflushed = 0;
  }
  Header header;
  header.layout = LayoutId();
  header.num_experts = key.num_experts;
  header.extent_bytes = key.extent_bytes;
  header.data_offset = data_offset;
  header.table_checksum = PackChecksum(reinterpret_cast<const uint8_t*>(checksums.data()), 8 * key.num_experts);
  header.fingerprint_bytes = static_cast<uint32_t>(key.fingerprint.size());
  std::memcpy(header.fingerprint, key.fingerprint.data(), key.fingerprint.size());
  header.checksum = HeaderChecksum(header);
  DI_RETURN_IF_ERROR(writer.Write(InputFile::kAlignment, checksums.data(), 8 * key.num_experts));
  DI_RETURN_IF_ERROR(writer.Write(0, &header, sizeof header));
  DI_RETURN_IF_ERROR(writer.Flush());
  release();
  // Pages that could not be read were packed as zeros.
  if (IsAnyMappingDamaged())
    return BadModel("a file of the checkpoint became shorter or unreadable while its experts were packed; restore it (deepinfer inspect --verify) and start again");
  return writer.Keep();
}

}  // namespace deepinfer::cpu
