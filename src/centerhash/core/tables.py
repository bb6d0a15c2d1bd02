"""Tables for notebooks: rows as a pandas DataFrame, which is imported only then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from centerhash.core.errors import ConfigError


def to_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A DataFrame with a column per key."""
    try:
        import pandas
    except ImportError:
        raise ConfigError("to_pandas() needs pandas: pip install pandas.") from None
    return pandas.DataFrame(list(rows))
