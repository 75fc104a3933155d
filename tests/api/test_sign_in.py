"""Signing in: tokens for programs, a code and a cookie for browsers, and what is refused on the way."""

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

import pytest
from api.tcp_server import Rim, open_rim
from cli.server_process import environment

from retinue.testing.wait_conditions import WAIT_LIMIT_S

STATUS = "/api/house/status"


@pytest.fixture(scope="module")
def rim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rim]:
    limits = "[house.limits]\nsign_in_attempts_max = 1000\nenvelopes_per_minute = 3\n"
    with open_rim(tmp_path_factory.mktemp("sign-in"), limits) as rim:
        yield rim


def test_nothing_is_told_without_a_token_that_we_know(rim: Rim) -> None:
    for token in (None, "", "guess", "x" * 10_000):
        refused = rim.ask("POST", STATUS, {}, token=token)
        assert (refused.status, refused.code) == (401, "auth.not_signed_in")
        assert refused.headers["www-authenticate"] == "Bearer"
    assert rim.ask("POST", STATUS, {}, token=rim.token).status == 200
    assert rim.ask("POST", STATUS, {}, token=rim.token, by_socket=True).status == 200
    assert rim.ask("POST", STATUS, {}, by_socket=True).status == 401  # the socket alone gives no rights


def test_a_browser_signs_in_with_a_code_once(rim: Rim) -> None:
    code = rim.do("token.code")["code"]
    entered = rim.ask("POST", "/api/sign-in", {"code": code})
    assert entered.status == 200
    assert entered.json == {"you": "person:owner", "level": "boss"}
    cookie = entered.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie  # plain http on this machine: a browser would not send it back
    again = rim.ask("POST", "/api/sign-in", {"code": code})
    assert (again.status, again.code) == (401, "auth.code_invalid")
    assert "used before" in again.json["error"]["because"]
    assert code not in rim.log


def test_whoever_opens_the_house_in_a_terminal_is_shown_an_address_that_signs_them_in(tmp_path: Path) -> None:
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


def test_a_code_is_no_token_and_a_token_is_no_code_and_a_cookie_is_neither(rim: Rim) -> None:
    code = rim.do("token.code")["code"]
    secret = rim.sign_in().partition("=")[2]
    assert rim.ask("POST", STATUS, {}, token=code).status == 401
    assert rim.ask("POST", STATUS, {}, token=secret).status == 401
    assert rim.ask("POST", "/api/sign-in", {"code": rim.token}).status == 401
    as_cookie = {"cookie": f"retinue={rim.token}", "x-retinue": "1"}
    assert rim.ask("POST", STATUS, {}, headers=as_cookie).status == 401


def test_a_cookie_changes_nothing_without_our_header(rim: Rim) -> None:
    cookie = {"cookie": rim.sign_in()}
    refused = rim.ask("POST", STATUS, {}, headers=cookie)
    assert (refused.status, refused.code) == (403, "auth.header_missing")
    assert rim.ask("POST", STATUS, {}, headers={**cookie, "x-retinue": "1"}).status == 200
    assert rim.ask("GET", "/api/operations", headers=cookie).status == 200


def test_signing_out_makes_the_cookie_worthless_everywhere(rim: Rim) -> None:
    browser = {"cookie": rim.sign_in(), "x-retinue": "1"}
    other = {"cookie": rim.sign_in(), "x-retinue": "1"}
    left = rim.ask("POST", "/api/sign-out", {}, headers=browser)
    assert left.json == {"signed-out": True}
    assert "Max-Age=0" in left.headers["set-cookie"]
    assert rim.ask("POST", STATUS, {}, headers=browser).status == 401
    assert rim.ask("POST", STATUS, {}, headers=other).status == 200


def test_whoever_holds_an_invitation_joins_once(rim: Rim) -> None:
    invitation = rim.do("person.invite", name="maria")["invitation"]
    joined = rim.ask("POST", "/api/join", {"invitation": invitation})
    assert joined.status == 200
    assert rim.do("person.whoami", as_=joined.json["token"])
    again = rim.ask("POST", "/api/join", {"invitation": invitation})
    assert (again.status, again.code) == (403, "invitation.invalid")
    assert rim.ask("POST", "/api/join", {"invitation": "\ud800"}).status in (400, 403)


def test_a_member_who_sends_too_much_is_told_when_to_go_on_and_the_owner_on_the_socket_is_not_held_up(rim: Rim) -> None:
    token = rim.member("noor")
    mail = {"to": "agent:guide", "text": "be silent"}
    answers = [rim.ask("POST", "/api/envelope/send", mail, token=token) for _ in range(4)]
    assert [each.status for each in answers] == [200, 200, 200, 429]
    assert answers[-1].code == "rate.too_many"
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert answers[-1].json["error"]["retry-after-s"] >= 1
    for _ in range(5):
        assert rim.ask("POST", "/api/envelope/send", mail, token=rim.token, by_socket=True).status == 200


