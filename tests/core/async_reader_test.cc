// SPDX-License-Identifier: Apache-2.0
#include "core/async_reader.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "temporary_dir.h"

namespace deepinfer {
namespace {

using testing::TemporaryDir;

std::string RandomText(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

struct AlignedBytes {
  explicit AlignedBytes(size_t bytes) : data(static_cast<uint8_t*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096))) {}
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  ~AlignedBytes() { std::free(data); }
  uint8_t* data;
};

class Hook : public ReadFilter {
 public:
  explicit Hook(std::function<int64_t(int64_t offset, int64_t bytes, int64_t result)> fn) : fn_(std::move(fn)) {}
  int64_t Filter(const InputFile&, int64_t offset, int64_t bytes, int64_t result) override { return fn_(offset, bytes, result); }

 private:
  std::function<int64_t(int64_t, int64_t, int64_t)> fn_;
};

class AsyncReaderTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string_view(GetParam()) == "uring" && !IsUringAvailable()) GTEST_SKIP() << "no io_uring here";
  }
  std::unique_ptr<AsyncReader> Make(ReadFilter* filter = nullptr, int depth = 8, int64_t chunk = 16384) {
    AsyncReaderOptions options;
    options.backend = GetParam();
    options.queue_depth = depth;
    options.chunk_bytes = chunk;
    options.filter = filter;
    auto made = AsyncReader::Create(options);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return std::move(made).value();
  }
  TemporaryDir dir;
};

