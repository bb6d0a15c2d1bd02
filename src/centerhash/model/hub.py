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
from centerhash.core.files import make_folder, write_text
from centerhash.core.version import __version__
from centerhash.evaluation import Evaluation
from centerhash.model.spec import PORTABLE, TORCH_FILES, TUNED, ModelSpec
from centerhash.networks.cache import default_cache

if TYPE_CHECKING:
    from centerhash.model.model import HashModel

PREFIX = "hf:"
_TAGS = ["hashing", "image-retrieval", "multi-label"]
# Addresses become parts of URLs and of paths.
_ADDRESS = re.compile(r"(?!.*\.\.|[^@]*--)(\w[\w.-]{0,95}/\w[\w.-]{0,95})(?:@(\w[\w./-]{0,127}))?", re.ASCII)


def cache_folder() -> Path:
    """Return the folder of downloaded models, in the layout of huggingface_hub."""
    return default_cache().resolve() / "models"


def download(source: str) -> Path:
    """Download the model "hf:owner/name" or "hf:owner/name@revision" unless it is cached; return its folder."""
    with _open_hub(source, PREFIX) as (hub, repository, revision):
        settings = {"revision": revision, "cache_dir": make_folder(cache_folder())}
        for files in ((PORTABLE, "model.json"), (*TORCH_FILES, TUNED)):
            folder = Path(hub.snapshot_download(repository, allow_patterns=files, **settings))
            if (folder / files[0]).exists():
                return folder
    raise DataError(f"'{source}' is no centerhash model: it has neither {PORTABLE} nor model.json.")


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
    spec = model.spec.without_paths()
    if spec.needs_local_weights:
        raise ConfigError(
            f"this model needs your own backbone weights ('{spec.weights}'), which are not uploaded. Train with "
            "published weights, or fine-tune the backbone, which is then part of the model."
        )
    published = type(model)(spec, model.tensors(), model.folder)
    with _open_hub(repository) as (hub, name, _), tempfile.TemporaryDirectory() as folder:
        published.save(folder)
        # A method that cannot be exported is published without model.onnx, and needs PyTorch.
        with suppress(ConfigError):
            published.save_portable(folder)
        facts = {"library_name": "centerhash", "pipeline_tag": "image-feature-extraction", "tags": _TAGS}
        header = hub.ModelCardData(license=license, **facts).to_yaml()
        write_text(f"{folder}/README.md", f"---\n{header}\n---\n\n{_card(spec, name, evaluation)}")
        api = hub.HfApi()
        api.create_repo(name, exist_ok=True, private=private)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=f"A model of {spec.bits} bits")
        return f"{api.endpoint}/{name}"


def _card(spec: ModelSpec, repository: str, evaluation: Evaluation | None) -> str:
    """Return the text of a model card, in which indented text is a code block that no text can end."""
    sections = {
        "Use": f'import centerhash\n\nmodel = centerhash.load("hf:{repository}")',
        "Settings": spec.model_dump_json(exclude={"classes"}, indent=2),
        "Results": str(evaluation or "Not recorded."),
        "Labels": "\n".join(spec.classes),
    }
    blocks = "".join(f"\n\n## {title}\n\n{indent(text, '    ')}" for title, text in sections.items())
    source = f"trained by the method `{spec.method}` of centerhash {__version__}"
    return f"# {repository}\n\n{spec.bits}-bit binary codes for multi-label images, {source}.{blocks}\n"


@contextmanager
def _open_hub(source: str, prefix: str = "") -> Iterator[tuple[Any, str, str | None]]:
    """Yield huggingface_hub, and the repository and revision of an address; turn errors of the hub into one line."""
    hub, errors = require("huggingface_hub"), require("huggingface_hub.errors")
    address, endpoint = source.removeprefix(prefix), require("huggingface_hub.constants").ENDPOINT
    match = _ADDRESS.fullmatch(address)
    if match is None:
        allowed = "owner/name or owner/name@revision, such as jane/photos-64"
        raise ConfigError(f"a model on the hub is named {allowed}, got '{address}'.")
    # The HTTP client is another library in other versions of huggingface_hub.
    client_errors: Any = (OSError, *errors.HfHubHTTPError.__bases__)
    try:
        yield hub, match[1], match[2]
    except errors.RevisionNotFoundError as error:
        raise DataError(f"'{source}' names no branch, tag or commit on {endpoint}.") from error
    except client_errors as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
            advice = "or you have no access to it: check the name, or log in by `hf auth login`"
            raise ConfigError(f"there is no '{source}' on {endpoint}, {advice}.") from error
        failure = f"the hub ({endpoint}) cannot be reached for '{source}', or rejected it"
        raise DataError(f"{failure}: {first_line(error.__cause__ or error)}. Try again.") from error
