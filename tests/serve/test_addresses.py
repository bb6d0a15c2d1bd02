"""The addresses that a server prints, and their QR code."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import numpy as np
import pytest
import segno
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from centerhash.search import Index
from centerhash.serve import addresses
from centerhash.serve.addresses import is_local, reachable_hosts
from centerhash.serve.qr import half_blocks, qr_code
from tests.serve.processes import serving


def test_only_loopback_is_local() -> None:
    assert all(map(is_local, ("127.0.0.1", "127.1.2.3", "::1", "localhost", "LocalHost")))
    assert not any(map(is_local, ("0.0.0.0", "::", "", "192.168.1.5", "photos.example")))


def test_a_named_address_is_printed_as_it_is() -> None:
    assert reachable_hosts("127.0.0.1") == ["127.0.0.1"]
    assert reachable_hosts("photos.example") == ["photos.example"]
    assert reachable_hosts("fd00::5") == ["[fd00::5]"]


def test_all_addresses_are_those_of_this_machine() -> None:
    """A socket can be bound to each; nothing else is known of the machine that runs the tests."""
    for host, family in (("0.0.0.0", socket.AF_INET), ("", socket.AF_INET)):
        found = reachable_hosts(host)
        assert len(set(found)) == len(found) > 0
        for each in found:
            with socket.socket(family, socket.SOCK_STREAM) as bound:
                bound.bind((each, 0))


def test_addresses_of_several_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_routed", lambda family: iter(["192.168.1.5"]))
    assigned = ["127.0.0.1", "10.8.0.2", "192.168.1.5", "169.254.3.4"]
    monkeypatch.setattr(addresses, "_assigned", lambda family: iter(assigned))
    assert reachable_hosts("0.0.0.0") == ["192.168.1.5", "10.8.0.2"]
    monkeypatch.setattr(addresses, "_routed", lambda family: iter(["2001:db8::5"]))
    monkeypatch.setattr(addresses, "_assigned", lambda family: iter(["::1", "fe80::1", "fd00::7"]))
    assert reachable_hosts("::") == ["[2001:db8::5]", "[fd00::7]"]


def test_without_a_network_the_own_machine_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_routed", lambda family: iter(()))
    monkeypatch.setattr(addresses, "_assigned", lambda family: iter(()))
    assert reachable_hosts("0.0.0.0") == ["127.0.0.1"]
    assert reachable_hosts("::") == ["[::1]"]


@pytest.mark.slow
def test_a_printed_address_is_answered_and_its_openness_is_reported(tmp_path: Path) -> None:
    with Index.create(tmp_path / "empty.index", bits=8):
        pass
    for options, warned in (((), True), (("--password", "x"), False)):
        log = tmp_path / "log"
        with serving(
            tmp_path / "empty.index", log, "--host", "0.0.0.0", "--allow-host", "a.example", *options
        ) as server:
            host = server.address.removeprefix("http://").rpartition(":")[0]
            assert not ipaddress.ip_address(host).is_unspecified
            with server.client() as client:
                assert client.get("/health").status_code == 200
                assert client.get("/health", headers={"host": "b.example"}).status_code == 400
        assert ("no password" in log.read_text()) is warned


# --- QR codes


def naive_text(code: NDArray[np.bool_]) -> tuple[bytes, bytes]:
    """Read a code of one block: the text and all bytes, by walking over the modules as a scanner does."""
    side = len(code)
    bits = []
    column, upwards = side - 1, True
    while column > 0:
        column -= column == 6
        for row in range(side - 1, -1, -1) if upwards else range(side):
            for at in (column, column - 1):
                corner = (row < 9 and (at < 9 or at >= side - 8)) or (row >= side - 8 and at < 9)
                middle = side > 21 and side - 9 <= row < side - 4 and side - 9 <= at < side - 4
                if not (corner or middle or row == 6):
                    bits.append(bool(code[row, at]) ^ ((row + at) % 2 == 0))
        column, upwards = column - 2, not upwards
    everything = np.packbits(bits[: len(bits) // 8 * 8]).tobytes()
    value = int.from_bytes(everything)
    length = 8 * len(everything)
    assert value >> (length - 4) == 0b0100  # bytes
    count = value >> (length - 12) & 255
    return (value >> (length - 12 - 8 * count) & (1 << 8 * count) - 1).to_bytes(count), everything


@given(st.text(min_size=1, max_size=106).filter(lambda text: len(text.encode()) <= 106))
def test_a_code_holds_its_text(text: str) -> None:
    code = qr_code(text)
    assert code is not None
    read, everything = naive_text(code)
    assert read == text.encode()
    most = {21: 19, 25: 34, 29: 55, 33: 80, 37: 108}[len(code)]
    pad = everything[len(read) + 2 : most]
    assert pad == (b"\xec\x11" * 60)[: len(pad)]


@pytest.mark.parametrize("length", [17, 32, 53, 78, 106])
def test_codes_are_those_of_a_library(length: int) -> None:
    """Of texts that fill a code: into others, this library puts one byte before the bytes that fill it up."""
    text = ("http://[2001:db8:1234:5678:9abc:def0:1234:5678]:65535/" * 3)[:length]
    made = segno.make(text.encode(), error="l", boost_error=False, mask=0, micro=False, mode="byte")
    np.testing.assert_array_equal(qr_code(text), np.array(list(made.matrix), dtype=bool))


def test_a_text_that_is_too_long_has_no_code() -> None:
    assert qr_code("x" * 107) is None


def test_a_code_is_drawn_in_half_blocks() -> None:
    code = np.array([[1, 0, 1], [1, 1, 0], [1, 0, 0]], dtype=bool)
    assert half_blocks(code).splitlines() == [7 * " ", "  █▄▀  ", "  ▀    ", 7 * " "]
