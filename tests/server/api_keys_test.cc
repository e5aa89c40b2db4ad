// SPDX-License-Identifier: Apache-2.0
#include "server/api_keys.h"

#include <string>

#include <gtest/gtest.h>

#include "core/file.h"
#include "temporary_dir.h"

namespace deepinfer::server {
namespace {

class ApiKeysTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) { ASSERT_TRUE(WriteFileAtomically(path(), text).ok()); }
  std::string path() const { return dir_.path() + "/keys.json"; }
  testing::TemporaryDir dir_;
};

TEST(ApiKeys, NoneAreNeeded) {
  const auto keys = ApiKeys::Create({}, "");
  ASSERT_TRUE(keys.ok());
  EXPECT_FALSE((*keys)->is_required());
}

TEST(ApiKeys, PlainKeys) {
  const auto keys = ApiKeys::Create({"first-key", "second-key"}, "");
  ASSERT_TRUE(keys.ok());
  EXPECT_EQ((*(*keys)->Check("second-key", 0))->id, "key-2");
  for (const char* wrong : {"", "third-key", "first-ke", "first-keyy"}) EXPECT_FALSE((*keys)->Check(wrong, 0).ok()) << wrong;
  EXPECT_FALSE(ApiKeys::Create({"short"}, "").ok());
}

TEST(ApiKeys, MadeKeys) {
  const NewApiKey a = MakeApiKey("acme"), b = MakeApiKey("");
  EXPECT_EQ(a.key.size(), 46u);
  EXPECT_TRUE(a.key.starts_with("di-"));
  EXPECT_NE(a.key, b.key);
  EXPECT_EQ(a.record.find(a.key), std::string::npos);
}

TEST_F(ApiKeysTest, File) {
  const NewApiKey a = MakeApiKey("acme"), b = MakeApiKey("");
  Write("{\"keys\":[" + a.record + "," + b.record + "]}");
  const auto keys = ApiKeys::Create({}, path());
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  EXPECT_EQ((*(*keys)->Check(a.key, 0))->domain(), "acme");
  EXPECT_EQ((*(*keys)->Check(b.key, 0))->domain(), (*(*keys)->Check(b.key, 0))->id);
  std::string wrong = a.key;
  wrong.back() = wrong.back() == 'x' ? 'y' : 'x';
  EXPECT_FALSE((*keys)->Check(wrong, 0).ok());

  EXPECT_FALSE(*(*keys)->Reload(false));
  Write("{\"keys\":[" + b.record + "]}");
  EXPECT_TRUE(*(*keys)->Reload(false));
  EXPECT_FALSE((*keys)->Check(a.key, 0).ok());
  Write("nonsense");
  EXPECT_FALSE((*keys)->Reload(false).ok());
  EXPECT_TRUE((*keys)->Check(b.key, 0).ok());
}

TEST_F(ApiKeysTest, Expiry) {
  std::string record = MakeApiKey("acme").record;
  const NewApiKey made = MakeApiKey("acme");
  record = made.record;
  record.back() = ',';
  Write("{\"keys\":[" + record + "\"expires_at\":100}]}");
  const auto keys = ApiKeys::Create({}, path());
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  EXPECT_TRUE((*keys)->Check(made.key, 99).ok());
  EXPECT_FALSE((*keys)->Check(made.key, 100).ok());
}

TEST_F(ApiKeysTest, DamagedFilesNameTheEntry) {
  for (const char* entry : {"1", "{}", R"({"id":"abc"})", R"({"id":"abcdefgh","salt":"zz","sha256":""})",
                            R"({"id":"abcdefgh","salt":"0011223344556677","sha256":"00"})", R"({"surprise":1})"}) {
    Write(std::string("{\"keys\":[") + entry + "]}");
    const auto keys = ApiKeys::Create({}, path());
    ASSERT_FALSE(keys.ok()) << entry;
    EXPECT_NE(keys.status().message().find("keys[0]"), std::string::npos) << keys.status().message();
  }
}

}  // namespace
}  // namespace deepinfer::server
