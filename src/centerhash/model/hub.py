"""Models on the Hugging Face hub, downloaded into the cache and uploaded with a card.

Only the files of a model are downloaded: model.onnx, or without it those of PyTorch. Nothing is unpickled, and cached
models load offline.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from centerhash.core.errors import ConfigError, DataError, first_line
from centerhash.core.extras import require
from centerhash.core.files import make_folder, with_checksum, write_json, write_text
from centerhash.core.version import __version__
from centerhash.evaluation import Evaluation
from centerhash.model.spec import FILES, PORTABLE, TORCH_FILES, TUNED, ModelSpec
from centerhash.networks.cache import default_cache

if TYPE_CHECKING:
    from centerhash.model.model import HashModel

PREFIX = "hf:"
_ADDRESS = re.compile(r"(\w[\w.-]{0,95}/\w[\w.-]{0,95})(?:@(\w[\w./-]{0,127}))?", re.ASCII)


def cache_folder() -> Path:
    """Return the folder of downloaded models, in the layout of huggingface_hub."""
    return default_cache().resolve() / "models"


def download(source: str) -> Path:
    """Download the model "hf:owner/name" or "hf:owner/name@revision" unless it is cached; return its folder."""
    snapshot_download = require("huggingface_hub").snapshot_download
    repository, revision = _parse(source.removeprefix(PREFIX))
    for files in ((PORTABLE, TORCH_FILES[0]), (*TORCH_FILES, TUNED)):
        with _explained_errors(source):
            snapshot = snapshot_download(
                repository, revision=revision, allow_patterns=files, cache_dir=make_folder(cache_folder())
            )
        if (Path(snapshot) / files[0]).exists():
            return Path(snapshot)
    raise DataError(
        f"'{source}' is no model of centerhash: its repository has neither {PORTABLE} nor model.json."
    )


def publish(
    model: HashModel,
    repository: str,
    *,
    evaluation: Evaluation | None = None,
    license: str | None = None,
    private: bool | None = None,
) -> str:
    """Upload a model to "owner/name" on the Hugging Face hub, with a card; return its address there.

    The card lists settings, labels, `license` (such as "apache-2.0"), and the metrics of an `evaluation`.
    """
    hub = require("huggingface_hub")
    spec, (repository, _) = model.spec.without_paths(), _parse(repository)
    if model.spec.needs_local_weights:
        raise ConfigError(
            f"this model needs your own backbone weights ('{spec.weights}'), which are not uploaded. Train with "
            "published weights, or fine-tune the backbone, which is then part of the model."
        )
    data = hub.ModelCardData(
        license=license,
        library_name="centerhash",
        pipeline_tag="image-feature-extraction",
        tags=["hashing", "image-retrieval", "multi-label"],
    )
    api = hub.HfApi()
    with tempfile.TemporaryDirectory() as name, _explained_errors(repository):
        folder = Path(name)
        model.save(folder)
        # A method that cannot be exported is published without model.onnx, and needs PyTorch.
        with suppress(ConfigError):
            model.save_portable(folder)
        write_json(folder / TORCH_FILES[0], with_checksum(spec.model_dump(mode="json")))
        write_text(
            folder / "README.md", f"---\n{data.to_yaml()}\n---\n\n{_card(spec, repository, evaluation)}"
        )
        api.create_repo(repository, exist_ok=True, private=private)
        message, files = f"A model of {spec.bits} bits", [*FILES, "README.md"]
        api.upload_folder(
            repo_id=repository, folder_path=folder, allow_patterns=files, commit_message=message
        )
    return f"{api.endpoint}/{repository}"


def _card(spec: ModelSpec, repository: str, evaluation: Evaluation | None) -> str:
    """Write the text of a model card; indented text is a block of code, which no text can end."""
    kind = "features" if spec.backbone is None else "an image"
    sections = {
        "Use": f'import centerhash\n\nmodel = centerhash.load("hf:{repository}")',
        "Settings": spec.model_dump_json(exclude={"classes"}, indent=2),
        "Results": "Not recorded." if evaluation is None else str(evaluation),
        "Labels": "\n".join(spec.classes),
    }
    blocks = "".join(f"\n\n## {title}\n\n{indent(text, '    ')}" for title, text in sections.items())
    return (
        f"# {repository}\n\n{spec.bits}-bit binary codes for multi-label images, trained with the method "
        f"`{spec.method}` of centerhash {__version__}. The input is {kind}.{blocks}\n"
    )


def _parse(address: str) -> tuple[str, str | None]:
    """Split "owner/name@revision", which becomes a part of addresses and of paths."""
    match = _ADDRESS.fullmatch(address)
    if match is None or ".." in address or "--" in match[1]:
        raise ConfigError(
            f"a model on the hub is named owner/name or owner/name@revision, such as jane/photos-64, got '{address}'."
        )
    return match[1], match[2]


@contextmanager
def _explained_errors(source: str) -> Iterator[None]:
    """Turn errors of huggingface_hub, and of its HTTP client, into one line."""
    from huggingface_hub import constants, errors

    endpoint = constants.ENDPOINT
    # The HTTP client is another library in other versions of huggingface_hub.
    client_errors: Any = (OSError, *errors.HfHubHTTPError.__bases__)
    try:
        yield
    except errors.RevisionNotFoundError as error:
        raise DataError(
            f"'{source}' names no branch, tag or commit of its repository on {endpoint}."
        ) from error
    except client_errors as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
            raise ConfigError(
                f"there is no '{source}' on {endpoint}, or you have no access to it: check the name, or log in by "
                "`hf auth login`."
            ) from error
        reason = first_line(error.__cause__ or error)
        raise DataError(
            f"the hub ({endpoint}) cannot be reached for '{source}', or rejected it: {reason}. Try again."
        ) from error
