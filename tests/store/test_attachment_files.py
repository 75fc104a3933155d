"""Attachments on disk: complete or absent, named by their hash, and never outside their root directory."""

from __future__ import annotations

import errno
import gc
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

BYTES = b"the plan of the garden"
HASH = hashlib.sha256(BYTES).hexdigest()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "instance" / "attachments"


@pytest.fixture
def files(root: Path) -> AttachmentFiles:
    return AttachmentFiles(root)


def keep(
    files: AttachmentFiles, content: bytes = BYTES, *, name: str = "plan.txt", media_type: str = "text/plain"
) -> str:
    return files.store([content], name=name, media_type=media_type).hash


def list_files(root: Path) -> list[str]:
    """Return the relative paths of all files and links below a directory."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink())


def assert_explained(error: RetinueError, code: str) -> None:
    assert error.code == code
    assert error.because
    assert error.try_this


# --- store ---


@pytest.mark.spec("D71")
def test_a_stored_attachment_has_its_hash_a_safe_name_type_and_size(files: AttachmentFiles) -> None:
    kept = files.store(
        [b"the plan ", b"", b"of the garden"], name="../../etc/pl\u202ean\n.txt", media_type="Text/Plain; a=b"
    )
    assert (kept.hash, kept.name, kept.media_type, kept.size_bytes) == (HASH, "plan.txt", "text/plain", len(BYTES))
    with files.open(kept.hash) as file:
        assert file.read() == BYTES
    assert files.verify(kept.hash)


def test_an_attachment_is_stored_under_its_hash_with_private_file_modes(files: AttachmentFiles, root: Path) -> None:
    keep(files)
    assert files.path(HASH) == root / HASH[:2] / HASH[2:]
    assert list_files(root) == [f"{HASH[:2]}/{HASH[2:]}"]
    assert stat.S_IMODE(files.path(HASH).stat().st_mode) == 0o600
    assert stat.S_IMODE(root.stat().st_mode) == stat.S_IMODE((root / HASH[:2]).stat().st_mode) == 0o700


def test_an_empty_attachment_can_be_stored(files: AttachmentFiles) -> None:
    kept = files.store([], name="", media_type="")
    assert (kept.name, kept.media_type, kept.size_bytes) == ("file", "application/octet-stream", 0)
    assert files.verify(kept.hash)


def test_storing_the_same_attachment_bytes_twice_keeps_the_first_file(files: AttachmentFiles, root: Path) -> None:
    keep(files, name="a.txt")
    before = files.path(HASH).stat()
    kept = files.store([BYTES], name="b.txt", media_type="text/plain")
    after = files.path(HASH).stat()
    assert kept.name == "b.txt"
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert list_files(root) == [f"{HASH[:2]}/{HASH[2:]}"]


def test_storing_the_bytes_of_a_damaged_attachment_again_repairs_it(files: AttachmentFiles) -> None:
    keep(files)
    files.path(HASH).write_bytes(b"rotten")
    assert not files.verify(HASH)
    keep(files)
    assert files.verify(HASH)


def test_threads_can_store_the_same_attachment_bytes_during_sweeps(files: AttachmentFiles, root: Path) -> None:
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
    assert len(list_files(root)) == 20
    assert all(files.verify(path.replace("/", "")) for path in list_files(root))


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
def test_an_attachment_name_never_determines_the_path(
    files: AttachmentFiles, root: Path, tmp_path: Path, name: str
) -> None:
    kept = files.store([BYTES], name=name, media_type="text/plain")
    assert list_files(tmp_path) == [f"instance/attachments/{HASH[:2]}/{HASH[2:]}"]
    assert not set(kept.name) & set("/\\\x00\n")
    assert 0 < len(kept.name) <= 120
    assert not kept.name.startswith(".")


@pytest.mark.parametrize(
    "media_type", ["", "text", "text/", "a/b\nc: d", "a/b/c", "<x>/y", "a/" + "b" * 500, "\u0442ext/plain"]
)
def test_an_invalid_media_type_of_an_attachment_becomes_application_octet_stream(
    files: AttachmentFiles, media_type: str
) -> None:
    assert files.store([BYTES], name="x", media_type=media_type).media_type == "application/octet-stream"


# --- refused ---


def test_an_attachment_over_the_size_limit_is_refused_and_leaves_no_file(
    files: AttachmentFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "ATTACHMENT_BYTES_MAX", 100)
    assert files.store([b"x" * 50, b"y" * 50], name="fits", media_type="").size_bytes == 100
    before = list_files(root)
    taken = 0

    def endless_chunks() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"z" * 60

    with pytest.raises(TooLarge) as caught:
        files.store(endless_chunks(), name="big\n.bin", media_type="")
    assert_explained(caught.value, "attachment.too_large")
    assert taken == 2
    assert list_files(root) == before


@pytest.mark.parametrize(
    "hash_",
    ["", "ab", HASH.upper(), HASH[:-1], HASH + "0", HASH[:-1] + "\n", f"../{HASH[3:]}", "/" * 64, "." * 64, "٠" * 64],
)
def test_an_invalid_attachment_hash_is_refused(files: AttachmentFiles, hash_: str) -> None:
    for use in (files.path, files.open, files.verify):
        with pytest.raises(Invalid) as caught:
            use(hash_)
        assert_explained(caught.value, "attachment.hash_invalid")


def test_opening_a_missing_attachment_is_not_found(files: AttachmentFiles, root: Path) -> None:
    def assert_not_found() -> None:
        with pytest.raises(NotFound) as caught:
            files.open(HASH)
        assert_explained(caught.value, "attachment.not_found")
        assert not files.verify(HASH)

    assert_not_found()
    assert not root.exists()  # a lookup creates nothing
    keep(files, b"another")
    assert_not_found()
    (root / HASH[:2]).mkdir(exist_ok=True)
    assert_not_found()


def test_an_interrupted_attachment_upload_leaves_no_file(files: AttachmentFiles, root: Path) -> None:
    def failing_chunks() -> Iterator[bytes]:
        yield b"half"
        raise ConnectionResetError("gone")  # an OSError that does not come from the disk

    with pytest.raises(ConnectionResetError):
        files.store(failing_chunks(), name="x", media_type="")
    assert list_files(root) == []


# --- links and other files in place of ours ---


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(b"secret")
    return path


def test_a_link_at_an_attachments_path_is_not_followed_and_is_replaced(
    files: AttachmentFiles, root: Path, secret: Path
) -> None:
    shard = root / HASH[:2]
    shard.mkdir(parents=True)
    (shard / HASH[2:]).symlink_to(secret)
    with pytest.raises(StoreError) as caught:
        files.open(HASH)
    assert_explained(caught.value, "attachment.not_plain_file")
    assert not files.verify(HASH)

    keep(files)
    assert secret.read_bytes() == b"secret"
    assert not files.path(HASH).is_symlink()
    assert files.verify(HASH)


def test_a_link_to_the_right_bytes_is_not_accepted_as_the_attachment(
    files: AttachmentFiles, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "twin").write_bytes(BYTES)
    (root / HASH[:2]).mkdir(parents=True)
    files.path(HASH).symlink_to(tmp_path / "twin")
    assert not files.verify(HASH)
    keep(files)
    assert not files.path(HASH).is_symlink()


def test_a_link_in_place_of_an_attachment_shard_is_refused(files: AttachmentFiles, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / HASH[2:]).write_bytes(BYTES)
    root.mkdir(parents=True)
    (root / HASH[:2]).symlink_to(outside, target_is_directory=True)
    for use in (lambda: keep(files), lambda: files.open(HASH)):
        with pytest.raises(StoreError) as caught:
            use()
        assert_explained(caught.value, "attachment.not_plain_file")
    assert not files.verify(HASH)
    assert files.sweep(keep=lambda hash: False) == 0
    assert list_files(outside) == [HASH[2:]]
    assert list_files(root) == [HASH[:2]]


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_directory_or_fifo_at_an_attachments_path_is_refused_without_blocking(
    files: AttachmentFiles, root: Path, make: Callable[[Path], None]
) -> None:
    (root / HASH[:2]).mkdir(parents=True)
    make(files.path(HASH))
    with pytest.raises(StoreError) as caught:
        files.open(HASH)
    assert_explained(caught.value, "attachment.not_plain_file")
    assert not files.verify(HASH)


def test_storing_an_attachment_over_a_directory_is_refused_and_leaves_no_file(files: AttachmentFiles) -> None:
    (files.path(HASH) / "inside").mkdir(parents=True)
    with pytest.raises(StoreError):
        keep(files)
    assert list_files(files.path(HASH).parents[1]) == []
    assert files.sweep(keep=lambda hash: False) == 0


def test_a_plain_file_in_place_of_the_attachment_directory_is_refused(files: AttachmentFiles, root: Path) -> None:
    root.parent.mkdir()
    root.write_text("mine")
    with pytest.raises(StoreError):
        keep(files)
    assert root.read_text() == "mine"


def test_the_attachment_directory_can_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    files = AttachmentFiles(tmp_path / "link")
    keep(files)
    assert files.verify(HASH)


# --- disk errors and power cuts ---


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "attachment.disk_full"), (errno.EIO, "attachment.disk_failed")]
)
@pytest.mark.parametrize("failing", ["fsync", "write", "rename", "open", "mkdir"])
def test_a_disk_error_leaves_no_partial_attachment(
    files: AttachmentFiles, root: Path, monkeypatch: pytest.MonkeyPatch, failing: str, number: int, code: str
) -> None:
    keep(files, b"before")
    before = list_files(root)

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, refuse)
        with pytest.raises(StoreError) as caught:
            keep(files)
    assert_explained(caught.value, code)
    assert list_files(root) == before
    assert not files.verify(HASH)
    keep(files)
    assert files.verify(HASH)


@pytest.mark.parametrize("failing_call", [2, 3])
def test_a_failed_directory_fsync_is_an_error_and_the_attachment_is_complete(
    files: AttachmentFiles, monkeypatch: pytest.MonkeyPatch, failing_call: int
) -> None:
    calls = 0
    fsync = os.fsync

    def failing_fsync(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == failing_call:
            raise OSError(errno.EIO, "no")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing_fsync)
    with pytest.raises(StoreError):
        keep(files)
    assert files.verify(HASH)
    keep(files)
    assert calls == failing_call + 3  # the second time syncs everything again, from the file to the root


def test_an_attachment_is_synced_before_it_is_renamed(files: AttachmentFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    fsync, rename = os.fsync, os.rename

    def recording_fsync(descriptor: int) -> None:
        told.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def recording_rename(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        told.append("rename")
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "rename", recording_rename)
    keep(files)
    assert told == ["file", "rename", "directory", "directory"]


def crash_at(call: str, root: Path) -> None:
    """Store the bytes in another process that exits at this call, as in a power cut."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from retinue.store.envelopes.attachment_files import AttachmentFiles\n"
        f"os.{call} = lambda *args, **kwargs: os._exit(9)\n"
        f"AttachmentFiles(Path(sys.argv[1])).store([{BYTES!r}], name='x', media_type='')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(root)], check=False)
    assert done.returncode == 9


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_crash_before_the_rename_leaves_a_temporary_attachment_file_that_a_sweep_removes(
    files: AttachmentFiles, root: Path, call: str
) -> None:
    crash_at(call, root)
    (leftover,) = list_files(root)
    assert leftover.startswith(".temp-")
    assert not files.verify(HASH)
    with pytest.raises(NotFound):
        files.open(HASH)

    assert files.sweep(keep=lambda hash: True) == 1
    assert list_files(root) == []
    keep(files)
    assert files.verify(HASH)


