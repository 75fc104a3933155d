"""Attachments on disk: whole or not there, named by their bytes, and never anywhere but below their root."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retinue.domain.errors import Invalid, NotFound, RetinueError, StoreError, TooLarge
from retinue.store.envelopes import attachment_files as files_module
from retinue.store.envelopes.attachment_files import AttachmentFiles

BYTES = b"the plan of the house"
HASH = hashlib.sha256(BYTES).hexdigest()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "house" / "attachments"


@pytest.fixture
def files(root: Path) -> AttachmentFiles:
    return AttachmentFiles(root)


def keep(
    files: AttachmentFiles, content: bytes = BYTES, *, name: str = "plan.txt", media_type: str = "text/plain"
) -> str:
    return files.store([content], name=name, media_type=media_type).hash


def everything(root: Path) -> list[str]:
    """All that lies below, files and links, by relative path."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink())


def explained(error: RetinueError, code: str) -> None:
    assert error.code == code
    assert error.because
    assert error.try_this


# --- kept ---


@pytest.mark.spec("D71")
def test_a_kept_file_carries_its_hash_a_safe_name_its_type_and_its_size(files: AttachmentFiles) -> None:
    kept = files.store(
        [b"the plan ", b"", b"of the house"], name="../../etc/pl\u202ean\n.txt", media_type="Text/Plain; a=b"
    )
    assert (kept.hash, kept.name, kept.media_type, kept.size_bytes) == (HASH, "plan.txt", "text/plain", len(BYTES))
    with files.open(kept.hash) as file:
        assert file.read() == BYTES
    assert files.verify(kept.hash)


def test_a_file_lies_under_its_hash_and_is_ours_alone(files: AttachmentFiles, root: Path) -> None:
    keep(files)
    assert files.path(HASH) == root / HASH[:2] / HASH[2:]
    assert everything(root) == [f"{HASH[:2]}/{HASH[2:]}"]
    assert stat.S_IMODE(files.path(HASH).stat().st_mode) == 0o600
    assert stat.S_IMODE(root.stat().st_mode) == stat.S_IMODE((root / HASH[:2]).stat().st_mode) == 0o700


def test_an_empty_file_is_a_file(files: AttachmentFiles) -> None:
    kept = files.store([], name="", media_type="")
    assert (kept.name, kept.media_type, kept.size_bytes) == ("file", "application/octet-stream", 0)
    assert files.verify(kept.hash)


def test_keeping_the_same_bytes_twice_changes_nothing(files: AttachmentFiles, root: Path) -> None:
    keep(files, name="a.txt")
    before = files.path(HASH).stat()
    kept = files.store([BYTES], name="b.txt", media_type="text/plain")
    after = files.path(HASH).stat()
    assert kept.name == "b.txt"
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert everything(root) == [f"{HASH[:2]}/{HASH[2:]}"]


def test_keeping_the_bytes_of_a_damaged_file_makes_it_whole(files: AttachmentFiles) -> None:
    keep(files)
    files.path(HASH).write_bytes(b"rotten")
    assert not files.verify(HASH)
    keep(files)
    assert files.verify(HASH)


