// SPDX-License-Identifier: Apache-2.0
#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "temporary_dir.h"

namespace deepinfer::model {
namespace {

using ::testing::HasSubstr;

std::string LittleEndian64(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

std::string FileOf(const std::string& header, size_t data_bytes) {
  return LittleEndian64(header.size()) + header + std::string(data_bytes, '\1');
}

Result<std::vector<TensorView>> Parse(const std::string& bytes) {
  return SafetensorsFile::ParseBytes(
      reinterpret_cast<const uint8_t*>(bytes.data()), static_cast<int64_t>(bytes.size()), "f");
}

TEST(Safetensors, ReadsEntriesInHeaderOrder) {
  const std::string bytes = FileOf(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,1],"data_offsets":[2,10]},)"
      R"( "a" : { "shape":[2], "data_offsets":[0,2], "dtype":"I8" }, "e\u00e9":{"dtype":"BF16","shape":[0,7],"data_offsets":[10,10]}}  )",
      10);
  const auto tensors = Parse(bytes);
  ASSERT_TRUE(tensors.ok()) << tensors.status().ToString();
  ASSERT_EQ(tensors->size(), 3u);
  EXPECT_EQ((*tensors)[0].name, "b");
  EXPECT_EQ((*tensors)[0].shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ((*tensors)[0].dtype, DType::kF32);
  EXPECT_EQ((*tensors)[0].num_elements(), 2);
  EXPECT_EQ((*tensors)[1].data - reinterpret_cast<const uint8_t*>(bytes.data()),
            static_cast<int64_t>(bytes.size()) - 10);
  EXPECT_EQ((*tensors)[2].name, "e\xc3\xa9");
  EXPECT_EQ((*tensors)[2].num_bytes, 0);
}

TEST(Safetensors, ScalarsAndHolesAreLegal) {
  const auto tensors =
      Parse(FileOf(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[4,8]}})", 100));
  ASSERT_TRUE(tensors.ok()) << tensors.status().ToString();
  EXPECT_EQ((*tensors)[0].num_elements(), 1);
}

struct BadCase {
  const char* name;
  std::string bytes;
  const char* message;
};

std::string Entry(const std::string& body, size_t data_bytes = 8) {
  return FileOf("{\"t\":" + body + "}", data_bytes);
}

class SafetensorsBad : public ::testing::TestWithParam<BadCase> {};

