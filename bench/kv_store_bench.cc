// SPDX-License-Identifier: Apache-2.0
//
// The persistent prefix cache beside the file system it is on: kv_store_bench DIR [RECORDS.jsonl]. Writing and reading against
// one file written and read at 1 MiB in the same run, turn about; the lookup of a prompt of a million tokens; hashing and
// checking; the scan that recovers a segment. DIR needs 3 GiB and should be on the disk that the store will be on.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include <fmt/format.h>

#include "bench/record.h"
#include "kvstore/block_store.h"

namespace deepinfer::bench {
namespace {

using namespace kvstore;

constexpr uint32_t kPayload = 113'920;
constexpr size_t kBlocks = 4608;  // half a gigabyte
constexpr int kRounds = 5;

double Now() { return Clock::Steady().NowSeconds(); }
double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Recorder {
 public:
  explicit Recorder(const std::string& path) : load_(LoadAverage()) {
    if (!path.empty()) file_.open(path);
  }
  // `seconds` of each round for `bytes`; `reference` seconds for the same bytes, if there is one.
  void Add(const std::string& shape, const std::vector<double>& seconds, double bytes, const std::string& name = {},
           const std::vector<double>& reference = {}) {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    Json record = {{"bench", "kv_store"},
                   {"commit", FirstLineOf("git -C '" DEEPINFER_SOURCE_DIR "' rev-parse --short=12 HEAD 2>/dev/null")},
                   {"date_utc", UtcDate()},
                   {"host", HostRecord()},
                   {"device", {{"name", "cpu"}}},
                   {"backend", "cpu"},
                   {"shape", shape},
                   {"reps", seconds.size()},
                   {"median", Median(sorted) * 1e6},
                   {"p10", sorted[sorted.size() / 10] * 1e6},
                   {"p90", sorted[sorted.size() * 9 / 10] * 1e6},
                   {"unit", "us"},
                   {"bytes", bytes},
                   {"load_average", load_},
                   {"valid", load_ <= 0.75 * ThreadPool::NumAvailableCores()}};
    std::string line = fmt::format("{:<28}{:>12.3f} ms", shape, Median(seconds) * 1e3);
    if (bytes > 0) line += fmt::format("{:>9.2f} GB/s", bytes / Median(seconds) / 1e9);
    if (!reference.empty()) {
      std::vector<double> ratios;
      for (size_t i = 0; i < seconds.size(); ++i) ratios.push_back(reference[i] / seconds[i]);
      record["paired_ref"] = {{"name", name}, {"median", bytes / Median(reference) / 1e9}, {"ratio_median", Median(ratios)}};
      line += fmt::format("   {:.2f} of {} ({:.2f} GB/s)", Median(ratios), name, bytes / Median(reference) / 1e9);
    }
    fmt::print("{}\n", line);
    if (file_.is_open()) file_ << DumpJson(record) << std::endl;
  }

 private:
  double load_;
  std::ofstream file_;
};

double WriteFile(const std::string& path, const std::vector<uint8_t>& chunk, size_t chunks) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  DI_CHECK(fd >= 0) << path;
  const double begin = Now();
  for (size_t i = 0; i < chunks; ++i) {
    DI_CHECK(::pwrite(fd, chunk.data(), chunk.size(), static_cast<off_t>(i * chunk.size())) == static_cast<ssize_t>(chunk.size()));
  }
  DI_CHECK(::fdatasync(fd) == 0);
  const double seconds = Now() - begin;
  ::close(fd);
  return seconds;
}

double ReadFileDirect(const std::string& path, size_t chunk_bytes, size_t chunks) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  DI_CHECK(fd >= 0) << path;
  auto* buffer = static_cast<uint8_t*>(std::aligned_alloc(4096, chunk_bytes));
  const double begin = Now();
  for (size_t i = 0; i < chunks; ++i) {
    DI_CHECK(::pread(fd, buffer, chunk_bytes, static_cast<off_t>(i * chunk_bytes)) == static_cast<ssize_t>(chunk_bytes));
  }
  const double seconds = Now() - begin;
  std::free(buffer);
  ::close(fd);
  return seconds;
}

std::vector<Key256> Chain(int seed, size_t count) {
  std::vector<Key256> keys;
  const std::vector<int32_t> tokens(128, seed);
  Key256 parent;
  for (size_t i = 0; i < count; ++i) keys.push_back(parent = BlockKey(parent, static_cast<int64_t>(i), tokens, {}));
  return keys;
}

