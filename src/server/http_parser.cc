// SPDX-License-Identifier: Apache-2.0
#include "server/http_parser.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/optional.hpp>
#include <fmt/format.h>

#include "core/ascii.h"

namespace deepinfer::server {

namespace {

namespace http = boost::beast::http;

// Bodies that have proved to be large get the memory for their whole length: growing by copies would stop the streams of the
// thread for milliseconds, again and again.
constexpr size_t kReserveFrom = 1 << 20;

// A string that grows with what arrives: Beast's own reserves whatever Content-Length claims.
struct GrowingBody {
  using value_type = std::string;
  class reader {
   public:
    template <bool kIsRequest, class Fields>
    reader(http::header<kIsRequest, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<std::uint64_t>& length, boost::beast::error_code& ec) {
      length_ = length ? static_cast<std::size_t>(*length) : 0;
      ec = {};
    }
    template <class Buffers>
    std::size_t put(const Buffers& buffers, boost::beast::error_code& ec) {
      ec = {};
      std::size_t size = 0;
      for (auto it = boost::asio::buffer_sequence_begin(buffers); it != boost::asio::buffer_sequence_end(buffers); ++it) {
        const boost::asio::const_buffer part(*it);
        if (body_.size() >= kReserveFrom && body_.capacity() < length_) body_.reserve(length_);
        body_.append(static_cast<const char*>(part.data()), part.size());
        size += part.size();
      }
      return size;
    }
    void finish(boost::beast::error_code& ec) { ec = {}; }

   private:
    value_type& body_;
    std::size_t length_ = 0;  // as the head has it, which is within the limit; 0: unknown
  };
};

}  // namespace

struct HttpParser::Impl {
  explicit Impl(const HttpLimits& limits) {
    parser.header_limit(limits.max_header_bytes);
    parser.body_limit(limits.max_body_bytes);
    // First the head alone: fields of a trailer that comes with it would be taken for fields of the head.
    parser.eager(false);
  }

  // What a proxy in front could understand in another way than we do (RFC 9112 3.2, 6.1, 6.3) is refused.
  void CheckHead() {
    int num_hosts = 0, num_codings = 0;
    bool has_length = false, is_chunked_only = true;
    for (const auto& [name, value] : request.headers) {
      if (name == "host") ++num_hosts;
      if (name == "content-length") has_length = true;
      if (name == "transfer-encoding") {
        ++num_codings;
        is_chunked_only = is_chunked_only && AsciiLower(value) == "chunked";
      }
    }
    if (num_hosts > 1) return Fail(400, "malformed HTTP request: more than one Host");
    if (num_codings == 0) return;
    if (!is_chunked_only || num_codings > 1) return Fail(501, "the only transfer coding of request bodies is chunked");
    if (has_length || request.is_http10) Fail(400, "malformed HTTP request: Transfer-Encoding together with Content-Length or HTTP/1.0");
  }

  void ReadHead() {
    const auto& message = parser.get();
    request.method.assign(message.method_string().data(), message.method_string().size());
    request.target.assign(message.target().data(), message.target().size());
    std::string_view target = request.target;
    // As a proxy is asked: the authority counts as little as Host does, which is checked.
    if (const size_t scheme = target.find("://"); scheme == 4 || scheme == 5) {
      if (const std::string name = AsciiLower(target.substr(0, scheme)); name == "http" || name == "https") {
        const size_t begin = target.find('/', scheme + 3);
        target = begin == std::string_view::npos ? "/" : target.substr(begin);
      }
    }
    const size_t mark = target.find('?');
    request.path = target.substr(0, mark);
    if (mark != std::string::npos) request.query = target.substr(mark + 1);
    request.is_http10 = message.version() == 10;
    request.keep_alive = message.keep_alive();
    for (const auto& field : message) {
      request.headers.emplace_back(AsciiLower({field.name_string().data(), field.name_string().size()}), std::string(field.value().data(), field.value().size()));
    }
    const std::string* const expect = request.Find("expect");
    expects_continue = expect != nullptr && AsciiLower(*expect) == "100-continue" && !request.is_http10;
  }

  void Fail(int status, std::string message) {
    state = State::kFailed;
    error_status = status;
    error = std::move(message);
  }

  http::request_parser<GrowingBody> parser;
  HttpRequest request;
  State state = State::kHead;
  bool expects_continue = false;
  int error_status = 0;
  std::string error;
  uint64_t max_body_bytes = 0;
};

HttpParser::HttpParser(const HttpLimits& limits) : impl_(std::make_unique<Impl>(limits)) { impl_->max_body_bytes = limits.max_body_bytes; }
HttpParser::~HttpParser() = default;
HttpParser::HttpParser(HttpParser&&) noexcept = default;
HttpParser& HttpParser::operator=(HttpParser&&) noexcept = default;

size_t HttpParser::Feed(std::string_view data) {
  try {
    return FeedBytes(data);
  } catch (const std::exception&) {  // a field of a trailer that is too long for Beast; memory
    impl_->Fail(431, "a field of the request is too long");
    return data.size();
  }
}

size_t HttpParser::FeedBytes(std::string_view data) {
  Impl& impl = *impl_;
  size_t used = 0;
  while (used < data.size() && impl.state != State::kDone && impl.state != State::kFailed) {
    boost::beast::error_code ec;
    const size_t count = impl.parser.put(boost::asio::const_buffer(data.data() + used, data.size() - used), ec);
    used += count;
    if (impl.state == State::kHead && impl.parser.is_header_done()) {
      impl.ReadHead();
      impl.parser.eager(true);
      impl.state = State::kBody;
      impl.CheckHead();
      if (impl.state == State::kFailed) break;
    }
    if (ec == http::error::need_more) break;
    if (ec) {
      if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
        impl.Fail(431, "the request's headers are larger than 32 KiB");
      } else if (ec == http::error::body_limit) {
        impl.Fail(413, fmt::format("the request body is larger than {} MiB, the limit of this server (--max-body-mib)", impl.max_body_bytes >> 20));
      } else {
        impl.Fail(400, fmt::format("malformed HTTP request: {}", ec.message()));
      }
      break;
    }
    if (impl.parser.is_done()) impl.state = State::kDone;
    else if (count == 0) break;
  }
  return used;
}

HttpParser::State HttpParser::state() const { return impl_->state; }
const HttpRequest& HttpParser::head() const { return impl_->request; }
bool HttpParser::expects_continue() const { return impl_->expects_continue; }
HttpRequest HttpParser::Take() {
  impl_->request.body = std::move(impl_->parser.get().body());
  return std::move(impl_->request);
}
int HttpParser::error_status() const { return impl_->error_status; }
const std::string& HttpParser::error() const { return impl_->error; }

}  // namespace deepinfer::server
