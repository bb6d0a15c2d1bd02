"""One connection to a client: no waiting for small packets, no patience without end, not too many at once."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from time import monotonic
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

_QUIET_SECONDS = 60.0  # in which a complaint of the event loop is written once
_FULL = b'{"error": "too many connections: try again in a moment."}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_FULL), _FULL)
)


def patient(seconds: float, connections: int) -> type[asyncio.Protocol]:
    """uvicorn's HTTP/1.1 with an end to its patience: it would wait for ever for headers, and for clients that
    do not read; and with a limit to how many connections are open at once.
    """

    class Patient(H11Protocol):
        _patience: asyncio.TimerHandle | None = None
        _stalled = False  # the client does not read what is sent

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            _send_at_once(transport)
            if len(self.connections) > connections:
                transport.write(_REFUSAL)
                transport.close()
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stalled = True
            self._watch()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stalled = False
            self._stop()  # it has read: its time begins anew
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Run the clock exactly while the client is to do something: send headers, read, or hang up.

            A request that has begun is the application's to end. A transport that closes first sends what it holds.
            """
            its_turn = self.cycle is None or self.cycle.response_complete
            if not (its_turn or self._stalled or self.transport.is_closing()):
                self._stop()
            elif self._patience is None:
                self._patience = self.loop.call_later(seconds, self.transport.abort)

        def _stop(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

    return Patient


def _send_at_once(transport: Any) -> None:
    """Switch off Nagle's algorithm: the body of an answer would wait 40 ms for the client to acknowledge its head.

    asyncio does so too, but not for sockets that were accepted from a listener of the protocol number 0.
    """
    accepted = transport.get_extra_info("socket")
    if accepted is not None and accepted.family in (socket.AF_INET, socket.AF_INET6):
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Seldom(logging.Filter):
    """Lets a message pass once in a while: a machine without free files makes asyncio log thousands a second."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the first line of this message was not written lately."""
        line, now = record.getMessage().partition("\n")[0][:200], self._clock()
        self._last = {text: at for text, at in self._last.items() if now - at < _QUIET_SECONDS}
        if line in self._last:
            return False
        self._last[line] = now
        return True
