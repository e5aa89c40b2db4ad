// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/json.h"
#include "temporary_dir.h"

namespace deepinfer::model {
namespace {

using ::testing::HasSubstr;

const std::string kNano = DEEPINFER_SOURCE_DIR "/tests/golden/model/nano";
const std::string kDemo = DEEPINFER_SOURCE_DIR "/models/demo";
const std::string kIndex = "model.safetensors.index.json";
const std::string kShards[3] = {"model-00001-of-00003.safetensors",
                                "model-00002-of-00003.safetensors",
                                "model-00003-of-00003.safetensors"};

// A safetensors file from (name, dtype, shape, bytes).
struct Tensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

std::string FileOf(const std::vector<Tensor>& tensors) {
  Json header = Json::object();
  std::string data;
  for (const Tensor& t : tensors) {
    header[t.name] = {{"dtype", t.dtype},
                      {"shape", t.shape},
                      {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
    data += t.bytes;
  }
  const std::string text = DumpJson(header);
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(text.size() >> (8 * i)));
  return bytes + text + data;
}

std::string IndexOf(const std::vector<std::pair<std::string, std::string>>& placement) {
  std::string map;
  for (const auto& [name, shard] : placement) {
    map += (map.empty() ? "" : ",") + DumpJson(Json(name)) + ":" + DumpJson(Json(shard));
  }
  return "{\"metadata\":{\"total_size\":1},\"weight_map\":{" + map + "}}";
}

Tensor Byte(const std::string& name) {
  return {name, "I8", {1}, "x"};
}

class CheckpointDir : public ::testing::Test {
 protected:
  // One shard "a.safetensors" with the tensors, and an index that names them all.
  void WriteOne(const std::vector<Tensor>& tensors) {
    dir_.Write("a.safetensors", FileOf(tensors));
    std::vector<std::pair<std::string, std::string>> placement;
    for (const Tensor& t : tensors) placement.emplace_back(t.name, "a.safetensors");
    dir_.Write(kIndex, IndexOf(placement));
  }
  std::string OpenError() {
    const auto checkpoint = Checkpoint::Open(dir_.path());
    if (checkpoint.ok()) return "";
    EXPECT_EQ(checkpoint.status().code(), StatusCode::kBadModel);
    return checkpoint.status().message();
  }
  ::deepinfer::testing::TemporaryDir dir_;
};

TEST(Checkpoint, OpensTheNanoAndDemoModels) {
  for (const auto& [dir, num_tensors, bytes] :
       {std::tuple{kNano, 764u, 2997103}, {kDemo, 1271u, 23717700}}) {
    const auto config = ModelConfig::Load(dir);
    ASSERT_TRUE(config.ok()) << config.status().ToString();
    const auto checkpoint = Checkpoint::Open(dir);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    EXPECT_EQ((*checkpoint)->tensors().size(), num_tensors);
    EXPECT_EQ((*checkpoint)->payload_bytes(), bytes);
    const Status covered = (*checkpoint)->CheckInventory(*config, true);
    EXPECT_TRUE(covered.ok()) << covered.ToString();
    ThreadPool pool(2);
    int64_t done = 0;
    const Status verified = (*checkpoint)->Verify(pool, [&](int64_t d, int64_t) { done = d; });
    EXPECT_TRUE(verified.ok()) << verified.ToString();
    EXPECT_EQ(done, bytes);
  }
}

TEST_F(CheckpointDir, WithoutAnIndexTheShardsAreScanned) {
  dir_.Write("b.safetensors", FileOf({Byte("y")}));
  dir_.Write("a.safetensors", FileOf({Byte("model.x")}));
  const auto checkpoint = Checkpoint::Open(dir_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_EQ((*checkpoint)->tensors().size(), 2u);
  EXPECT_NE((*checkpoint)->Find("x"), nullptr);
  EXPECT_EQ((*checkpoint)->Get("y")->shard_idx, 1);
}

TEST_F(CheckpointDir, ThePrefixMayStandAnywhere) {
  dir_.Write("a.safetensors", FileOf({Byte("model.x"), Byte("y"), Byte("model.z"), Byte("w")}));
  dir_.Write(kIndex,
             IndexOf({{"x", "a.safetensors"},
                      {"model.y", "a.safetensors"},
                      {"model.z", "a.safetensors"},
                      {"w", "a.safetensors"}}));
  const auto checkpoint = Checkpoint::Open(dir_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  for (const char* name : {"x", "y", "z", "w"}) {
    ASSERT_NE((*checkpoint)->Find(name), nullptr) << name;
    EXPECT_EQ((*checkpoint)->Find(name)->name, name);
    EXPECT_NE((*checkpoint)->Find(std::string("model.") + name), nullptr) << name;
  }
}

TEST_F(CheckpointDir, TheIndexDecidesWhichShardHoldsATensor) {
  dir_.Write("a.safetensors", FileOf({{"x", "I8", {1}, "1"}}));
  dir_.Write("b.safetensors", FileOf({{"x", "I8", {1}, "2"}}));
  dir_.Write(kIndex, IndexOf({{"x", "b.safetensors"}}));
  EXPECT_EQ(*(*Checkpoint::Open(dir_.path()))->Get("x")->data, '2');
}

TEST_F(CheckpointDir, AmbiguousAliasesAreRefused) {
  WriteOne({Byte("x"), Byte("model.x")});
  EXPECT_THAT(OpenError(), HasSubstr("ambiguous alias"));
}

TEST_F(CheckpointDir, ANameTwiceInTheIndexIsRefused) {
  dir_.Write("a.safetensors", FileOf({Byte("x")}));
  dir_.Write(kIndex, IndexOf({{"x", "a.safetensors"}, {"x", "a.safetensors"}}));
  EXPECT_THAT(OpenError(), HasSubstr("x is named twice"));
}

TEST_F(CheckpointDir, TwoShardsWithTheSameTensorAreRefusedWithoutAnIndex) {
  dir_.Write("a.safetensors", FileOf({Byte("x")}));
  dir_.Write("b.safetensors", FileOf({Byte("x")}));
  EXPECT_THAT(OpenError(), HasSubstr("x is named twice"));
}

TEST_F(CheckpointDir, ShardNamesMustBePlainFileNames) {
  dir_.Write("a.safetensors", FileOf({Byte("x")}));
  for (const char* name :
       {"../a.safetensors", "/etc/passwd", "sub/a.safetensors", "..", ".", "", "a\\b", "a..b"}) {
    dir_.Write(kIndex, IndexOf({{"x", name}}));
    EXPECT_THAT(OpenError(), HasSubstr("not a plain file name")) << name;
  }
}

TEST_F(CheckpointDir, MissingAndTruncatedShardsAreNamed) {
  WriteOne({Byte("x")});
  std::filesystem::resize_file(dir_.path() + "/a.safetensors", 60);
  EXPECT_THAT(OpenError(), HasSubstr("a.safetensors"));
  std::filesystem::remove(dir_.path() + "/a.safetensors");
  EXPECT_THAT(OpenError(), HasSubstr("a.safetensors: No such file"));
}

TEST_F(CheckpointDir, AnIndexedNameMustBeInItsShard) {
  dir_.Write("a.safetensors", FileOf({Byte("x")}));
  dir_.Write(kIndex, IndexOf({{"y", "a.safetensors"}}));
  EXPECT_THAT(OpenError(), HasSubstr("tensor y is not in the header of"));
}

TEST_F(CheckpointDir, UnfoldedMixingNormsAreRefused) {
  for (const char* name : {"layers.0.hc_attn_norm.weight",
                           "hc_head_norm.weight",
                           "model.layers.1.hc_ffn_norm.weight"}) {
    WriteOne({Byte(name)});
    EXPECT_THAT(OpenError(), HasSubstr("must not exist")) << name;
  }
  WriteOne({Byte("layers.0.xhc_attn_norm.weight"), Byte("layers.0.hc_attn_norm.bias")});
  EXPECT_EQ(OpenError(), "");
}

TEST_F(CheckpointDir, DamagedIndexesAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "'{' expected"},
      {"{", "found the end"},
      {"[]", "'{' expected"},
      {"{}", "weight_map is missing"},
      {R"({"weight_map":{}})", "names no tensor"},
      {R"({"weight_map":{"x":1}})", "'\"' expected"},
      {R"({"weight_map":[]})", "'{' expected"},
      {R"({"weight_map":{"x":"a"},"weight_map":{"x":"a"}})", "appears twice"},
      {R"({"weight_map":{"x":"a"}} trailing)", "after the end"},
      {R"({"m":[[[[[[[[[[1]]]]]]]]]]})", "too deep"},
  };
  for (const auto& [text, message] : cases) {
    dir_.Write(kIndex, text);
    EXPECT_THAT(OpenError(), HasSubstr(message)) << text;
    EXPECT_THAT(OpenError(), HasSubstr(kIndex)) << text;
  }
}

TEST_F(CheckpointDir, DirectoriesWithoutACheckpointAreRefused) {
  EXPECT_THAT(OpenError(), HasSubstr("no *.safetensors file"));
  const auto missing = Checkpoint::Open(dir_.path() + "/absent");
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.status().message(), HasSubstr("absent"));
}

// A copy of the nano checkpoint of which one tensor is renamed, dropped or changed in the header of
// its shard. The header keeps its length (blanks fill up), so the data stays in place.
class NanoCopy : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_.CopyFrom(kNano);
    config_ = std::make_unique<ModelConfig>(ModelConfig::Load(kNano).value());
  }
  // Finds the shard of the tensor, applies `change` to its header and index entries.
  void Change(const std::string& name, const std::function<void(Json& header, Json& map)>& change) {
    Json index = ReadJsonFile(dir_.path() + "/" + kIndex).value();
    const std::string shard = index["weight_map"].at(name);
    std::string bytes = ReadFile(dir_.path() + "/" + shard, 1 << 30).value();
    uint64_t old_size = 0;
    std::memcpy(&old_size, bytes.data(), 8);
    Json header = ParseJson(std::string_view(bytes).substr(8, old_size)).value();
    change(header, index["weight_map"]);
    std::string text = DumpJson(header);
    text.resize(std::max(text.size(), static_cast<size_t>(old_size)), ' ');
    const uint64_t size = text.size();
    dir_.Write(
        shard,
        std::string(reinterpret_cast<const char*>(&size), 8) + text + bytes.substr(8 + old_size));
    dir_.Write(kIndex, DumpJson(index));
  }
  void Drop(const std::string& name) {
    Change(name, [&](Json& header, Json& map) {
      header.erase(name);
      map.erase(name);
    });
  }
  void CopyEntry(const std::string& name, const std::string& new_name) {
    Change(name, [&](Json& header, Json& map) {
      // An empty tensor of another name: the data of the original must not overlap.
      header[new_name] = {{"dtype", "I8"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
      map[new_name] = map.at(name);
    });
  }
  std::string InventoryError() {
    const auto checkpoint = Checkpoint::Open(dir_.path());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    if (!checkpoint.ok()) return "";
    return (*checkpoint)->CheckInventory(*config_, true).message();
  }

  ::deepinfer::testing::TemporaryDir dir_;
  std::unique_ptr<ModelConfig> config_;
};

TEST_F(NanoCopy, MissingTensorsAreNamed) {
  Drop("layers.3.ffn_norm.weight");
  EXPECT_THAT(InventoryError(), HasSubstr("layers.3.ffn_norm.weight is missing"));
  Drop("layers.5.attn.attn_sink");
  EXPECT_THAT(InventoryError(), HasSubstr("layers.3.ffn_norm.weight and 1 more are missing"));
}

TEST_F(NanoCopy, AWeightWithoutItsScaleIsRefused) {
  Drop("layers.2.attn.wo_a.scale");
  EXPECT_THAT(InventoryError(),
              HasSubstr("layers.2.attn.wo_a.scale (the scale of a quantised weight) is missing"));
}

TEST_F(NanoCopy, ExpertsMustBeExactlyTheConfigured) {
  CopyEntry("layers.2.ffn.experts.5.w1.weight", "layers.2.ffn.experts.6.w1.weight");
  EXPECT_THAT(InventoryError(),
              HasSubstr("layers.2.ffn.experts.6.w1.weight is beyond the 6 experts"));
}

TEST_F(NanoCopy, DraftExpertsToo) {
  CopyEntry("mtp.1.ffn.experts.3.w1.weight", "mtp.1.ffn.experts.4.w1.weight");
  EXPECT_THAT(InventoryError(), HasSubstr("mtp.1.ffn.experts.4.w1.weight is beyond the 4 experts"));
}

TEST_F(NanoCopy, UnknownExtraTensorsAreIgnored) {
  CopyEntry("embed.weight", "layers.99.ffn.experts.77.w1.weight");
  CopyEntry("embed.weight", "mtp.0.embed.weight");
  EXPECT_EQ(InventoryError(), "");
}

TEST_F(NanoCopy, ShapesMustMatch) {
  Change("layers.1.attn.wq_a.weight", [](Json& header, Json&) {
    Json& shape = header["layers.1.attn.wq_a.weight"]["shape"];
    std::swap(shape[0], shape[1]);
  });
  EXPECT_THAT(
      InventoryError(),
      HasSubstr("layers.1.attn.wq_a.weight has shape [96, 64] but config.json asks for [64, 96]"));
}

TEST_F(NanoCopy, RanksMustMatch) {
  Change("norm.weight", [](Json& header, Json&) { header["norm.weight"]["shape"] = {96, 1}; });
  EXPECT_THAT(InventoryError(),
              HasSubstr("norm.weight has shape [96, 1] but config.json asks for [96]"));
}

TEST_F(NanoCopy, DtypesMustMatch) {
  Change("layers.1.attn.wq_a.weight",
         [](Json& header, Json&) { header["layers.1.attn.wq_a.weight"]["dtype"] = "I8"; });
  EXPECT_THAT(InventoryError(),
              HasSubstr("layers.1.attn.wq_a.weight has dtype I8 but must be F8_E4M3"));
}

TEST_F(NanoCopy, BothPartsOfAnEngramTableMustBeInOneShard) {
  // The scale moves to another shard: as an extra entry there with the bytes of the old one.
  const auto original = Checkpoint::Open(kNano).value();
  const TensorView scale = original->Get("layers.0.engram.embed.scale").value();
  const std::string bytes(reinterpret_cast<const char*>(scale.data),
                          static_cast<size_t>(scale.num_bytes));
  dir_.Write("extra.safetensors",
             FileOf({{"layers.0.engram.embed.scale", "F8_E8M0", scale.shape, bytes}}));
  Json index = ReadJsonFile(dir_.path() + "/" + kIndex).value();
  index["weight_map"]["layers.0.engram.embed.scale"] = "extra.safetensors";
  dir_.Write(kIndex, DumpJson(index));
  EXPECT_THAT(InventoryError(), HasSubstr("lies in another shard than its weight"));
}

TEST_F(NanoCopy, OtherPairsMayLieInDifferentShards) {
  const auto original = Checkpoint::Open(kNano).value();
  const TensorView scale = original->Get("layers.0.attn.wq_a.scale").value();
  const std::string bytes(reinterpret_cast<const char*>(scale.data),
                          static_cast<size_t>(scale.num_bytes));
  dir_.Write("extra.safetensors",
             FileOf({{"layers.0.attn.wq_a.scale", "F8_E8M0", scale.shape, bytes}}));
  Json index = ReadJsonFile(dir_.path() + "/" + kIndex).value();
  index["weight_map"]["layers.0.attn.wq_a.scale"] = "extra.safetensors";
  dir_.Write(kIndex, DumpJson(index));
  EXPECT_EQ(InventoryError(), "");
}

// Writes `bytes` over element `element` of a tensor of the copy and verifies.
class VerifyDamage : public NanoCopy {
 protected:
  std::string VerifyError(const std::string& name, int64_t byte, const std::string& bytes) {
    {
      const auto checkpoint = Checkpoint::Open(dir_.path()).value();
      const TensorView view = checkpoint->Get(name).value();
      const SafetensorsFile& shard = checkpoint->shards()[static_cast<size_t>(view.shard_idx)];
      std::string file = ReadFile(shard.path(), 1 << 30).value();
      file.replace(static_cast<size_t>(shard.OffsetInFile(view) + byte), bytes.size(), bytes);
      dir_.Write(std::filesystem::path(shard.path()).filename(), file);
    }
    ThreadPool pool(2);
    return (*Checkpoint::Open(dir_.path()))->Verify(pool).message();
  }
};

TEST_F(VerifyDamage, NanInBf16) {
  EXPECT_THAT(VerifyError("layers.0.ffn.gate.weight", 2 * (96 + 3), "\xc0\x7f"),
              HasSubstr("tensor layers.0.ffn.gate.weight (BF16) is not finite at [1, 3]"));
}

TEST_F(VerifyDamage, InfinityInF32) {
  EXPECT_THAT(VerifyError("layers.0.attn.attn_sink", 4, std::string("\0\0\x80\xff", 4)),
              HasSubstr("tensor layers.0.attn.attn_sink (F32) is not finite at [1]"));
}

TEST_F(VerifyDamage, NanCodeInFp8) {
  EXPECT_THAT(VerifyError("layers.2.attn.wkv.weight", 97, "\xff"),
              HasSubstr("layers.2.attn.wkv.weight (F8_E4M3) is not finite at [1, 1]"));
}

TEST_F(VerifyDamage, NanScale) {
  EXPECT_THAT(VerifyError("layers.2.ffn.experts.1.w2.scale", 0, "\xff"),
              HasSubstr("layers.2.ffn.experts.1.w2.scale (F8_E8M0)"));
}

TEST_F(VerifyDamage, AnyByteIsAValidFp4Pair) {
  EXPECT_EQ(VerifyError("layers.2.ffn.experts.1.w2.weight", 0, "\xff"), "");
}

TEST(CheckpointDummy, IsCompleteFiniteAndSeeded) {
  const ModelConfig config = ModelConfig::Load(kNano).value();
  ThreadPool pool(2);
  const auto one = Checkpoint::Dummy(config, 1, &pool).value();
  const auto same = Checkpoint::Dummy(config, 1).value();
  const auto other = Checkpoint::Dummy(config, 2).value();
  EXPECT_TRUE(one->CheckInventory(config, true).ok());
  EXPECT_TRUE(one->Verify(pool).ok());
  const auto bytes = [](const Checkpoint& c, const char* name) {
    const TensorView v = c.Get(name).value();
    return std::string(reinterpret_cast<const char*>(v.data), static_cast<size_t>(v.num_bytes));
  };
  for (const char* name : {"embed.weight",
                           "layers.1.attn.wq_a.weight",
                           "layers.1.attn.wq_a.scale",
                           "layers.1.ffn.experts.2.w1.weight",
                           "layers.1.hc_attn_base"}) {
    EXPECT_EQ(bytes(*one, name), bytes(*same, name)) << name;
    EXPECT_NE(bytes(*one, name), bytes(*other, name)) << name;
  }
}

TEST(CheckpointDummy, RefusesWhatDoesNotFit) {
  ModelConfig config = ModelConfig::Load(kNano).value();
  config.vocab_size = 1 << 24;
  config.hidden_size = 1 << 20;
  const auto dummy = Checkpoint::Dummy(config, 1);
  ASSERT_FALSE(dummy.ok());
  EXPECT_EQ(dummy.status().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace deepinfer::model
