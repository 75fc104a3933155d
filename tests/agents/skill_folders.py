"""Skill folders on disk, for tests."""

from __future__ import annotations

from pathlib import Path

from retinue.agents.skill_discovery import SkillRoot
from retinue.agents.skills import HostFacts, SkillSource


def write_skill(
    root: Path, name: str, *, description: str = "How it is done.", front: str = "", body: str = "Do it.", **files: str
) -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(f"---\nname: {folder.name}\ndescription: {description}\n{front}---\n{body}\n")
    for file, text in files.items():
        (folder / file.replace("__", ".")).write_text(text)
    return folder


def instance_skill_root(path: Path) -> SkillRoot:
    return SkillRoot(source=SkillSource.INSTANCE, path=path)


def host_facts(*, bins: str = "", env: str = "", config: str = "", os: str = "linux") -> HostFacts:
    return HostFacts(
        os=os,
        has_bin=lambda name: name in bins.split(),
        has_env=lambda name: name in env.split(),
        has_config=lambda path: path in config.split(),
    )
