// SPDX-License-Identifier: Apache-2.0
// The small parts of the server: paths and files of lines.
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "server/line_file.h"
#include "server/routes.h"
#include "temporary_dir.h"

namespace deepinfer::server {
namespace {

TEST(Routes, PathsAndTheirForms) {
  Route route;
  ASSERT_TRUE(FindRoute("/v1/chat/completions", route));
  EXPECT_EQ(route.endpoint, Endpoint::kChat);
  EXPECT_EQ(route.method, "POST");
  EXPECT_TRUE(route.needs_key);
  ASSERT_TRUE(FindRoute("/anthropic/v1/messages", route));
  EXPECT_EQ(route.endpoint, Endpoint::kMessages);
  EXPECT_EQ(route.api, protocols::Api::kMessages);
  ASSERT_TRUE(FindRoute("/healthz", route));
  EXPECT_FALSE(route.needs_key);
  ASSERT_TRUE(FindRoute("/v1/models/a%2Fb", route));
  EXPECT_EQ(route.endpoint, Endpoint::kModel);
  EXPECT_EQ(route.argument, "a/b");
}

TEST(Routes, OtherPathsAreUnknown) {
  Route route;
  for (const char* path : {"", "/v1", "/v1/chat/completions/", "/V1/chat/completions", "/v1/models/", "/healthz/x", "v1/models"})
    EXPECT_FALSE(FindRoute(path, route)) << path;
}

TEST(LineFile, LinesOfManyThreadsAreWholeAndAllThere) {
  const testing::TemporaryDir dir;
  const std::string path = dir.Write("lines", "before\n");
  constexpr int kThreads = 4, kLines = 200;
  {
    const auto file = LineFile::Open(path, LineFile::Durability::kSync).value();
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&file] {
        for (int i = 0; i < kLines; ++i) file->Append("0123456789");
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  std::string expected = "before\n";
  for (int i = 0; i < kThreads * kLines; ++i) expected += "0123456789\n";
  EXPECT_EQ(ReadFile(path, 1 << 20).value(), expected);
}

TEST(LineFile, AFileThatCannotBeWrittenIsNamed) {
  const testing::TemporaryDir dir;
  const auto opened = LineFile::Open(dir.path(), LineFile::Durability::kNone);
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.status().message(), ::testing::HasSubstr(dir.path()));
}

}  // namespace
}  // namespace deepinfer::server
