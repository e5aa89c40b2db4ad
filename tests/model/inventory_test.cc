// SPDX-License-Identifier: Apache-2.0
#include "model/inventory.h"

#include <unordered_set>

#include <gtest/gtest.h>

#include "model/released_config.h"

namespace deepinfer::model {
namespace {

ModelConfig Released() {
  return ModelConfig::FromJson(ReleasedConfigJson(), "released").value();
}

TEST(Inventory, ByteBudgetOfTheReleasedModel) {
  const InventorySummary s = SummarizeInventory(Released(), true);
  EXPECT_EQ(s.total.num_tensors, 96085);
  EXPECT_EQ(s.total.num_bytes, 510'286'023'000);
  EXPECT_EQ(s.total.num_parameters, 763'205'315'794);
  EXPECT_EQ(s.part(ModelPart::kRoutedExperts).num_bytes, 288'777'830'400);
  EXPECT_EQ(s.part(ModelPart::kEngramTables).num_bytes, 202'758'032'400);
  EXPECT_EQ(s.part(ModelPart::kDraftExperts).num_bytes, 7'219'445'760);
  EXPECT_EQ(s.part(ModelPart::kDraftDense).num_bytes, 713'428'872);
  EXPECT_EQ(s.part(ModelPart::kDense).num_bytes, 7'199'083'968);
  EXPECT_EQ(s.part(ModelPart::kEmbedAndHead).num_bytes, 2'647'654'400);
  EXPECT_EQ(s.part(ModelPart::kVision).num_bytes, 970'536'960);
  EXPECT_EQ(s.part(ModelPart::kFinalNorm).num_bytes, 10'240);
}

TEST(Inventory, LogicalParametersOfTheReleasedModel) {
  const InventorySummary s = SummarizeInventory(Released(), true);
  const auto parameters = [&](std::initializer_list<ModelPart> parts) {
    int64_t sum = 0;
    for (const ModelPart p : parts) sum += s.part(p).num_parameters;
    return sum;
  };
  EXPECT_EQ(parameters({ModelPart::kEngramTables}), 196'613'849'600);
  EXPECT_EQ(parameters({ModelPart::kRoutedExperts,
                        ModelPart::kDense,
                        ModelPart::kEmbedAndHead,
                        ModelPart::kFinalNorm}),
            551'880'835'184);
  EXPECT_EQ(parameters({ModelPart::kDraftExperts, ModelPart::kDraftDense}), 14'225'362'530);
  EXPECT_EQ(parameters({ModelPart::kVision}), 485'268'480);
}

TEST(Inventory, NamesAreUniqueAndDraftHas2401) {
  std::unordered_set<std::string> names;
  int num_draft = 0;
  ForEachRequiredTensor(Released(), true, [&](const RequiredTensor& t) {
    EXPECT_TRUE(names.insert(t.name).second) << t.name;
    num_draft += t.name.rfind("mtp.", 0) == 0;
    return true;
  });
  EXPECT_EQ(num_draft, 2401);
}

TEST(Inventory, VisitorCanStop) {
  int num_visited = 0;
  ForEachRequiredTensor(Released(), true, [&](const RequiredTensor&) { return ++num_visited < 5; });
  EXPECT_EQ(num_visited, 5);
}

TEST(Inventory, SliceHasOneLayerOfEachKind) {
  const auto config = ModelConfig::FromJson(SliceConfigJson({}), "slice");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  const InventorySummary s = SummarizeInventory(*config, false);
  EXPECT_NEAR(static_cast<double>(s.total.num_bytes), 6.4e9, 0.2e9);
  EXPECT_NEAR(static_cast<double>(config->engram_num_embeddings[0]), 1e6, 1e4);
}

}  // namespace
}  // namespace deepinfer::model
