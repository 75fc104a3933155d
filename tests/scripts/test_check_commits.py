"""`scripts/check_commits.py`: the form of commit subjects."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import check_commits


@pytest.mark.parametrize(
    "subject",
    [
        "intake: wake an agent once for a redelivered message",
        "store, engine: commit the idempotency key with its effect",
        "web: open the keyboard help in a conversation",
        "Merge branch 'main'",
    ],
)
def test_a_commit_subject_with_package_and_imperative_is_accepted(subject: str) -> None:
    assert check_commits.find_fault(subject) == ""


@pytest.mark.parametrize(
    ("subject", "fault"),
    [
        ("Fix the tests", "not of the form"),
        ("intake: Wake an agent", "not of the form"),
        ("intake: wake an agent.", "not of the form"),
        ("intake:wake an agent", "not of the form"),
        ("intake: " + "a" * 65, "longer than 72"),
    ],
)
def test_another_commit_subject_is_refused_with_the_reason(subject: str, fault: str) -> None:
    assert fault in check_commits.find_fault(subject)


def test_only_commits_after_the_check_was_added_are_checked(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)

    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "-m", "An old subject")
    (tmp_path / "scripts").mkdir()
    shutil.copy(check_commits.__file__, tmp_path / "scripts" / "check_commits.py")
    git("add", ".")
    git("commit", "--quiet", "-m", "scripts: check commit subjects")
    assert check_commits.list_new_commits(tmp_path) == []
    git("commit", "--quiet", "--allow-empty", "-m", "A new subject")
    assert [subject for _, subject in check_commits.list_new_commits(tmp_path)] == ["A new subject"]
