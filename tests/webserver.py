"""A real HTTP server in a thread, with range requests and all the misfortunes that a download must survive."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import defaultdict
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


class FileServer:
    """Serves `files` by path. What goes wrong is set before a request, and recorded in `requests` (path, headers)."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.ranges = True  # whether it knows range requests
        self.etags = True  # whether it says which version a file is
        self.compares = True  # whether it looks at If-Range
        self.announces = True  # whether it says how long a file is
        self.most: int | None = None  # bytes of a partial answer
        self.cuts: dict[str, list[int]] = defaultdict(
            list
        )  # bytes of the body after which the next answers break off
        self.holds: dict[str, int] = {}  # bytes of the body after which an answer waits for `release`
        self.release = threading.Event()
        self.errors: dict[str, list[int]] = defaultdict(list)  # statuses of the next answers
        self.requests: list[tuple[str, Message]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def asked(self) -> list[tuple[str, str | None]]:
        """The requests so far: path and range."""
        return [(path, headers.get("Range")) for path, headers in self.requests]

    def __enter__(self) -> FileServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path
        self.requests.append((path, handler.headers))
        if self.errors[path]:
            handler.send_error(self.errors[path].pop(0))
        elif path in self.redirects:
            handler.send_response(302)
            handler.send_header("Location", self.redirects[path])
            handler.end_headers()
        elif path in self.files:
            self._send(handler, self.files[path])
        else:
            handler.send_error(404)

    def _send(self, handler: BaseHTTPRequestHandler, data: bytes) -> None:
        etag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        asked, expected = handler.headers.get("Range"), handler.headers.get("If-Range")
        start, end = 0, len(data)
        if (
            self.ranges
            and asked
            and (not self.compares or expected is None or (self.etags and expected == etag))
        ):
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                handler.send_error(416)
                return
            handler.send_response(206)
            end = min(end, start + (self.most or end))
            handler.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        else:
            handler.send_response(200)
        if self.etags:
            handler.send_header("ETag", etag)
        if self.announces:
            handler.send_header("Content-Length", str(end - start))
        handler.end_headers()
        body, cuts, hold = data[start:end], self.cuts[handler.path], self.holds.pop(handler.path, None)
        if hold is not None:
            handler.wfile.write(body[:hold])
            self.release.wait(60)
            body = body[hold:]
        with contextlib.suppress(ConnectionError):  # the other side was killed
            handler.wfile.write(body[: cuts.pop(0) if cuts else None])
        handler.close_connection = True
