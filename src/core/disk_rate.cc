// SPDX-License-Identifier: Apache-2.0
#include "core/disk_rate.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "core/async_reader.h"
#include "core/clock.h"

namespace deepinfer {
namespace {

constexpr int64_t kPiece = int64_t{1} << 20;
constexpr size_t kPiecesAtATime = 32;  // keep the queue full
constexpr size_t kRandomPiecesAtATime = 4;

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<uint8_t[], Free>;

Buffer AllocateAligned(int64_t alignment, int64_t bytes) {
  return Buffer(static_cast<uint8_t*>(std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>((bytes + alignment - 1) / alignment * alignment))));
}

struct Place {
  InputFile* file;
  int64_t offset;
};

class PieceReader {
 public:
  static Result<PieceReader> Create(const std::string& backend, int64_t piece_bytes, size_t at_a_time) {
    // Huge pages, touched and registered, as the memory that experts are read to: small pages alone may halve the rate.
    constexpr int64_t kHugePage = int64_t{2} << 20;
    PieceReader pieces;
    pieces.piece_bytes_ = piece_bytes;
    pieces.at_a_time_ = at_a_time;
    const int64_t bytes = piece_bytes * static_cast<int64_t>(at_a_time);
    pieces.memory_ = AllocateAligned(kHugePage, bytes);
    if (!pieces.memory_) return ResourceExhausted("no memory for the disk measurement");
    madvise(pieces.memory_.get(), static_cast<size_t>(bytes), MADV_HUGEPAGE);
    std::memset(pieces.memory_.get(), 1, static_cast<size_t>(bytes));
    AsyncReaderOptions options;
    options.backend = backend;
    DI_ASSIGN_OR_RETURN(pieces.reader_, AsyncReader::Create(options));
    pieces.reader_->RegisterMemory(pieces.memory_.get(), bytes);
    return pieces;
  }

  // Bytes per second of reading the places in the order given; none is begun after `max_seconds`.
  Result<double> Read(const std::vector<Place>& places, double max_seconds) {
    const auto batches = std::make_unique<ReadBatch[]>(at_a_time_);
    const Clock& clock = Clock::Steady();
    const double start = clock.NowSeconds();
    int64_t bytes = 0;
    for (size_t i = 0; i < places.size(); ++i) {
      ReadBatch& batch = batches[i % at_a_time_];
      batch.Wait();
      DI_RETURN_IF_ERROR(batch.status());
      if (clock.NowSeconds() - start > max_seconds) break;
      const FileRead read{places[i].file, places[i].offset, piece_bytes_, memory_.get() + static_cast<int64_t>(i % at_a_time_) * piece_bytes_};
      reader_->Submit({&read, 1}, batch);
      bytes += piece_bytes_;
    }
    for (size_t i = 0; i < at_a_time_; ++i) {
      batches[i].Wait();
      DI_RETURN_IF_ERROR(batches[i].status());
    }
    const double seconds = clock.NowSeconds() - start;
    return seconds > 0 ? static_cast<double>(bytes) / seconds : 0.0;
  }

  std::string_view reader_name() const { return reader_->name(); }

 private:
  int64_t piece_bytes_ = 0;
  size_t at_a_time_ = 0;
  Buffer memory_;
  std::unique_ptr<AsyncReader> reader_;
};

// Writes random bytes, which no disk can compress; returns how many there are.
Result<int64_t> FillFile(int fd, const std::string& path, int64_t bytes, double seconds) {
  const Buffer data = AllocateAligned(InputFile::kAlignment, 4 * kPiece);
  if (!data) return ResourceExhausted("no memory for the disk measurement");
  std::mt19937_64 rng(1);
  for (int64_t i = 0; i < 4 * kPiece; i += 8) {
    const uint64_t word = rng();
    std::memcpy(data.get() + i, &word, sizeof(word));
  }
  const double start = Clock::Steady().NowSeconds();
  int64_t written = 0;
  while (written < bytes && (written < 16 * kPiece || Clock::Steady().NowSeconds() - start < seconds)) {
    const ssize_t n = ::pwrite(fd, data.get(), static_cast<size_t>(4 * kPiece), written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 4 * kPiece || ::fdatasync(fd) != 0) {
      return Unavailable(fmt::format("cannot write to {} to measure its disk: {}", path, n < 0 ? std::strerror(errno) : "no space left"));
    }
    written += n;
  }
  return written;
}

}  // namespace

