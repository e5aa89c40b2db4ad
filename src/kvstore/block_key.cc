// SPDX-License-Identifier: Apache-2.0
#include "kvstore/block_key.h"

#include <algorithm>
#include <bit>
#include <memory>

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "core/check.h"

namespace deepinfer::kvstore {
namespace {

static_assert(std::endian::native == std::endian::little, "integers are hashed in memory order");

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) {
    DI_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), Algorithm(), nullptr) == 1) << "SHA-256 is missing";
  }
  Sha256& Bytes(const void* data, size_t size) {
    DI_CHECK(size == 0 || EVP_DigestUpdate(context_.get(), data, size) == 1) << "SHA-256 failed";
    return *this;
  }
  Sha256& Domain(std::string_view text) { return Bytes(text.data(), text.size()); }
  Sha256& Key(const Key256& key) { return Bytes(key.bytes.data(), key.bytes.size()); }
  Sha256& String(std::string_view text) { return Int(static_cast<uint32_t>(text.size())).Bytes(text.data(), text.size()); }
  template <typename T>
  Sha256& Int(T value) {
    return Bytes(&value, sizeof(value));
  }
  Key256 Finish() {
    Key256 key;
    unsigned int size = 0;
    DI_CHECK(EVP_DigestFinal_ex(context_.get(), key.bytes.data(), &size) == 1 && size == key.bytes.size()) << "SHA-256 failed";
    return key;
  }

 private:
  // Fetched once: looking the algorithm up costs more than hashing a block.
  static const EVP_MD* Algorithm() {
    static const EVP_MD* algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    return algorithm;
  }
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

void AppendString(std::vector<uint8_t>& out, std::string_view text) {
  const uint32_t size = static_cast<uint32_t>(text.size());
  const auto* bytes = reinterpret_cast<const uint8_t*>(&size);
  out.insert(out.end(), bytes, bytes + sizeof(size));
  out.insert(out.end(), text.begin(), text.end());
}

}  // namespace

std::string Key256::ToHex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(64);
  for (const uint8_t byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

Key256 TenantSalt(std::span<const uint8_t> master_secret, std::string_view isolation_domain, std::string_view client_salt) {
  static constexpr std::string_view kDomain = "DIKV/salt/v1";
  std::vector<uint8_t> message(kDomain.begin(), kDomain.end());
  AppendString(message, isolation_domain);
  AppendString(message, client_salt);
  Key256 salt;
  unsigned int size = 0;
  const unsigned char* done = HMAC(EVP_sha256(), master_secret.data(), static_cast<int>(master_secret.size()), message.data(),
                                   message.size(), salt.bytes.data(), &size);
  DI_CHECK(done != nullptr && size == salt.bytes.size()) << "HMAC-SHA256 failed";
  return salt;
}

Key256 RootKey(const CacheFingerprint& f, const Key256& tenant_salt) {
  return Sha256()
      .Domain("DIKV/root/v1")
      .String(f.model_id)
      .Key(f.weights_digest)
      .String(f.tokenizer_digest_hex)
      .Int(f.layout_id)
      .Int(f.block_tokens)
      .Int(f.replay_window)
      .Int(f.numerics_class)
      .Int(f.variant_id)
      .Key(tenant_salt)
      .Finish();
}

Key256 BlockKey(const Key256& parent, int64_t index, std::span<const int32_t> tokens, std::span<const ImageSpan> images) {
  DI_CHECK(static_cast<int64_t>(tokens.size()) == kTokensPerBlock) << "a block key needs 128 tokens, got " << tokens.size();
  const int64_t begin = index * kTokensPerBlock, end = begin + kTokensPerBlock;
  const auto touches = [&](const ImageSpan& image) { return image.first_pos < end && image.first_pos + image.num_tokens > begin; };
  const auto count = static_cast<uint16_t>(std::count_if(images.begin(), images.end(), touches));
  Sha256 hash;
  hash.Domain("DIKV/blk/v1").Key(parent).Int(static_cast<uint32_t>(index)).Int(count);
  for (const ImageSpan& image : images) {
    if (!touches(image)) continue;
    hash.Int(uint8_t{1}).Key(image.digest).Int(static_cast<int32_t>(image.first_pos - begin));
    hash.Int(static_cast<uint32_t>(image.num_tokens));
  }
  return hash.Bytes(tokens.data(), tokens.size_bytes()).Finish();
}

Key256 ForkParentKey(const Key256& key, const Key256& tenant_salt) {
  return Sha256().Domain("DIKV/fork/v1").Key(key).Key(tenant_salt).Finish();
}

Key256 Sha256Of(std::string_view bytes) { return Sha256().Bytes(bytes.data(), bytes.size()).Finish(); }

Key256 StateKey(const Key256& block_key) { return Sha256().Domain("DIKV/state/v1").Key(block_key).Finish(); }

Key256 ImageDigest(std::string_view preprocess_version, uint32_t canvas_h, uint32_t canvas_w, std::span<const uint8_t> pixels) {
  return Sha256()
      .Domain("DIKV/img/v1")
      .String(preprocess_version)
      .Int(canvas_h)
      .Int(canvas_w)
      .Bytes(pixels.data(), pixels.size())
      .Finish();
}

void ExtendKeys(const Key256& root, std::span<const int32_t> tokens, std::span<const ImageSpan> images, int64_t num_blocks,
                std::vector<Key256>& keys) {
  num_blocks = std::min(num_blocks, static_cast<int64_t>(tokens.size()) / kTokensPerBlock);
  for (int64_t i = static_cast<int64_t>(keys.size()); i < num_blocks; ++i) {
    const Key256 parent = i == 0 ? root : keys.back();
    keys.push_back(BlockKey(parent, i, tokens.subspan(static_cast<size_t>(i * kTokensPerBlock), kTokensPerBlock), images));
  }
}

}  // namespace deepinfer::kvstore
