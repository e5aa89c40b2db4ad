// SPDX-License-Identifier: Apache-2.0
#include "model/engram_hash.h"

#include <numeric>

#include <gtest/gtest.h>

#include "golden_file.h"
#include "model/released_config.h"

namespace deepinfer::model {
namespace {

using testing::GoldenFile;

class EngramHash : public ::testing::Test {
 protected:
  const GoldenFile golden_{"model/engram.safetensors"};
  const ModelConfig config_ =
      ModelConfig::Load(std::string(DEEPINFER_SOURCE_DIR) + "/tests/golden/model/nano").value();
  const EngramHasher hasher_ = EngramHasher::Create(config_, golden_.Ids("token_map")).value();
};

TEST_F(EngramHash, RowsOfTheGoldenTokens) {
  const std::vector<int32_t> tokens = golden_.Ids("tokens");
  std::vector<int64_t> rows(tokens.size() * 2 * 6);
  EngramHistory history;
  hasher_.Rows(tokens, {}, &history, rows.data());
  EXPECT_EQ(rows, golden_.Ints("rows"));
  EXPECT_EQ(hasher_.pad(), golden_.Ints("pad")[0]);
}

TEST_F(EngramHash, DeadPositionsCutTheLookBack) {
  const std::vector<int32_t> tokens = golden_.Ids("tokens");
  std::vector<int64_t> rows(tokens.size() * 2 * 6);
  EngramHistory history;
  hasher_.Rows(tokens, golden_.Bytes("dead"), &history, rows.data());
  EXPECT_EQ(rows, golden_.Ints("rows_with_dead"));
}

TEST_F(EngramHash, AnyChunkingGivesTheSameRows) {
  const std::vector<int32_t> tokens = golden_.Ids("tokens");
  const std::vector<uint8_t> dead = golden_.Bytes("dead");
  const std::vector<int64_t> expected = golden_.Ints("rows_with_dead");
  for (const size_t chunk : {1u, 2u, 3u, 7u, 59u}) {
    std::vector<int64_t> rows(expected.size());
    EngramHistory history;
    for (size_t i = 0; i < tokens.size(); i += chunk) {
      const size_t n = std::min(chunk, tokens.size() - i);
      hasher_.Rows(std::span(tokens).subspan(i, n),
                   std::span(dead).subspan(i, n),
                   &history,
                   rows.data() + i * 12);
    }
    EXPECT_EQ(rows, expected) << chunk;
  }
}

TEST_F(EngramHash, ReleasedRowsOfCompressedIds) {
  const ModelConfig released = ModelConfig::FromJson(ReleasedConfigJson(), "released").value();
  std::vector<int32_t> identity(99092);
  std::iota(identity.begin(), identity.end(), 0);
  const EngramHasher hasher = EngramHasher::Create(released, identity).value();
  const std::vector<int32_t> ids = golden_.Ids("release.compressed_ids");
  std::vector<int64_t> rows(ids.size() * 2 * 24);
  EngramHistory history;
  hasher.RowsOfCompressed(ids, &history, rows.data());
  EXPECT_EQ(rows, golden_.Ints("release.rows"));
}

TEST_F(EngramHash, IdsOutsideTheTokenMapAreDead) {
  EXPECT_EQ(hasher_.Compress(512), -1);
  EXPECT_EQ(hasher_.Compress(-1), -1);
}

TEST_F(EngramHash, ATokenizerOfAnotherModelIsRefused) {
  std::vector<int32_t> map = golden_.Ids("token_map");
  map.push_back(417);
  const auto hasher = EngramHasher::Create(config_, map);
  ASSERT_FALSE(hasher.ok());
  EXPECT_EQ(hasher.status().field(), "text_config.engram_compressed_vocab_size");
  EXPECT_FALSE(EngramHasher::Create(config_, {}).ok());
}

}  // namespace
}  // namespace deepinfer::model