def test_the_page_runs_its_own_scripts_and_nothing_else(rim: Rim) -> None:
    page = rim.ask("GET", "/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["referrer-policy"] == "no-referrer"


@pytest.mark.spec("A46")
def test_errors_of_operations_have_the_status_that_fits_them(rim: Rim) -> None:
    def status(path: str, body: dict[str, object], **headers: str) -> tuple[int, set[str]]:
        answer = rim.ask("POST", path, body, token=rim.token, headers=headers)
        return answer.status, set(answer.json["error"])

    form = {"code", "sentence", "because", "try"}
    assert status("/api/envelope/show", {"no": "such field"}) == (400, form)
    assert status("/api/envelope/show", {"id": "abcdefab"}) == (404, form)
    assert status("/api/no/such", {}) == (404, form)
    key = {"idempotency-key": "twice"}
    assert rim.ask("POST", "/api/token/create", {"label": "one"}, token=rim.token, headers=key).status == 200
    assert status("/api/token/create", {"label": "two"}, **key) == (409, form)


def test_the_house_tells_programs_what_can_be_asked_and_each_only_what_it_may(rim: Rim) -> None:
    guest = rim.member("gus")
    rim.do("person.role", name="gus", role="guest")
    whole = rim.ask("GET", "/api/openapi.json", token=rim.token).json
    part = rim.ask("GET", "/api/openapi.json", token=guest).json
    assert whole["openapi"].startswith("3.1")
    assert "/api/person/invite" in whole["paths"]
    assert "/api/person/invite" not in part["paths"]
    assert "/api/envelope/send" in part["paths"]
    names = {each["name"] for each in rim.ask("GET", "/api/operations", token=guest).json["operations"]}
    assert {route["post"]["operationId"] for route in part["paths"].values()} == names
    assert rim.ask("GET", "/api/openapi.json").status == 401
    refused = whole["components"]["responses"]
    for route in whole["paths"].values():
        for answer in route["post"]["responses"].values():
            assert refused.get(answer.get("$ref", "").rpartition("/")[2], answer)["description"]


def test_counts_are_for_the_privileged_and_hold_no_ids(rim: Rim) -> None:
    token = rim.member("ines")
    assert rim.ask("GET", "/api/metrics").status == 401
    assert rim.ask("GET", "/api/metrics", token=token).status == 403
    sent = rim.do("envelope.send", to="agent:guide", text="echo x")
    page = rim.ask("GET", "/api/metrics", token=rim.token)
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = page.body.decode()
    for name in (
        "retinue_envelopes{",
        "retinue_runs{",
        "retinue_queue ",
        "retinue_commits_total ",
        "retinue_websockets ",
    ):
        assert name in text
    assert sent["session"] not in text and "ines" not in text


def test_health_says_nothing_else_and_readiness_asks_the_store(rim: Rim) -> None:
    assert rim.ask("GET", "/api/health").json == {"alive": True}
    assert rim.ask("GET", "/api/ready").json == {"ready": True}


def test_answers_are_kept_by_nobody_and_framed_by_nobody(rim: Rim) -> None:
    for answer in (rim.ask("GET", "/api/health"), rim.ask("POST", STATUS, {})):
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.spec("C90.proxy")
def test_behind_a_proxy_the_cookie_is_for_tls_alone_and_guessers_are_told_apart_by_their_own_address(
    tmp_path: Path,
) -> None:
    settings = """
[house]
public_url = "https://house.example"
trusted_proxies = ["127.0.0.1"]
[house.limits]
sign_in_attempts_max = 2
"""
    proxied = {"host": "house.example", "x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.7"}
    with open_rim(tmp_path, settings) as rim:
        code = rim.do("token.code")["code"]
        page = {**proxied, "origin": "https://house.example"}
        entered = rim.ask("POST", "/api/sign-in", {"code": code}, headers=page)
        assert "; Secure" in entered.headers["set-cookie"]
        guesses = [rim.ask("POST", STATUS, {}, token=f"guess-{n}", headers=proxied).status for n in range(3)]
        assert guesses == [401, 401, 429]
        elsewhere = {**proxied, "x-forwarded-for": "203.0.113.7, 198.51.100.9"}
        assert rim.ask("POST", STATUS, {}, token="guess", headers=elsewhere).status == 401
        assert rim.ask("POST", STATUS, {}, headers={**proxied, "host": "evil.example"}).status == 421


def test_a_route_asked_with_the_wrong_method_names_the_right_one(rim: Rim) -> None:
    for method, path, allowed in (("GET", STATUS, "POST"), ("POST", "/api/health", "GET"), ("PUT", "/api/news", "GET")):
        refused = rim.ask(method, path, token=rim.token)
        assert (refused.status, refused.code, refused.headers["allow"]) == (405, "route.method_not_allowed", allowed)


def test_queries_that_make_no_sense_are_refused_in_words(rim: Rim) -> None:
    for query, status in (
        ("after=x", 400),
        ("after=-1", 400),
        ("session=%00", 404),
        ("&".join("a=b" for _ in range(99)), 400),
    ):
        assert rim.ask("GET", f"/api/news?{query}", token=rim.token).status == status


def test_a_revoked_token_is_worth_nothing_from_the_very_next_request_on(rim: Rim) -> None:
    for _ in range(5):
        made = rim.do("token.create", label="brief")
        assert {rim.ask("POST", STATUS, {}, token=made["token"]).status for _ in range(3)} == {200}
        rim.do("token.revoke", id=made["id"])
        assert rim.ask("POST", STATUS, {}, token=made["token"]).status == 401


def test_the_state_is_there_for_a_browser_that_opens(rim: Rim) -> None:
    opened = rim.ask("GET", "/api/state", headers={"cookie": rim.sign_in()})
    assert opened.status == 200 and opened.json["you"] == "person:owner"
    assert opened.json == rim.do("house.state")
    assert rim.ask("GET", "/api/state").status == 401
