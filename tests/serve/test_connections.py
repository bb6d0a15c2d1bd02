"""Connections to clients that wait, do not read, or are too many."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from centerhash.serve.app import listen
from centerhash.serve.limits import RateLimit, timeout_protocol
from tests.toys import PATIENCE

PIECE, PIECES = bytes(8_000_000), 8  # more than any buffer between two sockets holds
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n%s\r\n"


begun: list[str] = []  # paths of the requests that the application has answered so far


async def much(scope: Any, receive: Any, send: Any) -> None:
    """An application with long answers: of many pieces, or for /one of a single one."""
    begun.append(scope["path"])
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(PIECES if scope["path"] == "/" else 0):
        await send({"type": "http.response.body", "body": PIECE, "more_body": True})
    await send({"type": "http.response.body", "body": PIECE})


@asynccontextmanager
async def connections(seconds: float, most: int) -> AsyncIterator[tuple[int, ServerState]]:
    """Our protocol on a port of its own; yields the port, and what the server knows of its clients."""
    config = uvicorn.Config(much, http=timeout_protocol(seconds, most), lifespan="off", log_level="critical")
    config.load()
    state = ServerState()
    make: Any = config.http_protocol_class
    loop = asyncio.get_running_loop()
    with listen("127.0.0.1", 0) as listener:
        server = await loop.create_server(
            lambda: make(config=config, server_state=state, app_state={}), sock=listener
        )
        async with server:
            yield listener.getsockname()[1], state
            for one in list(state.connections):
                one.transport.abort()  # type: ignore[union-attr]


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


def test_answers_do_not_wait_for_acknowledgements() -> None:
    async def story() -> int:
        async with connections(PATIENCE, 5) as (port, state):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            await until(lambda: state.connections)
            accepted = next(iter(state.connections)).transport.get_extra_info("socket")  # type: ignore[union-attr]
            writer.close()
            return int(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    assert asyncio.run(story()) == 1


@pytest.mark.parametrize("header", [b"", b"Connection: close\r\n"])
@pytest.mark.parametrize("path", [b"/", b"/one"])
def test_a_client_that_does_not_read_is_dropped(header: bytes, path: bytes) -> None:
    """In the middle of an answer, and when it is complete but still in the server's memory."""

    begun.clear()

    async def story() -> None:
        async with connections(0.2, 5) as (port, state):
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.connect(("127.0.0.1", port))
                client.sendall((REQUEST % header).replace(b"GET /", b"GET " + path))
                await until(lambda: begun)
                await until(lambda: not state.connections)

    asyncio.run(story())


def test_a_client_that_reads_slowly_is_not() -> None:
    async def story() -> int:
        async with connections(2.0, 5) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REQUEST % b"Connection: close\r\n")
            read = 0
            while piece := await reader.read(100_000):
                read += len(piece)
            writer.close()
            return read

    assert asyncio.run(story()) > PIECES * len(PIECE)


def test_too_many_connections_are_sent_away() -> None:
    async def story() -> list[bytes]:
        async with connections(PATIENCE, 2) as (port, state):
            opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            await until(lambda: len(state.connections) == 2)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            refused = await reader.read()
            opened[0][1].close()
            await until(lambda: len(state.connections) == 1)
            again, third = await asyncio.open_connection("127.0.0.1", port)
            third.write(REQUEST.replace(b"GET /", b"GET /one") % b"Connection: close\r\n")
            served = await again.read()
            for one in (writer, third, opened[1][1]):
                one.close()
            return [refused, served]

    refused, served = asyncio.run(story())
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b'{"error": "too many connections' in refused
    assert served.startswith(b"HTTP/1.1 200 ")


def test_a_repeated_message_is_logged_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now, limit = [0.0], RateLimit()
    monkeypatch.setattr("centerhash.serve.limits.monotonic", lambda: now[0])

    def passes(text: str) -> bool:
        return limit.filter(logging.makeLogRecord({"msg": text}))

    text = "socket.accept() out of system resource"
    assert [passes(f"{text}\nsocket {n}") for n in range(3)] == [True, False, False]
    now[0] = 61.0
    assert passes(text)
    assert passes("another")
