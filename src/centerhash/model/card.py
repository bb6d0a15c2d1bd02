"""The card of a model: what people read before they use it, made from the run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from centerhash.core.errors import ConfigError, DataError
from centerhash.core.files import parse_json, refuse_links
from centerhash.core.text import visible
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
    if licence is not None and not _LICENCE.fullmatch(licence):
        raise ConfigError(
            f"a licence is named as on the hub, such as apache-2.0 or cc-by-4.0, got '{licence}'."
        )
    run, from_features = _run(folder), f"model.encode_features(features)  # (N, {spec.features})"
    call = 'model.encode("photo.jpg")' if spec.backbone else from_features
    parts = [
        _front_matter(licence),
        f"# {repository}",
        _about(for_others(spec)),
        "## Use",
        f'```python\nimport centerhash\n\nmodel = centerhash.load("hf:{repository}")\n{call}\n```',
        "## Data",
        _data(run),
        "## Command",
        _command(run),
        "## Figures",
        _figures(evaluation),
        "## Labels",
        _labels(spec.classes),
        "## Licence",
        licence or "None was stated: ask the owner.",
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(licence: str | None) -> str:
    lines = ["library_name: centerhash", "pipeline_tag: image-feature-extraction"]
    lines += ["tags:", "- hashing", "- image-retrieval", "- multi-label"]
    return "\n".join(["---", *([f"license: {licence}"] if licence else []), *lines, "---"])


def _about(spec: ModelSpec) -> str:
    reads = f"images by {spec.backbone}" if spec.backbone else f"features of {spec.features} numbers"
    tuned = ", fine-tuned" if spec.tuned else ""
    return (
        f"Binary codes of {spec.bits} bits for multi-label images, learned by the method `{_line(spec.method)}` of "
        f"centerhash {__version__}. Reads {reads}{tuned}; knows {len(spec.classes):,} labels."
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


def _data(run: dict[str, Any]) -> str:
    data = run.get("data")
    if not isinstance(data, dict):
        return "Not recorded."
    return f"`{_line(data.get('name'))}`, {data.get('images')} images; splits: {_line(run.get('splits'))}."


def _command(run: dict[str, Any]) -> str:
    config, data = run.get("config"), run.get("data")
    if not isinstance(config, dict) or not isinstance(data, dict):
        return "Not recorded."
    paths = {name: file_name(str(config[name])) for name in ("method", "weights") if config.get(name)}
    config = {**config, **paths}
    words = ["centerhash", "train", _line(data.get("name"))]
    for name in _OPTIONS:
        if config.get(name) is not None:
            words += [f"--{name.replace('_', '-')}", _line(config[name])]
    words += ["--finetune"] if config.get("finetune") else []
    for name, value in (config.get("options") or {}).items():
        words += ["-o", f"{name}={_line(value)}"]
    stored = json.dumps(config, indent=2, ensure_ascii=False)
    return f"{_block(shlex.join([*words, '--out', 'run']))}\n\nAll settings:\n\n{_block(stored)}"


def _figures(evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return "None were given."
    rows = [f"{evaluation.queries:,} queries against {evaluation.database:,} images.", ""]
    rows += ["| measure | value | chance |", "|---|---|---|"]
    for row in evaluation.measures():
        chance = "" if row.chance is None else f"{row.chance:.4f}"
        rows.append(f"| {row.name.strip()} | {row.value:.4f} | {chance} |")
    return "\n".join(rows)


def _labels(classes: Sequence[str]) -> str:
    shown = [_line(name) for name in classes[:_MOST_LABELS]]
    more = [f"... and {len(classes) - _MOST_LABELS:,} more"] if len(classes) > _MOST_LABELS else []
    return _block("\n".join(shown + more)) if shown else "None."


def _line(value: object) -> str:
    """Text of others on one line, without what would end a block of code."""
    return " ".join(visible(str(value)).split()).replace("`", "'")


def _block(text: str) -> str:
    """A block of code; indented, since no text can end one."""
    return "\n".join(f"    {line}" for line in text.splitlines())
