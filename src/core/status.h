// SPDX-License-Identifier: Apache-2.0
//
// Status and Result<T>: how every module reports an error that a caller can act on. A Status is a code, a message that
// names the value, the place and the remedy, and an optional field path. Exceptions never cross a module boundary; third
// party code that throws is caught at the call. DI_RETURN_IF_ERROR and DI_ASSIGN_OR_RETURN keep call sites flat.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "core/check.h"

namespace deepinfer {

// The HTTP status each code maps to stands beside it; exit codes are derived in cli/exit_code.h.
enum class StatusCode {
  kOk = 0,
  kInvalidArgument,    // 400: bad request or option
  kUnauthenticated,    // 401
  kPermissionDenied,   // 403
  kNotFound,           // 404
  kTooLarge,           // 413
  kResourceExhausted,  // 429: memory, disk, queue
  kCancelled,          // 499
  kInternal,           // 500
  kUnimplemented,      // 501
  kUnavailable,        // 503
  kDeadlineExceeded,   // 504
  kBadModel,           // 500: a model or input file is missing, damaged or unsupported
};

std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(StatusCode code, std::string message, std::string field = {});

  static Status Ok() { return Status(); }

  bool ok() const { return rep_ == nullptr; }
  StatusCode code() const { return rep_ ? rep_->code : StatusCode::kOk; }
  const std::string& message() const;
  // Path of the offending field ("text_config.vocab_size"), empty when there is none.
  const std::string& field() const;

  // Adds one layer of context in front of the message: "loading shard 7: <message>".
  Status WithContext(std::string_view context) &&;
  Status WithContext(std::string_view context) const&;

  std::string ToString() const;
  void IgnoreError() const {}  // the reason stands beside each call

 private:
  struct Rep {
    StatusCode code;
    std::string message;
    std::string field;
  };
  std::shared_ptr<const Rep> rep_;  // null = OK, so the good path costs nothing
};

Status InvalidArgument(std::string message, std::string field = {});
Status NotFound(std::string message);
Status BadModel(std::string message);
Status ResourceExhausted(std::string message);
Status Cancelled(std::string message);
Status Internal(std::string message);
Status Unimplemented(std::string message);
Status Unavailable(std::string message);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit by design
    DI_CHECK(!status_.ok()) << "a Result made from a Status needs an error";
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  const T& value() const& {
    DI_CHECK(ok()) << status_.ToString();
    return *value_;
  }
  T& value() & {
    DI_CHECK(ok()) << status_.ToString();
    return *value_;
  }
  T&& value() && {
    DI_CHECK(ok()) << status_.ToString();
    return std::move(*value_);
  }
  const T& operator*() const& { return value(); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  const T* operator->() const { return &value(); }
  T* operator->() { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace deepinfer

#define DI_CONCAT_INNER(a, b) a##b
#define DI_CONCAT(a, b) DI_CONCAT_INNER(a, b)

#define DI_RETURN_IF_ERROR(expr)                              \
  do {                                                        \
    if (::deepinfer::Status di_status = (expr); !di_status.ok()) return di_status; \
  } while (false)

#define DI_ASSIGN_OR_RETURN(lhs, expr) DI_ASSIGN_OR_RETURN_INNER(DI_CONCAT(di_result_, __LINE__), lhs, expr)
#define DI_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                              \
  if (!tmp.ok()) return tmp.status();             \
  lhs = std::move(tmp).value()
