"""Operations exported as a skill: the command line beside it is run for real, against a real house."""

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
from agents.skill_folders import house_root
from cli.server_process import HouseProcess

from retinue.agents import skill_bundles
from retinue.agents.skill_bundles import BundleCommand, BundleOption, SkillBundle
from retinue.agents.skill_discovery import find_skills
from retinue.domain.errors import Conflict, Invalid, NotFound
from retinue.operations.catalog import OPERATIONS
from retinue.operations.skill.skills import build_bundle

RUNS_WITHIN_S = 90


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HouseProcess]:
    process = HouseProcess(tmp_path_factory.mktemp("house") / "home")
    process.open()
    yield process
    process.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("skills")
    for noun in ("agent", "envelope", "house", "session"):
        skill_bundles.write_bundle(build_bundle(noun, OPERATIONS), to)
    return to


def surroundings(house: HouseProcess, **changed: str) -> dict[str, str]:
    """Nothing of ours: neither our packages nor our variables are there where the skill is used."""
    made = {
        "PATH": os.environ["PATH"],
        "RETINUE_SOCKET": (house.home / "socket").read_text(),
        "RETINUE_TOKEN": (house.home / "owner-token").read_text().strip(),
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
    said = json.loads(done.stdout) if done.stdout and done.stdout[0] in "{[" else done.stdout
    return done.returncode, said, json.loads(done.stderr)["error"] if done.stderr else {}


def address(house: HouseProcess) -> str:
    return (house.home / "address").read_text()


@pytest.mark.spec("A42")
def test_a_bundle_is_a_skill_with_a_command_line_that_can_be_run(folder: Path, house: HouseProcess) -> None:
    found = find_skills([house_root(folder)])
    assert [(skill.name, skill.front_matter.bundle) for skill in found.skills] == [
        ("retinue-agent", "agent"),
        ("retinue-envelope", "envelope"),
        ("retinue-house", "house"),
        ("retinue-session", "session"),
    ]
    words = (folder / "retinue-session" / "SKILL.md").read_text()
    for operation in OPERATIONS.values():
        noun, _, verb = operation.name.partition(".")
        if noun == "session":
            assert f"\n## {verb}\n\n{operation.summary}\n" in words
    assert all(f"| {code} | " in words for code in range(5))
    done = subprocess.run(  # by its own first line, as an agent would
        [str(folder / "retinue-house" / "retinue-house-cli"), "status"],
        env=surroundings(house),
        capture_output=True,
        timeout=RUNS_WITHIN_S,
    )
    assert done.returncode == 0 and "version" in json.loads(done.stdout)


@pytest.mark.spec("A42")
@pytest.mark.parametrize("way", ["socket", "url"])
def test_it_asks_the_house_and_prints_what_it_says(folder: Path, house: HouseProcess, way: str) -> None:
    env = surroundings(house) if way == "socket" else surroundings(house, RETINUE_SOCKET="", RETINUE_URL=address(house))
    code, sent, _ = run(folder, "envelope", "send", "agent:guide", "-", "--once", f"key-{way}", env=env, stdin="help\n")
    assert code == 0 and sent["envelope"]
    again = run(folder, "envelope", "send", "agent:guide", "-", "--once", f"key-{way}", env=env, stdin="help\n")
    assert again[:2] == (0, sent)
    code, shown, _ = run(folder, "envelope", "show", sent["envelope"], env=env)
    assert code == 0 and shown["text"] == "help"
    code, listed, _ = run(folder, "session", "list", "--limit", "5", env=env)
    assert code == 0 and "guide" in json.dumps(listed["sessions"])


@pytest.mark.spec("A42")
def test_lists_are_given_as_json_by_commas_or_one_by_one(folder: Path, house: HouseProcess) -> None:
    env = surroundings(house)
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
        (["show", "nobody"], {}, 4, "agent.not_found"),  # the house refuses
        (["show", "guide"], {"RETINUE_TOKEN": "wrong"}, 4, ""),
        (["show", "guide"], {"RETINUE_SOCKET": "/nowhere.sock"}, 4, "server.not_running"),
        (["show", "guide"], {"RETINUE_URL": "http://127.0.0.1:9", "RETINUE_SOCKET": ""}, 4, "server.not_running"),
        (["show", "guide"], {"RETINUE_SOCKET": ""}, 3, "config.no_server"),
        (["show", "guide"], {"RETINUE_TOKEN": ""}, 3, "config.no_token"),
        (["show", "guide"], {"RETINUE_URL": "ftp://house"}, 3, "config.invalid"),
        (["show", "guide"], {"RETINUE_URL": "http://me:pw@house"}, 3, "config.invalid"),
        (["show"], {}, 2, "usage.invalid"),
        (["fly"], {}, 2, "usage.invalid"),
        ([], {}, 2, "usage.invalid"),
        (["versions", "guide", "--limit", "many"], {}, 2, "usage.invalid"),
        (["set", "guide", "--queue-mode", "sideways"], {}, 2, "usage.invalid"),
    ],
)
def test_the_exit_code_says_what_went_wrong(
    folder: Path, house: HouseProcess, words: list[str], changed: dict[str, str], exits: int, code: str
) -> None:
    got, said, error = run(folder, "agent", *words, env=surroundings(house, **changed))
    assert (got, said) == (exits, "")
    assert error["sentence"] and (not code or error["code"] == code)
    assert surroundings(house)["RETINUE_TOKEN"] not in json.dumps(error)


