# SPDX-License-Identifier: Apache-2.0
"""A hub on the loopback address, for tests of `deepinfer download`: files in memory, and faults on demand."""

import contextlib
import hashlib
import http.server
import json
import threading
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ID = "acme/tiny"


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """`files`: {path: bytes}; those in `small` are plain git files, the others have a SHA-256 and lie on another server. `faults(kind, path, begin,
    end)` may return what goes wrong with one request: a status, "drop:N" (the connection breaks after N bytes), "corrupt", "no_range", "short", "long",
    "wrong_range", "hash". Every request is in `log`."""

    def __init__(self, files, small=(), context=None):
        self.files, self.small = files, set(small)
        self.faults = lambda kind, path, begin, end: None
        self.sizes, self.listed = {}, None
        self.retry_after = None
        self.on_request = lambda kind, path: None
        self.log = []
        self.lock = threading.Lock()
        self.served_bytes = 0
        self.servers = []
        for kind in ("hub", "store"):
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.make_handler(kind))
            server.daemon_threads = True
            if context is not None:
                server.socket = context.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
            self.servers.append(server)
        scheme = "http" if context is None else "https"
        self.url, self.store_url = (f"{scheme}://127.0.0.1:{server.server_address[1]}" for server in self.servers)

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def entry(self, path):
        data = self.files[path]
        entry = {"rfilename": path, "size": self.sizes.get(path, len(data)), "blobId": git_sha1(data)}
        if path not in self.small:
            entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": self.sizes.get(path, len(data)), "pointerSize": 134}
        return entry

    def list(self):
        return self.listed or {"id": ID, "sha": COMMIT, "siblings": [self.entry(path) for path in self.files]}

    def make_handler(hub, kind):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self, status, body=b"", **headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                path = urllib.parse.unquote(self.path.partition("?")[0])
                with hub.lock:
                    hub.log.append((kind, path, dict(self.headers)))
                hub.on_request(kind, path)
                if path.startswith("/api/"):
                    fault = hub.faults("list", path, 0, 0)
                    if isinstance(fault, int):
                        return self.answer(fault, b"{}", **({"Retry_After": hub.retry_after} if hub.retry_after else {}))
                    if path != f"/api/models/{ID}/revision/main" and path != f"/api/models/{ID}/revision/{COMMIT}":
                        return self.answer(404, b'{"error":"Repository not found"}')
                    return self.answer(200, json.dumps(hub.list()).encode(), Content_Type="application/json")
                name = path.removeprefix(f"/{ID}/resolve/{COMMIT}/")
                if name not in hub.files:
                    return self.answer(404)
                data = hub.files[name]
                if kind == "hub" and name not in hub.small:
                    etag = hashlib.sha256(data).hexdigest()
                    if hub.faults("redirect", name, 0, 0) == "hash":
                        etag = "0" * 64
                    return self.answer(302, b"see there", Location=hub.store_url + urllib.parse.quote(path), X_Linked_Etag=f'"{etag}"', X_Repo_Commit=COMMIT)
                return self.send_file(name, data)

            def send_file(self, name, data):
                begin, end = 0, len(data)
                wants_range = self.headers.get("Range", "").startswith("bytes=")
                if wants_range:
                    first, _, last = self.headers["Range"][6:].partition("-")
                    begin, end = int(first), int(last) + 1
                fault = hub.faults("file", name, begin, end)
                if isinstance(fault, int):
                    return self.answer(fault, b"", **({"Retry_After": hub.retry_after} if hub.retry_after else {}))
                if fault == "no_range" or not wants_range:
                    begin, end, wants_range = 0, len(data), False
                piece = data[begin:end]
                if fault == "corrupt":
                    piece = bytes([piece[0] ^ 1]) + piece[1:]
                if fault == "short":
                    piece = piece[:-1]
                if fault == "long":
                    piece += b"x"
                self.send_response(206 if wants_range else 200)
                if wants_range:
                    shift = 1 if fault == "wrong_range" else 0
                    self.send_header("Content-Range", f"bytes {begin + shift}-{end - 1 + shift}/{len(data)}")
                self.send_header("Content-Length", str(len(piece)))
                self.send_header("ETag", '"abc"')
                self.end_headers()
                if isinstance(fault, str) and fault.startswith("drop:"):
                    piece = piece[: int(fault[5:])]
                    self.close_connection = True
                with hub.lock:
                    hub.served_bytes += len(piece)
                with contextlib.suppress(ConnectionError):  # a client that has seen enough, or was killed
                    self.wfile.write(piece)
                    self.wfile.flush()

        return Handler
