// SPDX-License-Identifier: Apache-2.0
//
// Experts read from disk: the same bits as with all experts in memory, at every budget and with every back end; faults end
// the step they meet and nothing else.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <functional>

#include "core/async_reader.h"
#include "model/expert_files.h"
#include "model/golden_support.h"
#include "temporary_dir.h"
#include "text/tokenizer.h"

namespace deepinfer::model {
namespace {

using testing::TemporaryDir;

const std::string kDemo = std::string(DEEPINFER_SOURCE_DIR) + "/models/demo";

struct Loaded {
  std::shared_ptr<device::Device> device;
  std::unique_ptr<Model> model;
};

// budget_bytes < 0: all experts in memory.
Result<Loaded> LoadDemo(int64_t budget_bytes, const std::string& io = "auto", const std::string& pack = "off", ReadFilter* filter = nullptr,
                        const std::string& dir = kDemo, int num_threads = 2) {
  static const std::vector<int32_t> kVocab = text::Tokenizer::Load(kDemo).value()->BuildCompressedVocab().map;
  LoadOptions options;
  options.with_draft = true;
  options.compressed_vocab = kVocab;
  Loaded loaded;
  DI_ASSIGN_OR_RETURN(std::shared_ptr<const Checkpoint> checkpoint, Checkpoint::Open(dir));
  backends::DeviceOptions device;
  device.num_threads = num_threads;
  DI_ASSIGN_OR_RETURN(loaded.device, backends::CreateDevice("cpu", device));
  if (budget_bytes >= 0) {
    device::ExpertStreaming streaming = ExpertFiles(*checkpoint);
    streaming.budget_bytes = budget_bytes;
    streaming.io = io;
    streaming.pack_path = PackPath(*checkpoint, pack);
    streaming.filter = filter;
    DI_RETURN_IF_ERROR(loaded.device->StreamExperts(std::move(streaming)));
  }
  DI_ASSIGN_OR_RETURN(loaded.model, Model::Load(checkpoint, ModelConfig::Load(dir).value(), loaded.device, options));
  return loaded;
}

// A prompt, then steps of two sequences, then drafts: all logits in a row.
Result<std::vector<float>> RunModel(Model& model) {
  std::vector<float> out;
  auto a = model.NewSequence().value(), b = model.NewSequence().value();
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 40; ++i) prompt.push_back(100 + 37 * i % 900);
  const auto step = [&](std::vector<SequenceChunk> chunks) -> Status {
    DI_ASSIGN_OR_RETURN(const auto logits, model.Forward(chunks));
    out.insert(out.end(), logits.begin(), logits.end());
    return Status::Ok();
  };
  DI_RETURN_IF_ERROR(step({{.sequence = a.get(), .ids = prompt}, {.sequence = b.get(), .ids = std::span(prompt).first(7)}}));
  for (int32_t i = 0; i < 4; ++i) {
    const std::vector<int32_t> next = {200 + i, 300 + 5 * i};
    DI_RETURN_IF_ERROR(step({{.sequence = a.get(), .ids = std::span(next).first(1)}, {.sequence = b.get(), .ids = std::span(next).last(1)}}));
  }
  const std::vector<int32_t> last = {17};
  DI_RETURN_IF_ERROR(step({{.sequence = a.get(), .ids = last}}));
  DI_ASSIGN_OR_RETURN(const DraftResult draft, model.Draft(*a, 5, true));
  out.insert(out.end(), draft.base_logits.begin(), draft.base_logits.end());
  return out;
}

const std::vector<float>& Resident() {
  static const std::vector<float> kLogits = RunModel(*LoadDemo(-1).value().model).value();
  return kLogits;
}

void ExpectSame(const std::vector<float>& logits) {
  ASSERT_EQ(logits.size(), Resident().size());
  EXPECT_EQ(std::memcmp(logits.data(), Resident().data(), logits.size() * sizeof(float)), 0);
}

int64_t ExpertBytes() {
  static const int64_t kBytes = LoadDemo(int64_t{1} << 30).value().device->expert_stats().expert_bytes;
  return kBytes;
}

class StreamingTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string_view(GetParam()) == "uring" && !IsUringAvailable()) GTEST_SKIP() << "no io_uring here";
  }
};

