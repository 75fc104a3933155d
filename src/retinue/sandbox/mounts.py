"""Computes the mounts and the environment of a sandboxed command, and builds the /etc that it sees."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from msgspec import Struct

from retinue.sandbox.base import Confinement
from retinue.sandbox.errors import SandboxPathRefused, SandboxVariableInvalid, TooManySharedFolders

USER_ID, GROUP_ID = 1000, 1000
PATH = "/usr/local/bin:/usr/bin:/bin"
BINDS_MAX = 64
SHM_BYTES_MAX = 64 * 1024 * 1024
COVER_BYTES = 4096

_SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Small public files that many programs need. Nothing else of /etc is visible.
_ETC_NAMES = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "os-release",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)
_ETC_BYTES_MAX = 8 * 1024 * 1024
_GENERATED_FILES = {
    "passwd": f"root:x:0:0:root:/:/bin/sh\nagent:x:{USER_ID}:{GROUP_ID}:agent:/tmp:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/:/bin/false\n",
    "group": f"root:x:0:\nagent:x:{GROUP_ID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "resolv.conf": "",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
# Never shared with a command, whatever is granted: the machine and what controls it.
_UNSHAREABLE_PATHS = (
    "/",
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/var/run",
    "/boot",
    "/etc",
    "/root",
    "/home",
    "/var",
    "/var/lib",
    "/tmp",
)
_KERNEL_FOLDERS = ("/proc", "/sys", "/dev", "/run")  # /run contains the sockets of system services
_ENGINE_SOCKETS = ("docker.sock", "podman.sock", "containerd.sock", "crio.sock")


class Bind(Struct, frozen=True):
    """One folder or file that a command sees, at the same path as on the host."""

    path: Path
    writable: bool = False
    protected: bool = False  # inside a writable folder: cannot be renamed; read-only content unless writable


def build_etc(folder: Path, entrypoint: Path) -> None:
    """Build the /etc that all sandboxed commands see, from copies of public files. Called by the probe of the sandbox.

    If the public files have not changed since the last call, the existing folder is kept. The
    folders in it are created empty, and `build_system_arguments` mounts the originals there:
    copying the certificates, which are hundreds of links, would take 0.1 s.
    """
    made_of = folder.with_suffix(".made-of")
    mounted = _list_etc_folders()
    copied = [path for name in _ETC_NAMES if (path := Path("/etc", name)) not in mounted]
    sources = [*map(str, mounted), *map(_fingerprint_path, copied)]
    written = {**_GENERATED_FILES, "retinue/inside.py": entrypoint.read_text()}
    if (
        folder.is_dir()
        and made_of.is_file()
        and made_of.read_text() == _encode_fingerprint(sources, written, _fingerprint_path(folder))
    ):
        return
    made_of.unlink(missing_ok=True)  # so that an incomplete folder is not taken for a complete one
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, mode=0o755)
    for path in mounted:
        (folder / path.relative_to("/etc")).mkdir(parents=True)
    for path in copied:
        _copy(path, folder / path.relative_to("/etc"))
    for name, text in written.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    made_of.write_text(_encode_fingerprint(sources, written, _fingerprint_path(folder)))


def _encode_fingerprint(*facts: object) -> str:
    return json.dumps(facts, indent=1)


def _fingerprint_path(path: Path | os.DirEntry[str]) -> object:
    """Return a value that changes when a file changes, or when a folder entry is added or removed.

    Links inside a folder are skipped, because replacing a link changes the folder's modification
    time.
    """
    if isinstance(path, Path) and path.is_symlink():
        return os.readlink(path)
    if not path.is_dir() or not os.access(path, os.R_OK | os.X_OK):
        return _fingerprint_status(path) if path.is_file() else None
    with os.scandir(path) as entries:
        inside = [
            _fingerprint_path(entry) for entry in sorted(entries, key=attrgetter("name")) if not entry.is_symlink()
        ]
    return [*_fingerprint_status(path), inside]


def _fingerprint_status(path: Path | os.DirEntry[str]) -> list[object]:
    seen = path.stat()
    return [os.fspath(path), seen.st_mode, seen.st_size, seen.st_mtime_ns, seen.st_ino]


def _list_etc_folders() -> list[Path]:
    """Return the folders of the host's /etc that every command sees."""
    paths = [Path("/etc", name) for name in _ETC_NAMES]
    return [path for path in paths if path.is_dir() and not path.is_symlink() and os.access(path, os.R_OK | os.X_OK)]


