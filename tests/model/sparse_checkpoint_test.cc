// SPDX-License-Identifier: Apache-2.0
//
// The released checkpoint at full size, as holes: 64-bit offsets, 96,085 names, 48 shards.
#include <filesystem>
#include <sys/stat.h>

#include <gtest/gtest.h>

#include "model/checkpoint.h"
#include "model/checkpoint_writer.h"
#include "temporary_dir.h"

namespace deepinfer::model {
namespace {

TEST(SparseCheckpoint, FullSizeOpensAndTheLastEngramRowsReadRight) {
  const ::deepinfer::testing::TemporaryDir dir;
  const Status written = WriteSparseReleasedCheckpoint(dir.path());
  if (!written.ok())
    GTEST_SKIP() << "the file system takes no files of 100 GB: " << written.ToString();
  int64_t disk_bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    struct stat st {};
    ASSERT_EQ(::stat(entry.path().c_str(), &st), 0);
    disk_bytes += st.st_blocks * 512;
  }
  EXPECT_LT(disk_bytes, 100'000'000);
  EXPECT_EQ(std::filesystem::file_size(dir.path() + "/model-00047-of-00048.safetensors"),
            101'535'150'936u);
  EXPECT_EQ(std::filesystem::file_size(dir.path() + "/model-00048-of-00048.safetensors"),
            101'537'926'640u);

  const auto config = ModelConfig::Load(dir.path()).value();
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_EQ((*checkpoint)->tensors().size(), 96085u);
  EXPECT_EQ((*checkpoint)->payload_bytes(), 510'286'023'000);
  const Status covered = (*checkpoint)->CheckInventory(config, true);
  EXPECT_TRUE(covered.ok()) << covered.ToString();

  for (const char* name : {"layers.1.engram.embed", "layers.14.engram.embed"}) {
    const TensorView weight = (*checkpoint)->Get(std::string(name) + ".weight").value();
    const TensorView scale = (*checkpoint)->Get(std::string(name) + ".scale").value();
    for (const int64_t row : {int64_t{0}, weight.dim(0) - 1}) {
      for (int64_t c = 0; c < 256; ++c)
        ASSERT_EQ(weight.data[row * 256 + c], SparseTableByte(row, c)) << name << " row " << row;
      for (int64_t c = 0; c < 8; ++c)
        ASSERT_EQ(scale.data[row * 8 + c], SparseScaleByte(row, c)) << name << " row " << row;
    }
    EXPECT_EQ(weight.data[weight.dim(0) / 2 * 256], 0);
  }
}

}  // namespace
}  // namespace deepinfer::model
