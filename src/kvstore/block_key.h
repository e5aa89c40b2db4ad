// SPDX-License-Identifier: Apache-2.0
//
// Keys of cached prefixes: a SHA-256 chain over blocks of 128 tokens whose root names everything that changes cached bytes
// (model, tokenizer, layout, arithmetic) and the tenant's salt. The encoding is that of kv-store.md 3
// of the specification: integers little-endian, strings with a 32-bit length in front.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::kvstore {

inline constexpr int64_t kTokensPerBlock = 128;

struct Key256 {
  std::array<uint8_t, 32> bytes{};
  bool operator==(const Key256&) const = default;
  std::string ToHex() const;
};

struct Key256Hash {
  size_t operator()(const Key256& key) const {
    size_t value;
    std::memcpy(&value, key.bytes.data(), sizeof(value));
    return value;
  }
};

// Everything that changes the cached bytes of identical input has its own class; blocks of different classes never mix.
enum class NumericsClass : uint32_t {
  kCuda = 0,
  kCudaBatchInvariant = 1,
  kAscend = 2,
  kCpu = 3,
  kCpuDeterministic = 4,
  kAscendDeterministic = 5,
};

struct CacheFingerprint {
  std::string model_id;
  Key256 weights_digest;
  std::string tokenizer_digest_hex;
  uint32_t layout_id = 1;  // 1 = FP4 main keys, 2 = FP8
  uint32_t block_tokens = 128;
  uint32_t replay_window = 128;
  uint32_t numerics_class = static_cast<uint32_t>(NumericsClass::kCpu);
  uint32_t variant_id = 0;  // rope or context variant
};

// One image of a prompt: digest of its final pixels and the span of its tokens.
struct ImageSpan {
  Key256 digest;
  int64_t first_pos = 0;
  int64_t num_tokens = 0;
};

Key256 Sha256Of(std::string_view bytes);
Key256 TenantSalt(std::span<const uint8_t> master_secret, std::string_view isolation_domain, std::string_view client_salt);
Key256 RootKey(const CacheFingerprint& fingerprint, const Key256& tenant_salt);
// `tokens` are the block's 128 ids. `images` are all images of the sequence in order; those that touch the block count.
Key256 BlockKey(const Key256& parent, int64_t index, std::span<const int32_t> tokens, std::span<const ImageSpan> images);
// Replaces a parent where a public prefix ends and a tenant's own text begins.
Key256 ForkParentKey(const Key256& key, const Key256& tenant_salt);
Key256 StateKey(const Key256& block_key);
Key256 ImageDigest(std::string_view preprocess_version, uint32_t canvas_h, uint32_t canvas_w, std::span<const uint8_t> pixels);

// Appends the keys of full blocks to `keys` until it holds `num_blocks` of them (or all full blocks of `tokens`).
void ExtendKeys(const Key256& root, std::span<const int32_t> tokens, std::span<const ImageSpan> images, int64_t num_blocks,
                std::vector<Key256>& keys);

}  // namespace deepinfer::kvstore
