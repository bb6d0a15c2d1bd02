"""Models on the Hugging Face hub: fetched by commit into our own cache, and pushed with a card.

The cache holds a folder per commit, and under `refs` which commit a revision was when last seen, for days without a
network. The hub's own cache is made of links, which `HashModel.load` refuses.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from centerhash.core.errors import ConfigError, DataError
from centerhash.core.files import with_checksum, write_json, write_text
from centerhash.model.remote import (
    LARGEST,
    check_spec,
    kept,
    models_cache,
    no_model,
    stays_home,
    too_large,
)
from centerhash.model.spec import CARD, FILES, TUNED, ModelSpec, for_others

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,127}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


class _NoNetwork(Exception):
    """The hub could not be asked; says why."""


def check_repository(name: str) -> str:
    """The name of a repository, if it is one: it becomes a part of addresses and of paths."""
    if not _REPOSITORY.fullmatch(name) or ".." in name or "--" in name:
        raise ConfigError(f"a model on the hub is named owner/name, such as jane/photos-64, got '{name}'.")
    return name


def fetch(source: str) -> Path:
    """The folder in the cache of the model "hf:owner/name" or "hf:owner/name@revision"."""
    name, at, revision = source.removeprefix("hf:").partition("@")
    repository = check_repository(name)
    revision = revision if at else "main"
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise ConfigError(f"a revision is a branch, a tag or a commit, got '{revision}' in '{source}'.")
    home = models_cache() / "hf" / repository.replace("/", "--")
    if _COMMIT.fullmatch(revision) and (home / revision).is_dir():
        return home / revision
    ref = home / "refs" / quote(revision, safe="")
    try:
        commit, size = _look(source, repository, "model.json", revision)
    except _NoNetwork as error:
        with suppress(OSError):  # no such revision was seen before
            seen = ref.read_text().strip()
            if _COMMIT.fullmatch(seen) and (home / seen).is_dir():
                return home / seen
        raise DataError(
            f"cannot reach the hub for '{source}', and it is not in the cache: {error}. Try again with a connection."
        ) from error.__cause__
    if size is None:
        raise no_model(source, "its repository has no model.json")
    folder = kept(home / commit, lambda part: _fill(source, repository, commit, part))
    write_text(ref, commit + "\n")
    return folder


def _fill(source: str, repository: str, commit: str, part: Path) -> None:
    """Download the files of a model, model.json first: what is none of ours ends there."""
    try:
        _download(source, repository, commit, "model.json", part)
        spec = check_spec(source, part / "model.json")
        if not _download(source, repository, commit, "model.safetensors", part):
            raise no_model(source, "its repository has no model.safetensors")
        if spec.tuned and not _download(source, repository, commit, TUNED, part):
            raise no_model(source, f"its backbone was fine-tuned, but its repository has no {TUNED}")
        _download(source, repository, commit, CARD, part)
    except DataError:  # a cut connection leaves what there is, to resume from
        shutil.rmtree(part)
        raise
    except _NoNetwork as error:
        raise DataError(
            f"the connection to the hub broke while '{source}' was fetched: {error}. Try again, it resumes."
        ) from error.__cause__
    shutil.rmtree(part / ".cache", ignore_errors=True)  # the hub's notes on the download


def _look(source: str, repository: str, file: str, revision: str) -> tuple[str, int | None]:
    """The commit that a revision is, and the size of a file there, None where there is no such file."""
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url

    endpoint = constants.ENDPOINT
    try:
        url = hf_hub_url(repository, file, revision=revision, endpoint=endpoint)
        found = get_hf_file_metadata(url, endpoint=endpoint)
    except errors.RepositoryNotFoundError as error:
        raise DataError(
            f"there is no model '{source}' on {endpoint}, or it is not open to you: look at the name, or log in by "
            "`hf auth login`."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise DataError(
            f"'{source}' names no branch, tag or commit of its repository on {endpoint}."
        ) from error
    except errors.EntryNotFoundError:
        return "", None
    except _failures() as error:
        raise _NoNetwork(_reason(error)) from error
    if found.commit_hash is None or not _COMMIT.fullmatch(found.commit_hash) or found.size is None:
        raise DataError(
            f"{endpoint} answers for '{source}', but not as a Hugging Face hub does: see HF_ENDPOINT."
        )
    return found.commit_hash, found.size


def _download(source: str, repository: str, commit: str, file: str, folder: Path) -> bool:
    """Download one file of bounded size into a folder; False where the repository has none of that name."""
    from huggingface_hub import constants, hf_hub_download

    _, size = _look(source, repository, file, commit)
    if size is None:
        return False
    if size > LARGEST[file]:
        raise too_large(source, file, size, LARGEST[file])
    try:
        hf_hub_download(repository, file, revision=commit, local_dir=folder, endpoint=constants.ENDPOINT)
    except _failures() as error:
        raise _NoNetwork(_reason(error)) from error
    there = (folder / file).stat().st_size
    if there > LARGEST[file]:
        raise too_large(source, file, there, LARGEST[file])
    return True


def push(
    spec: ModelSpec, save: Callable[[Path], None], card: str, repository: str, private: bool | None
) -> str:
    """Upload a model that `save` writes into a folder, and its card, in one commit; returns the address."""
    from huggingface_hub import CommitOperationAdd, HfApi, constants, errors

    check_repository(repository)
    if stays_home(spec):
        raise ConfigError(
            f"this model reads images by weights of your own ('{for_others(spec).weights}'), which do not travel "
            "with it: train with published weights, or fine-tune the backbone, which is then part of the model."
        )
    api = HfApi(endpoint=constants.ENDPOINT)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            save(folder)
            write_json(folder / "model.json", with_checksum(for_others(spec).model_dump(mode="json")))
            write_text(folder / CARD, card)
            files = [folder / file for file in (*FILES, CARD) if (folder / file).is_file()]
            api.create_repo(repository, exist_ok=True, private=private)
            added = [CommitOperationAdd(file.name, file) for file in files]
            api.create_commit(repository, added, commit_message=f"A model of {spec.bits} bits")
    except errors.HfHubHTTPError as error:
        if error.response.status_code in (401, 403):
            raise ConfigError(
                f"{api.endpoint} does not let you write '{repository}': log in by `hf auth login`, with a token that "
                "may write, and look at the owner's name."
            ) from error
        raise DataError(f"{api.endpoint} did not take '{repository}': {_reason(error)}.") from error
    except _failures() as error:
        raise DataError(
            f"cannot reach the hub for '{repository}': {_reason(error)}. Try again with a connection."
        ) from error
    return f"{api.endpoint}/{repository}"


def _failures() -> tuple[type[Exception], ...]:
    """What the hub's library raises without a network: the base of its HTTP client's errors, which differs by version."""
    from huggingface_hub.errors import HfHubHTTPError

    return (*(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception)), OSError)


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".: ")
