"""Models on the Hugging Face hub: downloaded by commit into the cache, and uploaded with a card.

Only the files of a model are downloaded: model.onnx, or without it model.json first. Nothing is unpickled. Cached
models load offline.
"""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from centerhash.core.errors import ConfigError, DataError, first_line
from centerhash.core.files import (
    make_folder,
    packaged,
    parse_json,
    read_with_checksum,
    refuse_links,
    with_checksum,
    write_json,
    write_text,
)
from centerhash.core.rendering import filled, visible
from centerhash.core.version import __version__
from centerhash.evaluation import Evaluation
from centerhash.model.spec import FILES, PORTABLE, TUNED, ModelSpec, file_name
from centerhash.networks.cache import default_cache

PREFIX = "hf:"
CARD = "README.md"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,127}", re.ASCII)
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
_MOST_LABELS = 1000  # listed in a card
# settings of a configuration that the command line has an option of the same name for
_OPTIONS = (
    *("method", "bits", "epochs", "seed", "backbone", "finetune", "stages", "batch_size", "learning_rate"),
    *("crop", "pool"),
)


def cache_folder() -> Path:
    """Return the folder of downloaded models, in the layout of huggingface_hub."""
    return default_cache().resolve() / "models"


def check_repository(name: str) -> str:
    """Return the name of a repository if it is valid: it becomes a part of addresses and of paths."""
    if not _REPOSITORY.fullmatch(name) or ".." in name or "--" in name:
        raise ConfigError(f"a model on the hub is named owner/name, such as jane/photos-64, got '{name}'.")
    return name


def download(source: str) -> Path:
    """Download the model "hf:owner/name" or "hf:owner/name@revision" unless it is cached; return its folder."""
    name, at, revision = source.removeprefix(PREFIX).partition("@")
    repository = check_repository(name)
    revision = revision if at else "main"
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise ConfigError(f"a revision is a branch, a tag or a commit, got '{revision}' in '{source}'.")
    return _downloaded(source, repository, revision)


def _downloaded(source: str, repository: str, revision: str) -> Path:
    from huggingface_hub import constants, errors, hf_hub_download, snapshot_download

    cache = make_folder(cache_folder())
    with _explained_errors(source), suppress(errors.EntryNotFoundError):  # a model of PyTorch only
        found = hf_hub_download(
            repository, PORTABLE, revision=revision, cache_dir=cache, endpoint=constants.ENDPOINT
        )
        return Path(found).parent
    with _explained_errors(source):
        file = hf_hub_download(
            repository, "model.json", revision=revision, cache_dir=cache, endpoint=constants.ENDPOINT
        )
    folder = Path(file).parent  # named by the commit
    try:
        spec = ModelSpec.model_validate(read_with_checksum(Path(file)))
    except (ValueError, TypeError) as error:  # not json, not UTF-8, other fields
        raise _no_model(source, first_line(error)) from None
    if spec.needs_local_weights:  # nor may a downloaded model name files of this machine
        raise DataError(f"'{source}' needs backbone weights that were not published with it.")
    needed = ["model.safetensors", *([TUNED] if spec.tuned else [])]
    if not all((folder / name).exists() for name in needed):
        with _explained_errors(source):
            snapshot_download(
                repository,
                revision=folder.name,
                allow_patterns=[*needed, CARD],
                cache_dir=cache,
                endpoint=constants.ENDPOINT,
            )
    for name in needed:
        if not (folder / name).exists():
            raise _no_model(source, f"its repository has no {name}")
    return folder


@contextmanager
def _explained_errors(source: str) -> Iterator[None]:
    """Turn errors of a download into one line."""
    from huggingface_hub import constants, errors

    endpoint = constants.ENDPOINT
    try:
        yield
    except _hub_errors() as error:
        if isinstance(error, errors.RevisionNotFoundError):
            found = DataError(f"'{source}' names no branch, tag or commit of its repository on {endpoint}.")
        elif isinstance(error, errors.RepositoryNotFoundError):
            found = DataError(
                f"there is no model '{source}' on {endpoint}, or you have no access to it: check the name, or log in "
                "by `hf auth login`."
            )
        elif isinstance(error, errors.EntryNotFoundError) and not isinstance(
            error, errors.LocalEntryNotFoundError
        ):
            found = _no_model(source, f"its repository has neither {PORTABLE} nor model.json")
        else:
            found = DataError(
                f"cannot reach the hub ({endpoint}) for '{source}', and it is not in the cache: "
                f"{first_line(error.__cause__ or error)}. Try again with a connection."
            )
        raise found from error