TEST_P(AsyncReaderTest, ReadsTheBytesOfTheFileAtAnyOffsetAndSize) {
  const std::string text = RandomText(300'001, 1);
  const std::string path = dir.Write("data", text);
  for (const bool direct : {false, true}) {
    auto file = InputFile::Open(path, direct);
    ASSERT_TRUE(file.ok());
    EXPECT_EQ((*file)->size(), static_cast<int64_t>(text.size()));
    const auto reader = Make();
    std::mt19937 random(2);
    std::vector<std::vector<uint8_t>> buffers(200);
    std::vector<FileRead> reads;
    for (auto& buffer : buffers) {
      const int64_t offset = static_cast<int64_t>(random() % text.size());
      const int64_t bytes = 1 + static_cast<int64_t>(random() % std::min<size_t>(text.size() - static_cast<size_t>(offset), 70'000));
      buffer.resize(static_cast<size_t>(bytes));
      reads.push_back({file->get(), offset, bytes, buffer.data()});
    }
    ReadBatch batch;
    reader->Submit(reads, batch);
    batch.Wait();
    EXPECT_TRUE(batch.is_done());
    ASSERT_TRUE(batch.status().ok()) << batch.status().ToString();
    for (size_t i = 0; i < reads.size(); ++i)
      ASSERT_EQ(std::memcmp(buffers[i].data(), text.data() + reads[i].offset, buffers[i].size()), 0) << i;
  }
}

TEST_P(AsyncReaderTest, DirectReadsMayReachPastTheEndOfTheFile) {
  const std::string text = RandomText(50'000, 3);
  auto file = InputFile::Open(dir.Write("data", text), true);
  ASSERT_TRUE(file.ok());
  AlignedBytes buffer(53'248), registered(53'248);
  const auto reader = Make();
  reader->RegisterMemory(registered.data, 53'248);  // may be refused
  for (uint8_t* to : {buffer.data, registered.data}) {
    const FileRead read{file->get(), 0, 53'248, to, 50'000};
    ReadBatch batch;
    reader->Submit({&read, 1}, batch);
    batch.Wait();
    ASSERT_TRUE(batch.status().ok()) << batch.status().ToString();
    EXPECT_EQ(std::memcmp(to, text.data(), text.size()), 0);
  }
}

TEST_P(AsyncReaderTest, AReadPastTheEndIsATruncatedFile) {
  const std::string path = dir.Write("data", RandomText(10'000, 4));
  auto file = InputFile::Open(path, false);
  std::vector<uint8_t> buffer(8192);
  const FileRead read{file->get(), 4096, 8192, buffer.data()};
  const auto reader = Make();
  ReadBatch batch;
  reader->Submit({&read, 1}, batch);
  batch.Wait();
  EXPECT_EQ(batch.status().code(), StatusCode::kBadModel);
  EXPECT_EQ(batch.status().message(),
            path + " is truncated: it ends at byte 10000, bytes up to 12288 are needed; restore the file and start again");
}

TEST_P(AsyncReaderTest, AFileThatIsChangedInPlaceIsAnErrorAndAReplacedOneIsNot) {
  const std::string text = RandomText(20'000, 5);
  const std::string path = dir.Write("data", text), other = dir.Write("other", RandomText(20'000, 6));
  auto file = InputFile::Open(path, false);
  std::vector<uint8_t> buffer(20'000);
  const FileRead read{file->get(), 0, 20'000, buffer.data()};
  const auto reader = Make();
  ReadBatch batch;
  EXPECT_FALSE((*file)->IsReplaced());
  ASSERT_EQ(std::rename(other.c_str(), path.c_str()), 0);
  EXPECT_TRUE((*file)->IsReplaced());
  reader->Submit({&read, 1}, batch);
  batch.Wait();
  // The rename took the last name of the old file, which changes no byte and no time of modification.
  EXPECT_TRUE(batch.status().ok()) << batch.status().ToString();
  EXPECT_EQ(std::memcmp(buffer.data(), text.data(), text.size()), 0);

  auto second = InputFile::Open(path, false);
  ASSERT_EQ(::truncate(path.c_str(), 5000), 0);
  const FileRead again{second->get(), 0, 20'000, buffer.data()};
  reader->Submit({&again, 1}, batch);
  batch.Wait();
  EXPECT_EQ(batch.status().message(),
            path + " was truncated while it was in use: it has 5000 bytes instead of 20000; restore the file and start again");
  batch.Reset();
  EXPECT_TRUE(batch.status().ok());

  auto third = InputFile::Open(path, false);
  const timeval long_ago[2] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(::utimes(path.c_str(), long_ago), 0);
  const FileRead changed{third->get(), 0, 100, buffer.data()};
  reader->Submit({&changed, 1}, batch);
  batch.Wait();
  EXPECT_EQ(batch.status().message(), path + " was changed while it was in use; let nothing write to it and start again");
}

TEST_P(AsyncReaderTest, ShortAndInterruptedReadsAreContinued) {
  const std::string text = RandomText(200'000, 7);
  auto file = InputFile::Open(dir.Write("data", text), true);
  std::atomic<int> count{0};
  Hook hook([&](int64_t, int64_t, int64_t result) -> int64_t {
    const int n = count.fetch_add(1);
    if (n % 5 == 1) return -EINTR;
    if (n % 5 == 3) return -EAGAIN;
    return result > 1 ? (result + 1) / 2 : result;
  });
  const auto reader = Make(&hook);
  AlignedBytes buffer(200'704);
  const FileRead read{file->get(), 0, 200'704, buffer.data, 200'000};
  ReadBatch batch;
  reader->Submit({&read, 1}, batch);
  batch.Wait();
  ASSERT_TRUE(batch.status().ok()) << batch.status().ToString();
  EXPECT_EQ(std::memcmp(buffer.data, text.data(), text.size()), 0);
}

TEST_P(AsyncReaderTest, ABatchCarriesTheErrorOfItsFirstFailedRead) {
  const std::string path = dir.Write("data", RandomText(400'000, 8));
  auto file = InputFile::Open(path, false);
  Hook hook([&](int64_t offset, int64_t, int64_t result) -> int64_t { return offset == 100'000 || offset == 300'000 ? -EIO : result; });
  const auto reader = Make(&hook);
  std::vector<uint8_t> buffer(400'000);
  std::vector<FileRead> reads;
  for (int64_t i = 0; i < 40; ++i) reads.push_back({file->get(), i * 10'000, 10'000, buffer.data() + i * 10'000});
  ReadBatch batch;
  reader->Submit(reads, batch);
  batch.Wait();
  EXPECT_EQ(batch.status().message(), "cannot read " + path + " at byte 100000: Input/output error; check the disk");
}

TEST_P(AsyncReaderTest, EndlessInterruptionsEndAsAnError) {
  auto file = InputFile::Open(dir.Write("data", "0123456789"), false);
  Hook hook([](int64_t, int64_t, int64_t) -> int64_t { return -EINTR; });
  const auto reader = Make(&hook);
  char buffer[10];
  const FileRead read{file->get(), 0, 10, buffer};
  ReadBatch batch;
  reader->Submit({&read, 1}, batch);
  batch.Wait();
  EXPECT_EQ(batch.status().code(), StatusCode::kBadModel);
}

TEST_P(AsyncReaderTest, ManyThreadsMaySubmit) {
  const std::string text = RandomText(100'000, 9);
  auto file = InputFile::Open(dir.Write("data", text), true);
  const auto reader = Make(nullptr, 4, 4096);
  std::vector<std::thread> threads;
  std::atomic<int> num_wrong{0};
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<uint8_t> buffer(20'000);
      ReadBatch batch;
      for (int i = 0; i < 50; ++i) {
        const int64_t offset = static_cast<int64_t>(random() % 80'000);
        const FileRead read{file->get(), offset, 20'000, buffer.data()};
        reader->Submit({&read, 1}, batch, i % 2 == 0 ? ReadPriority::kDemand : ReadPriority::kPrefetch);
        reader->Promote(batch);
        batch.Wait();
        if (!batch.status().ok() || std::memcmp(buffer.data(), text.data() + offset, buffer.size()) != 0) ++num_wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong.load(), 0);
}

TEST_P(AsyncReaderTest, ReadsThatHaveNotBegunAreCancelledAtTheEnd) {
  auto file = InputFile::Open(dir.Write("data", RandomText(4096 * 64, 10)), false);
  // The first read waits until the rest is cancelled: nothing else can begin, the queue has one place.
  std::promise<void> begun, submitted;
  ReadBatch first, rest;
  Hook hook([&](int64_t, int64_t, int64_t result) -> int64_t {
    begun.set_value();
    submitted.get_future().wait();
    rest.Wait();
    return result;
  });
  auto reader = Make(&hook, 1, 4096);
  std::vector<uint8_t> buffer(4096 * 64);
  const FileRead one{file->get(), 0, 4096, buffer.data()};
  const FileRead many{file->get(), 4096, 4096 * 63, buffer.data() + 4096};
  reader->Submit({&one, 1}, first);
  begun.get_future().wait();
  reader->Submit({&many, 1}, rest, ReadPriority::kPrefetch);
  submitted.set_value();
  reader.reset();
  EXPECT_TRUE(first.status().ok());
  EXPECT_EQ(rest.status().code(), StatusCode::kCancelled);
}

TEST_P(AsyncReaderTest, DemandReadsGoBeforePrefetchReads) {
  const std::string text = RandomText(4096 * 4, 11);
  auto file = InputFile::Open(dir.Write("data", text), false);
  std::mutex mutex;
  std::condition_variable changed;
  bool opened = false;
  std::vector<int64_t> order;
  Hook hook([&](int64_t offset, int64_t, int64_t result) -> int64_t {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return opened; });
    order.push_back(offset / 4096);
    return result;
  });
  const auto reader = Make(&hook, 1, 4096);
  std::vector<uint8_t> buffer(4096 * 4);
  ReadBatch batches[4];
  const auto submit = [&](int64_t i, ReadPriority priority) {
    const FileRead read{file->get(), i * 4096, 4096, buffer.data() + i * 4096};
    reader->Submit({&read, 1}, batches[i], priority);
  };
  submit(0, ReadPriority::kDemand);
  submit(1, ReadPriority::kPrefetch);
  submit(2, ReadPriority::kPrefetch);
  submit(3, ReadPriority::kDemand);
  reader->Promote(batches[2]);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    opened = true;
  }
  changed.notify_all();
  for (const ReadBatch& batch : batches) batch.Wait();
  EXPECT_EQ(order, (std::vector<int64_t>{0, 3, 2, 1}));
}

INSTANTIATE_TEST_SUITE_P(BackEnds, AsyncReaderTest, ::testing::Values("threads", "uring"),
                         [](const auto& back_end) { return std::string(back_end.param); });

TEST(AsyncReader, NamesAreChecked) {
  AsyncReaderOptions options;
  options.backend = "dma";
  EXPECT_EQ(AsyncReader::Create(options).status().message(),
            "the back end of asynchronous reads is \"dma\" but must be auto, uring or threads");
}

TEST(AsyncReader, AMissingFileIsAnError) {
  EXPECT_EQ(InputFile::Open("/nonexistent/file", true).status().message(),
            "cannot read /nonexistent/file: No such file or directory; check the path");
}

TEST(AsyncReader, MemoryThatCannotBeRegisteredIsNoFailure) {
  if (!IsUringAvailable()) GTEST_SKIP() << "no io_uring here";
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &old), 0);
  rlimit small = old;
  small.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &small), 0);
  AsyncReaderOptions options;
  options.backend = "uring";
  auto reader = AsyncReader::Create(options);
  AlignedBytes memory(1 << 20);
  // Root may lock what it likes; where it is refused, the note says why.
  if (reader.ok() && !(*reader)->RegisterMemory(memory.data, 1 << 20)) {
    EXPECT_NE((*reader)->note().find("buffers are not registered"), std::string::npos);
  }
  ::setrlimit(RLIMIT_MEMLOCK, &old);
  TemporaryDir dir;
  auto file = InputFile::Open(dir.Write("data", "0123456789"), false);
  if (!reader.ok()) return;  // the ring itself counts as locked on old kernels
  const FileRead read{file->get(), 2, 5, memory.data};
  ReadBatch batch;
  (*reader)->Submit({&read, 1}, batch);
  batch.Wait();
  EXPECT_TRUE(batch.status().ok());
  EXPECT_EQ(std::memcmp(memory.data, "23456", 5), 0);
}

}  // namespace
}  // namespace deepinfer
