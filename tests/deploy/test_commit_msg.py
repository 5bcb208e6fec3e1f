"""The hook that checks commit messages."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOOK = ROOT / ".githooks" / "commit-msg"
BODY = "\n\nThe old one was read twice.\n"


def refusal(directory: Path, message: str) -> str:
    """Return what the hook says against a message; "" if it accepts it."""
    file = directory / "COMMIT_EDITMSG"
    file.write_text(message)
    done = subprocess.run(
        [HOOK, file],
        cwd=directory,
        # Characters count, whatever the locale.
        env=os.environ | {"LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (1 if done.stderr else 0)
    return done.stderr


@pytest.mark.parametrize(
    "message",
    [
        "Streams: one threshold for large messages" + BODY,
        "x" * 72 + BODY,
        "ü" * 72 + BODY,
        "A subject\n\nA body\n\nSigned-off-by: A <a@example.org>\n",
        "# a comment\nA subject\n# another one\n\nA body\n",
        "A subject\n\nA body\n# ------------------------ >8 ------------------------\n" + "+" * 99,
        "Merge branch 'streams'\n",
        'Revert "' + "x" * 72 + '"\n\nThis reverts commit 0123456.\n',
        "fixup! Streams: one threshold for large messages\n",
    ],
)
def test_a_message_with_subject_and_body_is_accepted(tmp_path: Path, message: str) -> None:
    assert refusal(tmp_path, message) == ""


@pytest.mark.parametrize(
    "message, reason",
    [
        ("x" * 73 + BODY, "73 characters"),
        ("ü" * 73 + BODY, "73 characters"),
        ("A subject\nA body\n", "not blank"),
        ("A subject\n", "no body"),
        ("A subject\n\n# a comment\n", "no body"),
        ("A subject\n\nSigned-off-by: A <a@example.org>\n", "no body"),
        ("Merged the branches\n", "no body"),
    ],
)
def test_a_message_without_subject_or_body_is_refused(tmp_path: Path, message: str, reason: str) -> None:
    assert reason in refusal(tmp_path, message)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_after_make_hooks_git_refuses_such_a_commit(tmp_path: Path) -> None:
    quiet = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    own = {
        name: value
        for name, value in quiet.items()
        if not name.startswith(("GIT_DIR", "GIT_INDEX", "GIT_WORK"))
    }

    def run(*command: str) -> int:
        return subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, check=False).returncode

    (tmp_path / ".githooks").mkdir()
    shutil.copy(HOOK, tmp_path / ".githooks" / "commit-msg")
    assert run("git", "init") == 0
    commit = (
        "git",
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.org",
        "commit",
        "--allow-empty",
        "-m",
        "One line",
    )
    assert run(*commit) == 0
    assert run("make", "-f", str(ROOT / "Makefile"), "hooks") == 0
    assert run(*commit) == 1
    assert run(*commit, "-m", "It says why.") == 0
