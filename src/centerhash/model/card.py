"""The card of a model: what people read before they use it, made from the run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from centerhash.core.errors import ConfigError, DataError
from centerhash.core.files import packaged, parse_json, refuse_links
from centerhash.core.rendering import visible
from centerhash.core.version import __version__
from centerhash.evaluation import Evaluation
from centerhash.model.spec import ModelSpec, file_name, for_others

_LICENCE = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
_MOST_LABELS = 1000  # that are listed
# of a configuration, what the command line has an option of the same name for
_OPTIONS = ("method", "bits", "epochs", "seed", "backbone", "batch_size", "learning_rate", "crop", "pool")


def model_card(
    spec: ModelSpec, folder: Path | None, repository: str, evaluation: Evaluation | None, licence: str | None
) -> str:
    """The README.md of a model: its data and command are those of the run in `folder`, where there is one."""
    from centerhash.core.rendering import filled

    if licence is not None and not _LICENCE.fullmatch(licence):
        raise ConfigError(
            f"a licence is named as on the hub, such as apache-2.0 or cc-by-4.0, got '{licence}'."
        )
    run, classes = _run(folder), spec.classes
    data, config = run.get("data"), run.get("config")
    command, settings = "", ""
    if isinstance(data, dict) and isinstance(config, dict):
        command, settings = _command(data, config)
    more = [f"... and {len(classes) - _MOST_LABELS:,} more"] if len(classes) > _MOST_LABELS else []
    return filled(
        packaged("centerhash.model", "card.toml")["card"],
        spec=for_others(spec),
        repository=repository,
        version=__version__,
        licence=licence,
        data=data,
        splits=run.get("splits"),
        command=command,
        settings=settings,
        evaluation=evaluation,
        labels="\n".join([*map(_line, classes[:_MOST_LABELS]), *more]),
        line=_line,
        block=_block,
    )


def _run(folder: Path | None) -> dict[str, Any]:
    """The config.json of the run; empty where the model is not in the folder of one."""
    if folder is None or not (folder / "config.json").exists():
        return {}
    refuse_links(folder, ("config.json",))
    try:
        found = parse_json((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:  # no json, or no UTF-8
        raise DataError(f"'{folder / 'config.json'}' is damaged ({error}): train the run again.") from None
    return found if isinstance(found, dict) else {}


def _command(data: dict[str, Any], config: dict[str, Any]) -> tuple[str, str]:
    """The command of a run, and all of its settings, without folders of this machine."""
    paths = {name: file_name(str(config[name])) for name in ("method", "weights") if config.get(name)}
    config = {**config, **paths}
    words = ["centerhash", "train", _line(data.get("name"))]
    for name in _OPTIONS:
        if config.get(name) is not None:
            words += [f"--{name.replace('_', '-')}", _line(config[name])]
    words += ["--finetune"] if config.get("finetune") else []
    for name, value in (config.get("options") or {}).items():
        words += ["-o", f"{name}={_line(value)}"]
    return shlex.join([*words, "--out", "run"]), json.dumps(config, indent=2, ensure_ascii=False)


def _line(value: object) -> str:
    """Text of others on one line, without what would end a block of code."""
    return " ".join(visible(str(value)).split()).replace("`", "'")


def _block(text: str) -> str:
    """A block of code; indented, since no text can end one."""
    return "\n".join(f"    {line}" for line in text.splitlines())
