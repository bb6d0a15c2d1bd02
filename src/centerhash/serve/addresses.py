"""The addresses under which other devices reach a server, found without sending anything."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# addresses for documentation (RFC 5737, RFC 3849) and local ones: a UDP socket that is "connected" to one sends nothing,
# but has the address of this machine from which packets would leave
_FAR = {socket.AF_INET: ("192.0.2.1",), socket.AF_INET6: ("2001:db8::1", "fd00::1")}
_SIOCGIFADDR = 0x8915  # Linux: the address of an interface


def is_local(host: str) -> bool:
    """Whether only programs of this machine can reach a server that listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def reachable_hosts(host: str) -> list[str]:
    """Return the hosts for URLs of a server that listens on `host`; of several, that of the default route first."""
    try:
        everywhere = not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        everywhere = False
    if not everywhere:
        return [_in_url(host)]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = dict.fromkeys((*_routed(family), *_assigned(family)))
    others = [_in_url(each) for each in found if _is_useful(each)]
    return others or ["[::1]" if family == socket.AF_INET6 else "127.0.0.1"]


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_useful(address: str) -> bool:
    """Whether another device can open a URL with this address; link-local ones need the name of an interface."""
    parsed = ipaddress.ip_address(address)
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified)


def _routed(family: socket.AddressFamily) -> Iterator[str]:
    """Yield the addresses from which packets to other networks would leave."""
    for far in _FAR[family]:
        with (
            suppress(OSError),
            socket.socket(family, socket.SOCK_DGRAM) as probe,
        ):  # no such network, or no route
            probe.connect((far, 9))
            yield str(probe.getsockname()[0])


def _assigned(family: socket.AddressFamily) -> Iterator[str]:
    """Yield the addresses of all interfaces, on Linux; bridges to virtual machines and containers are left out."""
    if family == socket.AF_INET6:
        with suppress(OSError):
            for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
                digits, *_, name = line.split()
                if not _is_bridge(name):
                    yield str(ipaddress.IPv6Address(int(digits, 16)))
        return
    try:
        import fcntl
    except ImportError:  # Windows
        return
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with suppress(OSError):  # an interface without an address
                if not _is_bridge(name):
                    yield socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24])


def _is_bridge(name: str) -> bool:
    return Path("/sys/class/net", name, "bridge").exists()