int Run(const std::string& dir, const std::string& records) {
  Recorder recorder(records);
  std::filesystem::create_directories(dir);
  const std::string reference = dir + "/reference";
  const uint64_t bytes = kBlocks * RecordBytes(kPayload);
  const size_t chunks = bytes >> 20;
  std::vector<uint8_t> chunk(1 << 20), payload(kPayload);
  std::mt19937_64 random(1);
  for (uint8_t& byte : chunk) byte = static_cast<uint8_t>(random());
  std::copy_n(chunk.begin(), payload.size(), payload.begin());

  std::vector<double> write, write_reference, read, read_reference;
  for (int round = 0; round < kRounds; ++round) {
    std::filesystem::remove_all(dir + "/store");
    StoreOptions options;
    options.root = dir + "/store";
    options.payload_bytes = kPayload;
    const std::vector<Key256> keys = Chain(round, kBlocks);
    write_reference.push_back(WriteFile(reference, chunk, chunks));
    auto store = BlockStore::Open(options).value();
    double begin = Now();
    for (size_t i = 0; i < keys.size(); ++i) {
      OfferedBlock block;
      block.key = keys[i];
      block.parent = i == 0 ? Key256() : keys[i - 1];
      block.block_index = static_cast<uint32_t>(i);
      block.payload = payload;
      store->Offer({&block, 1});
    }
    store->Flush();
    write.push_back(Now() - begin);
    store.reset();  // seals
    store = BlockStore::Open(options).value();
    std::vector<std::vector<uint8_t>> buffers(kBlocks, std::vector<uint8_t>(kPayload));
    const std::vector<std::span<uint8_t>> dst(buffers.begin(), buffers.end());
    HitPlan plan = store->Lookup(keys);
    read_reference.push_back(ReadFileDirect(reference, chunk.size(), chunks));
    begin = Now();
    const LoadResult loaded = store->Load(plan, dst, INT64_MAX);
    read.push_back(Now() - begin);
    store->Release(plan);
    DI_CHECK(loaded.num_ok_blocks == kBlocks && buffers.back() == payload);
  }
  recorder.Add("write", write, static_cast<double>(bytes), "pwrite of 1 MiB, one fdatasync", write_reference);
  recorder.Add("read", read, static_cast<double>(bytes), "pread of 1 MiB past the page cache", read_reference);

  // The index alone: a million blocks, of which one prompt has 7,812.
  {
    std::filesystem::remove_all(dir + "/index");
    auto index = BlockIndex::Open(HasRocksTable() ? OpenRocksTable(dir + "/index").value() : MakeMemoryTable(), {}, {}).value();
    SegmentRow row;
    row.stem = "x";
    const uint64_t segment = index->AddSegment(row).value();
    constexpr size_t kPrompt = 7812, kPrompts = 128;
    std::vector<CommitOutcome> outcomes;
    for (size_t p = 0; p < kPrompts; ++p) {
      const std::vector<Key256> keys = Chain(static_cast<int>(p), kPrompt);
      std::vector<NewBlock> blocks(kPrompt);
      for (size_t i = 0; i < kPrompt; ++i) {
        blocks[i].key = keys[i];
        blocks[i].entry.segment = segment;
        blocks[i].entry.offset = 4096 + i * 512;
        blocks[i].entry.block_index = static_cast<uint32_t>(i);
        blocks[i].entry.parent_low64 = i == 0 ? 0 : KeyLow64(keys[i - 1]);
      }
      DI_CHECK(index->Commit(blocks, outcomes).ok());
    }
    std::vector<double> keys_s, lookup_s;
    for (int p = 0; p < 21; ++p) {
      double begin = Now();
      const std::vector<Key256> keys = Chain(p * 6, kPrompt);
      keys_s.push_back(Now() - begin);
      std::vector<BlockEntry> found;
      begin = Now();
      DI_CHECK(index->Lookup(keys, false, found).ok() && found.size() == kPrompt);
      lookup_s.push_back(Now() - begin);
    }
    recorder.Add("keys_1M_tokens", keys_s, 0);
    recorder.Add("lookup_1M_tokens", lookup_s, 0);
    fmt::print("  of {} blocks in the index\n", index->num_blocks());
  }

  // K12 and K13: bytes in memory.
  std::vector<double> hash_s, scan_s;
  const size_t record = static_cast<size_t>(RecordBytes(kPayload));
  std::vector<uint8_t> image(kSegmentHeaderBytes + 512 * record);
  for (size_t i = 0; i < 512; ++i) {
    RecordHeader header;
    header.block_index = static_cast<uint32_t>(i);
    header.payload_len = header.raw_len = kPayload;
    header.payload_hash = PayloadHash(payload);
    const std::span<uint8_t> at = std::span(image).subspan(kSegmentHeaderBytes + i * record, record);
    EncodeRecordHeader(header, at.first(kRecordHeaderBytes));
    std::copy(payload.begin(), payload.end(), at.begin() + kRecordHeaderBytes);
  }
  for (int round = 0; round < 11; ++round) {
    double begin = Now();
    size_t count = 0;
    ScanRecords(image, [&](const RecordHeader&, uint64_t) { ++count; });
    DI_CHECK(count == 512);
    scan_s.push_back(Now() - begin);
    begin = Now();
    for (size_t i = 0; i < 512; ++i) {
      const uint64_t offset = kSegmentHeaderBytes + i * record;
      DI_CHECK(CheckRecord(image, offset).ok());
      std::copy_n(image.begin() + static_cast<std::ptrdiff_t>(offset + kRecordHeaderBytes), kPayload, chunk.begin());
    }
    hash_s.push_back(Now() - begin);
  }
  recorder.Add("check_and_copy_one_core", hash_s, static_cast<double>(image.size()));
  recorder.Add("recovery_scan_one_core", scan_s, static_cast<double>(image.size()));
  std::filesystem::remove_all(dir + "/store");
  std::filesystem::remove_all(dir + "/index");
  std::filesystem::remove(reference);
  return 0;
}

}  // namespace
}  // namespace deepinfer::bench

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: kv_store_bench DIR [RECORDS.jsonl]\n");
    return 2;
  }
  return deepinfer::bench::Run(argv[1], argc > 2 ? argv[2] : "");
}
