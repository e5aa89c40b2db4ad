// SPDX-License-Identifier: Apache-2.0
#include "engine/decode_costs.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "core/file.h"
#include "fake_step_model.h"
#include "temporary_dir.h"

namespace deepinfer::engine {
namespace {

TEST(DecodeCosts, AtMostEightSizesUpToTheLargest) {
  EXPECT_EQ(MeasuredSizes(1), (std::vector<int64_t>{1}));
  EXPECT_EQ(MeasuredSizes(6), (std::vector<int64_t>{1, 2, 4, 6}));
  EXPECT_EQ(MeasuredSizes(192), (std::vector<int64_t>{1, 2, 4, 8, 16, 32, 64, 192}));
  EXPECT_EQ(MeasuredSizes(1536), (std::vector<int64_t>{1, 2, 4, 8, 16, 32, 64, 384})) << "larger ones follow the line";
}

TEST(DecodeCosts, CurvesHaveAllSizesAndLeaveTheModelUsable) {
  FakeStepModel model(24, 640, 20, 14, 0);
  MeasureCostsOptions options;
  options.max_num_seqs = 12;
  options.num_drafts = 5;
  options.num_blocks = 20;
  options.num_slots = 14;
  const auto curves = MeasureCosts(model, options);
  ASSERT_TRUE(curves.ok()) << curves.status().message();
  const auto sizes_of = [](const CostCurve& curve) {
    std::vector<int64_t> sizes;
    for (const auto& [size, ms] : curve.points()) sizes.push_back(size);
    return sizes;
  };
  EXPECT_EQ(sizes_of(curves->forward), MeasuredSizes(72));
  EXPECT_EQ(sizes_of(curves->draft), MeasuredSizes(12));
  // Fewer blocks than sequences: what there is has to do.
  options.num_blocks = 4;
  EXPECT_EQ(sizes_of(MeasureCosts(model, options)->forward), MeasuredSizes(18));
  options.num_blocks = 1;
  EXPECT_FALSE(MeasureCosts(model, options).ok());
}

class CostCacheTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return dir_.path() + "/" + name; }
  size_t NumFiles() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(dir_.path()), std::filesystem::directory_iterator()));
  }
  testing::TemporaryDir dir_;
  const CostCurve curve_{{{1, 1.5}, {4, 2.25}}};
};

TEST_F(CostCacheTest, KeepsTheNewestCurveOfItsKeyUntilItExpires) {
  const CostCache cache(dir_.path(), "model a", 3600), other(dir_.path(), "model b", 3600);
  EXPECT_TRUE(cache.Load({}, 1000).is_empty());
  cache.Store(CostCurve({{1, 9.0}, {4, 9.0}}), 1000);
  cache.Store(curve_, 2000);
  cache.Store(CostCurve({{1, 9.0}, {4, 9.0}}), 1500);
  EXPECT_EQ(cache.Load({1, 4}, 2000).points(), curve_.points());
  EXPECT_EQ(cache.Load({}, 2000 + 3600).points(), curve_.points());
  EXPECT_TRUE(cache.Load({}, 2000 + 3601).is_empty());
  EXPECT_TRUE(cache.Load({1, 8}, 2000).is_empty()) << "other sizes";
  EXPECT_TRUE(cache.Load({}, 999).is_empty()) << "from the future";
  EXPECT_TRUE(other.Load({}, 2000).is_empty());
}

TEST_F(CostCacheTest, DamagedCurvesAreNoCurvesAndForeignFilesStay) {
  const CostCache cache(dir_.path(), "model a", 3600);
  cache.Store(curve_, 1000);
  const std::string name = std::filesystem::directory_iterator(dir_.path())->path().filename().string();
  const std::string key = name.substr(0, 64);
  for (const std::string& text : {std::string(), std::string("["), std::string("{}"), std::string("[[1]]"), std::string("[[1,\"x\"]]"),
                                  std::string("[[4,1.0],[1,1.0]]"), std::string("[[1,-1.0]]"), std::string("[[1,1e999]]"),
                                  std::string(100000, '[')}) {
    ASSERT_TRUE(WriteFileAtomically(Path(key + ".ff.2000"), text).ok());
    EXPECT_EQ(cache.Load({}, 2500).points(), curve_.points()) << text.substr(0, 20);
  }
  std::ofstream(Path("notes.txt")) << "mine";
  std::ofstream(Path(key + ".ff.12x")) << "mine";
  std::ofstream(Path(key + ".1000")) << "mine";
  std::ofstream(Path("short.ff.1000")) << "mine";
  std::filesystem::create_directory(Path("sub"));
  cache.DeleteExpired(1000 + 3600 + 7200);
  EXPECT_EQ(NumFiles(), 7u);
  cache.DeleteExpired(1000 + 3600 + 7201);
  EXPECT_EQ(NumFiles(), 6u) << "the first one is gone";
  cache.DeleteExpired(1 << 30);
  EXPECT_EQ(NumFiles(), 5u);
  EXPECT_TRUE(std::filesystem::exists(Path("notes.txt")));
}

TEST_F(CostCacheTest, AFolderThatCannotBeUsedIsNoError) {
  std::ofstream(Path("file")) << "x";
  const CostCache cache(Path("file") + "/below", "model a", 3600);
  cache.Store(curve_, 1000);
  EXPECT_TRUE(cache.Load({}, 1000).is_empty());
  cache.DeleteExpired(1 << 30);
}

}  // namespace
}  // namespace deepinfer::engine