def test_many_may_keep_the_same_bytes_at_once_while_others_sweep(files: AttachmentFiles, root: Path) -> None:
    def work() -> None:
        for number in range(20):
            keep(files, b"x" * 1000 + bytes([number]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        files.sweep(keep=lambda hash: True)
    for thread in threads:
        thread.join()
    assert len(everything(root)) == 20
    assert all(files.verify(path.replace("/", "")) for path in everything(root))


@pytest.mark.spec("D71")
@pytest.mark.parametrize(
    "name",
    [
        "../../../etc/passwd",
        "/etc/passwd",
        "..",
        ".",
        "",
        "a/../../b",
        "..\\..\\c",
        "\x00",
        ".bashrc",
        "a" * 5000,
        "\ud800",
    ],
)
def test_a_name_never_chooses_a_path(files: AttachmentFiles, root: Path, tmp_path: Path, name: str) -> None:
    kept = files.store([BYTES], name=name, media_type="text/plain")
    assert everything(tmp_path) == [f"house/attachments/{HASH[:2]}/{HASH[2:]}"]
    assert not set(kept.name) & set("/\\\x00\n")
    assert 0 < len(kept.name) <= 120
    assert not kept.name.startswith(".")


@pytest.mark.parametrize(
    "media_type", ["", "text", "text/", "a/b\nc: d", "a/b/c", "<x>/y", "a/" + "b" * 500, "\u0442ext/plain"]
)
def test_a_made_up_type_is_called_unknown(files: AttachmentFiles, media_type: str) -> None:
    assert files.store([BYTES], name="x", media_type=media_type).media_type == "application/octet-stream"


# --- refused ---


def test_a_file_beyond_the_bound_is_refused_and_leaves_nothing(
    files: AttachmentFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "ATTACHMENT_BYTES_MAX", 100)
    assert files.store([b"x" * 50, b"y" * 50], name="fits", media_type="").size_bytes == 100
    before = everything(root)
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"z" * 60

    with pytest.raises(TooLarge) as caught:
        files.store(endless(), name="big\n.bin", media_type="")
    explained(caught.value, "attachment.too_large")
    assert taken == 2
    assert everything(root) == before


@pytest.mark.parametrize(
    "hash_",
    ["", "ab", HASH.upper(), HASH[:-1], HASH + "0", HASH[:-1] + "\n", f"../{HASH[3:]}", "/" * 64, "." * 64, "٠" * 64],
)
def test_only_a_hash_names_a_file(files: AttachmentFiles, hash_: str) -> None:
    for use in (files.path, files.open, files.verify):
        with pytest.raises(Invalid) as caught:
            use(hash_)
        explained(caught.value, "attachment.hash_invalid")


def test_a_file_that_is_not_here_is_not_found(files: AttachmentFiles, root: Path) -> None:
    def missing() -> None:
        with pytest.raises(NotFound) as caught:
            files.open(HASH)
        explained(caught.value, "attachment.not_found")
        assert not files.verify(HASH)

    missing()
    assert not root.exists()  # asking makes nothing
    keep(files, b"another")
    missing()
    (root / HASH[:2]).mkdir(exist_ok=True)
    missing()


def test_a_sender_that_breaks_off_leaves_nothing(files: AttachmentFiles, root: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise ConnectionResetError("gone")  # an OSError, but not the disk's

    with pytest.raises(ConnectionResetError):
        files.store(broken(), name="x", media_type="")
    assert everything(root) == []


# --- links and other things in our place ---


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(b"secret")
    return path


def test_a_link_at_the_destination_is_never_followed(files: AttachmentFiles, root: Path, secret: Path) -> None:
    shard = root / HASH[:2]
    shard.mkdir(parents=True)
    (shard / HASH[2:]).symlink_to(secret)
    with pytest.raises(StoreError) as caught:
        files.open(HASH)
    explained(caught.value, "attachment.not_plain_file")
    assert not files.verify(HASH)

    keep(files)
    assert secret.read_bytes() == b"secret"
    assert not files.path(HASH).is_symlink()
    assert files.verify(HASH)


def test_a_link_to_the_right_bytes_is_still_a_link(files: AttachmentFiles, root: Path, tmp_path: Path) -> None:
    (tmp_path / "twin").write_bytes(BYTES)
    (root / HASH[:2]).mkdir(parents=True)
    files.path(HASH).symlink_to(tmp_path / "twin")
    assert not files.verify(HASH)
    keep(files)
    assert not files.path(HASH).is_symlink()


def test_a_link_in_place_of_a_shard_is_refused(files: AttachmentFiles, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / HASH[2:]).write_bytes(BYTES)
    root.mkdir(parents=True)
    (root / HASH[:2]).symlink_to(outside, target_is_directory=True)
    for use in (lambda: keep(files), lambda: files.open(HASH)):
        with pytest.raises(StoreError) as caught:
            use()
        explained(caught.value, "attachment.not_plain_file")
    assert not files.verify(HASH)
    assert files.sweep(keep=lambda hash: False) == 0
    assert everything(outside) == [HASH[2:]]
    assert everything(root) == [HASH[:2]]


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_plain_file_is_refused_without_waiting_for_it(
    files: AttachmentFiles, root: Path, make: Callable[[Path], None]
) -> None:
    (root / HASH[:2]).mkdir(parents=True)
    make(files.path(HASH))
    with pytest.raises(StoreError) as caught:
        files.open(HASH)
    explained(caught.value, "attachment.not_plain_file")
    assert not files.verify(HASH)


def test_a_directory_at_the_destination_is_refused_and_leaves_nothing_of_ours(files: AttachmentFiles) -> None:
    (files.path(HASH) / "inside").mkdir(parents=True)
    with pytest.raises(StoreError):
        keep(files)
    assert everything(files.path(HASH).parents[1]) == []
    assert files.sweep(keep=lambda hash: False) == 0


def test_a_plain_file_in_place_of_the_root_is_refused(files: AttachmentFiles, root: Path) -> None:
    root.parent.mkdir()
    root.write_text("mine")
    with pytest.raises(StoreError):
        keep(files)
    assert root.read_text() == "mine"


def test_the_root_itself_may_lie_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    files = AttachmentFiles(tmp_path / "link")
    keep(files)
    assert files.verify(HASH)


# --- the disk, and the lights ---


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "attachment.disk_full"), (errno.EIO, "attachment.disk_failed")]
)
@pytest.mark.parametrize("failing", ["fsync", "write", "rename", "open", "mkdir"])
def test_a_disk_that_refuses_leaves_nothing_half_written(
    files: AttachmentFiles, root: Path, monkeypatch: pytest.MonkeyPatch, failing: str, number: int, code: str
) -> None:
    keep(files, b"before")
    before = everything(root)

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, refuse)
        with pytest.raises(StoreError) as caught:
            keep(files)
    explained(caught.value, code)
    assert everything(root) == before
    assert not files.verify(HASH)
    keep(files)
    assert files.verify(HASH)


