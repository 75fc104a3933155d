"""Skills on a real disk: which are used, which are skipped, and that no link leads out."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from agents.skill_folders import instance_skill_root, write_skill

from retinue.agents import skill_discovery
from retinue.agents.skill_discovery import FoundSkills, SkillRoot, find_skills, skill_roots_of
from retinue.agents.skills import SkillSource


def find_in_instance(root: Path) -> FoundSkills:
    return find_skills([instance_skill_root(root)], with_contents=True)


def skill_names(found: FoundSkills) -> list[str]:
    return [skill.name for skill in found.skills]


@pytest.mark.spec("C96")
def test_a_workspace_skill_shadows_agent_instance_plugin_and_extra_skills_of_its_name(tmp_path: Path) -> None:
    home, workspace, extra, guest = (tmp_path / name for name in ("home", "workspace", "extra", "guest"))
    agent_home = home / "agents" / "ada"
    roots = skill_roots_of(
        home,
        agent="ada",
        agent_directory=agent_home,
        workspace=workspace,
        plugins=[("diary", guest)],
        extra=[str(extra)],
    )
    places = [
        (workspace / "skills", SkillSource.WORKSPACE),
        (agent_home / "skills", SkillSource.AGENT),
        (home / "skills", SkillSource.INSTANCE),
        (guest, SkillSource.PLUGIN),
        (extra, SkillSource.EXTRA),
    ]
    for path, source in places:
        write_skill(path, "weather", description=f"From {source}.")
    for left, (path, source) in enumerate(places):
        found = find_skills(roots[::-1])  # in any order of the roots
        assert [(skill.source, skill.front_matter.description) for skill in found.skills] == [
            (source, f"From {source}.")
        ]
        assert len(found.shadowed) == len(places) - left - 1
        shutil.rmtree(path)
    assert find_skills(roots) == FoundSkills()


@pytest.mark.spec("D70")
def test_each_search_finds_the_skills_currently_on_disk(tmp_path: Path) -> None:
    write_skill(tmp_path, "weather", description="First.")
    [first] = find_in_instance(tmp_path).skills
    assert (first.front_matter.description, first.file) == ("First.", tmp_path / "weather" / "SKILL.md")
    stamps = os.stat(first.file)
    write_skill(tmp_path, "weather", description="Later.")  # same length, same time
    os.utime(first.file, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
    write_skill(tmp_path, "tides")
    tides, later = find_in_instance(tmp_path).skills
    assert (tides.name, later.front_matter.description) == ("tides", "Later.")
    assert later.hash != first.hash
    shutil.rmtree(tmp_path / "weather")
    assert skill_names(find_in_instance(tmp_path)) == ["tides"]


def test_every_file_of_a_skill_folder_is_part_of_its_hash_and_content(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "weather", run__sh="echo sun")
    hashes = {find_in_instance(tmp_path).skills[0].hash}
    (folder / "run.sh").write_text("curl evil")
    hashes.add(find_in_instance(tmp_path).skills[0].hash)
    (folder / "run.sh").chmod(0o755)
    hashes.add(find_in_instance(tmp_path).skills[0].hash)
    (folder / "run.sh").rename(folder / "run2.sh")
    hashes.add(find_in_instance(tmp_path).skills[0].hash)
    (folder / ".hidden").write_text("")
    hashes.add(find_in_instance(tmp_path).skills[0].hash)
    (folder / "parts").mkdir()
    (folder / "parts" / "more.md").write_text("more")
    [last] = find_in_instance(tmp_path).skills
    assert len(hashes | {last.hash}) == 6
    assert (
        "curl evil" in last.content
        and "--- run2.sh (executable)" in last.content
        and "--- parts/more.md" in last.content
    )
    assert find_in_instance(tmp_path).skills[0].hash == last.hash  # the same hash for the same files


def test_a_binary_file_of_a_skill_is_shown_by_its_hash(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "weather")
    (folder / "picture").write_bytes(b"\xff\xfe\0")
    [skill] = find_in_instance(tmp_path).skills
    assert "--- picture, 3 bytes, sha256 " in skill.content


@pytest.mark.spec("A43")
def test_skill_folders_are_searched_except_hidden_and_dependency_folders(tmp_path: Path) -> None:
    write_skill(tmp_path / "out" / "side", "weather")
    for passed_over in (".git", "node_modules", "venv", "vendor", "__pycache__"):
        write_skill(tmp_path / passed_over, "tides")
        write_skill(tmp_path / "out" / passed_over, "tides")
    write_skill(tmp_path / "out" / "side" / "weather", "inner")  # skills inside a skill are ignored
    assert skill_names(find_in_instance(tmp_path)) == ["weather"]


@pytest.mark.spec("A43")
def test_skill_links_are_followed_within_the_root_and_not_out_of_it(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    write_skill(outside, "stranger")
    (outside / "secret").write_text("hidden from skills")
    real = write_skill(root / "kept", "weather")
    (root / "linked").mkdir()
    (root / "linked" / "weather").symlink_to(real)  # the same skill twice: one is used, the other is shadowed
    (root / "stranger").symlink_to(outside / "stranger")
    (root / "loop").symlink_to(root)
    found = find_in_instance(root)
    assert skill_names(found) == ["weather"] and [skill.name for skill in found.shadowed] == ["weather"]

    inside = write_skill(root / "kept", "tides")
    (inside / "note").symlink_to(real / "SKILL.md")
    assert skill_names(find_in_instance(root)) == ["tides", "weather"]
    (inside / "note").unlink()
    (inside / "note").symlink_to(outside / "secret")
    found = find_in_instance(root)
    assert skill_names(found) == ["weather"]
    [broken] = found.invalid
    assert broken.folder.name == "tides" and "is a link out of" in broken.because
    assert "hidden from skills" not in repr(found)


@pytest.mark.spec("A43")
def test_a_skill_file_that_links_out_of_the_root_is_invalid(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "weather").mkdir(parents=True)
    outside = write_skill(tmp_path / "outside", "weather") / "SKILL.md"
    (root / "weather" / "SKILL.md").symlink_to(outside)
    found = find_in_instance(root)
    assert not found.skills and "is a link out of" in found.invalid[0].because
    (root / "weather" / "SKILL.md").unlink()
    (root / "weather" / "SKILL.md").write_text(outside.read_text())  # the same text, inside the root
    assert skill_names(find_in_instance(root)) == ["weather"]


def test_a_skill_root_can_be_a_link(tmp_path: Path) -> None:
    write_skill(tmp_path / "real", "weather")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert skill_names(find_in_instance(tmp_path / "link")) == ["weather"]


def test_a_skill_root_given_twice_is_searched_once(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills", "weather")
    roots = [
        SkillRoot(source=SkillSource.WORKSPACE, path=tmp_path / "skills", owner="x"),
        SkillRoot(source=SkillSource.AGENT, path=tmp_path / "skills", owner="ada"),
    ]
    found = find_skills(roots)
    assert len(found.skills) == 1 and not found.shadowed


def test_invalid_skills_are_reported_and_the_others_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skill_discovery, "FILE_BYTES_MAX", 1_000)
    monkeypatch.setattr(skill_discovery, "SKILL_BYTES_MAX", 5_000)
    monkeypatch.setattr(skill_discovery, "FILES_MAX", 5)
    write_skill(tmp_path, "a-long", body="x" * 1_000)
    write_skill(tmp_path, "b-heavy", data="x" * 5_000)
    write_skill(tmp_path, "c-many", **{f"file{n}": "x" for n in range(6)})
    piped = write_skill(tmp_path, "d-piped")
    os.mkfifo(piped / "pipe")  # opening it would block for ever
    (write_skill(tmp_path, "e-bytes") / "SKILL.md").write_bytes(b"---\nname: e-bytes\n\xff")
    (tmp_path / "f-dangling").mkdir()
    (tmp_path / "f-dangling" / "SKILL.md").symlink_to("nowhere")
    write_skill(tmp_path, "weather")
    found = find_in_instance(tmp_path)
    assert skill_names(found) == ["weather"]
    assert {each.folder.name: each.because.split(":")[0] for each in found.invalid} == {
        "a-long": "SKILL.md is too large",
        "b-heavy": "data is too large",
        "c-many": "the limit is 5 files",
        "d-piped": "pipe is not a regular file",
        "e-bytes": "its SKILL.md is not UTF-8",
    }


def test_the_number_of_searched_folders_and_found_skills_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skill_discovery, "FOLDERS_MAX", 10)
    for n in range(20):
        (tmp_path / f"empty{n:02}").mkdir()
    write_skill(tmp_path, "weather")
    found = find_in_instance(tmp_path)
    assert not found.skills and "more than 10 folders" in found.invalid[0].because
    monkeypatch.setattr(skill_discovery, "FOLDERS_MAX", 30)
    assert skill_names(find_in_instance(tmp_path)) == ["weather"]
    monkeypatch.setattr(skill_discovery, "SKILLS_MAX", 2)
    for name in ("one", "three", "two"):
        write_skill(tmp_path, name)
    found = find_in_instance(tmp_path)
    assert len(found.skills) == 2 and "more than 2 skills" in found.invalid[0].because


def test_a_skill_bundle_without_its_executable_cli_is_invalid(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "retinue-session", front="bundle: session\n")
    assert "is missing from its folder" in find_in_instance(tmp_path).invalid[0].because
    cli = folder / "retinue-session-cli"
    cli.write_text("#!/bin/sh\n")
    assert "not executable" in find_in_instance(tmp_path).invalid[0].because
    cli.chmod(0o755)
    assert find_in_instance(tmp_path).skills[0].front_matter.bundle == "session"


def test_skills_of_one_name_in_two_workspaces_have_different_approval_keys(tmp_path: Path) -> None:
    write_skill(tmp_path / "a" / "skills", "weather")
    write_skill(tmp_path / "b" / "skills", "weather")
    keys = {
        find_skills(skill_roots_of(tmp_path / "home", workspace=tmp_path / place)).skills[0].key for place in ("a", "b")
    }
    assert len(keys) == 2 and all(len(key) <= 256 for key in keys)
