// SPDX-License-Identifier: Apache-2.0
#include "core/status.h"

namespace deepinfer {

namespace {
const std::string kEmpty;
}

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid argument";
    case StatusCode::kUnauthenticated: return "unauthenticated";
    case StatusCode::kPermissionDenied: return "permission denied";
    case StatusCode::kNotFound: return "not found";
    case StatusCode::kTooLarge: return "too large";
    case StatusCode::kResourceExhausted: return "resource exhausted";
    case StatusCode::kCancelled: return "cancelled";
    case StatusCode::kInternal: return "internal";
    case StatusCode::kUnimplemented: return "unimplemented";
    case StatusCode::kUnavailable: return "unavailable";
    case StatusCode::kDeadlineExceeded: return "deadline exceeded";
    case StatusCode::kBadModel: return "bad model";
  }
  return "unknown";
}

Status::Status(StatusCode code, std::string message, std::string field) {
  DI_CHECK(code != StatusCode::kOk) << "an error Status needs an error code";
  rep_ = std::make_shared<const Rep>(Rep{code, std::move(message), std::move(field)});
}

const std::string& Status::message() const { return rep_ ? rep_->message : kEmpty; }
const std::string& Status::field() const { return rep_ ? rep_->field : kEmpty; }

Status Status::WithContext(std::string_view context) const& {
  if (ok()) return *this;
  return Status(rep_->code, std::string(context) + ": " + rep_->message, rep_->field);
}

Status Status::WithContext(std::string_view context) && {
  return static_cast<const Status&>(*this).WithContext(context);
}

std::string Status::ToString() const {
  if (ok()) return "ok";
  return std::string(StatusCodeName(code())) + ": " + message();
}

Status InvalidArgument(std::string message, std::string field) {
  return Status(StatusCode::kInvalidArgument, std::move(message), std::move(field));
}
Status NotFound(std::string message) { return Status(StatusCode::kNotFound, std::move(message)); }
Status BadModel(std::string message) { return Status(StatusCode::kBadModel, std::move(message)); }
Status ResourceExhausted(std::string message) {
  return Status(StatusCode::kResourceExhausted, std::move(message));
}
Status Cancelled(std::string message) { return Status(StatusCode::kCancelled, std::move(message)); }
Status Internal(std::string message) { return Status(StatusCode::kInternal, std::move(message)); }
Status Unimplemented(std::string message) {
  return Status(StatusCode::kUnimplemented, std::move(message));
}
Status Unavailable(std::string message) {
  return Status(StatusCode::kUnavailable, std::move(message));
}

}  // namespace deepinfer
