// SPDX-License-Identifier: Apache-2.0
//
// The reading side of a load client, without sockets: an HTTP/1.1 response in pieces, and the events of a stream in it. It
// looks for a few marks and parses the JSON of the event with the usage only, so that the client costs less than the server.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer::cli {

enum class LoadApi { kChat, kCompletions, kMessages, kResponses };

// Head, then a body by Content-Length, in chunks, or up to the end of the connection.
class ResponseReader {
 public:
  // All bytes behind the end of the response are an error.
  void Feed(std::string_view data);
  // The connection has ended.
  void End();

  bool is_done() const { return state_ == State::kDone; }
  bool has_failed() const { return state_ == State::kFailed; }
  bool has_head() const { return status_ != 0; }
  int status() const { return status_; }
  bool keep_alive() const { return keep_alive_; }
  bool is_event_stream() const { return is_event_stream_; }
  // What has arrived of the body; the user may take from its front.
  std::string& body() { return body_; }

 private:
  enum class State { kHead, kLength, kUntilEnd, kChunkSize, kChunk, kChunkEnd, kTrailer, kDone, kFailed };
  bool TakeLine(std::string_view& data);
  void ReadHead();

  State state_ = State::kHead;
  std::string line_;  // the head, or a line of the chunk framing, until it is whole
  std::string body_;
  int64_t left_ = 0;  // of the body or chunk
  int status_ = 0;
  bool keep_alive_ = true, is_event_stream_ = false;
};

class EventCounter {
 public:
  explicit EventCounter(LoadApi api = LoadApi::kChat) : api_(api) {}
  // Takes whole events from the front of `body`; the number of those that carry something of the answer.
  int64_t Take(std::string& body);

  // The stream ended as it should: with a finish reason and the mark of its end.
  bool is_complete() const { return has_finish_ && has_end_; }
  bool has_usage() const { return has_usage_; }
  const std::string& error() const { return error_; }  // the first error event
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t cached_tokens() const { return cached_tokens_; }
  int64_t output_tokens() const { return output_tokens_; }

 private:
  bool OnEvent(std::string_view event);
  void ReadUsage(std::string_view event);

  LoadApi api_;
  bool has_finish_ = false, has_end_ = false, has_usage_ = false;
  int64_t prompt_tokens_ = 0, cached_tokens_ = 0, output_tokens_ = 0;
  std::string error_;
};

}  // namespace deepinfer::cli
