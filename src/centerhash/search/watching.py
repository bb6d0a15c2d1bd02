"""Watch folders: new, changed, moved and vanished images reach the index within seconds.

The system reports changed paths (library `watchfiles`). A path is handled once two looks at it have found the same size
and time, so that a file is not read while it is being written. All folders are scanned every few minutes, because network
drives do not report what other machines change, and if a folder disappears or comes back. A scan does not read files that
have not changed.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from centerhash.core.errors import CenterhashError, DataError, InputError
from centerhash.core.progress import Progress, silent
from centerhash.search.library import add_changed, known_below
from centerhash.search.results import Added

if TYPE_CHECKING:
    from centerhash.search.index import Index

Look: TypeAlias = tuple[int, int, int] | None  # kind, size and time of a path; None: nothing is there

log = logging.getLogger("centerhash.watch")

LOOK_SECONDS = 0.5  # between two looks at what has changed
SCAN_SECONDS = 300.0  # between two scans of all folders
_CHANGING: Look = (0, 0, 0)  # as no path looks


@dataclass
class Watch:
    """Keeps an index in step with folders of images until `stop` is set.

    `changed` gets the counts of the first scan, and then of every change.
    """

    index: Index
    folders: Sequence[Path]
    changed: Callable[[Added], None]
    progress: Progress = silent  # of the first scan, and of every one that adds images
    batch: int = 64
    stop: threading.Event = field(default_factory=threading.Event)
    _pending: dict[str, Look] = field(default_factory=dict)  # changed paths, with the last look

    def run(self) -> None:
        """Scan all folders, then follow their changes."""
        self.index.encoder()  # raises if the model cannot read images
        roots = [folder.resolve() for folder in self.folders]
        scanned: float | None = None
        looked = 0.0
        while not self.stop.is_set():
            here = {root: _identity(root) for root in roots if root.is_dir()}
            scan = True
            for paths in self._events(list(here)):
                if scan or scanned is None or time.monotonic() > scanned + SCAN_SECONDS:
                    done = self._scan(list(here), [root for root in roots if root not in here])
                    if scanned is None or done.has_changed:
                        self.changed(done)
                    scan, scanned = False, time.monotonic()
                self._pending |= dict.fromkeys(paths, _CHANGING)
                if time.monotonic() >= looked + LOOK_SECONDS:
                    looked = time.monotonic()
                    self._handle()
                if {root: _identity(root) for root in roots if root.is_dir()} != here:
                    break  # a folder is gone, has come back or is another one

    def _events(self, roots: Sequence[Path]) -> Iterator[set[str]]:
        """Yield changed paths, and at least twice a second nothing."""
        import watchfiles

        if not roots:  # all drives are away
            while not self.stop.wait(LOOK_SECONDS):
                yield set()
            return
        try:
            for changes in watchfiles.watch(
                *roots,
                watch_filter=None,
                debounce=400,
                step=100,
                rust_timeout=int(1000 * LOOK_SECONDS),
                yield_on_timeout=True,
                stop_event=self.stop,
                ignore_permission_denied=True,
            ):
                yield {path for _, path in changes if _is_shown(path, roots)}
        except FileNotFoundError:  # a folder has just gone
            return
        except (OSError, watchfiles._rust_notify.WatchfilesRustInternalError) as error:
            raise DataError(
                f"cannot watch {', '.join(map(str, roots))}: {error}. If the system watches too many folders, raise "
                "`sysctl fs.inotify.max_user_watches`."
            ) from error

    def _scan(self, roots: Sequence[Path], away: Sequence[Path]) -> Added:
        """Scan folders; those that are not there at all have lost all images."""
        total = Added(0, 0, {})
        for root in roots:
            try:
                total = _sum(total, self.index.add(root, progress=self.progress, batch=self.batch))
            except DataError as error:  # no image in it, for now
                log.info("%s", error)
                self._pending |= dict.fromkeys(known_below(self.index.store, str(root)))
        self._pending |= dict.fromkeys(map(str, away))
        return total

    def _handle(self) -> None:
        """Add what has come to rest; what still changes, or cannot be stored now, waits."""
        from centerhash.data.images import is_picture_name

        before, self._pending = self._pending, {path: _look(path) for path in self._pending}
        resting = [path for path, look in self._pending.items() if look == before[path]]
        for path in resting:
            del self._pending[path]
        files, opened = list[str](), False
        for path in resting:
            if Path(path).is_dir():  # what is in it may still be written
                opened = True
                self._pending |= dict.fromkeys(set(_images_below(path)).difference(before), _CHANGING)
            elif is_picture_name(Path(path).name) or not os.path.lexists(path):
                files.append(path)
        if opened:  # a folder may have been moved: what is gone is handled together with what is new
            self._pending |= {path: _CHANGING for path in files if not os.path.lexists(path)}
            files = [path for path in files if path not in self._pending]
        if not files:
            return
        try:
            done = add_changed(self.index, files, self.batch, self.progress)
        except InputError as error:
            if isinstance(error, DataError):
                raise
            log.warning("%s Trying again.", error)  # another process writes for long
            self._pending |= dict.fromkeys(files, _CHANGING)
        else:
            if done.has_changed:
                self.changed(done)


def _look(path: str) -> Look:
    try:
        status = os.stat(path)  # noqa: PTH116 - of many files
    except OSError:
        return None
    return stat.S_IFMT(status.st_mode), status.st_size, status.st_mtime_ns


def _identity(root: Path) -> tuple[int, int] | None:
    try:
        status = root.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_shown(path: str, roots: Iterable[Path]) -> bool:
    """Return whether a changed path may be an image or a folder of images, and is not in a hidden folder."""
    from centerhash.data.listing import is_passed_over

    below = [Path(path).relative_to(root).parts for root in roots if Path(path).is_relative_to(root)]
    return any(not any(map(is_passed_over, parts)) for parts in below)


def _images_below(folder: str) -> list[str]:
    from centerhash.data.listing import find_images

    try:
        return list(find_images([folder]).images.names)
    except CenterhashError:  # none
        return []


def _sum(first: Added, second: Added) -> Added:
    """Return the counts of two calls of `add`."""
    counts = ("added", "known", "moved", "given", "predicted", "gone", "removed")
    return replace(
        second,
        **{name: getattr(first, name) + getattr(second, name) for name in counts},
        broken=first.broken | second.broken,
    )
