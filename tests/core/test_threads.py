"""Threads wait quietly unless the user has chosen otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from centerhash.core.threads import WAITING

pytestmark = pytest.mark.slow


def waiting(code: str, **chosen: str) -> str:
    """What the variables are after `code` in a process of its own that has only the `chosen` ones."""
    kept = {name: value for name, value in os.environ.items() if name not in WAITING}
    show = f"import os; print([os.environ.get(name) for name in {WAITING!r}])"
    command = [sys.executable, "-c", f"{code}; {show}"]
    return subprocess.run(command, env=kept | chosen, check=True, capture_output=True, text=True).stdout


def test_threads_of_torch_sleep_while_they_wait() -> None:
    assert waiting("import centerhash") == "['PASSIVE', None, None]\n"


@pytest.mark.parametrize("name", WAITING)
def test_what_the_user_chose_stays(name: str) -> None:
    expected = str(["100" if name == known else None for known in WAITING])
    assert waiting("import centerhash", **{name: "100"}).strip() == expected


def test_nothing_is_said_where_it_would_come_too_late() -> None:
    assert waiting("import sys; sys.modules['torch'] = sys; import centerhash") == "[None, None, None]\n"
