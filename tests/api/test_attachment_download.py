"""Attachments over HTTP: who may download them, and that no content runs in a browser."""

from __future__ import annotations

import base64
import hashlib
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api.tcp_server import Answer, ApiClient, open_api_client

from retinue.operations.envelope.uploads import UPLOAD_BYTES_MAX
from retinue.testing.wait_conditions import wait_until_sync

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
HTML_WITH_SCRIPT = b"<script>alert(1)</script>"
LIMITS = "[server.limits]\nenvelopes_per_minute = 6000\n"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.fixture(scope="module")
def api_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiClient]:
    with open_api_client(tmp_path_factory.mktemp("blobs"), LIMITS) as api_client:
        yield api_client


def send(api_client: ApiClient, data: bytes, *, media_type: str, name: str = "file", as_: str = "") -> tuple[str, str]:
    """Send an envelope with an attachment; its id, and the hash of the file."""
    upload = {"name": name, "data": base64.b64encode(data).decode(), "media_type": media_type}
    sent = api_client.do("envelope.send", to="agent:guide", text="look", attachments=[upload], as_=as_)
    return sent["envelope"], hashlib.sha256(data).hexdigest()


def fetch(api_client: ApiClient, hash_: str, where: str, *, token: str = "", **headers: str) -> Answer:
    return api_client.ask("GET", f"/api/attachments/{hash_}?{where}", token=token or api_client.token, headers=headers)


