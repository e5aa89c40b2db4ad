// SPDX-License-Identifier: Apache-2.0
//
// The files of `deepinfer batch`: what a line may be, and what an output that exists may hold.
#include "cli/batch_file.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <unistd.h>

#include <gtest/gtest.h>

namespace deepinfer::cli {
namespace {

constexpr const char* kRequests =
    "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"x\":1}}\n"
    "\n"
    "no json\n"
    "{\"custom_id\":\"b\",\"url\":\"/v1/completions\",\"body\":{}}\r\n"
    "{\"custom_id\":7,\"url\":\"u\",\"body\":{}}";

BatchInput Input(std::string text = kRequests) {
  Result<BatchInput> input = BatchInput::FromText(std::move(text), "in");
  EXPECT_TRUE(input.ok()) << input.status().message();
  return std::move(input).value();
}

class BatchFile : public ::testing::Test {
 protected:
  BatchFile() : path_(std::filesystem::temp_directory_path() / ("batch_file_test." + std::to_string(::getpid()))) {}
  ~BatchFile() override { std::filesystem::remove(path_); }

  void Write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  std::string Read() const {
    std::ostringstream text;
    text << std::ifstream(path_, std::ios::binary).rdbuf();
    return text.str();
  }
  Result<std::unique_ptr<BatchOutput>> Open(const BatchInput& input) { return BatchOutput::Open(path_, "-", input, out_); }

  std::string path_;
  Output out_;
};

std::string ResultLine(const BatchInput& input, size_t i) {
  Json line = BatchLine(input, i);
  line["response"] = nullptr;
  return DumpJson(line);
}

TEST_F(BatchFile, LinesKeepTheirNumbersAndErrors) {
  const BatchInput input = Input();
  ASSERT_EQ(input.size(), 4u);
  EXPECT_EQ(input.custom_id(0), "a");
  EXPECT_TRUE(input.custom_id(1).is_null());
  EXPECT_TRUE(input.custom_id(3).is_null());
  EXPECT_EQ(input.line_number(1), 3);
  EXPECT_TRUE(input.Parse(0).ok());
  EXPECT_EQ(input.Parse(0)->body["x"], 1);
  EXPECT_NE(input.Parse(1).status().message().find("line 3"), std::string::npos);
  EXPECT_TRUE(input.Parse(2).ok());
  EXPECT_NE(input.Parse(3).status().message().find("custom_id"), std::string::npos);
}

TEST_F(BatchFile, IdsComeFromTheLineAlone) {
  const BatchInput one = Input(), other = Input("\n\n" + std::string(kRequests));
  for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(one.id(i), other.id(i));
  EXPECT_NE(one.id(0), one.id(2));
}

TEST_F(BatchFile, AnOutputIsContinuedAtEveryPlaceItCanBeCutOff) {
  const BatchInput input = Input();
  std::string whole;
  for (size_t i = 0; i < input.size(); ++i) whole += ResultLine(input, i) + "\n";
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    Write(whole.substr(0, cut));
    Result<std::unique_ptr<BatchOutput>> output = Open(input);
    ASSERT_TRUE(output.ok()) << cut << ": " << output.status().message();
    for (size_t i = (*output)->num_done(); i < input.size(); ++i) ASSERT_TRUE((*output)->Append(ResultLine(input, i)).ok());
    ASSERT_TRUE((*output)->Finish().ok());
    ASSERT_EQ(Read(), whole) << cut;
  }
}

TEST_F(BatchFile, ASecondWriterIsRefused) {
  const BatchInput input = Input();
  const auto first = Open(input);
  ASSERT_TRUE(first.ok());
  const auto second = Open(input);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("another run"), std::string::npos);
}

TEST_F(BatchFile, OtherFilesAreLeftAlone) {
  const BatchInput input = Input();
  for (const std::string& content : {std::string("x"), std::string("\n"), std::string("{\"id\":1}\n"), ResultLine(input, 1) + "\n",
                                    ResultLine(input, 0) + "\nx"}) {
    Write(content);
    EXPECT_FALSE(Open(input).ok()) << content;
    EXPECT_EQ(Read(), content);
  }
}

}  // namespace
}  // namespace deepinfer::cli
