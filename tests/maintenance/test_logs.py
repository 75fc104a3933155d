"""Logs: secrets are redacted, files are private and rotated, and no log call stops the server."""

from __future__ import annotations

import io
import logging
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.app.clock_and_ids import new_token
from retinue.app.instance_files import owner_token
from retinue.app.logs import (
    REDACTED,
    LogFormatter,
    log_file_path,
    redact,
    set_known_secrets,
    set_level,
    set_up_logs,
)
from retinue.config.settings import LogLevel, LogSettings
from retinue.text.redaction import Redactor

TOKEN = "Zk3_q9vXw2-LmN8bT5rYc1Hs7DfGj4KpQ0aUeRiVoBx"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAx\nq7Zc8s\n-----END RSA PRIVATE KEY-----"

# A text to log, and the part of it that must not appear.
TEXTS_WITH_SECRETS = (
    ("Authorization: Bearer abc.def-ghi123", "abc.def-ghi123"),
    ("authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
    ("headers={'Authorization': 'Bearer hunter2hunter2', 'Accept': 'text/html'}", "hunter2hunter2"),
    ("[(b'host', b'x'), (b'authorization', b'Bearer hunter2hunter2')]", "hunter2hunter2"),
    ('{"Proxy-Authorization": "Digest username=\\"u\\", response=\\"0123\\""}', "0123"),
    ("Cookie: retinue=s3ss10n; theme=dark", "s3ss10n"),
    ("set-cookie: retinue=s3ss10n; HttpOnly", "s3ss10n"),
    ("(b'cookie', b'retinue=s3ss10n; theme=dark')", "s3ss10n"),
    ("sent with bearer abcdef123456", "abcdef123456"),
    (f"signed in with {TOKEN} just now", TOKEN),
    (f"http://127.0.0.1:7717/#code={TOKEN}", TOKEN),
    ("sk-proj-abcdefghijklmnop was refused", "abcdefghijklmnop"),
    ("Incorrect API key provided: sk-ant-api03-AbCdEfGh_ij-kl.", "AbCdEfGh_ij-kl"),
    ("ghp_0123456789abcdefABCDEF0123456789abcd", "0123456789abcdef"),
    ("github_pat_11ABCDEFG0123456789_abcdef", "11ABCDEFG0123456789"),
    ("token xoxb-1234567890-abcdefghij", "1234567890-abcdefghij"),
    ("AKIAIOSFODNN7EXAMPLE", "IOSFODNN7EXAMPLE"),
    ("AIzaSyA0123456789abcdefghijklmnopqrstuv", "SyA0123456789"),
    ("https://api.telegram.org/bot123456789:AAF0123456789abcdefghijklmnopqrstuvw/getMe", "AAF0123456789"),
    ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "eyJzdWIiOiIxMjM0In0"),
    ("password=hunter2", "hunter2"),
    ("password: hunter2", "hunter2"),
    ("db_password = 'hun ter2'", "ter2"),
    ("PGPASSWORD=hunter2 psql", "hunter2"),
    ("OPENAI_API_KEY=abc123 retinue run", "abc123"),
    ("x-api-key: abc123", "abc123"),
    ("('x-api-key', 'abc123')", "abc123"),
    ("token='abc123'", "abc123"),  # the output of f"{token=}"
    ("owner_token=b'abc123'", "abc123"),
    ('{"client_secret": "abc\\"123"}', "123"),
    ('{\\"refresh_token\\": \\"abc123\\"}', "abc123"),  # JSON within JSON
    ("key=0123456789abcdef0123456789abcdef", "0123456789abcdef"),
    ("key: QUJDREVGR0hJSktMTU5PUFFSU1RVVg==", "QUJDREVGR0hJSktM"),
    ("GET /?token=abc123&page=2", "abc123"),
    ("postgresql://retinue:hunter2@db/retinue", "hunter2"),
    (f"could not read\n{PEM}\nat all", "q7Zc8s"),
    (repr(PEM), "q7Zc8s"),
    (PEM[:60], "MIIEow"),
    ("password:\n  hunter2", "hunter2"),
)
TEXTS_WITHOUT_SECRETS = (
    "run finished input_tokens=1200 tokens_max=100000 turns=3",
    "envelope 538453d7 from person:maria ended answered",
    "envelope accepted without starting a run",
    "the key 'abc' was already used for another envelope",
    "request refused code=key.reused path=/api/token/list",
    "2026-01-05T10:00:00+01:00 took 12 ms",
)


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    set_known_secrets(Redactor())  # a server in an earlier test of this process may have left its own
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize(("text", "secret"), TEXTS_WITH_SECRETS)
def test_text_that_looks_like_a_secret_is_redacted_in_logs(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redact(text)
    assert REDACTED in redact(text)


@pytest.mark.parametrize("text", TEXTS_WITHOUT_SECRETS)
def test_text_without_a_secret_is_not_redacted_in_logs(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("around", ["{}", "x {}", "'{}'", "({})", "a={} b", "{}.", "/{}/", "{}\n"])
def test_generated_tokens_are_redacted_in_any_context(around: str) -> None:
    for secret in (new_token() for _ in range(200)):
        assert secret not in redact(around.format(secret))


@given(st.text(max_size=400))
def test_redacting_any_text_raises_no_error(text: str) -> None:
    redact(text + " password=" + text)


@pytest.mark.spec("D72")
def test_secrets_are_redacted_in_log_messages_fields_and_exceptions(tmp_path: Path) -> None:
    secret = owner_token(tmp_path, new_token)
    terminal = io.StringIO()
    set_up_logs(terminal, data_dir=tmp_path)
    log = logging.getLogger("test")
    log.info("signed in with %s", secret)
    log.info("signed in", extra={"token": "plain words", "because": f"header was Bearer {secret}"})
    try:
        try:
            raise ValueError(f"no such token: {secret}")
        except ValueError as error:
            raise RuntimeError(f"{secret=}") from error
    except RuntimeError:
        log.exception("sign-in failed", stack_info=True)
    for text in (terminal.getvalue(), log_file_path(tmp_path).read_text()):
        assert secret not in text
        assert "plain words" not in text
        assert text.count("signed in") == 2
        assert "ValueError: no such token" in text
    for path in (tmp_path / "owner-token", log_file_path(tmp_path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(log_file_path(tmp_path).parent.stat().st_mode) == 0o700


def test_logs_are_rotated_at_each_start_and_a_limited_number_is_kept(tmp_path: Path) -> None:
    for start in range(5):
        set_up_logs(None, data_dir=tmp_path, logs=LogSettings(files_kept=2))
        logging.getLogger("test").info("start %d", start)
    names = sorted(path.name for path in log_file_path(tmp_path).parent.iterdir())
    assert names == ["retinue.log", "retinue.log.1", "retinue.log.2"]
    assert "start 4" in log_file_path(tmp_path).read_text()
    assert "start 3" in (tmp_path / "logs" / "retinue.log.1").read_text()


def test_a_large_log_is_rotated(tmp_path: Path) -> None:
    set_up_logs(None, data_dir=tmp_path, logs=LogSettings(bytes_max=64 * 1024, files_kept=1))
    for number in range(3000):
        logging.getLogger("test").info("something happened", extra={"number": number})
    files = sorted(log_file_path(tmp_path).parent.iterdir())
    assert [path.name for path in files] == ["retinue.log", "retinue.log.1"]
    assert all(path.stat().st_size <= 64 * 1024 for path in files)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)


def test_a_large_log_is_truncated_if_no_rotated_files_are_kept(tmp_path: Path) -> None:
    for _ in range(2):
        set_up_logs(None, data_dir=tmp_path, logs=LogSettings(bytes_max=64 * 1024, files_kept=0))
        for number in range(2000):
            logging.getLogger("test").info("something happened", extra={"number": number})
    [file] = log_file_path(tmp_path).parent.iterdir()
    assert file.stat().st_size <= 64 * 1024


def test_the_minimum_log_level_is_a_setting_and_changes_at_once(tmp_path: Path) -> None:
    terminal = io.StringIO()
    set_up_logs(terminal, data_dir=tmp_path, logs=LogSettings(level=LogLevel.WARNING))
    log = logging.getLogger("test")
    log.info("quiet")
    set_level("debug")
    log.debug("loud")
    assert "quiet" not in terminal.getvalue()
    assert "loud" in terminal.getvalue()


def test_with_the_log_file_disabled_nothing_is_written_to_the_data_directory(tmp_path: Path) -> None:
    set_up_logs(io.StringIO(), data_dir=tmp_path, logs=LogSettings(file=False))
    logging.getLogger("test").info("hello")
    assert list(tmp_path.iterdir()) == []


class FailingStr:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_log_record_that_cannot_be_formatted_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = io.StringIO()
    set_up_logs(terminal)
    log = logging.getLogger("test")
    log.info("got %d", "no number")
    log.info("got", extra={"value": FailingStr()})
    assert terminal.getvalue().count("log line not formatted") == 2
    terminal.close()
    log.info("password=hunter2")  # the stream is closed
    assert capsys.readouterr().err == ""


def test_an_unwritable_log_file_is_reported_on_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    terminal = io.StringIO()
    set_up_logs(terminal, data_dir=tmp_path)
    assert "log file not writable" in terminal.getvalue()


def test_the_log_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "elsewhere").write_text("")
    log_file_path(tmp_path).symlink_to(tmp_path / "elsewhere")
    set_up_logs(io.StringIO(), data_dir=tmp_path)
    logging.getLogger("test").info("hello")
    assert (tmp_path / "elsewhere").read_text() == ""


def test_logged_text_cannot_forge_log_lines_or_control_the_terminal() -> None:
    record = logging.makeLogRecord({"msg": "a\n2026 info forged", "name": "x", "levelname": "INFO"})
    record.because = '\x1b[2Jgone "quoted" \\'
    try:
        raise ValueError("first\n2026-01-01 info forged\x1b[31m")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    first, *rest = LogFormatter().format(record).split("\n")
    assert "\\n2026 info forged" in first
    assert "\x1b" not in "".join([first, *rest])
    assert all(line.startswith("    ") for line in rest)


def test_an_overlong_log_text_is_truncated_before_redaction() -> None:
    text = redact("x" * 100_000 + " password=hunter2")
    assert len(text) < 40_000
    assert "more characters" in text


def test_generated_tokens_have_the_length_that_redaction_expects() -> None:
    assert len(secrets.token_urlsafe(32)) == len(new_token()) == len(TOKEN)