TEST_P(StreamingTest, GivesTheBitsOfAllExpertsInMemoryAtEveryBudget) {
  // From one slot for all layers to all experts. Beside the slots there is memory for reads that are under way.
  for (const int64_t num_slots : {1, 2, 11, 40, 152}) {
    auto loaded = LoadDemo((num_slots + 3) * ExpertBytes(), GetParam());
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    const auto logits = RunModel(*loaded->model);
    ASSERT_TRUE(logits.ok()) << logits.status().ToString();
    ExpectSame(*logits);
    const auto stats = loaded->device->expert_stats();
    EXPECT_LE(stats.num_slots, num_slots + 3);
    EXPECT_LE(stats.num_slots * stats.expert_bytes, (num_slots + 3) * ExpertBytes());
    EXPECT_GT(stats.num_misses, 0);
    if (num_slots == 152) {
      EXPECT_LE(stats.num_misses, stats.num_experts);
    }
  }
}

TEST_P(StreamingTest, APackFileGivesTheSameBitsAndIsMadeOnce) {
  TemporaryDir dir;
  struct stat first {}, second {};
  std::string path;
  for (int round = 0; round < 2; ++round) {
    auto loaded = LoadDemo(20 * ExpertBytes(), GetParam(), dir.path());
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    const auto logits = RunModel(*loaded->model);
    ASSERT_TRUE(logits.ok()) << logits.status().ToString();
    ExpectSame(*logits);
    path = PackPath(*Checkpoint::Open(kDemo).value(), dir.path());
    ASSERT_EQ(::stat(path.c_str(), round == 0 ? &first : &second), 0);
  }
  EXPECT_EQ(first.st_ino, second.st_ino);
  EXPECT_EQ(first.st_mtim.tv_nsec, second.st_mtim.tv_nsec);
}

INSTANTIATE_TEST_SUITE_P(BackEnds, StreamingTest, ::testing::Values("threads", "uring", "mmap"),
                         [](const auto& back_end) { return std::string(back_end.param); });

class Hook : public ReadFilter {
 public:
  explicit Hook(std::function<int64_t(int64_t)> fn) : fn_(std::move(fn)) {}
  int64_t Filter(const InputFile&, int64_t, int64_t, int64_t result) override { return fn_(result); }

 private:
  std::function<int64_t(int64_t)> fn_;
};

TEST(Streaming, AReadErrorEndsTheStepAndTheNextOneWorks) {
  for (const char* io : {"threads", "auto"}) {
    std::atomic<int> countdown{-1};
    Hook hook([&](int64_t result) -> int64_t {
      if (countdown.load() < 0) return result;
      return countdown.fetch_sub(1) == 0 ? -EIO : result;
    });
    auto loaded = LoadDemo(12 * ExpertBytes(), io, "off", &hook);
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    for (const int after : {0, 200}) {
      countdown = after;
      const auto failed = RunModel(*loaded->model);
      ASSERT_FALSE(failed.ok()) << after;
      EXPECT_EQ(failed.status().code(), StatusCode::kBadModel);
      EXPECT_NE(failed.status().message().find("reading expert "), std::string::npos) << failed.status().message();
      EXPECT_NE(failed.status().message().find("Input/output error"), std::string::npos) << failed.status().message();
      EXPECT_NE(failed.status().message().find(".safetensors"), std::string::npos) << failed.status().message();
      countdown = -1;
      const auto logits = RunModel(*loaded->model);
      ASSERT_TRUE(logits.ok()) << logits.status().ToString();
      ExpectSame(*logits);
    }
  }
}

