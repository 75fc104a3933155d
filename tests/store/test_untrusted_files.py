"""Files in directories that people and agents write to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from retinue.store.core.untrusted_files import open_untrusted


def test_a_folder_or_a_link_in_place_of_a_file_is_refused_and_leaves_no_open_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    opened: list[int] = []
    open_file = os.open

    def record(*arguments: Any, **options: Any) -> int:
        opened.append(open_file(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(os, "open", record)
    with pytest.raises(IsADirectoryError):
        open_untrusted(tmp_path / "folder")
    with pytest.raises(OSError, match="symbolic link"):
        open_untrusted(tmp_path / "link")
    with open_untrusted(tmp_path / "file") as file:
        assert file.read() == b"text"

    assert len(opened) == 2  # the link was never opened
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
