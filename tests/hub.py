"""A local hub: an HTTP server with the few calls of the Hugging Face hub that download and upload use."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


@dataclass
class Hub:
    """Repositories: `files` are by repository, commit and name, `branches` name the commits of a repository.

    `rejecting` is the status that every upload gets, `cut` the file whose download breaks off.
    """

    url: str = ""
    files: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    rejecting: int | None = None
    cut: str | None = None

    def put(self, repository: str, files: dict[str, bytes], branch: str = "main") -> str:
        """Commit files to a repository."""
        commits = self.files.setdefault(repository, {})
        commit = hashlib.sha1(f"{repository} {len(commits)}".encode()).hexdigest()
        branches = self.branches.setdefault(repository, {})
        commits[commit] = {**commits.get(branches.get(branch, ""), {}), **files}
        branches[branch] = commit
        return commit

    def latest(self, repository: str) -> dict[str, bytes]:
        """The files of the main branch."""
        return self.files[repository][self.branches[repository]["main"]]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self._read(body=False)

    def do_GET(self) -> None:
        self._read(body=True)

    def _read(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        self.hub.requests.append(f"{self.command} {path}")
        words = [unquote(word) for word in path.removeprefix("/api/models").lstrip("/").split("/")]
        repository, (verb, revision) = "/".join(words[:2]), (words[2:] or ["revision", "main"])[:2]
        commits = self.hub.files.get(repository)
        if commits is None:
            return self._send(404, "X-Error-Code: RepoNotFound")
        commit = self.hub.branches[repository].get(revision, revision)
        if commit not in commits:
            return self._send(404, "X-Error-Code: RevisionNotFound")
        files = commits[commit]
        if verb == "revision":
            return self._json({"id": repository, "sha": commit, "siblings": []})
        if verb == "tree":
            return self._json(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in files.items()
                ]
            )
        assert verb == "resolve"
        name = "/".join(words[4:])
        if name not in files:
            return self._send(404, "X-Error-Code: EntryNotFound")
        data = files[name]
        etag = hashlib.sha256(data).hexdigest()
        self._send(200, f'ETag: "{etag}"', f"X-Repo-Commit: {commit}", f"Content-Length: {len(data)}")
        if body:
            self.wfile.write(data[: len(data) // 2] if name == self.hub.cut else data)

    def do_POST(self) -> None:
        self.hub.requests.append(f"POST {self.path}")
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.hub.rejecting is not None:
            self._send(self.hub.rejecting)
        elif self.path == "/api/repos/create":
            asked = json.loads(content)
            repository = f"{asked['organization']}/{asked['name']}"
            self._json({"url": f"{self.hub.url}/{repository}", "id": repository})
        elif self.path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            listed = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(content)["files"]
            ]
            self._json({"files": listed})
        else:
            assert "/commit/" in self.path
            lines = [json.loads(line) for line in content.splitlines()]
            values = [line["value"] for line in lines if line["key"] == "file"]
            repository = "/".join(self.path.split("/")[3:5])
            files = {value["path"]: base64.b64decode(value["content"]) for value in values}
            commit = self.hub.put(repository, files)
            self._json({"commitUrl": f"{self.hub.url}/{repository}/commit/{commit}", "commitOid": commit})

    def _json(self, value: Any) -> None:
        content = json.dumps(value).encode()
        self._send(200, "Content-Type: application/json", f"Content-Length: {len(content)}")
        self.wfile.write(content)

    def _send(self, status: int, *headers: str) -> None:
        self.send_response(status)
        for header in headers if status == 200 else (*headers, "Content-Length: 0"):
            self.send_header(*header.split(": "))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Hub]:
    """Run a hub while the block runs."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
