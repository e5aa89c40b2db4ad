// SPDX-License-Identifier: Apache-2.0
//
// API keys: from the command line (plain, for one machine) or from a file of salted hashes that is read again when it changes.
// A key says who pays (organisation), what it may do (scopes, models) and how many requests it may run at once.
//
// The file: {"keys": [{"id", "salt" (hex), "sha256" (hex of SHA-256 over salt and key), "organisation"?, "scopes"?: ["inference"],
// "models"?: [...], "expires_at"? (seconds since 1970), "max_streams"?, "requests_per_minute"?, "tokens_per_minute"?,
// "budget_tokens"?, "domain"?}]}. A key is "di-" and 43 letters and digits; its first eight
// are the id. MakeApiKey makes a key and its record.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace deepinfer::server {

enum class Scope : uint32_t { kInference = 1, kKvAdmin = 2, kOpsAdmin = 4 };

struct ApiKey {
  std::string id;            // what logs show
  std::string organisation;  // prefixes are shared within one; empty = with nobody but this key
  std::string isolation_domain;  // else shared within this; empty = the organisation
  uint32_t scopes = static_cast<uint32_t>(Scope::kInference);
  std::vector<std::string> models;  // empty = all
  int64_t expires_at = 0;           // seconds since 1970; 0 = never
  int64_t max_streams = 0;          // 0 = the server's limit
  // 0 = no limit. Tokens are those of prompts and answers together.
  int64_t requests_per_minute = 0, tokens_per_minute = 0, budget_tokens = 0;
  bool is_plain = false;            // of the command line: looked up by comparing
  std::vector<uint8_t> salt;
  std::vector<uint8_t> hash;

  bool Has(Scope scope) const { return (scopes & static_cast<uint32_t>(scope)) != 0; }
  const std::string& domain() const { return !isolation_domain.empty() ? isolation_domain : organisation.empty() ? id : organisation; }
};

struct NewApiKey {
  std::string key;
  std::string record;  // one entry of "keys"
};
NewApiKey MakeApiKey(std::string_view organisation);

class ApiKeys {
 public:
  // Plain keys all have every scope. Errors name the file and the entry.
  static Result<std::unique_ptr<ApiKeys>> Create(const std::vector<std::string>& plain, const std::string& file);

  bool is_required() const { return is_required_; }
  // The key of "Authorization: Bearer KEY" or "x-api-key: KEY"; null for none. kUnauthenticated if it is unknown or has expired.
  // Takes the same time for every wrong key.
  Result<std::shared_ptr<const ApiKey>> Check(std::string_view key, int64_t now_unix) const;

  // Reads the file again if it has changed, or in any case. A file that is damaged changes nothing and is an error.
  Result<bool> Reload(bool always);

 private:
  using KeyList = std::vector<std::shared_ptr<const ApiKey>>;

  std::string file_;
  std::string file_state_;  // size and time of what was read; the reloading thread's
  bool is_required_ = false;
  KeyList plain_;
  std::shared_ptr<const KeyList> keys_;  // atomically replaced
};

}  // namespace deepinfer::server
