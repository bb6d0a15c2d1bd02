"""Models of elsewhere, fetched into our own cache: of the Hugging Face hub, or a zip at an address with its checksum.

Only the files of a model are taken, each of a bounded size; nothing is unpickled, and no link is made or followed. A
model is in the cache when its folder is there: it is written beside and renamed, so that a kill leaves none half.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from filelock import FileLock

from centerhash.core.errors import ConfigError, DataError
from centerhash.core.files import explain_write_errors, make_folder, read_with_checksum
from centerhash.core.version import __version__
from centerhash.data.fetch import open_archive
from centerhash.model.spec import CARD, FILES, TUNED, ModelSpec
from centerhash.networks.cache import default_cache

REMOTE = ("hf:", "https://", "http://")  # what the name of a model of elsewhere begins with
LARGEST = {"model.json": 2**24, "model.safetensors": 2**31, TUNED: 2**33, CARD: 2**20}  # bytes
LARGEST_ZIP = 2**34  # bytes of an archive, and of all that it holds: a whole run may be in it
_BLOCK = 2**20
_TIMEOUT = 60.0  # seconds without a byte
_SHA256 = re.compile(r"sha256=([0-9a-fA-F]{64})")


def fetched(source: str) -> Path:
    """The folder in the cache of "hf:owner/name@revision" or "https://.../run.zip#sha256=...", fetched if need be."""
    if source.startswith("hf:"):
        from centerhash.model.hub import fetch

        return fetch(source)
    return _fetch_zip(source)


def models_cache() -> Path:
    """The folder of all models that were fetched."""
    return default_cache() / "models"


def kept(folder: Path, fill: Callable[[Path], None]) -> Path:
    """The folder of a model in the cache; one that is not there is filled beside and renamed, one process at a time."""
    part = folder.with_name(f".{folder.name}.part")
    if not folder.is_dir():
        make_folder(folder.parent)
        with explain_write_errors(folder), FileLock(folder.with_name(f".{folder.name}.lock")):
            if not folder.is_dir():  # else another process was first
                part.mkdir(exist_ok=True)
                fill(part)
                part.rename(folder)
    return folder


def too_large(source: str, file: str, size: int, limit: int) -> DataError:
    """The error for a file that is larger than it may be."""
    return DataError(
        f"{file} of '{source}' is too large: {size:,} bytes, at most {limit:,} are fetched. Is it a model of "
        "centerhash? If so, download it by hand and open its folder."
    )


def no_model(source: str, reason: str) -> DataError:
    """The error for what is no model."""
    return DataError(
        f"'{source}' is no model of centerhash: {reason}. It needs the model.json and model.safetensors of a run."
    )


def check_spec(source: str, file: Path) -> ModelSpec:
    """What the model.json that was fetched says; DataError where it is none of ours, or cannot be used elsewhere."""
    try:
        spec = ModelSpec.model_validate(read_with_checksum(file))
    except (ValueError, TypeError) as error:  # no json, no UTF-8, other fields
        raise no_model(
            source, (str(error).splitlines() or ["model.json is damaged"])[0].rstrip(".")
        ) from None
    if stays_home(spec):  # nor may a model of elsewhere name files of this machine
        raise DataError(
            f"'{source}' reads images by weights that stayed with its maker: ask for a whole model."
        )
    return spec


def stays_home(spec: ModelSpec) -> bool:
    """Whether a model needs a file of weights that does not lie beside it."""
    return spec.backbone is not None and spec.weights is not None and not spec.tuned


def _fetch_zip(source: str) -> Path:
    """The folder of a zipped model; the checksum names it, so that one which is here needs no network."""
    address, _, fragment = source.partition("#")
    digest = _SHA256.fullmatch(fragment)
    if digest is None or not urlsplit(address).netloc:
        raise ConfigError(
            f"a model at an address needs its checksum, as in https://example.org/run.zip#sha256=... (64 digits; "
            f"`sha256sum run.zip` tells them), got '{source}'."
        )
    known = digest[1].lower()
    return kept(models_cache() / "zip" / known, lambda part: _fill(source, address, known, part))


def _fill(source: str, address: str, digest: str, part: Path) -> None:
    """Download an archive, check it, and write the model in it into `part`."""
    archive = part.with_suffix(".zip")
    try:
        found = _download(address, archive)
        if found != digest:
            raise DataError(
                f"'{address}' has another checksum: sha256 {found}, expected {digest}. Nothing of it was kept: ask "
                "whoever gave you the address."
            )
        if not zipfile.is_zipfile(archive):
            raise no_model(source, "it is no zip file")
        _unzip(source, archive, part)
        if check_spec(source, part / "model.json").tuned and not (part / TUNED).exists():
            raise no_model(source, f"its backbone was fine-tuned, but it holds no {TUNED}")
    except BaseException:
        shutil.rmtree(part)
        raise
    finally:
        archive.unlink(missing_ok=True)


def _download(address: str, target: Path) -> str:
    """Fetch an address of the web into a file of bounded size, and return its sha256."""
    request = urllib.request.Request(address, headers={"User-Agent": f"centerhash/{__version__}"})
    digest, done = hashlib.sha256(), 0
    try:
        # `REMOTE` says that it is one of the web
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer, target.open("wb") as stream:  # nosec B310
            announced = int(answer.headers.get("Content-Length") or 0)
            while block := answer.read(_BLOCK):
                done += len(block)
                if max(done, announced) > LARGEST_ZIP:
                    raise too_large(address, "the archive", max(done, announced), LARGEST_ZIP)
                digest.update(block)
                with explain_write_errors(target):  # a full disk must not look like a cut connection
                    stream.write(block)
    except urllib.error.HTTPError as error:
        error.close()  # it is the open answer itself
        raise DataError(f"there is no model at '{address}': HTTP {error.code} ({error.reason}).") from error
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", None) or error or type(error).__name__)
        raise DataError(f"cannot fetch '{address}': {reason}. Try again with a connection.") from error
    if done < announced:
        raise DataError(f"'{address}' was cut off after {done:,} of {announced:,} bytes: try again.")
    return digest.hexdigest()


def _unzip(source: str, archive: Path, part: Path) -> None:
    """Write the files of the model in a zip into a folder; they lie at its top, or together in one folder of it."""
    with open_archive(archive, part, LARGEST_ZIP) as members:
        homes = [PurePosixPath(m.name).parent for m in members if PurePosixPath(m.name).name == "model.json"]
        if len(homes) != 1:
            raise no_model(source, f"it holds {len(homes)} files model.json")
        wanted = {str(homes[0] / name): name for name in (*FILES, CARD)}
        chosen = [
            (member, wanted[str(PurePosixPath(member.name))])
            for member in members
            if not member.is_folder and str(PurePosixPath(member.name)) in wanted
        ]
        names = [name for _, name in chosen]
        if "model.safetensors" not in names:
            raise no_model(source, "it holds no model.safetensors")
        if len(set(names)) < len(names):
            raise no_model(source, "it holds a file twice")
        for member, name in chosen:
            if member.size > LARGEST[name]:
                raise too_large(source, name, member.size, LARGEST[name])
        with tempfile.TemporaryDirectory(dir=part) as unpacked:
            for member, name in chosen:
                member.extract(Path(unpacked))
                Path(unpacked, member.name).replace(part / name)
