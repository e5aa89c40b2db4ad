// SPDX-License-Identifier: Apache-2.0
//
// Between socket.cc and listener.cc only: takes an accepted Asio socket.
#pragma once

#include <memory>

#include <boost/asio/ip/tcp.hpp>

#include "server/io_thread.h"
#include "server/socket.h"

namespace deepinfer::server {

// `tls` null: plain. The socket's executor is that of `io`.
std::shared_ptr<Socket> MakeSocket(boost::asio::ip::tcp::socket socket, IoThread& io, std::shared_ptr<TlsContext> tls);

}  // namespace deepinfer::server
