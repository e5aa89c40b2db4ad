// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <openssl/sha.h>

#include "core/json.h"
#include "golden_file.h"
#include "vision/data_url.h"
#include "vision/preprocess.h"
#include "vision/resize.h"

namespace deepinfer::vision {
namespace {

const std::string kGolden = std::string(DEEPINFER_SOURCE_DIR) + "/tests/golden/vision/";

std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string Sha256Hex(const void* data, size_t num_bytes) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(static_cast<const unsigned char*>(data), num_bytes, digest);
  std::string hex;
  for (const unsigned char byte : digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

Size SizeOf(const Json& pair) { return {pair[0].get<int>(), pair[1].get<int>()}; }
Size GridOf(const Json& pair) { return {pair[1].get<int>(), pair[0].get<int>()}; }

std::span<const uint8_t> AsBytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

void ExpectPrepared(const PreparedImage& image, const Json& want) {
  EXPECT_EQ(image.plan.canvas, SizeOf(want["best"]));
  EXPECT_EQ(image.placement.size, SizeOf(want["contain"]));
  EXPECT_EQ(image.placement.left, want["offset"][0].get<int>());
  EXPECT_EQ(image.placement.top, want["offset"][1].get<int>());
  EXPECT_EQ(image.plan.patch_grid, GridOf(want["vit_grid_hw"]));
  EXPECT_EQ(image.plan.token_grid, GridOf(want["llm_grid_hw"]));
  EXPECT_EQ(image.plan.num_tokens, want["num_tokens"].get<int>());
  EXPECT_EQ(Sha256Hex(image.canvas.rgb.data(), image.canvas.rgb.size()), want["canvas_rgb_sha256"].get<std::string>());
  const std::vector<uint16_t> patches = MakePatches(image.canvas, 14);
  EXPECT_EQ(Sha256Hex(patches.data(), patches.size() * 2), want["patches_bf16_sha256"].get<std::string>());
}

class GoldenCases : public ::testing::Test {
 protected:
  const Json cases_ = ReadJsonFile(kGolden + "cases.json").value()["cases"];
};

TEST_F(GoldenCases, ServerCanvasesAndVerdicts) {
  int num_accepted = 0;
  for (const Json& c : cases_) {
    const std::string bytes = ReadBytes(kGolden + "images/" + c["file"].get<std::string>());
    for (const char* detail : {"high", "low"}) {
      SCOPED_TRACE(c["file"].get<std::string>() + " " + detail);
      const Json& want = c["stage_a"][detail];
      PreparedImage image;
      const ImageFault fault = PrepareImage(AsBytes(bytes), DecodeLimits(), PlanConfig(), PixelRule::kServer,
                                            std::string_view(detail) == "low" ? Detail::kLow : Detail::kHigh, image);
      if (want.contains("error")) {
        EXPECT_EQ(ImageFaultName(fault), want["error"].get<std::string>());
        EXPECT_EQ(ImageFaultStatus(fault, "image[0]").message(), want["message"].get<std::string>());
        continue;
      }
      ASSERT_EQ(fault, ImageFault::kNone);
      ++num_accepted;
      EXPECT_EQ(image.decoded, SizeOf(want["decoded"]));
      Image decoded;
      ASSERT_EQ(DecodeImage(AsBytes(bytes), DecodeLimits(), PixelRule::kServer, decoded), ImageFault::kNone);
      EXPECT_EQ(Sha256Hex(decoded.rgb.data(), decoded.rgb.size()), want["decoded_rgb_sha256"].get<std::string>());
      ExpectPrepared(image, want);
    }
  }
  EXPECT_EQ(num_accepted, 56);
}

// The model's own transform has no limit of sides. Every record agrees, the informative ones too.
TEST_F(GoldenCases, ReferenceCanvases) {
  int num_compared = 0;
  for (const Json& c : cases_) {
    const Json& want = c["stage_b"];
    const std::string name = c["file"].get<std::string>();
    if (want.contains("error") || name == "bmp_40x30.bmp") continue;
    SCOPED_TRACE(name);
    const std::string bytes = ReadBytes(kGolden + "images/" + name);
    PreparedImage image;
    ASSERT_EQ(PrepareImage(AsBytes(bytes), DecodeLimits{.max_side = 16384}, PlanConfig(), PixelRule::kReference,
                           Detail::kHigh, image),
              ImageFault::kNone);
    EXPECT_EQ(image.decoded, SizeOf(want["src"]));
    ExpectPrepared(image, want);
    ++num_compared;
  }
  EXPECT_EQ(num_compared, 29);
}

TEST_F(GoldenCases, EveryCutOfAnInputIsAVerdict) {
  for (const Json& c : cases_) {
    const std::string name = c["file"].get<std::string>();
    const std::string bytes = ReadBytes(kGolden + "images/" + name);
    const bool is_gif = name.ends_with("gif");
    if (c["stage_a"]["high"].contains("error") || is_gif || bytes.size() > 2500) continue;
    SCOPED_TRACE(name);
    for (size_t length = 0; length < bytes.size(); ++length) {
      Image image;
      const std::string cut(bytes, 0, length);
      EXPECT_NE(DecodeImage(AsBytes(cut), DecodeLimits(), PixelRule::kServer, image), ImageFault::kNone) << length;
    }
    Image image;
    EXPECT_EQ(DecodeImage(AsBytes(bytes + "junk after the end"), DecodeLimits(), PixelRule::kServer, image),
              ImageFault::kNone);
  }
}

TEST(Plan, TableOf270Sizes) {
  const Json rows = ReadJsonFile(kGolden + "plan_table.json").value()["rows"];
  EXPECT_EQ(rows.size(), 270u);
  const auto expect = [](const Plan& plan, const Json& want) {
    EXPECT_EQ(plan.canvas, SizeOf(want));
    EXPECT_EQ(plan.num_tokens, want[2].get<int>());
  };
  for (const Json& row : rows) {
    const Size size{row["w"].get<int>(), row["h"].get<int>()};
    SCOPED_TRACE(std::to_string(size.width) + "x" + std::to_string(size.height));
    const PlanConfig config;
    expect(PlanImage(size, config), row["plan"]);
    const auto high = FitImage(size, config);
    const auto low = FitImage(LowDetailSize(size), config);
    ASSERT_TRUE(high.has_value() && low.has_value());
    expect(*high, row["fit_high"]);
    expect(*low, row["fit_low"]);
  }
}

TEST(Resize, VectorsBitForBit) {
  const testing::GoldenFile file("vision/resize_vectors.safetensors");
  int num_compared = 0;
  for (const auto& tensor : file.file().tensors()) {
    const std::string name(tensor.name);
    if (!name.ends_with("_in")) continue;
    SCOPED_TRACE(name);
    const std::string out_name = name.substr(0, name.size() - 3) + "_out";
    const auto size_of = [&file](const std::string& key) {
      const auto& shape = file.Shape(key);
      return Size{static_cast<int>(shape[1]), static_cast<int>(shape[0])};
    };
    Image image;
    image.size = size_of(name);
    image.rgb = file.Bytes(name);
    const Size size = size_of(out_name);
    const Image out = name.starts_with("cubic")  ? ResizeCubic(image, size)
                      : name.starts_with("area") ? ResizeArea(image, size)
                                                 : ResizePillowBicubic(image, size);
    EXPECT_EQ(out.rgb, file.Bytes(out_name));
    ++num_compared;
  }
  EXPECT_EQ(num_compared, 19);
}

TEST(Patches, NormalizedValues) {
  EXPECT_EQ(NormalizedBf16(0), 0xBF80);
  EXPECT_EQ(NormalizedBf16(127), 0xBB81);
  EXPECT_EQ(NormalizedBf16(128), 0x3B81);
  EXPECT_EQ(NormalizedBf16(255), 0x3F80);
}

TEST(DataUrl, VerdictsOfTheService) {
  const Json cases = ReadJsonFile(kGolden + "data_url_cases.json").value()["resolver_layer"];
  EXPECT_EQ(cases.size(), 30u);
  for (const Json& c : cases) {
    SCOPED_TRACE(c["name"].get<std::string>());
    std::string bytes;
    PreparedImage image;
    ImageFault fault = ReadDataUrl(c["url"].get<std::string>(), int64_t{32} << 20, bytes);
    if (fault == ImageFault::kNone) {
      fault = PrepareImage(AsBytes(bytes), DecodeLimits(), PlanConfig(), PixelRule::kServer, Detail::kHigh, image);
    }
    if (c["ok"].get<bool>()) {
      ASSERT_EQ(fault, ImageFault::kNone);
      EXPECT_EQ(image.plan.canvas, (Size{c["width"].get<int>(), c["height"].get<int>()}));
      EXPECT_EQ(image.plan.num_tokens, c["tokens"].get<int>());
    } else {
      EXPECT_EQ(ImageFaultName(fault), c["kind"].get<std::string>());
      EXPECT_EQ(ImageFaultStatus(fault, "image[0]").message(), c["message"].get<std::string>());
    }
  }
}

TEST(DataUrl, LimitAndUnusedBits) {
  std::string bytes;
  EXPECT_EQ(ReadDataUrl("data:image/png;base64,AAAA", 3, bytes), ImageFault::kNone);
  EXPECT_EQ(ReadDataUrl("data:image/png;base64,AAAAAA==", 3, bytes), ImageFault::kImageTooLarge);
  EXPECT_EQ(ReadDataUrl("data:image/png;base64," + std::string(400, 'A'), 3, bytes), ImageFault::kImageTooLarge);
  EXPECT_EQ(ReadDataUrl("data:image/png;base64,AB==", 3, bytes), ImageFault::kInvalidDataUrl);
}

TEST(Decode, ByteAndSideLimits) {
  const std::string bytes = ReadBytes(kGolden + "images/png_rgb_160x120.png");
  Size size;
  EXPECT_EQ(ReadImageSize(AsBytes(bytes), DecodeLimits{.max_bytes = 1388}, size), ImageFault::kNone);
  EXPECT_EQ(size, (Size{160, 120}));
  EXPECT_EQ(ReadImageSize(AsBytes(bytes), DecodeLimits{.max_bytes = 1387}, size), ImageFault::kImageTooLarge);
  EXPECT_EQ(ReadImageSize(AsBytes(bytes), DecodeLimits{.max_side = 160}, size), ImageFault::kNone);
  EXPECT_EQ(ReadImageSize(AsBytes(bytes), DecodeLimits{.max_side = 159}, size), ImageFault::kImageDimensionsTooLarge);
}

}  // namespace
}  // namespace deepinfer::vision
