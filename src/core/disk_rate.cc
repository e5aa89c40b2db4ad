// SPDX-License-Identifier: Apache-2.0
#include "core/disk_rate.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include <fmt/format.h>

#include "core/async_reader.h"
#include "core/clock.h"

namespace deepinfer {
namespace {

constexpr int64_t kPiece = int64_t{1} << 20;
constexpr int kPiecesPerBatch = 16;  // two batches under way keep the queue full

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<uint8_t[], Free>;

Buffer AllocateAligned(int64_t bytes) {
  return Buffer(static_cast<uint8_t*>(std::aligned_alloc(InputFile::kAlignment, static_cast<size_t>(bytes))));
}

// Bytes per second of reading the pieces in the order given until `seconds` are over.
Result<double> ReadPieces(AsyncReader& reader, InputFile& file, const std::vector<int64_t>& pieces, uint8_t* buffer, double seconds) {
  ReadBatch batches[2];
  const double start = Clock::Steady().NowSeconds();
  size_t next = 0;
  int64_t bytes = 0;
  for (int turn = 0; turn < 2 || next < pieces.size(); ++turn) {
    ReadBatch& batch = batches[turn % 2];
    batch.Wait();
    DI_RETURN_IF_ERROR(batch.status());
    batch.Reset();
    if (Clock::Steady().NowSeconds() - start > seconds) break;
    FileRead reads[kPiecesPerBatch];
    size_t count = 0;
    for (; count < kPiecesPerBatch && next < pieces.size(); ++count, ++next) {
      uint8_t* to = buffer + (turn % 2 * kPiecesPerBatch + static_cast<int64_t>(count)) * kPiece;
      reads[count] = {.file = &file, .offset = pieces[next] * kPiece, .bytes = kPiece, .buffer = to, .min_bytes = -1};
    }
    if (count == 0) break;
    reader.Submit({reads, count}, batch);
    bytes += static_cast<int64_t>(count) * kPiece;
  }
  for (ReadBatch& batch : batches) {
    batch.Wait();
    DI_RETURN_IF_ERROR(batch.status());
  }
  const double taken = Clock::Steady().NowSeconds() - start;
  return taken > 0 ? static_cast<double>(bytes) / taken : 0.0;
}

// Writes random bytes, which no disk can compress; returns how many there are.
Result<int64_t> FillFile(int fd, const std::string& path, int64_t bytes, double seconds) {
  const Buffer data = AllocateAligned(4 * kPiece);
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

Result<DiskRate> MeasureDiskRate(const std::string& path, double seconds) {
  DI_ASSIGN_OR_RETURN(const std::shared_ptr<InputFile> file, InputFile::Open(path, true));
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<AsyncReader> reader, AsyncReader::Create({}));
  const Buffer buffer = AllocateAligned(2 * kPiecesPerBatch * kPiece);
  if (!buffer) return ResourceExhausted("no memory for the disk measurement");
  std::vector<int64_t> pieces(static_cast<size_t>(file->size() / kPiece));
  if (pieces.size() < 16) return InvalidArgument(fmt::format("{} is too small to measure a disk with", path));
  std::iota(pieces.begin(), pieces.end(), 0);
  DiskRate rate;
  rate.file_bytes = file->size();
  rate.reader = reader->name();
  // The random part first and on the whole file: pieces that both read may be in a cache of the disk by then, which flatters
  // the sequential rate only.
  std::shuffle(pieces.begin(), pieces.end(), std::mt19937_64(7));
  DI_ASSIGN_OR_RETURN(rate.random_bytes_per_s, ReadPieces(*reader, *file, pieces, buffer.get(), seconds / 2));
  std::sort(pieces.begin(), pieces.end());
  DI_ASSIGN_OR_RETURN(rate.sequential_bytes_per_s, ReadPieces(*reader, *file, pieces, buffer.get(), seconds / 2));
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
