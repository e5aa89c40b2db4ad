// SPDX-License-Identifier: Apache-2.0
// Rows of the n-gram tables by asynchronous reads: the same numbers as through the mapping, and errors that end one step.
#include "model/engram_reader.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/golden_support.h"
#include "temporary_dir.h"
#include "test_device.h"

namespace deepinfer::model {
namespace {

using ::testing::HasSubstr;

class FailingDisk : public ReadFilter {
 public:
  int64_t Filter(const InputFile&, int64_t, int64_t, int64_t result) override { return is_broken ? -EIO : result; }
  std::atomic<bool> is_broken{false};
};

std::unique_ptr<Model> LoadNanoFrom(const std::string& dir, EngramIo io, const std::string& backend, ReadFilter* filter = nullptr) {
  LoadOptions options;
  options.compressed_vocab = Golden("engram.safetensors").Ints("token_map");
  options.engram_io = io;
  if (io != EngramIo::kMmap) {
    AsyncReaderOptions reader;
    reader.backend = backend;
    reader.filter = filter;
    options.reader = AsyncReader::Create(reader).value();
  }
  auto model = Model::Load(Checkpoint::Open(dir).value(), ModelConfig::Load(dir).value(), TestDevice(2).value(),
                           options);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return std::move(model).value();
}

Result<std::vector<float>> Step(Model& model, Sequence& sequence, const std::vector<int32_t>& ids) {
  SequenceChunk chunk;
  chunk.sequence = &sequence;
  chunk.ids = ids;
  chunk.all_logits = true;
  DI_ASSIGN_OR_RETURN(const std::span<const float> logits, model.Forward({&chunk, 1}));
  return std::vector<float>(logits.begin(), logits.end());
}

std::vector<int32_t> SomeIds(int count, int seed) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back((i * i * 7 + seed * 31 + i / 3) % 300);
  return ids;
}

TEST(EngramReader, RowsThatAreReadGiveTheNumbersOfMappedOnes) {
  const std::string dir = GoldenPath("nano");
  const std::vector<std::vector<int32_t>> steps = {SomeIds(70, 1), {5}, {5}, SomeIds(9, 2), {7}};
  std::vector<std::vector<float>> expected;
  const auto mapped = LoadNanoFrom(dir, EngramIo::kMmap, "");
  const auto sequence = NewSequence(*mapped);
  for (const auto& ids : steps) expected.push_back(Step(*mapped, *sequence, ids).value());
  for (const EngramIo io : {EngramIo::kRead, EngramIo::kDirect}) {
    for (const char* backend : {"auto", "threads"}) {
      const auto model = LoadNanoFrom(dir, io, backend);
      const auto other = NewSequence(*model);
      for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(Step(*model, *other, steps[i]).value(), expected[i]) << backend << " step " << i;
    }
  }
}

TEST(EngramReader, FetchesEachRowOnceAndKeepsIt) {
  const std::string dir = GoldenPath("nano");
  const auto checkpoint = Checkpoint::Open(dir).value();
  const ModelConfig config = ModelConfig::Load(dir).value();
  const int64_t dim = config.engram_head_dim;
  for (const bool direct : {false, true}) {
    for (const int64_t cache_bytes : {int64_t{0}, int64_t{3} * (dim + 64), int64_t{1} << 20}) {
      EngramReadOptions options;
      options.direct = direct;
      options.cache_bytes = cache_bytes;
      options.reader = AsyncReader::Create({}).value();
      const auto reader = EngramReader::Create(*checkpoint, config, 3000, options).value();
      const TensorView table = checkpoint->Get("layers.0.engram.embed.weight").value();
      const TensorView scale = checkpoint->Get("layers.0.engram.embed.scale").value();
      const auto last = static_cast<int32_t>(table.dim(0) - 1);
      std::vector<int32_t> rows = {last, 0, 1, last, 0, 17};
      if (direct) {
        for (int32_t i = 0; i < 2500; ++i) rows.push_back(i % (last + 1));  // more than one round of pages
      }
      for (int round = 0; round < 2; ++round) {
        std::vector<int32_t> slots(rows.size());
        reader->Begin(0, rows, slots.data());
        ASSERT_TRUE(reader->Wait(0).ok());
        const device::HostMatrix view = reader->View(0);
        for (size_t i = 0; i < rows.size(); ++i) {
          const auto* data = static_cast<const uint8_t*>(view.host_data) + slots[i] * dim;
          ASSERT_EQ(std::memcmp(data, table.data + rows[i] * dim, static_cast<size_t>(dim)), 0) << rows[i];
          ASSERT_EQ(std::memcmp(view.host_scale + slots[i] * (dim / 32), scale.data + rows[i] * (dim / 32), static_cast<size_t>(dim / 32)), 0);
        }
        if (direct) continue;
        EXPECT_EQ(slots, (std::vector<int32_t>{0, 1, 2, 0, 1, 3}));
        EXPECT_EQ(reader->counts().unique, 4 * (round + 1));
        if (cache_bytes == 0) {
          EXPECT_EQ(reader->counts().cache_hits, 0);
        }
      }
      if (cache_bytes > 100000) {
        EXPECT_GT(reader->counts().cache_hits, 0);
      }
    }
  }
}

TEST(EngramReader, AReadErrorEndsTheStepAndNoOther) {
  FailingDisk disk;
  const auto model = LoadNanoFrom(GoldenPath("nano"), EngramIo::kRead, "threads", &disk);
  const auto first = NewSequence(*model);
  const std::vector<float> expected = Step(*model, *first, SomeIds(5, 1)).value();
  disk.is_broken = true;
  const auto second = NewSequence(*model);
  const Status status = Step(*model, *second, SomeIds(40, 3)).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(".safetensors"));
  disk.is_broken = false;
  const auto third = NewSequence(*model);
  EXPECT_EQ(Step(*model, *third, SomeIds(5, 1)).value(), expected);
}

TEST(MappedCheckpoint, AFileThatIsTruncatedInUseEndsTheStep) {
  if (!TestsRunOnCpu()) GTEST_SKIP() << "a GPU has its own copy of the tables";
  const testing::TemporaryDir dir;
  std::filesystem::copy(GoldenPath("nano"), dir.path() + "/nano");
  const auto model = LoadNanoFrom(dir.path() + "/nano", EngramIo::kMmap, "");
  const auto sequence = NewSequence(*model);
  ASSERT_TRUE(Step(*model, *sequence, {1, 2, 3}).ok());
  for (const auto& entry : std::filesystem::directory_iterator(dir.path() + "/nano"))
    if (entry.path().extension() == ".safetensors") {
      ASSERT_EQ(::truncate(entry.path().c_str(), 4096), 0);
    }
  const Status status = Step(*model, *sequence, SomeIds(60, 4)).status();
  EXPECT_EQ(status.code(), StatusCode::kBadModel);
  EXPECT_THAT(status.message(), HasSubstr("became shorter or unreadable while it was in use"));
}

}  // namespace
}  // namespace deepinfer::model
