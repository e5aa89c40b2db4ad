// SPDX-License-Identifier: Apache-2.0
#include "core/disk_sweep.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "core/async_reader.h"
#include "core/clock.h"

namespace deepinfer {

Result<double> MeasureRandomReads(std::span<const std::string> paths, const DiskSweepOptions& options) {
  constexpr size_t kAtATime = 4;
  const int64_t piece = std::max(options.piece_bytes / InputFile::kAlignment, int64_t{1}) * InputFile::kAlignment;
  std::vector<std::shared_ptr<InputFile>> files;
  for (const std::string& path : paths) {
    DI_ASSIGN_OR_RETURN(std::shared_ptr<InputFile> file, InputFile::Open(path, true));
    if (file->size() >= piece) files.push_back(std::move(file));
  }
  if (files.empty()) return InvalidArgument("no file is large enough to measure the disk with");
  AsyncReaderOptions reader_options;
  reader_options.backend = options.backend;
  // Huge pages, touched and registered, as the memory that experts are read to: small pages alone may halve the rate.
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t bytes = (static_cast<size_t>(piece) * kAtATime + kHugePage - 1) / kHugePage * kHugePage;
  std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(kHugePage, bytes), &std::free);
  if (memory == nullptr) return ResourceExhausted("no memory to measure the disk with");
  madvise(memory.get(), bytes, MADV_HUGEPAGE);
  std::memset(memory.get(), 1, bytes);
  ReadBatch batches[kAtATime];  // go after the reader
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<AsyncReader> reader, AsyncReader::Create(reader_options));
  reader->RegisterMemory(memory.get(), static_cast<int64_t>(bytes));
  std::mt19937_64 random(options.seed);
  const Clock& clock = Clock::Steady();
  const double begin_s = clock.NowSeconds();
  int64_t num_bytes = 0;
  for (int64_t i = 0; i < options.num_pieces + static_cast<int64_t>(kAtATime); ++i) {
    const size_t at = static_cast<size_t>(i) % kAtATime;
    batches[at].Wait();
    DI_RETURN_IF_ERROR(batches[at].status());
    if (i >= options.num_pieces || clock.NowSeconds() - begin_s > options.max_seconds) continue;
    InputFile& file = *files[random() % files.size()];
    const uint64_t places = static_cast<uint64_t>((file.size() - piece) / InputFile::kAlignment + 1);
    const FileRead read{&file, static_cast<int64_t>(random() % places) * InputFile::kAlignment, piece,
                        static_cast<uint8_t*>(memory.get()) + static_cast<int64_t>(at) * piece};
    reader->Submit({&read, 1}, batches[at]);
    num_bytes += piece;
  }
  for (const ReadBatch& batch : batches) {
    batch.Wait();
    DI_RETURN_IF_ERROR(batch.status());
  }
  const double seconds = clock.NowSeconds() - begin_s;
  return seconds > 0 ? static_cast<double>(num_bytes) / seconds : 0;
}

}  // namespace deepinfer
