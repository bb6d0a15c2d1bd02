"""Random changes of files and json documents, for fuzzing."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# The same examples each time, so that results do not depend on the machine.
seeded = settings(
    derandomize=True,
    max_examples=60,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

numbers = st.integers(-3, 3) | st.sampled_from([2**31, 2**63, -(2**64), 10**30, 10**400]) | st.floats()
texts = st.text(max_size=8) | st.sampled_from(["", " ", "..", "../a.png", "/etc/passwd", "a|b", "[1]", "\0"])
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values inside a json value."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key)
            yield from _paths(inner, (*path, key))


@st.composite
def changed_json(draw: st.DrawFn, document: Any) -> Any:
    """A document in which one or two values are removed or replaced."""
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 2))):
        paths = list(_paths(changed))
        if not paths:
            break
        *parents, last = draw(st.sampled_from(paths))
        container = functools.reduce(operator.getitem, parents, changed)
        if draw(st.booleans()):
            container[last] = draw(json_values)
        else:
            del container[last]
    return changed


# Bytes that are overwritten, each at a position in millionths of the file, and the new length, in millionths too.
damages = st.tuples(
    st.lists(st.tuples(st.integers(0, 999_999), st.integers(0, 255)), max_size=6),
    st.just(1_000_000) | st.integers(0, 1_000_000),
)


def damaged(data: bytes, damage: tuple[list[tuple[int, int]], int]) -> bytes:
    """The bytes of a file with some overwritten and the end cut off."""
    broken = bytearray(data)
    for position, value in damage[0]:
        broken[position * len(data) // 1_000_000] = value
    return bytes(broken[: damage[1] * len(data) // 1_000_000])
