"""Sign-in with tokens for programs, codes and cookies for browsers, and what is refused."""

from __future__ import annotations

import http.client
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api.tcp_server import Answer, ApiClient, open_api_client
from cli.server_process import environment

from retinue.domain.renamed_names import HTTP_PATHS
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until_sync

STATUS = "/api/server/status"


@pytest.fixture(scope="module")
def api_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiClient]:
    limits = "[server.limits]\nsign_in_attempts_max = 1000\nenvelopes_per_minute = 3\n"
    with open_api_client(tmp_path_factory.mktemp("sign-in"), limits) as api_client:
        yield api_client


def test_a_request_that_is_not_signed_in_with_a_valid_token_is_refused(api_client: ApiClient) -> None:
    for token in (None, "", "guess", "x" * 10_000):
        refused = api_client.ask("POST", STATUS, {}, token=token)
        assert (refused.status, refused.code) == (401, "auth.not_signed_in")
        assert refused.headers["www-authenticate"] == "Bearer"
    assert api_client.ask("POST", STATUS, {}, token=api_client.token).status == 200
    assert api_client.ask("POST", STATUS, {}, token=api_client.token, by_socket=True).status == 200
    assert api_client.ask("POST", STATUS, {}, by_socket=True).status == 401  # the Unix socket alone gives no rights


def test_a_browser_signs_in_once_with_a_code(api_client: ApiClient) -> None:
    code = api_client.do("token.code")["code"]
    entered = api_client.ask("POST", "/api/sign-in", {"code": code})
    assert entered.status == 200
    assert entered.json == {"you": "person:owner", "level": "boss"}
    cookie = entered.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie  # a browser would not return a secure cookie over plain HTTP
    again = api_client.ask("POST", "/api/sign-in", {"code": code})
    assert (again.status, again.code) == (401, "auth.code_invalid")
    assert "used before" in again.json["error"]["because"]
    assert code not in api_client.log


