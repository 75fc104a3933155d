"""Operations exported as a skill: its command line program runs against a real server."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from agents.skill_folders import instance_skill_root
from cli.server_process import ServerProcess

from retinue.agents import skill_bundles
from retinue.agents.skill_bundles import BundleCommand, BundleOption, SkillBundle
from retinue.agents.skill_discovery import find_skills
from retinue.domain.errors import Conflict, Invalid, NotFound
from retinue.operations.catalog import OPERATIONS
from retinue.operations.skill.skills import build_bundle

RUNS_WITHIN_S = 90


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("server") / "home")
    process.open()
    yield process
    process.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("skills")
    for noun in ("agent", "envelope", "server", "session"):
        skill_bundles.write_bundle(build_bundle(noun, OPERATIONS), to)
    return to


def child_environment(server: ServerProcess, **changed: str) -> dict[str, str]:
    """Leave out our packages and variables, which do not exist where the skill is used."""
    made = {
        "PATH": os.environ["PATH"],
        "RETINUE_SOCKET": (server.home / "socket").read_text(),
        "RETINUE_TOKEN": (server.home / "owner-token").read_text().strip(),
        **changed,
    }
    return {name: value for name, value in made.items() if value}


def run(folder: Path, noun: str, *words: str, env: dict[str, str], stdin: str = "") -> tuple[int, Any, Any]:
    cli = folder / f"retinue-{noun}" / f"retinue-{noun}-cli"
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(cli), *words],
        env=env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=RUNS_WITHIN_S,
        cwd="/",
    )
    output = json.loads(done.stdout) if done.stdout and done.stdout[0] in "{[" else done.stdout
    return done.returncode, output, json.loads(done.stderr)["error"] if done.stderr else {}


def url_of(server: ServerProcess) -> str:
    return (server.home / "address").read_text()


@pytest.mark.spec("A42")
def test_an_exported_skill_bundle_is_a_skill_with_an_executable_cli(folder: Path, server: ServerProcess) -> None:
    found = find_skills([instance_skill_root(folder)])
    assert [(skill.name, skill.front_matter.bundle) for skill in found.skills] == [
        ("retinue-agent", "agent"),
        ("retinue-envelope", "envelope"),
        ("retinue-server", "server"),
        ("retinue-session", "session"),
    ]
    words = (folder / "retinue-session" / "SKILL.md").read_text()
    for operation in OPERATIONS.values():
        noun, verb = operation.command
        if noun == "session":
            assert f"\n## {verb}\n\n{operation.summary}\n" in words
    assert all(f"| {code} | " in words for code in range(5))
    done = subprocess.run(  # by its shebang, as an agent would
        [str(folder / "retinue-server" / "retinue-server-cli"), "status"],
        env=child_environment(server),
        capture_output=True,
        timeout=RUNS_WITHIN_S,
    )
    assert done.returncode == 0 and "version" in json.loads(done.stdout)


@pytest.mark.spec("A42")
@pytest.mark.parametrize("way", ["socket", "url"])
def test_a_skill_bundle_cli_calls_the_server_and_prints_its_answer(
    folder: Path, server: ServerProcess, way: str
) -> None:
    env = (
        child_environment(server)
        if way == "socket"
        else child_environment(server, RETINUE_SOCKET="", RETINUE_URL=url_of(server))
    )
    code, sent, _ = run(folder, "envelope", "send", "agent:guide", "-", "--once", f"key-{way}", env=env, stdin="help\n")
    assert code == 0 and sent["envelope"]
    again = run(folder, "envelope", "send", "agent:guide", "-", "--once", f"key-{way}", env=env, stdin="help\n")
    assert again[:2] == (0, sent)
    code, shown, _ = run(folder, "envelope", "show", sent["envelope"], env=env)
    assert code == 0 and shown["text"] == "help"
    code, listed, _ = run(folder, "session", "list", "--limit", "5", env=env)
    assert code == 0 and "guide" in json.dumps(listed["sessions"])


@pytest.mark.spec("A42")
def test_a_skill_bundle_cli_takes_lists_as_json_comma_separated_or_repeated(
    folder: Path, server: ServerProcess
) -> None:
    env = child_environment(server)
    for name, words in (
        ("by-json", ["--tools-allow", '["read", "session_status"]']),
        ("by-comma", ["--tools-allow", "read, session_status"]),
        ("one-by-one", ["--tools-allow", "read", "--tools-allow", "session_status"]),
    ):
        code, _, error = run(folder, "agent", "register", name, "--model", "guide", *words, env=env)
        assert (code, error) == (0, {})
        code, shown, _ = run(folder, "agent", "show", name, env=env)
        assert code == 0 and "read" in json.dumps(shown) and "session_status" in json.dumps(shown)
        assert '["read", "session_status"]' in json.dumps(shown)


@pytest.mark.spec("A42")
@pytest.mark.parametrize(
    ("words", "changed", "exits", "code"),
    [
        (["show", "nobody"], {}, 4, "agent.not_found"),  # the server refuses
        (["show", "guide"], {"RETINUE_TOKEN": "wrong"}, 4, ""),
        (["show", "guide"], {"RETINUE_SOCKET": "/nowhere.sock"}, 4, "server.not_running"),
        (["show", "guide"], {"RETINUE_URL": "http://127.0.0.1:9", "RETINUE_SOCKET": ""}, 4, "server.not_running"),
        (["show", "guide"], {"RETINUE_SOCKET": ""}, 3, "config.no_server"),
        (["show", "guide"], {"RETINUE_TOKEN": ""}, 3, "config.no_token"),
        (["show", "guide"], {"RETINUE_URL": "ftp://server"}, 3, "config.invalid"),
        (["show", "guide"], {"RETINUE_URL": "http://me:pw@server"}, 3, "config.invalid"),
        (["show"], {}, 2, "usage.invalid"),
        (["fly"], {}, 2, "usage.invalid"),
        ([], {}, 2, "usage.invalid"),
        (["versions", "guide", "--limit", "many"], {}, 2, "usage.invalid"),
        (["set", "guide", "--queue-mode", "sideways"], {}, 2, "usage.invalid"),
    ],
)
def test_a_skill_bundle_cli_has_an_exit_code_for_each_kind_of_error(
    folder: Path, server: ServerProcess, words: list[str], changed: dict[str, str], exits: int, code: str
) -> None:
    got, output, error = run(folder, "agent", *words, env=child_environment(server, **changed))
    assert (got, output) == (exits, "")
    assert error["sentence"] and (not code or error["code"] == code)
    assert child_environment(server)["RETINUE_TOKEN"] not in json.dumps(error)


@pytest.mark.spec("A42")
def test_an_internal_error_of_a_skill_bundle_cli_exits_with_1(
    folder: Path, server: ServerProcess, tmp_path: Path
) -> None:
    source = (folder / "retinue-server" / "retinue-server-cli").read_text()
    broken = tmp_path / "retinue-server" / "retinue-server-cli"
    broken.parent.mkdir()
    broken.write_text(source.replace("'route': '/api/server/status'", "'route': None"))
    got, _, error = run(tmp_path, "server", "status", env=child_environment(server))
    assert (got, error["code"]) == (1, "cli.internal_error")


def test_the_help_of_a_skill_bundle_cli_exits_with_0(folder: Path, server: ServerProcess) -> None:
    got, output, _ = run(folder, "agent", "show", "--help", env=child_environment(server))
    assert got == 0 and "NAME" in output


class PrefixProxy(http.server.BaseHTTPRequestHandler):
    """A proxy that serves the server below /server/of/ada, and nothing elsewhere."""

    upstream = ""
    received_requests: ClassVar[list[tuple[str, str | None]]] = []

    def do_POST(self) -> None:
        self.received_requests.append((self.path, self.headers.get("X-Retinue-Session")))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/moved"):
            self.send_response(307)
            self.send_header("Location", f"http://{self.headers['Host']}/server/of/ada{self.path[6:]}")
            self.end_headers()
            return
        if not self.path.startswith("/server/of/ada/api/"):
            self.send_error(404)
            return
        asked = urllib.request.Request(self.upstream + self.path.removeprefix("/server/of/ada"), body)
        for name in ("Authorization", "Content-Type"):
            asked.add_header(name, self.headers[name])
        with urllib.request.urlopen(asked, timeout=RUNS_WITHIN_S) as answer:
            body_read = answer.read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body_read)))
        self.end_headers()
        self.wfile.write(body_read)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[str]:
    PrefixProxy.upstream = url_of(server)
    PrefixProxy.received_requests.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), PrefixProxy) as proxy_server:
        serving = threading.Thread(target=proxy_server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{proxy_server.server_address[1]}"
        proxy_server.shutdown()
        serving.join()


@pytest.mark.spec("A42")
def test_a_skill_bundle_cli_keeps_the_path_of_the_server_url_and_sends_the_session(
    folder: Path, server: ServerProcess, proxy: str
) -> None:
    for url in (f"{proxy}/server/of/ada", f"{proxy}/server/of/ada/"):
        env = child_environment(server, RETINUE_URL=url, RETINUE_SESSION="from-env")
        assert run(folder, "agent", "show", "guide", env=env)[0] == 0
    run(folder, "agent", "show", "guide", "-s", "typed", env=env)
    assert PrefixProxy.received_requests == [
        ("/server/of/ada/api/agent/show", "from-env"),
        ("/server/of/ada/api/agent/show", "from-env"),
        ("/server/of/ada/api/agent/show", "typed"),
    ]
    got, _, error = run(folder, "agent", "show", "guide", env=child_environment(server, RETINUE_URL=proxy))
    assert (got, error["status"]) == (4, 404)


def test_a_skill_bundle_cli_does_not_follow_redirects_with_its_token(
    folder: Path, server: ServerProcess, proxy: str
) -> None:
    env = child_environment(server, RETINUE_URL=f"{proxy}/moved")
    got, _, error = run(folder, "agent", "show", "guide", env=env)
    assert (got, error["status"], len(PrefixProxy.received_requests)) == (4, 307, 1)


# Writing an exported skill

BUNDLE = SkillBundle(
    noun="tides",
    commands=(
        BundleCommand(
            verb="look-up",
            summary='Look up "tides" \\ 100 % sure.',
            route="/api/tides/look-up",
            effect=True,
            parameters=(
                BundleOption(name="place", option="--place", kind="text", help="where", required=True, positional=True),
                BundleOption(name="command", option="--command", kind="json", help="50 % of it", nullable=True),
                BundleOption(
                    name="session", option="--session", kind="choice", help="which", choices=("a", "b"), default="a"
                ),
            ),
        ),
    ),
)


def test_exporting_a_skill_bundle_replaces_only_an_older_version_of_that_bundle(tmp_path: Path) -> None:
    first = {file: file.read_bytes() for file in skill_bundles.write_bundle(BUNDLE, tmp_path)}
    (tmp_path / "retinue-tides" / "skill-extra.md").write_text("## Also\n\nAsk a sailor.\n")
    skill_bundles.write_bundle(BUNDLE, tmp_path)
    words = (tmp_path / "retinue-tides" / "SKILL.md").read_text()
    assert words.endswith("Ask a sailor.\n") and "## look-up" in words
    assert (tmp_path / "retinue-tides" / "retinue-tides-cli").read_bytes() in first.values()
    assert sorted(path.name for path in (tmp_path / "retinue-tides").iterdir()) == [
        "SKILL.md",
        "retinue-tides-cli",
        "skill-extra.md",
    ]
    for other in (SkillBundle(noun="agent", commands=()), SkillBundle(noun="session", commands=())):
        taken = tmp_path / other.name
        taken.mkdir()
        (taken / "SKILL.md").write_text("---\nname: mine\ndescription: Written by hand.\n---\n")
        with pytest.raises(Conflict):
            skill_bundles.write_bundle(other, tmp_path)
        assert "Written by hand." in (taken / "SKILL.md").read_text() and len(list(taken.iterdir())) == 1


def test_exporting_a_skill_bundle_into_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid):
        skill_bundles.write_bundle(BUNDLE, tmp_path / "file")


def test_special_characters_in_an_exported_skill_bundle_are_escaped(tmp_path: Path) -> None:
    skill_bundles.write_bundle(BUNDLE, tmp_path)
    [skill] = find_skills([instance_skill_root(tmp_path)]).skills
    assert 'Look up "tides" \\ 100 % sure.' in skill.front_matter.description
    env = {"PATH": os.environ["PATH"], "RETINUE_SOCKET": "/nowhere", "RETINUE_TOKEN": "x"}
    got, output, _ = run(tmp_path, "tides", "look-up", "--help", env=env)
    assert got == 0 and "50 % of it" in output
    assert run(tmp_path, "tides", "look-up", "here", "--session", "c", env=env)[0] == 2
    assert run(tmp_path, "tides", "look-up", "here", "--command", "{", env=env)[0] == 2
    assert run(tmp_path, "tides", "look-up", "here", "--command", "null", "--session", "b", env=env)[0] == 4


def test_a_skill_bundle_of_an_unknown_command_noun_is_not_found() -> None:
    with pytest.raises(NotFound) as refused:
        build_bundle("tides", OPERATIONS)
    assert "session" in refused.value.because