Result<double> MeasureRandomReads(std::span<const std::string> paths, const RandomReadOptions& options) {
  const int64_t piece = std::max(options.piece_bytes / InputFile::kAlignment, int64_t{1}) * InputFile::kAlignment;
  std::vector<std::shared_ptr<InputFile>> files;
  for (const std::string& path : paths) {
    DI_ASSIGN_OR_RETURN(std::shared_ptr<InputFile> file, InputFile::Open(path, true));
    if (file->size() >= piece) files.push_back(std::move(file));
  }
  if (files.empty()) return InvalidArgument("no file is large enough to measure the disk with");
  std::mt19937_64 random(options.seed);
  std::vector<Place> places;
  for (int64_t i = 0; i < options.num_pieces; ++i) {
    InputFile& file = *files[random() % files.size()];
    const uint64_t choices = static_cast<uint64_t>((file.size() - piece) / InputFile::kAlignment + 1);
    places.push_back({&file, static_cast<int64_t>(random() % choices) * InputFile::kAlignment});
  }
  DI_ASSIGN_OR_RETURN(PieceReader reader, PieceReader::Create(options.backend, piece, kRandomPiecesAtATime));
  return reader.Read(places, options.max_seconds);
}

Result<DiskRate> MeasureDiskRate(const std::string& path, double seconds) {
  DI_ASSIGN_OR_RETURN(const std::shared_ptr<InputFile> file, InputFile::Open(path, true));
  DI_ASSIGN_OR_RETURN(PieceReader reader, PieceReader::Create("auto", kPiece, kPiecesAtATime));
  std::vector<Place> places;
  for (int64_t at = 0; at + kPiece <= file->size(); at += kPiece) places.push_back({file.get(), at});
  if (places.size() < 16) return InvalidArgument(fmt::format("{} is too small to measure a disk with", path));
  DiskRate rate;
  rate.file_bytes = file->size();
  rate.reader = reader.reader_name();
  // The random part first and on the whole file: pieces that both read may be in a cache of the disk by then, which flatters
  // the sequential rate only.
  const std::vector<Place> in_order = places;
  std::shuffle(places.begin(), places.end(), std::mt19937_64(7));
  DI_ASSIGN_OR_RETURN(rate.random_bytes_per_s, reader.Read(places, seconds / 2));
  DI_ASSIGN_OR_RETURN(rate.sequential_bytes_per_s, reader.Read(in_order, seconds / 2));
  rate.is_direct = file->is_direct();
  return rate;
}

Result<DiskRate> MeasureDiskRateOfFolder(const std::string& folder, double seconds, int64_t bytes) {
  std::string path = folder + "/.deepinfer-disk-rate-XXXXXX";
  const int fd = ::mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) return Unavailable(fmt::format("cannot write to {} to measure its disk: {}", folder, std::strerror(errno)));
  ::unlink(path.c_str());  // nothing is left behind, whatever happens
  const Result<int64_t> written = FillFile(fd, folder, bytes, seconds / 2);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);  // for file systems without O_DIRECT
  Result<DiskRate> rate =
      written.ok() ? MeasureDiskRate(fmt::format("/proc/self/fd/{}", fd), seconds / 2) : Result<DiskRate>(written.status());
  ::close(fd);
  if (rate.ok()) rate->is_temporary = true;
  return rate;
}

}  // namespace deepinfer
