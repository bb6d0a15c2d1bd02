from __future__ import annotations

import io
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from centerhash.core.errors import DataError, OutputError
from centerhash.data import fetch
from centerhash.data.fetch import unpack
from tests.layouts import tarred, zipped
from tests.toys import Killed, names

OUTSIDE = ["../evil.txt", "a/../../evil.txt", "/evil.txt", "..\\evil.txt", "C:\\evil.txt", "C:/evil.txt"]


def source(folder: Path) -> Path:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "one.txt").write_text("one")
    (folder / "a" / "b" / "two.txt").write_text("two" * 1000)
    (folder / "empty").mkdir()
    return folder


def contents(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder: the bytes of files, None for folders."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def zip_of(entries: dict[str, bytes], path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return path


def tar_of(entries: list[tarfile.TarInfo], path: Path) -> Path:
    with tarfile.open(path, "w") as archive:
        for entry in entries:
            archive.addfile(entry, io.BytesIO(b"x" * entry.size))
    return path


def tar_entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size = kind, link, size
    return entry


def refused(archive: Path, folder: Path) -> str:
    """Why an archive is refused; nothing of it may be left."""
    folder.mkdir(exist_ok=True)
    before = contents(folder.parent)
    with pytest.raises(DataError) as caught:
        unpack(archive, folder)
    assert contents(folder.parent) == before
    return str(caught.value)


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_archives_give_what_was_put_in(tmp_path: Path, kind: str) -> None:
    folder = source(tmp_path / "source")
    mode = "w:" + kind.removeprefix("tar").removeprefix(".")
    archive = tmp_path / f"x.{kind}"
    archive.write_bytes(zipped(folder) if kind == "zip" else tarred(folder, mode))
    told: list[tuple[object, ...]] = []
    count = unpack(archive, tmp_path / "out", progress=lambda *values: told.append(values))
    assert count == 2
    assert contents(tmp_path / "out") == contents(folder)
    assert told[-1] == (f"unpack x.{kind}", 0, 1, "MB")


def test_two_archives_join_their_folders_and_the_later_file_wins(tmp_path: Path) -> None:
    unpack(zip_of({"d/e/a": b"1", "d/b": b"2"}, tmp_path / "1.zip"), tmp_path / "out")
    unpack(zip_of({"d/e/c": b"3", "d/b": b"4"}, tmp_path / "2.zip"), tmp_path / "out")
    files = {name: data for name, data in contents(tmp_path / "out").items() if data is not None}
    assert files == {"d/e/a": b"1", "d/b": b"4", "d/e/c": b"3"}


@pytest.mark.parametrize("name", OUTSIDE)
def test_members_that_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    bad = zip_of({"good.txt": b"", name: b"evil"}, tmp_path / "x.zip")
    assert f"holds '{name}', which leads out of the folder" in refused(bad, tmp_path / "out")
    tar = tar_of([tar_entry("good.txt"), tar_entry(name, size=4)], tmp_path / "x.tar")
    assert f"holds '{name}', which leads out of the folder" in refused(tar, tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "link"),
    [
        (tarfile.SYMTYPE, "/etc"),
        (tarfile.SYMTYPE, "good.txt"),
        (tarfile.LNKTYPE, "../../secret"),
        (tarfile.CHRTYPE, ""),
        (tarfile.BLKTYPE, ""),
        (tarfile.FIFOTYPE, ""),
    ],
)
def test_links_and_devices_in_a_tar(tmp_path: Path, kind: bytes, link: str) -> None:
    archive = tar_of([tar_entry("good.txt"), tar_entry("odd", kind, link)], tmp_path / "x.tar")
    assert "holds 'odd', which is a link or a device, not a file" in refused(archive, tmp_path / "out")


