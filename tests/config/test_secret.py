"""A secret is read when it is needed, from where it is, and never shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from retinue.config import SecretReference
from retinue.config.secret import SECRET_BYTES_MAX
from retinue.domain.errors import Invalid


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("hunter2\n")
    path.chmod(0o600)
    return path


def test_a_secret_is_read_from_the_environment_or_a_file_as_it_is_now(file: Path) -> None:
    assert SecretReference(env="KEY").read({"KEY": "hunter2"}) == "hunter2"
    assert SecretReference(file=file).read({}) == "hunter2"
    file.write_text("another")
    assert SecretReference(file=file).read({}) == "another"


def test_a_secret_shows_where_it_is_and_never_what_it_is(file: Path) -> None:
    secret = SecretReference(file=file)
    secret.read({})
    assert "hunter2" not in f"{secret!r} {secret} {[secret]}"
    assert str(file) in str(secret)
    assert str(SecretReference(env="KEY")) == "the secret in $KEY"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610])
def test_a_secret_file_that_others_may_touch_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(Invalid, match="other users can access") as refused:
        SecretReference(file=file).read({})
    assert refused.value.code == "config.secret_exposed"
    assert refused.value.try_this == f"chmod 600 {file}"


def test_a_secret_that_is_not_there_is_told_without_guessing(file: Path, tmp_path: Path) -> None:
    file.write_text("\n")
    large = tmp_path / "large"
    large.write_bytes(b"x" * (SECRET_BYTES_MAX + 1))
    large.chmod(0o600)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff")
    binary.chmod(0o600)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for secret in (
        SecretReference(env="KEY"),
        SecretReference(file=file),
        SecretReference(file=tmp_path / "none"),
        SecretReference(file=tmp_path),
        SecretReference(file=large),
        SecretReference(file=binary),
        SecretReference(file=pipe),
    ):
        with pytest.raises(Invalid) as refused:
            secret.read({"KEY": ""})
        assert refused.value.code == ("config.secret_missing" if secret.env else "config.secret_file_unusable")
        assert refused.value.because and refused.value.try_this