@pytest.mark.parametrize("failing_call", [2, 3])
def test_a_directory_that_will_not_be_synced_is_an_error_and_what_is_seen_is_whole(
    files: AttachmentFiles, monkeypatch: pytest.MonkeyPatch, failing_call: int
) -> None:
    calls = 0
    fsync = os.fsync

    def flaky(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == failing_call:
            raise OSError(errno.EIO, "no")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", flaky)
    with pytest.raises(StoreError):
        keep(files)
    assert files.verify(HASH)
    keep(files)
    assert calls == failing_call + 3  # the second time promises again, from the file to the root


def test_bytes_are_synced_before_they_are_named(files: AttachmentFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    fsync, rename = os.fsync, os.rename

    def telling_fsync(descriptor: int) -> None:
        told.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def telling_rename(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        told.append("rename")
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "fsync", telling_fsync)
    monkeypatch.setattr(os, "rename", telling_rename)
    keep(files)
    assert told == ["file", "rename", "directory", "directory"]


def crash_at(call: str, root: Path) -> None:
    """Keep the bytes in another process that ends, as by a cut cable, when it comes to this call."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from retinue.store.envelopes.attachment_files import AttachmentFiles\n"
        f"os.{call} = lambda *args, **kwargs: os._exit(9)\n"
        f"AttachmentFiles(Path(sys.argv[1])).store([{BYTES!r}], name='x', media_type='')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(root)], check=False)
    assert done.returncode == 9


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_crash_before_the_rename_leaves_a_leftover_that_is_swept(
    files: AttachmentFiles, root: Path, call: str
) -> None:
    crash_at(call, root)
    (leftover,) = everything(root)
    assert leftover.startswith(".temp-")
    assert not files.verify(HASH)
    with pytest.raises(NotFound):
        files.open(HASH)

    assert files.sweep(keep=lambda hash: True) == 1
    assert everything(root) == []
    keep(files)
    assert files.verify(HASH)


def test_a_leftover_of_a_process_with_our_number_is_stepped_over(files: AttachmentFiles, root: Path) -> None:
    root.mkdir(parents=True)
    leftover = root / f".temp-{os.getpid()}-0"
    leftover.write_bytes(b"half")
    keep(files)
    assert files.verify(HASH)
    assert leftover.read_bytes() == b"half"


def test_nothing_stays_open(files: AttachmentFiles, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened() -> int:
        return len(os.listdir("/dev/fd"))

    before = opened()
    keep(files)
    keep(files)
    files.open(HASH).close()
    files.verify(HASH)
    files.path(HASH).unlink()
    files.path(HASH).mkdir()
    for use in (keep, lambda files: files.open(HASH)):
        with pytest.raises(StoreError):
            use(files)
    files.verify(HASH)
    (root / ".temp-1-1").write_bytes(b"")
    files.sweep(keep=lambda hash: False)
    assert opened() == before


# --- swept ---


def test_a_sweep_removes_what_nothing_names_and_says_how_much(files: AttachmentFiles, root: Path) -> None:
    hashes = [keep(files, bytes([number])) for number in range(6)]
    wanted = set(hashes[::2])
    assert files.sweep(keep=wanted.__contains__) == 3
    assert [files.verify(hash_) for hash_ in hashes] == [True, False] * 3
    assert files.sweep(keep=wanted.__contains__) == 0


def test_a_sweep_of_nothing_finds_nothing(files: AttachmentFiles, root: Path) -> None:
    assert files.sweep(keep=lambda hash: False) == 0
    assert not root.exists()


def test_a_sweep_leaves_a_file_that_is_being_written(files: AttachmentFiles, root: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield BYTES[:5]
        assert AttachmentFiles(root).sweep(keep=lambda hash: False) == 0
        yield BYTES[5:]

    assert files.store(chunks(), name="x", media_type="").hash == HASH
    assert files.verify(HASH)


def test_a_file_swept_as_it_is_made_is_made_again(
    files: AttachmentFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = files_module.fcntl.flock
    swept: list[int] = []

    def late(descriptor: int, operation: int) -> None:
        if not swept:  # between making the file and locking it
            swept.append(0)
            swept.append(files.sweep(keep=lambda hash: True))
        flock(descriptor, operation)

    monkeypatch.setattr(files_module.fcntl, "flock", late)
    keep(files)
    assert swept == [0, 1]
    assert files.verify(HASH)
    assert everything(root) == [f"{HASH[:2]}/{HASH[2:]}"]


def test_a_sweep_removes_an_unwanted_link_and_not_what_it_points_to(
    files: AttachmentFiles, root: Path, secret: Path
) -> None:
    (root / HASH[:2]).mkdir(parents=True)
    files.path(HASH).symlink_to(secret)
    (root / ".temp-1-1").symlink_to(secret)
    assert files.sweep(keep=lambda hash: False) == 1
    assert secret.read_bytes() == b"secret"
    assert everything(root) == [".temp-1-1"]  # not made by us, and it holds no bytes


def test_a_sweep_leaves_what_is_not_ours(files: AttachmentFiles, root: Path) -> None:
    keep(files)
    for path in (root / "README", root / HASH[:2] / "notes.txt", root / "zz" / HASH[2:]):
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    (root / "ff").write_text("a plain file named like a shard")
    before = everything(root)
    assert files.sweep(keep=lambda hash: True) == 0
    assert everything(root) == before


def test_a_question_that_fails_stops_the_sweep(files: AttachmentFiles) -> None:
    keep(files)

    def unsure(hash: str) -> bool:
        raise StoreError("the store cannot say")

    with pytest.raises(StoreError, match="cannot say"):
        files.sweep(keep=unsure)
    assert files.verify(HASH)


# --- for any bytes ---


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(
    chunks=st.lists(st.binary(max_size=200), max_size=8), name=st.text(max_size=200), media_type=st.text(max_size=50)
)
def test_any_bytes_under_any_name_come_back_as_they_were(
    files: AttachmentFiles, root: Path, chunks: list[bytes], name: str, media_type: str
) -> None:
    kept = files.store(iter(chunks), name=name, media_type=media_type)
    with files.open(kept.hash) as file:
        assert file.read() == b"".join(chunks)
    assert kept.size_bytes == len(b"".join(chunks))
    assert files.path(kept.hash).resolve().is_relative_to(root.resolve())