def _copy(source: Path, target: Path) -> None:
    """Copy a link, or a readable small file. All users can read the copy."""
    if not source.is_symlink() and not (source.is_file() and os.access(source, os.R_OK)):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
    elif source.stat().st_size <= _ETC_BYTES_MAX:
        shutil.copyfile(source, target)
        target.chmod(0o644)


def build_system_arguments(etc: Path, *, python_prefix: Path | None = None) -> list[str]:
    """Return the bubblewrap arguments that mount programs, libraries and /etc read-only, for every command."""
    arguments = ["--ro-bind", "/usr", "/usr", "--ro-bind", str(etc), "/etc"]
    for folder in _list_etc_folders():
        if (etc / folder.relative_to("/etc")).is_dir():
            arguments += ["--ro-bind-try", str(folder), str(folder)]  # an update may have removed the folder
    for name in _SYSTEM_FOLDERS:
        path = Path(name)
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), name]
        elif path.is_dir():
            arguments += ["--ro-bind", name, name]
    if python_prefix is not None and not python_prefix.is_relative_to("/usr"):
        arguments += ["--ro-bind", str(python_prefix), str(python_prefix)]
    # For root, only a read-only /proc protects kernel settings: the launcher leaves them writable.
    return [*arguments, "--proc", "/proc", "--remount-ro", "/proc"]


