// SPDX-License-Identifier: Apache-2.0
#include "hub/model_locator.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "temporary_dir.h"

namespace deepinfer::hub {
namespace {

namespace fs = std::filesystem;
using deepinfer::testing::TemporaryDir;
using ::testing::HasSubstr;

constexpr char kId[] = "deepseek-ai/DeepSeek-V4.1-Flash-1017";
constexpr char kFolder[] = "models--deepseek-ai--DeepSeek-V4.1-Flash-1017";
constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";

class HubCache : public ::testing::Test {
 protected:
  HubCache() : repository_(fs::path(dir_.path()) / "hub" / kFolder) {
    options_.environment = Environment({{"HF_HOME", dir_.path()}, {"HOME", "/nonexistent"}});
    options_.binary_dir = dir_.path();
  }
  void MakeSnapshot(const std::string& ref) {
    fs::create_directories(repository_ / "snapshots" / kCommit);
    fs::create_directories((repository_ / "refs" / ref).parent_path());
    ASSERT_TRUE(WriteFileAtomically((repository_ / "refs" / ref).string(), std::string(kCommit) + "\n").ok());
    fs::create_directories(repository_ / "blobs");
    ASSERT_TRUE(WriteFileAtomically((repository_ / "blobs" / "b1").string(), "{}").ok());
    fs::create_symlink("../../blobs/b1", repository_ / "snapshots" / kCommit / "config.json");
  }
  std::string ErrorOf(const std::string& model) {
    const Result<std::string> found = ResolveModelDir(model, options_);
    EXPECT_FALSE(found.ok());
    if (found.ok()) return {};
    EXPECT_EQ(found.status().code(), StatusCode::kBadModel);
    return found.status().message();
  }

  TemporaryDir dir_;
  fs::path repository_;
  LocateOptions options_;
};

TEST_F(HubCache, FindsTheSnapshotOfMain) {
  MakeSnapshot("main");
  const Result<std::string> found = ResolveModelDir(kId, options_);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_TRUE(found->ends_with(kCommit));
  EXPECT_TRUE(fs::exists(fs::path(*found) / "config.json"));  // through the link
}

TEST_F(HubCache, FindsACommitOrItsFirstLetters) {
  MakeSnapshot("main");
  for (const char* revision : {kCommit, "0123456"}) {
    options_.revision = revision;
    EXPECT_TRUE(ResolveModelDir(kId, options_).ok()) << revision;
  }
  options_.revision = "01";
  EXPECT_FALSE(ResolveModelDir(kId, options_).ok());
}

TEST_F(HubCache, MissingModelNamesTheDownloadCommand) {
  EXPECT_THAT(ErrorOf(kId), HasSubstr("deepinfer download " + std::string(kId)));
  MakeSnapshot("main");
  options_.revision = "v2";
  EXPECT_THAT(ErrorOf(kId), HasSubstr("deepinfer download " + std::string(kId) + " --revision v2"));
}

TEST_F(HubCache, DanglingLinkIsAnIncompleteSnapshot) {
  MakeSnapshot("main");
  fs::remove(repository_ / "blobs" / "b1");
  EXPECT_THAT(ErrorOf(kId), HasSubstr("incomplete"));
}

TEST_F(HubCache, RevisionCannotLeaveTheCache) {
  MakeSnapshot("main");
  options_.revision = "../../../etc";
  EXPECT_FALSE(ResolveModelDir(kId, options_).ok());
  options_.revision = "main";
  ASSERT_TRUE(WriteFileAtomically((repository_ / "refs" / "main").string(), "../../..").ok());
  EXPECT_FALSE(ResolveModelDir(kId, options_).ok());
}

TEST_F(HubCache, DirectoryWinsOverHubId) {
  const Result<std::string> found = ResolveModelDir(dir_.path(), options_);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(*found, dir_.path());
}

TEST_F(HubCache, FilesAndUnknownNamesAreRefused) {
  const std::string file = dir_.path() + "/file";
  ASSERT_TRUE(WriteFileAtomically(file, "x").ok());
  EXPECT_THAT(ErrorOf(file), HasSubstr("is a file"));
  EXPECT_THAT(ErrorOf("/no/such/dir"), HasSubstr("does not exist"));
  EXPECT_THAT(ErrorOf("\033[31m"), HasSubstr("\\x1b"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("empty"));
}

TEST_F(HubCache, DemoIsFoundBesideTheBinary) {
  EXPECT_THAT(ErrorOf("demo"), HasSubstr("--model DIR"));
  const fs::path prefix = fs::path(dir_.path()) / "prefix";
  fs::create_directories(prefix / "share/deepinfer/models/demo");
  ASSERT_TRUE(WriteFileAtomically((prefix / "share/deepinfer/models/demo/config.json").string(), "{}").ok());
  options_.binary_dir = (prefix / "bin").string();
  const Result<std::string> found = ResolveModelDir("demo", options_);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(*found, (prefix / "share/deepinfer/models/demo").string());
}

TEST(HubCacheDir, FollowsTheVariablesInOrder) {
  using Variables = std::map<std::string, std::string, std::less<>>;
  EXPECT_EQ(HubCacheDir(Environment(Variables{{"HOME", "/h"}})), "/h/.cache/huggingface/hub");
  EXPECT_EQ(HubCacheDir(Environment(Variables{{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}})), "/x/huggingface/hub");
  EXPECT_EQ(HubCacheDir(Environment(Variables{{"HF_HOME", "/f"}, {"XDG_CACHE_HOME", "/x"}})), "/f/hub");
  EXPECT_EQ(HubCacheDir(Environment(Variables{{"HF_HOME", "/f"}, {"HF_HUB_CACHE", "/c"}})), "/c");
  EXPECT_EQ(HubCacheDir(Environment(Variables{{"HF_HOME", "~/f"}, {"HOME", "/h"}})), "/h/f/hub");
}

TEST(IsHubId, WantsOwnerAndName) {
  EXPECT_TRUE(IsHubId(kId));
  for (const char* text : {"demo", "a/b/c", "/a", "a/", "../b", "a/..", "./b", "a b/c", "a/b\n"}) EXPECT_FALSE(IsHubId(text)) << text;
}

}  // namespace
}  // namespace deepinfer::hub
