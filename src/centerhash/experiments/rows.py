"""Raw results: one json object per line, as `centerhash compare` and `centerhash reproduce` store them.

A row says what was measured on (data, fingerprint, split, images, depth), what was trained (config, in `task` where a
part of the paper asked for more than a training), and what was found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError

from centerhash.core.errors import ConfigError, DataError
from centerhash.training.config import TrainConfig, resolve

Row: TypeAlias = dict[str, Any]
FACTS = ("data", "split", "images", "evaluation")  # of every row beside its config, old or new


def read_rows(path: str | Path, keys: Sequence[str] = FACTS) -> list[Row]:
    """The rows of a file of json lines, none when there is no such file; a last line torn by a kill is left out.

    Every row must have a config and the `keys`.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror or error}.") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or not {*keys, "config"} <= {*row, *row.get("task", {})}:
                raise ValueError(f"it needs config, {', '.join(keys)}")
        except ValueError as error:  # no json, or no UTF-8
            if number == len(lines):
                break
            raise DataError(f"'{path}', line {number} is damaged ({error}): take that line out.") from None
        rows.append(row)
    return rows


def row_line(row: Row) -> str:
    """A row as one line of text, without the line break."""
    return json.dumps(row, separators=(",", ":"))


def row_key(row: Row) -> str:
    """What a row or a failure is the answer to, as `Task.key` writes it."""
    return identity_text(row["task"] if "task" in row else {**row.get("about", {}), "config": row["config"]})


def identity_text(identity: Mapping[str, Any]) -> str:
    """What makes a row the answer to a task, as text; without the units of presence, which decide no row."""
    config = identity["config"]
    head = {name: value for name, value in config.get("head", {}).items() if name != "presence_hidden"}
    return json.dumps({**identity, "config": {**config, "head": head}}, sort_keys=True)


def task_name(config: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """A training as people call it, with what else is known of it in brackets."""
    name = f"{config['method']} {config['bits']} bits seed {config['seed']}"
    shown = ", ".join(f"{key} {value}" for key, value in about.items() if not isinstance(value, dict))
    return f"{name} ({shown})" if shown else name


def completed(row: Row) -> Row:
    """The row with its configuration filled up: settings that its version did not have yet get what it did.

    A configuration that this version refuses stays as it is: such a row is history, and matches no task.
    """
    if "task" in row:
        return {**row, "task": completed(row["task"])}
    stored = row["config"]
    try:
        # as all did before there was a choice; presence changes no code, so it may be what it is today
        head = {"rotate": False, "evidence": False, **stored.get("head", {})}
        config = resolve(TrainConfig.model_validate({"sizes": False, **stored, "head": head}))
    except (ConfigError, ValidationError):
        return row
    return {**row, "config": config.model_dump(mode="json")}


def rounded(value: Any, digits: int = 6) -> Any:
    """Plain values with every fraction rounded: a row with its curves then takes a few kB."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    return [rounded(item, digits) for item in value] if isinstance(value, list) else value


def other_setting(row: Row, facts: Row) -> list[str]:
    """In which respects a row was measured on something else than `facts` says; none when both are one comparison.

    Rows of earlier versions have no fingerprint and go by the name of the data.
    """
    differences = []
    known_by = "fingerprint" if "fingerprint" in row and "fingerprint" in facts else "data"
    if row[known_by] != facts[known_by]:
        same = " with other labels or splits" if row["data"] == facts["data"] else ""
        differences.append(f"data was {row['data']}, now {facts['data']}{same}")
    if row.get("backbone") != facts.get("backbone"):
        before, now = (found.get("backbone", "an earlier version") for found in (row, facts))
        differences.append(f"features were of {before}, now of {now}")
    for name in ("split", "images"):
        if row[name] != facts[name]:
            differences.append(f"{name} was {row[name]}, now {facts[name]}")
    for name in ("k", "exclude_self"):
        stored, wanted = row["evaluation"].get(name), facts["evaluation"].get(name)
        if stored != wanted:
            differences.append(f"{name} was {stored}, now {wanted}")
    return differences
