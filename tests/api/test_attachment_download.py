"""Attachments by HTTP: sent ahead as they are, given to who sees them, and nothing in them runs in a browser."""

from __future__ import annotations

import base64
import hashlib
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api.tcp_server import Answer, Rim, open_rim

from retinue.operations.envelope.uploads import UPLOAD_BYTES_MAX
from retinue.testing.wait_conditions import wait_until_sync

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
EVIL = b"<script>alert(1)</script>"
LIMITS = "[house.limits]\nenvelopes_per_minute = 6000\n"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.fixture(scope="module")
def rim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rim]:
    with open_rim(tmp_path_factory.mktemp("blobs"), LIMITS) as rim:
        yield rim


def send(rim: Rim, data: bytes, *, media_type: str, name: str = "file", as_: str = "") -> tuple[str, str]:
    """An envelope with a file in it: its id, and the hash of the file."""
    upload = {"name": name, "data": base64.b64encode(data).decode(), "media_type": media_type}
    sent = rim.do("envelope.send", to="agent:guide", text="look", attachments=[upload], as_=as_)
    return sent["envelope"], hashlib.sha256(data).hexdigest()


def fetch(rim: Rim, hash_: str, where: str, *, token: str = "", **headers: str) -> Answer:
    return rim.ask("GET", f"/api/blob/{hash_}?{where}", token=token or rim.token, headers=headers)


