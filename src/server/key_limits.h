// SPDX-License-Identifier: Apache-2.0
//
// What API keys have used: requests and tokens of the last minute, and tokens against a budget. The limits themselves stand in
// the key's record, so a key file that is read again counts at once. A key without limits costs one look-up.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "core/status.h"
#include "server/api_keys.h"

namespace deepinfer::server {

class KeyLedger {
 public:
  enum class Verdict { kOk, kTooManyRequests, kTooManyTokens, kNoBudget };
  struct Answer {
    Verdict verdict = Verdict::kOk;
    int64_t retry_after_s = 0;  // kTooManyRequests, kTooManyTokens
  };

  // Counts one request, unless it is refused. `generates` false: it uses no tokens, so only the rate of requests counts.
  Answer Admit(const ApiKey& key, bool generates, int64_t now_ns);
  // Tokens of a request, when they are known; negative ones were charged too much before.
  void Charge(const ApiKey& key, int64_t num_tokens, int64_t now_ns);

  // What a usage log says was used before; a missing file says nothing. Lines that are no records are skipped. Errors name the file.
  Status ReadUsage(const std::string& path);
  int64_t num_used(const std::string& key_id) const;

 private:
  // What may be used up at once; it fills up again within a minute.
  struct Bucket {
    double level = 0;
    int64_t size = -1;  // of the limit it was filled for; -1 = never
    int64_t time_ns = 0;
    void Fill(int64_t limit, int64_t now_ns);
    // Until it holds `wanted`.
    int64_t SecondsTo(double wanted) const;
  };
  struct Account {
    Bucket requests, tokens;
    int64_t num_used = 0;
  };

  mutable std::mutex mutex_;
  std::map<std::string, Account> accounts_;  // GUARDED_BY(mutex_) by key id
};

}  // namespace deepinfer::server