TEST(Streaming, ATruncatedCheckpointEndsTheStep) {
  TemporaryDir dir;
  dir.CopyFrom(kDemo);
  auto loaded = LoadDemo(12 * ExpertBytes(), "auto", "off", nullptr, dir.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  const std::string shard = dir.path() + "/model-00002-of-00003.safetensors";
  struct stat st {};
  ASSERT_EQ(::stat(shard.c_str(), &st), 0);
  ASSERT_EQ(::truncate(shard.c_str(), st.st_size - 100), 0);
  const auto failed = RunModel(*loaded->model);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.status().message().find("was truncated while it was in use"), std::string::npos) << failed.status().message();
}

TEST(Streaming, ADamagedScaleIsFoundWhenItIsRead) {
  TemporaryDir dir;
  dir.CopyFrom(kDemo);
  {
    const auto checkpoint = Checkpoint::Open(dir.path()).value();
    for (int e = 0; e < 16; ++e) {
      const TensorView* scale = checkpoint->Find(fmt::format("layers.3.ffn.experts.{}.w2.scale", e));
      ASSERT_NE(scale, nullptr);
      const SafetensorsFile& file = checkpoint->shards()[static_cast<size_t>(scale->shard_idx)];
      std::fstream out(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      out.seekp(file.OffsetInFile(*scale) + 3);
      out.put(static_cast<char>(0xff));
    }
  }
  EXPECT_FALSE(LoadDemo(-1, "auto", "off", nullptr, dir.path()).ok());
  auto loaded = LoadDemo(12 * ExpertBytes(), "auto", "off", nullptr, dir.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  const auto failed = RunModel(*loaded->model);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.status().message().find("of layer 3: w2 holds a value that is not finite"), std::string::npos) << failed.status().message();
}

TEST(Streaming, ADamagedPackFileIsFoundAndAStaleOneIsMadeAgain) {
  TemporaryDir dir;
  const auto checkpoint = Checkpoint::Open(kDemo).value();
  const std::string path = PackPath(*checkpoint, dir.path());
  dir.Write(path.substr(dir.path().size() + 1), "no pack file");
  ASSERT_TRUE(LoadDemo(12 * ExpertBytes(), "auto", dir.path()).ok());
  struct stat st {};
  ASSERT_EQ(::stat(path.c_str(), &st), 0);
  EXPECT_GT(st.st_size, 152 * ExpertBytes());
  std::fstream out(path, std::ios::in | std::ios::out | std::ios::binary);
  for (int64_t e = 0; e < 152; ++e) {
    out.seekp(st.st_size - (e + 1) * ExpertBytes() + 1000);
    out.put(static_cast<char>(0x5a));
    out.put(static_cast<char>(0xa5));
  }
  out.close();
  auto loaded = LoadDemo(12 * ExpertBytes(), "auto", dir.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  const auto failed = RunModel(*loaded->model);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.status().message().find("the checksum does not fit; delete the file, it is made again"), std::string::npos)
      << failed.status().message();
}

TEST(Streaming, APackFileThatCannotBeWrittenIsNoFailure) {
  auto loaded = LoadDemo(12 * ExpertBytes(), "auto", "/proc/nowhere");
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  const auto logits = RunModel(*loaded->model);
  ASSERT_TRUE(logits.ok());
  ExpectSame(*logits);
}

TEST(Streaming, ABudgetBelowOneExpertSaysWhatIsNeeded) {
  const Status status = LoadDemo(1000).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("raise --memory-budget by at least"), std::string::npos) << status.message();
}

TEST(Streaming, ThreadsChangeNoBit) {
  for (const int num_threads : {1, 3}) {
    auto loaded = LoadDemo(9 * ExpertBytes(), "auto", "off", nullptr, kDemo, num_threads);
    ASSERT_TRUE(loaded.ok());
    const auto logits = RunModel(*loaded->model);
    ASSERT_TRUE(logits.ok());
    ExpectSame(*logits);
  }
}

}  // namespace
}  // namespace deepinfer::model
