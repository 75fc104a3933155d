"""A secret is read from its source when it is needed, and never shown."""

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


def test_a_secret_is_read_from_its_variable_or_file_at_each_use(file: Path) -> None:
    assert SecretReference(env="KEY").read({"KEY": "hunter2"}) == "hunter2"
    assert SecretReference(file=file).read({}) == "hunter2"
    file.write_text("another")
    assert SecretReference(file=file).read({}) == "another"


def test_a_secret_reference_shows_its_source_and_never_its_value(file: Path) -> None:
    secret = SecretReference(file=file)
    secret.read({})
    assert "hunter2" not in f"{secret!r} {secret} {[secret]}"
    assert str(file) in str(secret)
    assert str(SecretReference(env="KEY")) == "the secret in $KEY"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610])
def test_a_secret_file_accessible_to_other_users_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(Invalid, match="other users can access") as refused:
        SecretReference(file=file).read({})
    assert refused.value.code == "config.secret_exposed"
    assert refused.value.try_this == f"chmod 600 {file}"


def test_a_missing_or_unusable_secret_is_refused_with_the_reason(file: Path, tmp_path: Path) -> None:
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
