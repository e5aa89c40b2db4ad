// SPDX-License-Identifier: Apache-2.0
//
// The golden vectors of the key definition (kv-store.md 3.4 of the specification).
#include "kvstore/block_key.h"

#include <gtest/gtest.h>

#include <numeric>

namespace deepinfer::kvstore {
namespace {

Key256 Filled(uint8_t value) {
  Key256 key;
  key.bytes.fill(value);
  return key;
}

struct Golden {
  Golden() : secret(32), block0(128), block1(128) {
    std::iota(secret.begin(), secret.end(), uint8_t{0});
    std::iota(block0.begin(), block0.end(), 0);
    std::iota(block1.begin(), block1.end(), 128);
    fingerprint.model_id = "deepseek-ai/DeepSeek-V4.1-Flash-1017";
    fingerprint.weights_digest = Filled(0x11);
    for (int i = 0; i < 32; ++i) fingerprint.tokenizer_digest_hex += "22";
    fingerprint.numerics_class = 0;
    salt = TenantSalt(secret, "org-a", "");
    root = RootKey(fingerprint, salt);
    key0 = BlockKey(root, 0, block0, {});
  }
  std::vector<uint8_t> secret;
  std::vector<int32_t> block0, block1;
  CacheFingerprint fingerprint;
  Key256 salt, root, key0;
};

TEST(BlockKey, GoldenVectors) {
  Golden g;
  EXPECT_EQ(g.salt.ToHex(), "40317a5b3e0864a74cef59612b93704139184d069824fb6a7480f2087d6391ae");
  EXPECT_EQ(g.root.ToHex(), "6b7ec48a94bdc2c60ab3c65feba921f0350456db8e8facc5efffa8520bc9c4e4");
  EXPECT_EQ(g.key0.ToHex(), "a8b67eab6bf11e1602a75e869b632e6ec6f0f69c03b9998b1877e7565a1969d3");
  EXPECT_EQ(BlockKey(g.key0, 1, g.block1, {}).ToHex(), "af30399540b137986cf4f3bf0cbce85f0a791eacc0726389a5d6c204190a81b0");
  EXPECT_EQ(RootKey(g.fingerprint, TenantSalt(g.secret, "org-b", "")).ToHex(),
            "f60394aa48f2de9fbc8e552ff084ca921e8a09170151ed794af591fccd5690fd");
  EXPECT_EQ(RootKey(g.fingerprint, TenantSalt(g.secret, "org-a", "x")).ToHex(),
            "eee4b728c90520729c27f6ff604d335e241ee44b13f055a2d6b78025e8077460");
  CacheFingerprint fp8 = g.fingerprint;
  fp8.layout_id = 2;
  EXPECT_EQ(RootKey(fp8, g.salt).ToHex(), "cc8279a298164c11e359c10daffc6b1eabef0cc0fd299704d80b913c677feb62");
  EXPECT_EQ(ForkParentKey(g.key0, g.salt).ToHex(), "11939f937246789300b22e513002a2bb951261c197780e1c510260872e31114b");
  EXPECT_EQ(StateKey(g.key0).ToHex(), "3c6c5795b76d36bf8f69ccbbba5898193d7839ce7a4f819408cf15e6cfc1aa4e");
}

TEST(BlockKey, ImagesThatTouchABlockAreInItsKey) {
  Golden g;
  const ImageSpan image{Filled(0xAB), 100, 60};
  const Key256 key0 = BlockKey(g.root, 0, g.block0, {&image, 1});
  EXPECT_EQ(key0.ToHex(), "6a5aa46e3273c4ad5e30f0b0f1168e12bd70919b304a45d6b7a1a89cb3148970");
  EXPECT_EQ(BlockKey(key0, 1, g.block1, {&image, 1}).ToHex(), "f64e49f68f5664b66ba023be8e2d67d6003236cde2f179e11b7e6f271f45b044");
  const ImageSpan later{Filled(0xAB), 128, 60};
  EXPECT_EQ(BlockKey(g.root, 0, g.block0, {&later, 1}), g.key0);
}

TEST(BlockKey, ImageDigestHashesPixels) {
  std::vector<uint8_t> pixels(18);
  std::iota(pixels.begin(), pixels.end(), uint8_t{0});
  EXPECT_EQ(ImageDigest("pp1", 2, 3, pixels).ToHex(), "0c17a081179b9059368e9bb9d901cdd099a3f00ec0ecad6d8d7b12eaa870079d");
}

TEST(BlockKey, ExtendKeysStopsAtFullBlocks) {
  Golden g;
  std::vector<int32_t> tokens(300);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<Key256> keys;
  ExtendKeys(g.root, tokens, {}, 1, keys);
  ASSERT_EQ(keys.size(), 1u);
  EXPECT_EQ(keys[0], g.key0);
  ExtendKeys(g.root, tokens, {}, 100, keys);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[1], BlockKey(g.key0, 1, g.block1, {}));
}

}  // namespace
}  // namespace deepinfer::kvstore