@pytest.mark.spec("A42")
def test_what_nobody_thought_of_ends_with_1(folder: Path, house: HouseProcess, tmp_path: Path) -> None:
    source = (folder / "retinue-house" / "retinue-house-cli").read_text()
    broken = tmp_path / "retinue-house" / "retinue-house-cli"
    broken.parent.mkdir()
    broken.write_text(source.replace("'route': '/api/house/status'", "'route': None"))
    got, _, error = run(tmp_path, "house", "status", env=surroundings(house))
    assert (got, error["code"]) == (1, "cli.internal_error")


def test_help_is_no_mistake(folder: Path, house: HouseProcess) -> None:
    got, said, _ = run(folder, "agent", "show", "--help", env=surroundings(house))
    assert got == 0 and "NAME" in said


class Prefixed(http.server.BaseHTTPRequestHandler):
    """A proxy that has the house below /house/of/ada, and nothing elsewhere."""

    house = ""
    heard: ClassVar[list[tuple[str, str | None]]] = []

    def do_POST(self) -> None:
        self.heard.append((self.path, self.headers.get("X-Retinue-Session")))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/moved"):
            self.send_response(307)
            self.send_header("Location", f"http://{self.headers['Host']}/house/of/ada{self.path[6:]}")
            self.end_headers()
            return
        if not self.path.startswith("/house/of/ada/api/"):
            self.send_error(404)
            return
        asked = urllib.request.Request(self.house + self.path.removeprefix("/house/of/ada"), body)
        for name in ("Authorization", "Content-Type"):
            asked.add_header(name, self.headers[name])
        with urllib.request.urlopen(asked, timeout=RUNS_WITHIN_S) as answer:
            told = answer.read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def proxy(house: HouseProcess) -> Iterator[str]:
    Prefixed.house = address(house)
    Prefixed.heard.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Prefixed) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        serving.join()


@pytest.mark.spec("A42")
def test_a_path_in_the_address_of_the_house_is_kept_and_the_session_is_told(
    folder: Path, house: HouseProcess, proxy: str
) -> None:
    for url in (f"{proxy}/house/of/ada", f"{proxy}/house/of/ada/"):
        env = surroundings(house, RETINUE_URL=url, RETINUE_SESSION="from-env")
        assert run(folder, "agent", "show", "guide", env=env)[0] == 0
    run(folder, "agent", "show", "guide", "-s", "typed", env=env)
    assert Prefixed.heard == [
        ("/house/of/ada/api/agent/show", "from-env"),
        ("/house/of/ada/api/agent/show", "from-env"),
        ("/house/of/ada/api/agent/show", "typed"),
    ]
    got, _, error = run(folder, "agent", "show", "guide", env=surroundings(house, RETINUE_URL=proxy))
    assert (got, error["status"]) == (4, 404)


def test_a_token_does_not_follow_where_it_is_sent(folder: Path, house: HouseProcess, proxy: str) -> None:
    env = surroundings(house, RETINUE_URL=f"{proxy}/moved")
    got, _, error = run(folder, "agent", "show", "guide", env=env)
    assert (got, error["status"], len(Prefixed.heard)) == (4, 307, 1)


# Writing one

BUNDLE = SkillBundle(
    noun="tides",
    commands=(
        BundleCommand(
            verb="look-up",
            summary='Look up "tides" \\ 100 % sure.',
            route="/api/tides/look-up",
            effect=True,
            parameters=(
                BundleOption(name="place", option="--place", kind="text", help="where", required=True, place=True),
                BundleOption(name="command", option="--command", kind="json", help="50 % of it", nullable=True),
                BundleOption(
                    name="session", option="--session", kind="choice", help="which", choices=("a", "b"), default="a"
                ),
            ),
        ),
    ),
)


def test_a_bundle_takes_the_place_of_its_older_self_and_of_nothing_else(tmp_path: Path) -> None:
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


def test_what_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid):
        skill_bundles.write_bundle(BUNDLE, tmp_path / "file")


def test_odd_words_and_names_do_no_harm(tmp_path: Path) -> None:
    skill_bundles.write_bundle(BUNDLE, tmp_path)
    [skill] = find_skills([house_root(tmp_path)]).skills
    assert 'Look up "tides" \\ 100 % sure.' in skill.front_matter.description
    env = {"PATH": os.environ["PATH"], "RETINUE_SOCKET": "/nowhere", "RETINUE_TOKEN": "x"}
    got, said, _ = run(tmp_path, "tides", "look-up", "--help", env=env)
    assert got == 0 and "50 % of it" in said
    assert run(tmp_path, "tides", "look-up", "here", "--session", "c", env=env)[0] == 2
    assert run(tmp_path, "tides", "look-up", "here", "--command", "{", env=env)[0] == 2
    assert run(tmp_path, "tides", "look-up", "here", "--command", "null", "--session", "b", env=env)[0] == 4


def test_operations_that_are_not_there_cannot_be_exported() -> None:
    with pytest.raises(NotFound) as refused:
        build_bundle("tides", OPERATIONS)
    assert "session" in refused.value.because