def test_a_temporary_attachment_file_of_an_earlier_process_with_the_same_pid_is_kept(
    files: AttachmentFiles, root: Path
) -> None:
    root.mkdir(parents=True)
    leftover = root / f".temp-{os.getpid()}-0"
    leftover.write_bytes(b"half")
    keep(files)
    assert files.verify(HASH)
    assert leftover.read_bytes() == b"half"


def test_attachment_files_leak_no_file_descriptors(
    files: AttachmentFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count_open_files() -> int:
        return len(os.listdir("/dev/fd"))

    gc.collect()  # otherwise files that other tests left behind may be closed during this test
    before = count_open_files()
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
    assert count_open_files() == before


# --- sweep ---


def test_a_sweep_removes_unreferenced_attachments_and_returns_their_count(files: AttachmentFiles, root: Path) -> None:
    hashes = [keep(files, bytes([number])) for number in range(6)]
    wanted = set(hashes[::2])
    assert files.sweep(keep=wanted.__contains__) == 3
    assert [files.verify(hash_) for hash_ in hashes] == [True, False] * 3
    assert files.sweep(keep=wanted.__contains__) == 0


def test_a_sweep_without_an_attachment_directory_removes_nothing(files: AttachmentFiles, root: Path) -> None:
    assert files.sweep(keep=lambda hash: False) == 0
    assert not root.exists()


def test_a_sweep_keeps_an_attachment_that_is_being_written(files: AttachmentFiles, root: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield BYTES[:5]
        assert AttachmentFiles(root).sweep(keep=lambda hash: False) == 0
        yield BYTES[5:]

    assert files.store(chunks(), name="x", media_type="").hash == HASH
    assert files.verify(HASH)


def test_an_attachment_swept_before_its_lock_is_written_again(
    files: AttachmentFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = files_module.fcntl.flock
    swept: list[int] = []

    def sweep_before_lock(descriptor: int, operation: int) -> None:
        if not swept:  # between creating the file and locking it
            swept.append(0)
            swept.append(files.sweep(keep=lambda hash: True))
        flock(descriptor, operation)

    monkeypatch.setattr(files_module.fcntl, "flock", sweep_before_lock)
    keep(files)
    assert swept == [0, 1]
    assert files.verify(HASH)
    assert list_files(root) == [f"{HASH[:2]}/{HASH[2:]}"]


def test_an_attachment_sweep_removes_an_unreferenced_link_but_not_its_target(
    files: AttachmentFiles, root: Path, secret: Path
) -> None:
    (root / HASH[:2]).mkdir(parents=True)
    files.path(HASH).symlink_to(secret)
    (root / ".temp-1-1").symlink_to(secret)
    assert files.sweep(keep=lambda hash: False) == 1
    assert secret.read_bytes() == b"secret"
    assert list_files(root) == [".temp-1-1"]  # not created by us, and it holds no bytes


def test_a_sweep_keeps_files_that_are_no_attachments(files: AttachmentFiles, root: Path) -> None:
    keep(files)
    for path in (root / "README", root / HASH[:2] / "notes.txt", root / "zz" / HASH[2:]):
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    (root / "ff").write_text("a plain file named like a shard")
    before = list_files(root)
    assert files.sweep(keep=lambda hash: True) == 0
    assert list_files(root) == before


def test_a_failing_keep_callback_stops_the_attachment_sweep(files: AttachmentFiles) -> None:
    keep(files)

    def failing_callback(hash: str) -> bool:
        raise StoreError("the store cannot say")

    with pytest.raises(StoreError, match="cannot say"):
        files.sweep(keep=failing_callback)
    assert files.verify(HASH)


# --- any bytes ---


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(
    chunks=st.lists(st.binary(max_size=200), max_size=8), name=st.text(max_size=200), media_type=st.text(max_size=50)
)
def test_attachment_bytes_with_any_name_are_read_back_unchanged(
    files: AttachmentFiles, root: Path, chunks: list[bytes], name: str, media_type: str
) -> None:
    kept = files.store(iter(chunks), name=name, media_type=media_type)
    with files.open(kept.hash) as file:
        assert file.read() == b"".join(chunks)
    assert kept.size_bytes == len(b"".join(chunks))
    assert files.path(kept.hash).resolve().is_relative_to(root.resolve())