def build_scratch_arguments(disk_bytes: int, binds: Iterable[Bind]) -> list[str]:
    """Return the bubblewrap arguments for devices and for temporary folders, which are deleted after the command."""
    shm_bytes = min(disk_bytes, SHM_BYTES_MAX)
    beside = any(bind.path.is_relative_to("/var/tmp") for bind in binds)  # a mount below it needs a folder, not a link
    return [
        *("--dev", "/dev", "--size", str(shm_bytes), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *("--perms", "1777", "--size", str(disk_bytes), "--tmpfs", "/tmp"),
        *(() if beside else ("--symlink", "/tmp", "/var/tmp")),
        *("--dir", "/run"),
    ]


def check_working_directory(folder: Path, binds: Iterable[Bind]) -> None:
    """Raise an error if a command cannot start in a folder: it is not mounted or does not exist."""
    if folder == Path("/tmp"):
        return
    if not any(folder.is_relative_to(bind.path) for bind in binds):
        raise SandboxPathRefused(
            str(folder),
            because="it is outside the folders that this command can see",
            try_this="start in the workspace, or in /tmp",
        )
    if ".." in folder.parts or not folder.is_dir():
        raise SandboxPathRefused(
            str(folder), because="it does not exist", try_this="create it, or start in the workspace"
        )


def build_folder_arguments(binds: Sequence[Bind], hidden: Iterable[Path]) -> list[str]:
    """Return the arguments that mount folders, outer folders first, so that an inner mount hides the outer content.

    In a writable folder, each folder on the way to a hidden path is mounted on itself. Otherwise a
    command could rename that folder, and the next command would see the hidden path.
    """
    mounts: dict[Path, list[str]] = {}
    shown = {bind.path for bind in binds}
    for path in hidden:
        if path in shown or not path.exists():
            continue
        for bind in binds:
            if path.is_relative_to(bind.path):
                mounts[path] = _build_hide_arguments(path)
                between = path.relative_to(bind.path).parents[:-1] if bind.writable else ()
                for part in between:
                    mounts.setdefault(bind.path / part, ["--bind", *[str(bind.path / part)] * 2])
    for bind in binds:
        mounts[bind.path] = ["--bind" if bind.writable else "--ro-bind", str(bind.path), str(bind.path)]
    return [argument for path in sorted(mounts, key=lambda p: (len(p.parts), p)) for argument in mounts[path]]


def _build_hide_arguments(path: Path) -> list[str]:
    if path.is_dir():
        return ["--size", str(COVER_BYTES), "--tmpfs", str(path)]
    return ["--ro-bind", "/dev/null", str(path)]


def build_binds(
    confinement: Confinement,
    *,
    private_paths: Sequence[Path],
    shareable_parents: Sequence[Path],
    hidden: Sequence[Path],
) -> list[Bind]:
    """Return the paths to mount for a confinement. Raises `SandboxFailed` if one of them is not allowed.

    A path in `private_paths` can be shared only below `shareable_parents`. A path with a symbolic
    link is refused, because the link could change between this check and the mount.
    """
    found: dict[Path, Bind] = {}
    for writable, paths in ((False, confinement.readable), (True, confinement.writable)):
        for path in paths:
            check_path(path, private_paths=private_paths, shareable_parents=shareable_parents)
            if path.exists():  # a granted path may have been deleted since
                found[path] = Bind(path, writable)
    if len(found) > BINDS_MAX:
        raise TooManySharedFolders(len(found), count_max=BINDS_MAX)
    around = [bind.path for bind in found.values() if bind.writable]
    for path in confinement.protected:
        within = [each for each in around if path.is_relative_to(each)]
        if not within:
            continue
        if is_guardable(path):
            check_path(path, private_paths=private_paths, shareable_parents=shareable_parents)
            found[path] = Bind(path, protected=True)
        # Folders on the way are bound to themselves, so that they cannot be renamed and replaced.
        for part in path.relative_to(min(within)).parents[:-1]:
            on_the_way = min(within) / part
            known = found.get(on_the_way)
            if is_guardable(on_the_way) and (known is None or known.writable):
                found[on_the_way] = Bind(on_the_way, writable=True, protected=True)
    return [each for each in found.values() if each.protected or not _is_shown_by(each, found.values(), hidden)]


def is_guardable(path: Path) -> bool:
    """Return whether a path can be protected by a read-only mount: it exists and is not a link."""
    return os.path.realpath(path) == str(path) and (path.is_dir() or path.is_file())


def _is_shown_by(bind: Bind, others: Iterable[Bind], hidden: Sequence[Path]) -> bool:
    """Return whether another mount already shows a path, with no hidden path in between. If so, no mount is added.

    A command may replace a path in a writable folder, which would not be possible if the path were
    a mount point.
    """
    return any(
        other is not bind
        and bind.path.is_relative_to(other.path)
        and (other.writable or not bind.writable)
        and not any(bind.path.is_relative_to(path) and path.is_relative_to(other.path) for path in hidden)
        for other in others
    )


def check_path(path: Path, *, private_paths: Sequence[Path], shareable_parents: Sequence[Path]) -> None:
    """Raise an error for a path that a command must never see, even if a permission names it."""
    text = str(path)
    if not path.is_absolute() or "\0" in text or ".." in path.parts:
        raise SandboxPathRefused(
            text, because="it is not an absolute path", try_this="use an absolute path without `..`"
        )
    real = Path(os.path.realpath(path))
    if real != path:
        raise SandboxPathRefused(
            text, because="it is a symbolic link, or contains one", try_this=f"use the path that it leads to: {real}"
        )
    if path.exists() and not (path.is_dir() or path.is_file()):
        raise SandboxPathRefused(
            text, because="it is neither a folder nor a file", try_this="do not share the folder that contains it"
        )
    if text in _UNSHAREABLE_PATHS or any(path.is_relative_to(ruling) for ruling in _KERNEL_FOLDERS):
        raise SandboxPathRefused(
            text, because="access to it exposes or controls the whole machine", try_this="grant a folder inside it"
        )
    if path.name in _ENGINE_SOCKETS:
        raise SandboxPathRefused(
            text,
            because="access to this socket gives control of the machine",
            try_this="do not share the socket of a container engine",
        )
    for own in private_paths:
        if path.is_relative_to(own) and not any(path.is_relative_to(h) and path != h for h in shareable_parents):
            raise SandboxPathRefused(
                text, because="it is private to the server", try_this="grant a folder outside the data directory"
            )


def build_command_environment(confinement: Confinement, *, proxy: str = "") -> Mapping[str, str]:
    """Return the complete environment of a command: defaults, its own variables, and the proxy if it has one."""
    needed = {
        "PATH": PATH,
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "USER": "agent",
        "LOGNAME": "agent",
    }
    environment = {**needed, **confinement.environment}
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise SandboxVariableInvalid(name)
    if proxy:
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        environment |= {spelling: proxy for name in names for spelling in (name, name.lower())}
        environment |= {"NO_PROXY": "", "no_proxy": ""}
    return environment
