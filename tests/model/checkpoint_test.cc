// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint.h"

#include <gtest/gtest.h>

namespace deepinfer::model {
namespace {

const std::string kNano = DEEPINFER_SOURCE_DIR "/tests/golden/model/nano";
const std::string kDemo = DEEPINFER_SOURCE_DIR "/models/demo";

TEST(Checkpoint, OpensTheNanoAndDemoModels) {
  for (const auto& [dir, num_tensors, bytes] :
       {std::tuple{kNano, 764u, 2997103}, {kDemo, 1271u, 23717700}}) {
    const auto config = ModelConfig::Load(dir);
    ASSERT_TRUE(config.ok()) << config.status().ToString();
    const auto checkpoint = Checkpoint::Open(dir);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    EXPECT_EQ((*checkpoint)->tensors().size(), num_tensors);
    EXPECT_EQ((*checkpoint)->payload_bytes(), bytes);
  }
}

}  // namespace
}  // namespace deepinfer::model
