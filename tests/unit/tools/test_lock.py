# SPDX-License-Identifier: GPL-3.0-or-later
"""The locks in requirements/ fit pyproject.toml, and nothing that does not is overlooked."""

from __future__ import annotations

import re
import shutil

import pytest

from tools import lock

NAMES = ("agent", "control", "dev", "ssh")


def test_the_locks_fit_pyproject():
    """When this fails: python -m tools.lock --keep"""
    assert lock.lock_problems() == []
    assert sorted(lock.needed_requirements()) == [*NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_names_packages_and_nothing_of_a_machine(name):
    text = (lock.FOLDER / f"{name}.txt").read_text()
    assert len(text) < 1_000_000
    assert re.sub(r"#.*|--hash=sha256:[0-9a-f]{64}|[a-z0-9-]+==[0-9a-z.]+|\\|\s", "", text) == ""
    assert not re.search(r"://|index|find-links|^# .*/", text, re.MULTILINE)
    for pin in lock.read_lock(name).values():
        assert pin.hashes and pin.name not in lock.OF_THE_DISTRIBUTION


def test_what_builds_the_project_is_locked_too():
    assert all("setuptools" in lock.read_lock(name) for name in NAMES)


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of the locks, which may be changed."""
    shutil.copytree(lock.FOLDER, tmp_path / "requirements")
    monkeypatch.setattr(lock, "FOLDER", tmp_path / "requirements")
    return tmp_path / "requirements"


def change(file, pattern, by):
    text, count = re.subn(pattern, by, file.read_text(), flags=re.MULTILINE)
    assert count
    file.write_text(text)


@pytest.mark.parametrize(("name", "pattern", "by", "said"), [
    ("agent", r"^pyyaml==\S+", "pyyaml==5.4", r"agent: pyproject.toml asks for pyyaml>=6.0, the lock has 5.4"),
    ("agent", r"^pyyaml==[^#]*?(?=^\w)", "", r"agent: pyproject.toml asks for pyyaml>=6.0, the lock has none"),
    ("agent", r"^(pycdlib==[0-9.]+) \\\n(    --hash.*\n)+", r"\1\n", r"agent: pycdlib has no hash"),
    ("control", r"^pyyaml==\S+", "pyyaml==6.99", r"control: pyyaml 6.99 is not what requirements/dev.txt has"),
])
def test_a_lock_that_does_not_fit_is_told(copied, name, pattern, by, said):
    change(copied / f"{name}.txt", pattern, by)
    assert any(re.match(said, one) for one in lock.lock_problems()), lock.lock_problems()


@pytest.mark.parametrize(("line", "said"), [
    ("pyyaml>=6.0", r"'pyyaml>=6.0' is no package with its version"),
    ("--index-url https://example.com", r"is no package with its version"),
    ("pyyaml==6.0.3 \\\n    --hash=sha256:00", r"has pyyaml twice"),
])
def test_a_line_that_is_no_pin_is_refused(copied, line, said):
    change(copied / "agent.txt", r"\Z", f"{line}\n")
    with pytest.raises(ValueError, match=said):
        lock.lock_problems()


def test_there_is_a_lock_for_each_extra(copied):
    (copied / "ssh.txt").rename(copied / "web.txt")
    assert lock.lock_problems() == ["requirements/web.txt is there for no extra.", "requirements/ssh.txt is missing."]


def test_a_marker_that_always_holds_is_left_out():
    text = ("one==1 ; python_full_version < '3.14' and sys_platform == 'linux' \\\n    --hash=sha256:ab\n"
            "    # via\n    #   -c versions\n    #   -r -\n"
            "two==2 ; python_full_version < '3.12' \\\n    --hash=sha256:cd\n    # via\n    #   -r -\n    #   one\n")
    assert lock.simplify_lock(text) == (
        "one==1 \\\n    --hash=sha256:ab\n"
        "two==2 ; python_full_version < '3.12' \\\n    --hash=sha256:cd\n    # via\n    #   one\n")
