// SPDX-License-Identifier: Apache-2.0
//
// Number formats against tests/golden/model/formats.safetensors, bit for bit. The file is read by a
// few lines of its own so that the test needs nothing above core.
#include "core/dtypes.h"

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/file.h"
#include "core/json.h"
#include "core/quantize.h"

namespace deepinfer {
namespace {

class Formats : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path =
        std::string(DEEPINFER_SOURCE_DIR) + "/tests/golden/model/formats.safetensors";
    bytes_ = ReadFile(path, 1 << 24).value();
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes_.data(), 8);
    header_ = ParseJson(std::string_view(bytes_).substr(8, header_bytes)).value();
    data_ = 8 + header_bytes;
  }

  std::vector<float> Floats(const std::string& name) const {
    const Json& entry = header_.at(name);
    EXPECT_EQ(entry.at("dtype"), "F32");
    const auto begin = entry.at("data_offsets")[0].get<size_t>();
    const auto end = entry.at("data_offsets")[1].get<size_t>();
    std::vector<float> values((end - begin) / 4);
    std::memcpy(values.data(), bytes_.data() + data_ + begin, end - begin);
    return values;
  }

  static uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }

  std::string bytes_;
  Json header_;
  size_t data_ = 0;
};

TEST_F(Formats, E4M3Values) {
  const std::vector<float> expected = Floats("e4m3_values");
  ASSERT_EQ(expected.size(), 256u);
  for (int b = 0; b < 256; ++b) {
    const float value = E4M3ToFloat(static_cast<uint8_t>(b));
    if (b == 127 || b == 255) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(Bits(value), Bits(expected[static_cast<size_t>(b)])) << b;
      EXPECT_EQ(FloatToE4M3(value), b);
    }
  }
}

TEST_F(Formats, E2M1Values) {
  const std::vector<float> expected = Floats("e2m1_values");
  ASSERT_EQ(expected.size(), 16u);
  for (uint8_t code = 0; code < 16; ++code) {
    EXPECT_EQ(Bits(E2M1ToFloat(code)), Bits(expected[code])) << int{code};
    EXPECT_EQ(FloatToE2M1(E2M1ToFloat(code)), code);
  }
}

TEST_F(Formats, Bf16Rounding) {
  const std::vector<float> in = Floats("bf16_in");
  const std::vector<float> out = Floats("bf16_out");
  ASSERT_EQ(in.size(), out.size());
  for (size_t i = 0; i < in.size(); ++i) EXPECT_EQ(Bits(RoundToBf16(in[i])), Bits(out[i])) << in[i];
}

TEST_F(Formats, GroupQuantisers) {
  using Quantizer = uint8_t (*)(std::span<const float>, uint8_t*);
  struct Case {
    std::string name;
    size_t group;
    Quantizer quantize;
    float (*code_value)(uint8_t);
    float (*scale_value)(uint8_t);
  };
  const std::vector<float> x = Floats("x");
  for (const Case& c : {Case{"fp8_group32", 32, QuantizeFp8Group, E4M3ToFloat, E8M0ToFloat},
                        Case{"fp4_group32", 32, QuantizeFp4Group, E2M1ToFloat, E8M0ToFloat},
                        Case{"fp4_group16", 16, QuantizeFp4GroupE4M3, E2M1ToFloat, E4M3ToFloat}}) {
    const std::vector<float> values = Floats(c.name);
    const std::vector<float> scales = Floats(c.name + "_scale");
    ASSERT_EQ(values.size(), x.size());
    ASSERT_EQ(scales.size(), x.size() / c.group);
    std::vector<uint8_t> codes(c.group);
    for (size_t g = 0; g < scales.size(); ++g) {
      const float s =
          c.scale_value(c.quantize(std::span(x).subspan(g * c.group, c.group), codes.data()));
      EXPECT_EQ(Bits(s), Bits(scales[g])) << c.name << " group " << g;
      for (size_t i = 0; i < c.group; ++i) {
        EXPECT_EQ(Bits(c.code_value(codes[i]) * s), Bits(values[g * c.group + i]))
            << c.name << " group " << g << " value " << i;
      }
    }
  }
}

TEST(DTypes, E4M3RoundsToNearestEvenEverywhere) {
  // Every midpoint between neighbours goes to the even code, every other value to the nearer one.
  for (uint8_t code = 0; code < 0x7e; ++code) {
    const float low = E4M3ToFloat(code);
    const float high = E4M3ToFloat(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    const auto even = static_cast<uint8_t>(code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(FloatToE4M3(middle), even);
    EXPECT_EQ(FloatToE4M3(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(FloatToE4M3(std::nextafter(middle, 1e9f)), code + 1);
    EXPECT_EQ(FloatToE4M3(-middle), even | 0x80);
  }
  EXPECT_EQ(FloatToE4M3(1e30f), 0x7e);
  EXPECT_EQ(FloatToE4M3(-std::numeric_limits<float>::infinity()), 0xfe);
  EXPECT_EQ(FloatToE4M3(std::numeric_limits<float>::quiet_NaN()) & 0x7f, 0x7f);
}

TEST(DTypes, E8M0IncludesTheSubnormal) {
  for (int b = 0; b < 255; ++b)
    EXPECT_EQ(E8M0ToFloat(static_cast<uint8_t>(b)), std::ldexp(1.0f, b - 127)) << b;
  EXPECT_TRUE(std::isnan(E8M0ToFloat(255)));
}

TEST(DTypes, Bf16KeepsNanAndRoundsIntoInfinity) {
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(DTypes, NamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(ParseDType(DTypeName(dtype)), dtype);
  }
  EXPECT_FALSE(ParseDType("F64"));
  EXPECT_FALSE(ParseDType("f32"));
  EXPECT_FALSE(ParseDType(""));
}

TEST(Quantize, PacksTheEvenElementIntoTheLowNibble) {
  const uint8_t codes[4] = {1, 2, 15, 0};
  uint8_t packed[2];
  PackNibbles(codes, 4, packed);
  EXPECT_EQ(packed[0], 0x21);
  EXPECT_EQ(packed[1], 0x0f);
}

}  // namespace
}  // namespace deepinfer