def test_a_server_started_in_a_terminal_prints_a_url_that_signs_in(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "retinue.app.server"]
    process = subprocess.Popen(command, env=environment(tmp_path / "home"), stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while b"Ctrl-C" not in shown:
            shown += os.read(ours, 4096)
        found = re.search(rb"(http://\S+)/#code=(\S+)", shown)
        assert found is not None
        host, _, port = found[1].decode().removeprefix("http://").rpartition(":")
        line = http.client.HTTPConnection(host, int(port), timeout=WAIT_LIMIT_S)
        line.request("POST", "/api/sign-in", json.dumps({"code": found[2].decode()}))
        assert json.loads(line.getresponse().read())["you"] == "person:owner"
        line.close()
    finally:
        process.terminate()
        process.wait(timeout=WAIT_LIMIT_S)
        os.close(ours)


def test_sign_in_codes_tokens_and_cookies_are_not_interchangeable(api_client: ApiClient) -> None:
    code = api_client.do("token.code")["code"]
    secret = api_client.sign_in().partition("=")[2]
    assert api_client.ask("POST", STATUS, {}, token=code).status == 401
    assert api_client.ask("POST", STATUS, {}, token=secret).status == 401
    assert api_client.ask("POST", "/api/sign-in", {"code": api_client.token}).status == 401
    as_cookie = {"cookie": f"retinue={api_client.token}", "x-retinue": "1"}
    assert api_client.ask("POST", STATUS, {}, headers=as_cookie).status == 401


def test_a_sign_in_cookie_authorizes_changes_only_with_the_x_retinue_header(api_client: ApiClient) -> None:
    cookie = {"cookie": api_client.sign_in()}
    refused = api_client.ask("POST", STATUS, {}, headers=cookie)
    assert (refused.status, refused.code) == (403, "auth.header_missing")
    assert api_client.ask("POST", STATUS, {}, headers={**cookie, "x-retinue": "1"}).status == 200
    assert api_client.ask("GET", "/api/operations", headers=cookie).status == 200


def test_signing_out_revokes_only_the_cookie_of_that_browser(api_client: ApiClient) -> None:
    browser = {"cookie": api_client.sign_in(), "x-retinue": "1"}
    other = {"cookie": api_client.sign_in(), "x-retinue": "1"}
    left = api_client.ask("POST", "/api/sign-out", {}, headers=browser)
    assert left.json == {"signed_out": True}
    assert "Max-Age=0" in left.headers["set-cookie"]
    assert api_client.ask("POST", STATUS, {}, headers=browser).status == 401
    assert api_client.ask("POST", STATUS, {}, headers=other).status == 200


def test_an_invitation_can_be_exchanged_for_a_token_over_http_only_once(api_client: ApiClient) -> None:
    invitation = api_client.do("person.invite", name="maria")["invitation"]
    joined = api_client.ask("POST", "/api/join", {"invitation": invitation})
    assert joined.status == 200
    assert api_client.do("person.whoami", as_=joined.json["token"])
    again = api_client.ask("POST", "/api/join", {"invitation": invitation})
    assert (again.status, again.code) == (403, "invitation.invalid")
    assert api_client.ask("POST", "/api/join", {"invitation": "\ud800"}).status in (400, 403)


def test_a_rate_limited_request_gets_retry_after_and_the_owner_on_the_socket_is_not_limited(
    api_client: ApiClient,
) -> None:
    token = api_client.member("noor")
    mail = {"to": "agent:guide", "text": "be silent"}
    list_answer_texts = [api_client.ask("POST", "/api/envelope/send", mail, token=token) for _ in range(4)]
    assert [each.status for each in list_answer_texts] == [200, 200, 200, 429]
    assert list_answer_texts[-1].code == "rate.too_many"
    assert int(list_answer_texts[-1].headers["retry-after"]) >= 1
    assert list_answer_texts[-1].json["error"]["retry_after_s"] >= 1
    for _ in range(5):
        assert api_client.ask("POST", "/api/envelope/send", mail, token=api_client.token, by_socket=True).status == 200


def test_the_web_app_can_run_only_its_own_scripts(api_client: ApiClient) -> None:
    page = api_client.ask("GET", "/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["referrer-policy"] == "no-referrer"


@pytest.mark.spec("A46")
def test_http_error_responses_have_the_fitting_status_and_the_standard_fields(api_client: ApiClient) -> None:
    def status(path: str, body: dict[str, object], **headers: str) -> tuple[int, set[str]]:
        answer = api_client.ask("POST", path, body, token=api_client.token, headers=headers)
        return answer.status, set(answer.json["error"])

    form = {"code", "sentence", "because", "try"}
    assert status("/api/envelope/show", {"no": "such field"}) == (400, form)
    assert status("/api/envelope/show", {"id": "abcdefab"}) == (404, form)
    assert status("/api/no/such", {}) == (404, form)
    key = {"idempotency-key": "twice"}
    assert (
        api_client.ask("POST", "/api/token/create", {"label": "one"}, token=api_client.token, headers=key).status == 200
    )
    assert status("/api/token/create", {"label": "two"}, **key) == (409, form)


def test_the_openapi_document_lists_only_the_operations_the_caller_may_use(api_client: ApiClient) -> None:
    guest = api_client.member("gus")
    api_client.do("person.role", name="gus", role="guest")
    owner_document = api_client.ask("GET", "/api/openapi.json", token=api_client.token).json
    guest_document = api_client.ask("GET", "/api/openapi.json", token=guest).json
    assert owner_document["openapi"].startswith("3.1")
    assert "/api/person/invite" in owner_document["paths"]
    assert "/api/person/invite" not in guest_document["paths"]
    assert "/api/envelope/send" in guest_document["paths"]
    names = {each["name"] for each in api_client.ask("GET", "/api/operations", token=guest).json["operations"]}
    assert {route["post"]["operationId"] for route in guest_document["paths"].values()} == names
    assert api_client.ask("GET", "/api/openapi.json").status == 401
    refused = owner_document["components"]["responses"]
    for route in owner_document["paths"].values():
        for answer in route["post"]["responses"].values():
            assert refused.get(answer.get("$ref", "").rpartition("/")[2], answer)["description"]


def test_metrics_need_the_privileged_level_and_contain_no_ids(api_client: ApiClient) -> None:
    token = api_client.member("ines")
    assert api_client.ask("GET", "/api/metrics").status == 401
    assert api_client.ask("GET", "/api/metrics", token=token).status == 403
    sent = api_client.do("envelope.send", to="agent:guide", text="echo x")
    page = api_client.ask("GET", "/api/metrics", token=api_client.token)
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = page.body.decode()
    for name in (
        "retinue_envelopes{",
        "retinue_runs{",
        "retinue_envelopes_due ",
        "retinue_commits_total ",
        "retinue_websockets ",
    ):
        assert name in text
    assert sent["session"] not in text and "ines" not in text


def test_the_health_and_readiness_routes_report_only_their_state(api_client: ApiClient) -> None:
    assert api_client.ask("GET", "/api/health").json == {"alive": True}
    assert api_client.ask("GET", "/api/ready").json == {"ready": True}


def test_api_responses_cannot_be_cached_or_framed(api_client: ApiClient) -> None:
    for answer in (api_client.ask("GET", "/api/health"), api_client.ask("POST", STATUS, {})):
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.spec("C90.proxy")
def test_behind_a_proxy_the_cookie_is_secure_and_lockouts_are_per_forwarded_address(
    tmp_path: Path,
) -> None:
    settings = """
[server]
public_url = "https://chat.example"
trusted_proxies = ["127.0.0.1"]
[server.limits]
sign_in_attempts_max = 2
"""
    proxied = {"host": "chat.example", "x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.7"}
    with open_api_client(tmp_path, settings) as api_client:
        code = api_client.do("token.code")["code"]
        page = {**proxied, "origin": "https://chat.example"}
        entered = api_client.ask("POST", "/api/sign-in", {"code": code}, headers=page)
        assert "; Secure" in entered.headers["set-cookie"]
        guesses = [api_client.ask("POST", STATUS, {}, token=f"guess-{n}", headers=proxied).status for n in range(3)]
        assert guesses == [401, 401, 429]
        elsewhere = {**proxied, "x-forwarded-for": "203.0.113.7, 198.51.100.9"}
        assert api_client.ask("POST", STATUS, {}, token="guess", headers=elsewhere).status == 401
        assert api_client.ask("POST", STATUS, {}, headers={**proxied, "host": "evil.example"}).status == 421


def test_a_wrong_http_method_is_refused_with_the_allowed_method(api_client: ApiClient) -> None:
    for method, path, allowed in (
        ("GET", STATUS, "POST"),
        ("POST", "/api/health", "GET"),
        ("PUT", "/api/events", "GET"),
    ):
        refused = api_client.ask(method, path, token=api_client.token)
        assert (refused.status, refused.code, refused.headers["allow"]) == (405, "route.method_not_allowed", allowed)


@pytest.mark.parametrize(("old", "new"), HTTP_PATHS.items())
def test_a_renamed_http_path_is_not_found_and_the_error_names_the_new_path(
    api_client: ApiClient, old: str, new: str
) -> None:
    method, path = old.replace("HASH", "0" * 64).split(" ")
    response = api_client.ask(method, path, token=api_client.token)
    assert (response.status, response.code) == (404, "route.renamed")
    assert response.json["error"]["sentence"] == f"`{old}` is now `{new}`"
    method, path = new.replace("HASH", "0" * 64).split(" ")
    assert path.partition("?")[0] in {"/api/events", "/api/operations"} or api_client.ask(method, path).status == 401


def test_an_http_request_for_events_with_an_invalid_query_is_refused(api_client: ApiClient) -> None:
    for query, status in (
        ("after=x", 400),
        ("after=-1", 400),
        ("session=%00", 404),
        ("&".join("a=b" for _ in range(99)), 400),
    ):
        assert api_client.ask("GET", f"/api/events?{query}", token=api_client.token).status == status


def test_a_revoked_token_is_refused_from_the_next_request(api_client: ApiClient) -> None:
    for _ in range(5):
        made = api_client.do("token.create", label="brief")
        assert {api_client.ask("POST", STATUS, {}, token=made["token"]).status for _ in range(3)} == {200}
        api_client.do("token.revoke", id=made["id"])
        assert api_client.ask("POST", STATUS, {}, token=made["token"]).status == 401


def test_a_signed_in_browser_can_fetch_the_initial_state(api_client: ApiClient) -> None:
    cookie = {"cookie": api_client.sign_in()}

    def read_both() -> tuple[Answer, dict[str, Any]] | None:
        opened = api_client.ask("GET", "/api/state", headers=cookie)
        shown = api_client.do("server.initial_state")
        return (opened, shown) if opened.json.get("cursor", shown["cursor"]) == shown["cursor"] else None

    # A run of another test may still be active.
    both = wait_until_sync(read_both, "no event happens between the two requests")
    assert both is not None
    opened, shown = both
    assert opened.status == 200 and opened.json["principal"] == "person:owner"
    assert opened.json == shown
    assert api_client.ask("GET", "/api/state").status == 401