def _no_model(source: str, reason: str) -> DataError:
    return DataError(
        f"'{source}' is no model of centerhash: {reason}. It needs the {PORTABLE} of a run, or its model.json and "
        "model.safetensors."
    )


def push(
    spec: ModelSpec, save: Callable[[Path], None], card: str, repository: str, private: bool | None
) -> str:
    """Upload a model that `save` writes into a folder, and its card, in one commit; return the address."""
    from huggingface_hub import HfApi, constants, errors

    check_repository(repository)
    if spec.needs_local_weights:
        raise ConfigError(
            f"this model needs your own backbone weights ('{spec.without_paths().weights}'), which are not uploaded. "
            "Train with published weights, or fine-tune the backbone, which is then part of the model."
        )
    api = HfApi(endpoint=constants.ENDPOINT)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            save(folder)
            write_json(folder / "model.json", with_checksum(spec.without_paths().model_dump(mode="json")))
            write_text(folder / CARD, card)
            api.create_repo(repository, exist_ok=True, private=private)
            api.upload_folder(
                repo_id=repository,
                folder_path=folder,
                allow_patterns=[*FILES, CARD],
                commit_message=f"A model of {spec.bits} bits",
            )
    except errors.HfHubHTTPError as error:
        if error.response.status_code in (401, 403):
            raise ConfigError(
                f"you may not write '{repository}' on {api.endpoint}: log in by `hf auth login` with a token that may "
                "write, and check the owner's name."
            ) from error
        raise DataError(f"{api.endpoint} rejected '{repository}': {first_line(error)}.") from error
    except _hub_errors() as error:
        raise DataError(
            f"cannot reach the hub for '{repository}': {first_line(error)}. Try again with a connection."
        ) from error
    return f"{api.endpoint}/{repository}"


def _hub_errors() -> tuple[type[Exception], ...]:
    """Return the errors of the hub, and the base of its HTTP client's errors, which differs by version."""
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError

    client = (base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))
    return (*client, EntryNotFoundError, OSError)


# The card


def model_card(
    spec: ModelSpec, folder: Path | None, repository: str, evaluation: Evaluation | None, license: str | None
) -> str:
    """Write the README.md of a model, with data and command of the run in `folder`, if there is one."""
    if license is not None and not _LICENSE.fullmatch(license):
        raise ConfigError(
            f"a license is named as on the hub, such as apache-2.0 or cc-by-4.0, got '{license}'."
        )
    run, classes = _run(folder), spec.classes
    data, config = run.get("data"), run.get("config")
    command, settings = "", ""
    if isinstance(data, dict) and isinstance(config, dict):
        command, settings = _command(data, config)
    more = [f"... and {len(classes) - _MOST_LABELS:,} more"] if len(classes) > _MOST_LABELS else []
    return filled(
        packaged("centerhash.model", "card.toml")["card"],
        spec=spec.without_paths(),
        repository=repository,
        version=__version__,
        license=license,
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
    """Read the config.json of the run; empty if the model is not in a run's folder."""
    if folder is None or not (folder / "config.json").exists():
        return {}
    refuse_links(folder, ("config.json",))
    try:
        found = parse_json((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:  # not json, or not UTF-8
        raise DataError(f"'{folder / 'config.json'}' is damaged ({error}): train the run again.") from None
    return found if isinstance(found, dict) else {}


def _command(data: dict[str, Any], config: dict[str, Any]) -> tuple[str, str]:
    """Return the command of a run, and all of its settings, without folders of this machine."""
    config |= {name: file_name(str(config[name])) for name in ("method", "weights") if config.get(name)}
    words = ["centerhash", "train", _line(data.get("name"))]
    for name in _OPTIONS:
        if config.get(name) is not None:
            words += [f"--{name.replace('_', '-')}", _line(config[name])]
    for name, value in (config.get("options") or {}).items():
        words += ["-o", f"{name}={_line(value)}"]
    return shlex.join([*words, "--out", "run"]), json.dumps(config, indent=2, ensure_ascii=False)


def _line(value: object) -> str:
    """Put untrusted text on one line, without what would end a block of code."""
    return " ".join(visible(str(value)).split()).replace("`", "'")


def _block(text: str) -> str:
    """Indent a block of code: no text can end one."""
    return "\n".join(f"    {line}" for line in text.splitlines())
