// SPDX-License-Identifier: Apache-2.0
#include "server/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <sys/stat.h>

#include <array>
#include <set>

#include <fmt/format.h>

#include "core/ascii.h"
#include "core/check.h"
#include "core/escape.h"
#include "core/json.h"

namespace deepinfer::server {

namespace {

constexpr size_t kHashBytes = 32, kSaltBytes = 16, kIdChars = 8, kRandomChars = 43;
constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
constexpr std::string_view kPrefix = "di-";

std::vector<uint8_t> Hash(const std::vector<uint8_t>& salt, std::string_view key) {
  std::string text(salt.begin(), salt.end());
  text += key;
  std::vector<uint8_t> out(kHashBytes);
  unsigned int size = 0;
  DI_CHECK(::EVP_Digest(text.data(), text.size(), out.data(), &size, ::EVP_sha256(), nullptr) == 1) << "SHA-256 failed";
  return out;
}

std::vector<uint8_t> RandomBytes(size_t size) {
  std::vector<uint8_t> bytes(size);
  DI_CHECK(::RAND_bytes(bytes.data(), static_cast<int>(size)) == 1) << "the system has no random numbers";
  return bytes;
}

bool FromHex(const std::string& text, std::vector<uint8_t>& bytes) {
  if (text.size() % 2 != 0) return false;
  for (size_t i = 0; i < text.size(); i += 2) {
    int value = 0;
    for (const char c : {text[i], text[i + 1]}) {
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
      if (digit < 0) return false;
      value = value * 16 + digit;
    }
    bytes.push_back(static_cast<uint8_t>(value));
  }
  return true;
}

std::string_view IdOf(std::string_view key) {
  if (key.starts_with(kPrefix)) key.remove_prefix(kPrefix.size());
  return key.substr(0, kIdChars);
}

// Size, time and inode: what changes when a file is written or replaced.
std::string FileState(const std::string& path) {
  struct stat state {};
  if (::stat(path.c_str(), &state) != 0) return "missing";
  return fmt::format("{} {} {} {}", state.st_size, state.st_mtim.tv_sec, state.st_mtim.tv_nsec, state.st_ino);
}

Result<ApiKey> ParseKey(const Json& json) {
  ApiKey key;
  if (!json.is_object()) return InvalidArgument("expected an object");
  static const std::set<std::string, std::less<>> kKnown = {"id", "salt", "sha256", "organisation", "scopes", "models", "expires_at", "max_streams",
                                                           "requests_per_minute", "tokens_per_minute", "budget_tokens", "domain"};
  for (const auto& [name, value] : json.items()) {
    if (!kKnown.contains(name)) return InvalidArgument(fmt::format("unknown field \"{}\"", Escape(name)));
  }
  const auto text = [&json](const char* name) {
    const auto it = json.find(name);
    return it != json.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  // A limit that is spelled wrongly must not be no limit.
  constexpr int64_t kMaxNumber = int64_t{1} << 53;
  for (const char* name : {"expires_at", "max_streams", "requests_per_minute", "tokens_per_minute", "budget_tokens"}) {
    const auto it = json.find(name);
    if (it == json.end()) continue;
    if (!it->is_number_integer() || it->get<double>() < 0 || it->get<double>() > static_cast<double>(kMaxNumber)) {
      return InvalidArgument(fmt::format("{} must be an integer of at least 0; 0 = no limit", name));
    }
  }
  for (const char* name : {"organisation", "domain"}) {
    if (const auto it = json.find(name); it != json.end() && !it->is_string()) return InvalidArgument(fmt::format("{} must be a string", name));
  }
  const auto number = [&json](const char* name) {
    const auto it = json.find(name);
    return it != json.end() ? it->get<int64_t>() : 0;
  };
  key.id = text("id");
  if (key.id.size() != kIdChars) return InvalidArgument(fmt::format("id must be the first {} characters of the key behind \"di-\"", kIdChars));
  if (!FromHex(text("salt"), key.salt) || key.salt.size() < 8) return InvalidArgument("salt must be at least 8 bytes in hexadecimal");
  if (!FromHex(text("sha256"), key.hash) || key.hash.size() != kHashBytes) return InvalidArgument("sha256 must be 32 bytes in hexadecimal");
  key.organisation = text("organisation");
  key.expires_at = number("expires_at");
  key.max_streams = number("max_streams");
  key.requests_per_minute = number("requests_per_minute");
  key.tokens_per_minute = number("tokens_per_minute");
  key.budget_tokens = number("budget_tokens");
  key.isolation_domain = text("domain");
  const auto list = [&json](const char* name, std::vector<std::string>& out) {
    const auto it = json.find(name);
    if (it == json.end()) return true;
    if (!it->is_array()) return false;
    for (const Json& entry : *it) {
      if (!entry.is_string()) return false;
      out.push_back(entry.get<std::string>());
    }
    return true;
  };
  std::vector<std::string> scopes;
  if (!list("scopes", scopes) || !list("models", key.models)) return InvalidArgument("scopes and models must be lists of strings");
  if (json.contains("scopes")) key.scopes = 0;
  for (const std::string& scope : scopes) {
    if (scope == "inference") key.scopes |= static_cast<uint32_t>(Scope::kInference);
    else if (scope == "kv:admin") key.scopes |= static_cast<uint32_t>(Scope::kKvAdmin);
    else if (scope == "ops:admin") key.scopes |= static_cast<uint32_t>(Scope::kOpsAdmin);
    else return InvalidArgument(fmt::format("unknown scope \"{}\"; use inference, kv:admin, ops:admin", Escape(scope)));
  }
  return key;
}

}  // namespace

NewApiKey MakeApiKey(std::string_view organisation) {
  static constexpr std::string_view kDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string key(kPrefix);
  while (key.size() < kPrefix.size() + kRandomChars) {
    // Bytes above the last multiple of 62 would make some digits likelier.
    for (const uint8_t byte : RandomBytes(64)) {
      if (byte < 248 && key.size() < kPrefix.size() + kRandomChars) key += kDigits[byte % 62];
    }
  }
  const std::vector<uint8_t> salt = RandomBytes(kSaltBytes);
  Json record{{"id", std::string(IdOf(key))}, {"salt", ToHex(salt)}, {"sha256", ToHex(Hash(salt, key))}};
  if (!organisation.empty()) record["organisation"] = std::string(organisation);
  record["scopes"] = {"inference"};
  return {key, DumpJson(record)};
}

Result<std::unique_ptr<ApiKeys>> ApiKeys::Create(const std::vector<std::string>& plain, const std::string& file) {
  auto keys = std::make_unique<ApiKeys>();
  keys->file_ = file;
  keys->is_required_ = !plain.empty() || !file.empty();
  for (size_t i = 0; i < plain.size(); ++i) {
    if (plain[i].size() < 8) return InvalidArgument("--api-key is shorter than 8 characters; use a longer one", "api-key");
    auto key = std::make_shared<ApiKey>();
    key->id = fmt::format("key-{}", i + 1);
    key->scopes = ~uint32_t{0};
    key->organisation = "local";
    key->is_plain = true;
    key->salt = RandomBytes(kSaltBytes);
    key->hash = Hash(key->salt, plain[i]);
    keys->plain_.push_back(std::move(key));
  }
  keys->keys_ = std::make_shared<const KeyList>(keys->plain_);
  if (!file.empty()) DI_RETURN_IF_ERROR(keys->Reload(true).status());
  return keys;
}

Result<bool> ApiKeys::Reload(bool always) {
  if (file_.empty()) return false;
  const std::string state = FileState(file_);
  if (!always && state == file_state_) return false;
  file_state_ = state;
  DI_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(file_, kMaxFileBytes));
  const auto list = json.is_object() ? json.find("keys") : json.end();
  if (list == json.end() || !list->is_array()) {
    return InvalidArgument(fmt::format("{}: expected {{\"keys\": [...]}}; see docs/guide/serve.md", file_), "api-key-file");
  }
  auto keys = std::make_shared<KeyList>(plain_);
  for (size_t i = 0; i < list->size(); ++i) {
    Result<ApiKey> key = ParseKey((*list)[i]);
    if (!key.ok()) return key.status().WithContext(fmt::format("{}: keys[{}]", file_, i));
    keys->push_back(std::make_shared<const ApiKey>(*std::move(key)));
  }
  std::atomic_store(&keys_, std::shared_ptr<const KeyList>(std::move(keys)));
  return true;
}

Result<std::shared_ptr<const ApiKey>> ApiKeys::Check(std::string_view key, int64_t now_unix) const {
  const Status refused(StatusCode::kUnauthenticated, key.empty() ? "no API key was sent; use the header \"Authorization: Bearer KEY\"" : "the API key is not valid");
  if (key.empty()) return refused;
  const std::shared_ptr<const KeyList> keys = std::atomic_load(&keys_);
  const std::string_view id = IdOf(key);
  std::shared_ptr<const ApiKey> found;
  int num_hashed = 0;
  for (const auto& candidate : *keys) {
    if (!candidate->is_plain && candidate->id != id) continue;
    ++num_hashed;
    const std::vector<uint8_t> hash = Hash(candidate->salt, key);
    if (::CRYPTO_memcmp(hash.data(), candidate->hash.data(), kHashBytes) == 0) found = candidate;
  }
  if (num_hashed == 0) Hash(std::vector<uint8_t>(kSaltBytes), key);
  if (found == nullptr || (found->expires_at != 0 && now_unix >= found->expires_at)) return refused;
  return found;
}

}  // namespace deepinfer::server