@pytest.mark.parametrize(
    ("data", "said", "told", "shown"),
    [
        (PNG, "image/png", "image/png", "inline"),
        (PNG, "application/octet-stream", "image/png", "inline"),  # the media type follows the content
        (b"\xff\xd8\xff\xe0 and so on", "image/jpeg", "image/jpeg", "inline"),
        (b"GIF89a and so on", "image/gif", "image/gif", "inline"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp", "image/webp", "inline"),
        (b"plain words", "text/plain", "text/plain; charset=utf-8", "inline"),
        (b"%PDF-1.7", "application/pdf", "application/pdf", "attachment"),
        (HTML_WITH_SCRIPT, "text/html", "application/octet-stream", "attachment"),
        (HTML_WITH_SCRIPT, "image/png", "application/octet-stream", "attachment"),  # not the claimed type
        (SVG, "image/svg+xml", "application/octet-stream", "attachment"),
        (HTML_WITH_SCRIPT, "application/xhtml+xml", "application/octet-stream", "attachment"),
    ],
)
def test_a_browser_downloads_attachments_only_with_content_types_that_run_no_script(
    api_client: ApiClient, data: bytes, said: str, told: str, shown: str
) -> None:
    envelope, hash_ = send(api_client, data, media_type=said, name="x.html")
    answer = fetch(api_client, hash_, f"envelope={envelope}")
    assert (answer.status, answer.body) == (200, data)
    assert answer.headers["content-type"] == told
    assert answer.headers["content-disposition"] == f"{shown}; filename*=UTF-8''x.html"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'; frame-ancestors 'none'"
    assert answer.headers["cache-control"] == "private, no-cache"


def test_a_cached_attachment_is_not_sent_again_but_access_is_still_checked(api_client: ApiClient) -> None:
    envelope, hash_ = send(api_client, PNG, media_type="image/png")
    answer = fetch(api_client, hash_, f"envelope={envelope}")
    again = fetch(api_client, hash_, f"envelope={envelope}", **{"if-none-match": answer.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    stranger = api_client.member("ines")
    refused = fetch(
        api_client, hash_, f"envelope={envelope}", token=stranger, **{"if-none-match": answer.headers["etag"]}
    )
    assert (refused.status, refused.code) == (404, "envelope.not_found")


def test_an_attachment_is_downloaded_only_through_a_visible_envelope_that_has_it(api_client: ApiClient) -> None:
    envelope, hash_ = send(api_client, b"the owner's diary", media_type="text/plain")
    noor = api_client.member("noor")
    own, _ = send(api_client, b"noor's own", media_type="text/plain", as_=noor)
    assert fetch(api_client, hash_, f"envelope={envelope}", token=noor).code == "envelope.not_found"
    assert fetch(api_client, hash_, f"envelope={own}", token=noor).code == "attachment.not_found"
    session = api_client.do("envelope.show", id=envelope)
    assert session["id"] == envelope  # the owner sees it
    assert fetch(api_client, hash_, f"envelope={envelope}").body == b"the owner's diary"
    assert api_client.ask("GET", f"/api/attachments/{hash_}?envelope={envelope}").status == 401


def test_an_attachment_is_downloaded_through_the_session_record_that_names_it(api_client: ApiClient) -> None:
    upload = {"name": "a.txt", "data": base64.b64encode(b"words").decode(), "media_type": "text/plain"}
    sent = api_client.do("envelope.send", to="agent:guide", text="keep", attachments=[upload], conversation="kept")
    record = _record_with_file(api_client, sent["session"])
    answer = fetch(api_client, hashlib.sha256(b"words").hexdigest(), f"session={sent['session']}&record={record}")
    assert (answer.status, answer.body) == (200, b"words")
    assert fetch(api_client, "0" * 64, f"session={sent['session']}&record={record}").code == "attachment.not_found"
    noor = api_client.member("nora")
    hidden = fetch(api_client, "0" * 64, f"session={sent['session']}&record={record}", token=noor)
    assert hidden.code == "session.not_found"


def _record_with_file(api_client: ApiClient, session: str) -> int:
    def found() -> list[int]:
        records: list[dict[str, Any]] = api_client.do("session.history", session=session)["records"]
        return [each["seq"] for each in records if each["body"].get("attachments")]

    return wait_until_sync(found, "a record has the attachment")[-1]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/attachments/" + "0" * 64, "attachment.location_missing"),
        ("/api/attachments/" + "0" * 64 + "?session=12345678&record=x", "attachment.location_missing"),
        ("/api/attachments/../../secrets?envelope=12345678", "envelope.not_found"),
        ("/api/attachments/?envelope=zz", "id.invalid"),
    ],
)
def test_an_attachment_download_without_a_valid_envelope_or_record_is_refused(
    api_client: ApiClient, path: str, code: str
) -> None:
    assert api_client.ask("GET", path, token=api_client.token).code == code


def upload_file(api_client: ApiClient, data: bytes, *, token: str = "") -> Answer:
    return api_client.ask("POST", "/api/attachments", data, token=token or api_client.token)


def test_an_uploaded_photo_is_attached_by_its_hash(api_client: ApiClient) -> None:
    photo = PNG + b"\0" * 12_000_000
    kept = upload_file(api_client, photo).json
    assert kept == {"hash": hashlib.sha256(photo).hexdigest(), "size_bytes": len(photo)}
    upload = {"name": "../me.png", "hash": kept["hash"], "media_type": "image/png"}
    sent = api_client.do("envelope.send", to="agent:guide", text="me", attachments=[upload])
    [shown] = api_client.do("envelope.show", id=sent["envelope"])["attachments"]
    assert shown == {"name": "me.png", "hash": kept["hash"], "media_type": "image/png", "size_bytes": len(photo)}
    assert fetch(api_client, kept["hash"], f"envelope={sent['envelope']}").body == photo


def test_only_the_uploader_can_attach_an_upload_by_its_hash(api_client: ApiClient) -> None:
    hash_ = upload_file(api_client, b"mine alone").json["hash"]
    other = api_client.member("otto")
    body = {"to": "agent:guide", "text": "x", "attachments": [{"name": "x", "hash": hash_}]}
    refused = api_client.ask("POST", "/api/envelope/send", body, token=other)
    assert (refused.status, refused.code) == (404, "upload.not_found")
    assert api_client.ask("POST", "/api/envelope/send", body, token=api_client.token).status == 200


def test_an_attachment_with_both_data_and_hash_is_refused(api_client: ApiClient) -> None:
    hash_ = upload_file(api_client, b"twice").json["hash"]
    body = {"to": "agent:guide", "text": "x", "attachments": [{"name": "x", "hash": hash_, "data": "eA=="}]}
    assert api_client.ask("POST", "/api/envelope/send", body, token=api_client.token).code == "attachment.given_twice"


def test_an_upload_that_is_too_large_is_refused_before_it_is_read(api_client: ApiClient) -> None:
    line = api_client.raw()
    host = f"{api_client.host}:{api_client.port}"
    head = f"POST /api/attachments HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {api_client.token}\r\n"
    line.sendall(f"{head}content-length: {UPLOAD_BYTES_MAX + 1}\r\n\r\n".encode())
    assert b" 413 " in line.recv(4096)
    line.close()


def test_an_upload_without_sign_in_is_refused(api_client: ApiClient) -> None:
    assert api_client.ask("POST", "/api/attachments", b"x").status == 401
    cookie = api_client.sign_in()
    assert api_client.ask("POST", "/api/attachments", b"x", headers={"cookie": cookie}).status == 403
    assert api_client.ask("POST", "/api/attachments", b"x", headers={"cookie": cookie, "x-retinue": "1"}).status == 200


def test_a_steady_slow_upload_is_accepted_and_a_stalling_one_is_refused(tmp_path: Path) -> None:
    with open_api_client(tmp_path, "[server.limits]\nrequest_wait_s = 2.0\n") as api_client:
        data = bytes(8 * 1024 * 1024)
        answered = _upload_slowly(api_client, data, piece=256 * 1024, every_s=0.1)  # about 2 MB in one second
        assert b" 200 " in answered and hashlib.sha256(data).hexdigest().encode() in answered
        assert b"request.too_slow" in _upload_slowly(api_client, data, piece=1024, every_s=0.1)


def _upload_slowly(api_client: ApiClient, data: bytes, *, piece: int, every_s: float) -> bytes:
    """Upload a file slowly and return the response."""
    host = f"{api_client.host}:{api_client.port}"
    head = f"POST /api/attachments HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {api_client.token}\r\n"
    with api_client.raw() as line:
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
