"""Files that were changed in ways that nobody planned: what fuzzing starts from."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# the same examples each time, so that a busy machine sees what a free one does
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


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything inside a json value."""
    yield path
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in entries:
        yield from _places(inner, (*path, key))


@st.composite
def changed_json(draw: st.DrawFn, document: Any) -> Any:
    """A document in which one or two values were taken out or replaced."""
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 2))):
        *way, last = draw(st.sampled_from([path for path in _places(changed) if path] or [(None,)]))
        if last is None:
            break
        place = changed
        for key in way:
            place = place[key]
        if draw(st.booleans()):
            place[last] = draw(json_values)
        else:
            del place[last]
    return changed


# what happens to the bytes of a file: where (as a share of it) which byte is written, and where it ends
damages = st.tuples(
    st.lists(st.tuples(st.integers(0, 999_999), st.integers(0, 255)), max_size=6),
    st.just(1_000_000) | st.integers(0, 1_000_000),
)


def damaged(data: bytes, damage: tuple[list[tuple[int, int]], int]) -> bytes:
    """The bytes of a file of which some were overwritten, or the end cut off."""
    broken = bytearray(data)
    for place, value in damage[0]:
        broken[place * len(data) // 1_000_000] = value
    return bytes(broken[: damage[1] * len(data) // 1_000_000])
