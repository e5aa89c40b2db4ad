// SPDX-License-Identifier: Apache-2.0
#include "server/key_limits.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

#include "core/json.h"
#include "core/log.h"

namespace deepinfer::server {

namespace {
constexpr double kMinuteNs = 60e9;
}

void KeyLedger::Bucket::Fill(int64_t limit, int64_t now_ns) {
  const double full = static_cast<double>(limit);
  if (size < 0) level = full;
  else level = std::min(full, level + full * static_cast<double>(now_ns - time_ns) / kMinuteNs);
  size = limit;
  time_ns = now_ns;
}

int64_t KeyLedger::Bucket::SecondsTo(double wanted) const {
  const double missing = std::max(wanted - level, 0.0);
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(60 * missing / static_cast<double>(size))), 1, 3600);
}

KeyLedger::Answer KeyLedger::Admit(const ApiKey& key, bool generates, int64_t now_ns) {
  if (key.requests_per_minute == 0 && key.tokens_per_minute == 0 && key.budget_tokens == 0) return {};
  std::lock_guard lock(mutex_);
  Account& account = accounts_[key.id];
  if (generates && key.budget_tokens > 0 && account.num_used >= key.budget_tokens) return {Verdict::kNoBudget, 0};
  if (generates && key.tokens_per_minute > 0) {
    account.tokens.Fill(key.tokens_per_minute, now_ns);
    if (account.tokens.level < 1) return {Verdict::kTooManyTokens, account.tokens.SecondsTo(1)};
  }
  if (key.requests_per_minute > 0) {
    account.requests.Fill(key.requests_per_minute, now_ns);
    if (account.requests.level < 1) return {Verdict::kTooManyRequests, account.requests.SecondsTo(1)};
    account.requests.level -= 1;
  }
  return {};
}

void KeyLedger::Charge(const ApiKey& key, int64_t num_tokens, int64_t now_ns) {
  if (num_tokens == 0) return;
  std::lock_guard lock(mutex_);
  Account& account = accounts_[key.id];
  account.num_used += num_tokens;
  if (key.tokens_per_minute == 0) return;
  account.tokens.Fill(key.tokens_per_minute, now_ns);
  account.tokens.level -= static_cast<double>(num_tokens);
}

Status KeyLedger::ReadUsage(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) return Status::Ok();  // a device or a pipe remembers nothing
  std::ifstream file(path);
  if (!file.is_open()) {
    if (errno == ENOENT) return Status::Ok();
    return InvalidArgument(fmt::format("{}: {}", path, std::strerror(errno)), "usage-log");
  }
  std::string line;
  int64_t num_bad = 0;
  while (std::getline(file, line)) {
    const Result<Json> json = ParseJson(line);
    if (!json.ok() || !json->is_object()) {  // the last line of a process that was killed, or of a full disk
      ++num_bad;
      continue;
    }
    const auto number = [&json](const char* name) {
      const auto it = json->find(name);
      return it != json->end() && it->is_number_integer() ? it->get<int64_t>() : 0;
    };
    const auto id = json->find("key_id");
    if (id == json->end() || !id->is_string() || id->get_ref<const std::string&>().empty()) continue;
    std::lock_guard lock(mutex_);
    accounts_[id->get<std::string>()].num_used += number("hit") + number("miss") + number("out");
  }
  if (num_bad > 0) DI_LOG(warn, "{}: {} lines are no records; budgets do not count them", path, num_bad);
  return Status::Ok();
}

int64_t KeyLedger::num_used(const std::string& key_id) const {
  std::lock_guard lock(mutex_);
  const auto it = accounts_.find(key_id);
  return it == accounts_.end() ? 0 : it->second.num_used;
}

}  // namespace deepinfer::server
