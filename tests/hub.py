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
    """Repositories by name: commits by number, each with its files; branches name commits. `requests` came in."""

    url: str = ""
    files: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    refusing: int | None = None  # status of every answer to a push
    private: set[str] = field(default_factory=set)  # repositories that need a token
    cut: str | None = None  # a file whose download breaks off

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
        self._resolve(body=False)

    def do_GET(self) -> None:
        self._resolve(body=True)

    def _resolve(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        self.hub.requests.append(f"{self.command} {path}")
        words = [unquote(word) for word in path.removeprefix("/api/models").lstrip("/").split("/")]
        repository, (verb, revision) = "/".join(words[:2]), (words[2:] or ["revision", "main"])[:2]
        commits = self.hub.files.get(repository)
        if commits is None:
            return self._error("RepoNotFound")
        if repository in self.hub.private:
            return self._error("RepoNotFound", 401)
        commit = self.hub.branches[repository].get(revision, revision)
        if commit not in commits:
            return self._error("RevisionNotFound")
        files = commits[commit]
        if verb == "revision":
            return self._json({"id": repository, "sha": commit, "siblings": []})
        if verb == "tree":
            digests = {name: hashlib.sha1(content).hexdigest() for name, content in files.items()}
            return self._json(
                [{"type": "file", "path": n, "size": len(files[n]), "oid": digests[n]} for n in files]
            )
        assert verb == "resolve"
        name = "/".join(words[4:])
        if name not in files:
            return self._error("EntryNotFound")
        content = files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", commit)
        self.end_headers()
        if body:
            self.wfile.write(content[: len(content) // 2] if name == self.hub.cut else content)

    def _error(self, code: str, status: int = 404) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.hub.requests.append(f"POST {self.path}")
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.hub.refusing is not None:
            self.send_response(self.hub.refusing)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path == "/api/repos/create":
            given = json.loads(content)
            repository = f"{given.get('organization') or 'jane'}/{given['name']}"
            self._json({"url": f"{self.hub.url}/{repository}", "id": repository})
        elif self.path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            listed = json.loads(content)["files"]
            self._json(
                {
                    "files": [
                        {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in listed
                    ]
                }
            )
        elif "/commit/" in self.path:
            lines = [json.loads(line) for line in content.splitlines()]
            files = {
                line["value"]["path"]: base64.b64decode(line["value"]["content"])
                for line in lines
                if line["key"] == "file"
            }
            repository = "/".join(self.path.split("/")[3:5])
            commit = self.hub.put(repository, files)
            self._json({"commitUrl": f"{self.hub.url}/{repository}/commit/{commit}", "commitOid": commit})
        else:
            self._error("RepoNotFound")

    def _json(self, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Hub]:
    """Run a hub while the block runs."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