TEST_P(SafetensorsBad, IsRefusedWithOneClearLine) {
  const auto tensors = Parse(GetParam().bytes);
  ASSERT_FALSE(tensors.ok());
  EXPECT_EQ(tensors.status().code(), StatusCode::kBadModel);
  EXPECT_THAT(tensors.status().message(), HasSubstr("f: "));
  EXPECT_THAT(tensors.status().message(), HasSubstr(GetParam().message));
  EXPECT_EQ(tensors.status().message().find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    SafetensorsBad,
    ::testing::Values(
        BadCase{"Empty", "", "too few"},
        BadCase{"SevenBytes", "1234567", "too few"},
        BadCase{"ZeroHeader", LittleEndian64(0) + "{}", "header length 0"},
        BadCase{
            "HeaderBeyondTheFile", LittleEndian64(3) + "{}", "header length 3 is not in [1, 2]"},
        BadCase{"HeaderAbove100MB", LittleEndian64(100'000'001) + "{}", "header length"},
        BadCase{"HeaderAbsurd", LittleEndian64(UINT64_MAX) + "{}", "beyond 2^63"},
        BadCase{"NotJson", FileOf("hello", 0), "'{' expected"},
        BadCase{"Array", FileOf("[]", 0), "'{' expected"},
        BadCase{"Unfinished", FileOf("{\"a\":", 0), "found the end"},
        BadCase{"TextAfterwards", FileOf("{} x", 0), "after the end"},
        BadCase{"NulAfterwards", FileOf(std::string("{}\0", 3), 0), "after the end"},
        BadCase{"BadUtf8", FileOf("{\"\xff\":1}", 0), "not valid UTF-8"},
        BadCase{"LoneSurrogate", FileOf("{\"\\ud800\":1}", 0), "lone surrogate"},
        BadCase{"OffsetsReversed",
                Entry(R"({"dtype":"I8","shape":[4],"data_offsets":[4,0]})"),
                "lies at bytes [4, 0]"},
        BadCase{"OffsetsBeyond",
                Entry(R"({"dtype":"I8","shape":[4],"data_offsets":[5,9]})"),
                "lies at bytes [5, 9] of 8"},
        BadCase{"OffsetsNegative",
                Entry(R"({"dtype":"I8","shape":[4],"data_offsets":[-4,0]})"),
                "non-negative"},
        BadCase{"OffsetsHuge",
                Entry(R"({"dtype":"I8","shape":[4],"data_offsets":[0,99999999999999999999]})"),
                "out of range"},
        BadCase{
            "OneOffset", Entry(R"({"dtype":"I8","shape":[4],"data_offsets":[4]})"), "two numbers"},
        BadCase{"ThreeOffsets",
                Entry(R"({"dtype":"I8","shape":[4],"data_offsets":[0,4,8]})"),
                "more than 2"},
        BadCase{"WrongSize",
                Entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"),
                "needs 8 bytes but has 4"},
        BadCase{"ShapeOverflows",
                Entry(R"({"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,8]})"),
                "more than 2^63"},
        BadCase{"ShapeFloat",
                Entry(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"),
                "integer expected"},
        BadCase{"ShapeTooLong",
                Entry(R"({"dtype":"I8","shape":[1,1,1,1,1,1,1,1,8],"data_offsets":[0,8]})"),
                "more than 8"},
        BadCase{"UnknownDtype",
                Entry(R"({"dtype":"F64","shape":[1],"data_offsets":[0,8]})"),
                "dtype F64"},
        BadCase{"MissingShape",
                Entry(R"({"dtype":"I8","data_offsets":[0,8]})"),
                "needs dtype, shape and data_offsets"},
        BadCase{"FieldTwice",
                Entry(R"({"dtype":"I8","dtype":"U8","shape":[8],"data_offsets":[0,8]})"),
                "appears twice"},
        BadCase{"NestedTooDeep",
                Entry(R"({"dtype":"I8","shape":[8],"data_offsets":[0,8],"x":[[1]]})"),
                "too deep"},
        BadCase{"MetadataTooDeep", FileOf(R"({"__metadata__":{"a":{"b":{}}}})", 0), "too deep"},
        BadCase{
            "NameTwice",
            FileOf(
                R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"I8","shape":[1],"data_offsets":[1,2]},)"
                R"("a":{"dtype":"I8","shape":[1],"data_offsets":[2,3]}})",
                3),
            "a appears twice"},
        BadCase{
            "Overlap",
            FileOf(
                R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"I8","shape":[4],"data_offsets":[3,7]}})",
                8),
            "a and b overlap"},
        BadCase{
            "ControlCharactersAreEscaped",
            FileOf("{\"\\u001b[31mred\":{\"dtype\":\"X\",\"shape\":[],\"data_offsets\":[0,0]}}", 0),
            "\\x1b[31mred"}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(Safetensors, DeepNestingDoesNotExhaustTheStack) {
  EXPECT_FALSE(Parse(FileOf("{\"__metadata__\":" + std::string(1'000'000, '['), 0)).ok());
  EXPECT_FALSE(Parse(FileOf("{\"t\":{\"x\":" + std::string(1'000'000, '{'), 0)).ok());
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string bytes = FileOf(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  ASSERT_TRUE(Parse(bytes).ok());
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(Parse(bytes.substr(0, n)).ok()) << n;
}

TEST(Safetensors, OpenFindsTensorsAndNamesMissingFiles) {
  const ::deepinfer::testing::TemporaryDir dir;
  const std::string path = dir.Write(
      "x.safetensors", FileOf(R"({"b":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}})", 2));
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  ASSERT_NE(file->Find("b"), nullptr);
  EXPECT_EQ(file->Find("a"), nullptr);
  EXPECT_EQ(file->Find("c"), nullptr);
  EXPECT_EQ(file->OffsetInFile(*file->Find("b")), file->file_bytes() - 2);
  const auto missing = SafetensorsFile::Open(dir.path() + "/y.safetensors");
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.status().message(), HasSubstr("y.safetensors"));
}

}  // namespace
}  // namespace deepinfer::model