@pytest.mark.parametrize(
    ("data", "said", "told", "shown"),
    [
        (PNG, "image/png", "image/png", "inline"),
        (PNG, "application/octet-stream", "image/png", "inline"),  # it is what its bytes are
        (b"\xff\xd8\xff\xe0 and so on", "image/jpeg", "image/jpeg", "inline"),
        (b"GIF89a and so on", "image/gif", "image/gif", "inline"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp", "image/webp", "inline"),
        (b"plain words", "text/plain", "text/plain; charset=utf-8", "inline"),
        (b"%PDF-1.7", "application/pdf", "application/pdf", "attachment"),
        (EVIL, "text/html", "application/octet-stream", "attachment"),
        (EVIL, "image/png", "application/octet-stream", "attachment"),  # whatever it calls itself
        (SVG, "image/svg+xml", "application/octet-stream", "attachment"),
        (EVIL, "application/xhtml+xml", "application/octet-stream", "attachment"),
    ],
)
def test_a_browser_is_told_only_what_runs_nothing(rim: Rim, data: bytes, said: str, told: str, shown: str) -> None:
    envelope, hash_ = send(rim, data, media_type=said, name="x.html")
    answer = fetch(rim, hash_, f"envelope={envelope}")
    assert (answer.status, answer.body) == (200, data)
    assert answer.headers["content-type"] == told
    assert answer.headers["content-disposition"] == f"{shown}; filename*=UTF-8''x.html"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'; frame-ancestors 'none'"
    assert answer.headers["cache-control"] == "private, no-cache"


def test_what_a_browser_has_already_is_not_sent_again_but_is_asked_about(rim: Rim) -> None:
    envelope, hash_ = send(rim, PNG, media_type="image/png")
    answer = fetch(rim, hash_, f"envelope={envelope}")
    again = fetch(rim, hash_, f"envelope={envelope}", **{"if-none-match": answer.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    stranger = rim.member("ines")
    refused = fetch(rim, hash_, f"envelope={envelope}", token=stranger, **{"if-none-match": answer.headers["etag"]})
    assert (refused.status, refused.code) == (404, "envelope.not_found")


def test_a_file_is_given_only_where_it_is_seen(rim: Rim) -> None:
    """Whoever knows a hash, and names an envelope of their own, has nothing."""
    envelope, hash_ = send(rim, b"the owner's diary", media_type="text/plain")
    noor = rim.member("noor")
    own, _ = send(rim, b"noor's own", media_type="text/plain", as_=noor)
    assert fetch(rim, hash_, f"envelope={envelope}", token=noor).code == "envelope.not_found"
    assert fetch(rim, hash_, f"envelope={own}", token=noor).code == "attachment.not_found"
    session = rim.do("envelope.show", id=envelope)
    assert session["id"] == envelope  # and the owner sees it
    assert fetch(rim, hash_, f"envelope={envelope}").body == b"the owner's diary"
    assert rim.ask("GET", f"/api/blob/{hash_}?envelope={envelope}").status == 401


def test_a_file_is_given_by_the_record_that_names_it(rim: Rim) -> None:
    upload = {"name": "a.txt", "data": base64.b64encode(b"words").decode(), "media_type": "text/plain"}
    sent = rim.do("envelope.send", to="agent:guide", text="keep", attachments=[upload], conversation="kept")
    record = _record_with_file(rim, sent["session"])
    answer = fetch(rim, hashlib.sha256(b"words").hexdigest(), f"session={sent['session']}&record={record}")
    assert (answer.status, answer.body) == (200, b"words")
    assert fetch(rim, "0" * 64, f"session={sent['session']}&record={record}").code == "attachment.not_found"
    noor = rim.member("nora")
    hidden = fetch(rim, "0" * 64, f"session={sent['session']}&record={record}", token=noor)
    assert hidden.code == "session.not_found"


def _record_with_file(rim: Rim, session: str) -> int:
    def found() -> list[int]:
        records: list[dict[str, Any]] = rim.do("session.history", session=session)["records"]
        return [each["seq"] for each in records if each["body"].get("attachments")]

    return wait_until_sync(found, "a record names the file")[-1]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/blob/" + "0" * 64, "attachment.location_missing"),
        ("/api/blob/" + "0" * 64 + "?session=12345678&record=x", "attachment.location_missing"),
        ("/api/blob/../../secrets?envelope=12345678", "envelope.not_found"),
        ("/api/blob/?envelope=zz", "id.invalid"),
    ],
)
def test_what_names_no_file_is_refused(rim: Rim, path: str, code: str) -> None:
    assert rim.ask("GET", path, token=rim.token).code == code


def ahead(rim: Rim, data: bytes, *, token: str = "") -> Answer:
    return rim.ask("POST", "/api/blob", data, token=token or rim.token)


def test_a_photo_is_sent_ahead_and_named_by_the_envelope(rim: Rim) -> None:
    photo = PNG + b"\0" * 12_000_000
    kept = ahead(rim, photo).json
    assert kept == {"hash": hashlib.sha256(photo).hexdigest(), "size-bytes": len(photo)}
    upload = {"name": "../me.png", "hash": kept["hash"], "media_type": "image/png"}
    sent = rim.do("envelope.send", to="agent:guide", text="me", attachments=[upload])
    [shown] = rim.do("envelope.show", id=sent["envelope"])["attachments"]
    assert shown == {"name": "me.png", "hash": kept["hash"], "media-type": "image/png", "size-bytes": len(photo)}
    assert fetch(rim, kept["hash"], f"envelope={sent['envelope']}").body == photo


def test_only_who_has_sent_a_file_ahead_may_name_it(rim: Rim) -> None:
    """A hash that one has seen somewhere is no way to a file."""
    hash_ = ahead(rim, b"mine alone").json["hash"]
    other = rim.member("otto")
    body = {"to": "agent:guide", "text": "x", "attachments": [{"name": "x", "hash": hash_}]}
    refused = rim.ask("POST", "/api/envelope/send", body, token=other)
    assert (refused.status, refused.code) == (404, "upload.not_found")
    assert rim.ask("POST", "/api/envelope/send", body, token=rim.token).status == 200


def test_bytes_and_a_hash_at_once_are_refused(rim: Rim) -> None:
    hash_ = ahead(rim, b"twice").json["hash"]
    body = {"to": "agent:guide", "text": "x", "attachments": [{"name": "x", "hash": hash_, "data": "eA=="}]}
    assert rim.ask("POST", "/api/envelope/send", body, token=rim.token).code == "attachment.given_twice"


def test_a_file_that_is_too_large_is_refused_before_it_is_read(rim: Rim) -> None:
    line = rim.raw()
    head = f"POST /api/blob HTTP/1.1\r\nhost: {rim.host}:{rim.port}\r\nauthorization: Bearer {rim.token}\r\n"
    line.sendall(f"{head}content-length: {UPLOAD_BYTES_MAX + 1}\r\n\r\n".encode())
    assert b" 413 " in line.recv(4096)
    line.close()


def test_a_file_of_nobody_is_not_taken(rim: Rim) -> None:
    assert rim.ask("POST", "/api/blob", b"x").status == 401
    cookie = rim.sign_in()
    assert rim.ask("POST", "/api/blob", b"x", headers={"cookie": cookie}).status == 403
    assert rim.ask("POST", "/api/blob", b"x", headers={"cookie": cookie, "x-retinue": "1"}).status == 200


def test_a_file_that_keeps_coming_may_take_its_time_and_one_that_does_not_may_not(tmp_path: Path) -> None:
    with open_rim(tmp_path, "[house.limits]\nrequest_wait_s = 2.0\n") as rim:
        data = bytes(8 * 1024 * 1024)
        answered = _trickle(rim, data, piece=256 * 1024, every_s=0.1)  # some 2 MB in a second
        assert b" 200 " in answered and hashlib.sha256(data).hexdigest().encode() in answered
        assert b"request.too_slow" in _trickle(rim, data, piece=1024, every_s=0.1)


def _trickle(rim: Rim, data: bytes, *, piece: int, every_s: float) -> bytes:
    """Send a file so slowly; what is answered."""
    head = f"POST /api/blob HTTP/1.1\r\nhost: {rim.host}:{rim.port}\r\nauthorization: Bearer {rim.token}\r\n"
    with rim.raw() as line:
        line.sendall(f"{head}content-length: {len(data)}\r\nconnection: close\r\n\r\n".encode())
        for at in range(0, len(data), piece):
            try:
                line.sendall(data[at : at + piece])
            except OSError:
                break
            if select.select([line], [], [], every_s)[0]:
                break
        heard = b""
        while b"}" not in heard and (more := line.recv(65536)):
            heard += more
        return heard
