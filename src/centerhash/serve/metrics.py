"""Counters for Prometheus, in its text format. Only the event loop writes them, so they need no lock."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds


class Metrics:
    """Requests by method, route and status, and how long they took by route."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._buckets: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(BOUNDS) + 1))

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answer."""
        self.requests[method, route, status] += 1
        self._seconds[route] += seconds
        self._buckets[route][bisect_left(BOUNDS, seconds)] += 1

    def text(self, gauges: Mapping[str, tuple[str, Mapping[str, float]]]) -> str:
        """Everything as Prometheus reads it; `gauges` are name -> (help, label text -> value)."""
        lines = list(_head("centerhash_requests_total", "counter", "Requests by method, route and status."))
        for (method, route, status), number in sorted(self.requests.items()):
            labels = f'method="{_escaped(method)}",route="{_escaped(route)}",status="{status}"'
            lines.append(f"centerhash_requests_total{{{labels}}} {number}")
        name = "centerhash_request_seconds"
        lines += _head(name, "histogram", "Time to answer by route.")
        for route, buckets in sorted(self._buckets.items()):
            label = f'route="{_escaped(route)}"'
            for bound, number in zip((*BOUNDS, "+Inf"), accumulate(buckets), strict=True):
                lines.append(f'{name}_bucket{{{label},le="{bound}"}} {number}')
            lines.append(f"{name}_sum{{{label}}} {self._seconds[route]:.6f}")
            lines.append(f"{name}_count{{{label}}} {sum(buckets)}")
        for gauge, (meaning, values) in gauges.items():
            lines += _head(gauge, "gauge", meaning)
            lines += [
                f"{gauge}{{{labels}}} {value:g}" if labels else f"{gauge} {value:g}"
                for labels, value in values.items()
            ]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, meaning: str) -> Iterable[str]:
    return (f"# HELP {name} {meaning}", f"# TYPE {name} {kind}")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