def test_a_file_behind_a_link_in_a_zip(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("folder")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(link, str(tmp_path))
        archive.writestr("folder/evil.txt", b"evil")
    assert "'folder', which is a link or a device" in refused(tmp_path / "x.zip", tmp_path / "out")


def test_the_limit_of_a_bomb_grows_with_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "x.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as stream:
        stream.writestr("zeros", bytes(3_000_000))
    assert archive.stat().st_size * 100 < 3_000_000
    monkeypatch.setattr(fetch, "_ALWAYS_ALLOWED", 0)
    text = refused(archive, tmp_path / "out")
    assert (
        f"announces 3,000,000 bytes and more, but an archive of its size may hold {archive.stat().st_size * 100:,}"
        in text
    )
    monkeypatch.setattr(fetch, "_ALWAYS_ALLOWED", 3_000_000)
    assert unpack(archive, tmp_path / "out") == 1


def test_a_tar_that_announces_too_much_is_left_before_it_is_read(tmp_path: Path) -> None:
    header = tar_entry("huge", size=2**40).tobuf()
    (tmp_path / "x.tar").write_bytes(header)
    assert "announces 1,099,511,627,776 bytes and more" in refused(tmp_path / "x.tar", tmp_path / "out")


def test_a_member_that_is_longer_than_it_says(tmp_path: Path) -> None:
    archive = zip_of({"a.txt": b"x" * 1000}, tmp_path / "x.zip")
    data = archive.read_bytes()
    size = (1000).to_bytes(4, "little")
    archive.write_bytes(data.replace(size, (10).to_bytes(4, "little")))
    assert "x.zip' is damaged" in refused(archive, tmp_path / "out")


@pytest.mark.parametrize("keep", [0.3, 0.7])
def test_a_truncated_archive(tmp_path: Path, keep: float) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.bin").write_bytes(np.random.default_rng(number).bytes(30_000))
    for data in (zipped(folder), tarred(folder), tarred(folder, "w:gz")):
        (tmp_path / "x").write_bytes(data[: int(len(data) * keep)])
        assert "delete it and download it again" in refused(tmp_path / "x", tmp_path / "out")


def test_an_encrypted_zip(tmp_path: Path) -> None:
    archive = zip_of({"a.txt": b"x"}, tmp_path / "x.zip")
    data = bytearray(archive.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(data)
    assert "'a.txt' in the archive is encrypted" in refused(archive, tmp_path / "out")


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = zip_of({"a.txt": b"x" * 1000}, tmp_path / "x.zip")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=999))
    with pytest.raises(OutputError):
        unpack(archive, tmp_path / "out")
    assert names(tmp_path / "out") == []


def test_a_kill_leaves_no_half_and_the_next_call_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = zip_of({"a.txt": b"1", "b.txt": b"2"}, tmp_path / "x.zip")

    def kill(*told: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(fetch.shutil, "rmtree", lambda folder, **_: None)  # as if the process were gone
        with pytest.raises(Killed):
            unpack(archive, tmp_path / "out", progress=kill)
    assert names(tmp_path / "out") == [".unpacking-x.zip"]
    assert unpack(archive, tmp_path / "out") == 2
    assert names(tmp_path / "out") == ["a.txt", "b.txt"]


def test_a_folder_in_the_way_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "out" / "a.txt" / "mine").mkdir(parents=True)
    with pytest.raises(OutputError):
        unpack(zip_of({"a.txt": b"1"}, tmp_path / "x.zip"), tmp_path / "out")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_of_a_gigabyte_is_not_read(tmp_path: Path, kind: bytes) -> None:
    """Of zeros, it would be a megabyte in a .tar.gz; here it is announced only."""
    entry = tar_entry("PaxHeaders/a.txt", kind, size=2**30)
    (tmp_path / "a.tar").write_bytes(entry.tobuf(tarfile.USTAR_FORMAT) + bytes(1024))
    assert "a header of 1,073,741,824 bytes, more than the limit of 1,048,576" in refused(
        tmp_path / "a.tar", tmp_path / "out"
    )


def test_long_names_are_read(tmp_path: Path) -> None:
    for kind, style in (("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)):
        with tarfile.open(tmp_path / f"{kind}.tar", "w", format=style) as archive:
            archive.addfile(tar_entry("a" * 200 + "é.txt"))
        assert unpack(tmp_path / f"{kind}.tar", tmp_path / kind) == 1
        assert (tmp_path / kind / ("a" * 200 + "é.txt")).is_file()


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_MOST_MEMBERS", 2)
    archive = tar_of([tar_entry(name) for name in "abc"], tmp_path / "a.tar")
    assert "holds more than 2 files" in refused(archive, tmp_path / "out")


def test_modes_and_owners_of_a_tar_are_not_taken_over(tmp_path: Path) -> None:
    entry = tar_entry("a.sh", size=1)
    entry.mode, entry.uid, entry.gid = 0o6777, 12345, 12345
    unpack(tar_of([entry], tmp_path / "a.tar"), tmp_path / "out")
    status = (tmp_path / "out" / "a.sh").stat()
    assert stat.S_IMODE(status.st_mode) & 0o6022 == 0
    assert status.st_uid == tmp_path.stat().st_uid
