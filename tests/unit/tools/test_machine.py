# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps that prepare a machine: how packages of locks are installed, and steps beside one another."""

from __future__ import annotations

import importlib
import stat
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
LOCK = """\
uv==1.2.3 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via magnetar (pyproject.toml)
uvicorn==0.9 \\
    --hash=sha256:cc
"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """Return the module, with a development environment whose pip and uv keep their words in ``said``."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.delitem(sys.modules, "machine", raising=False)
    module = importlib.import_module("machine")
    monkeypatch.setattr(module, "VENV", tmp_path / "venv")
    (tmp_path / "venv/bin").mkdir(parents=True)
    program(tmp_path / "venv/bin/pip", f'[ "$1" = config ] || echo "pip $*" >> {tmp_path}/said; '
            f'for word; do case "$word" in *uv.txt) cat "$word" > {tmp_path}/only;; esac; done')
    program(tmp_path / "venv/bin/uv", f'echo "uv $*" >> {tmp_path}/said')
    return module


def program(path: Path, text: str) -> None:
    """Write a shell script that can be run to *path*."""
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def said(folder: Path) -> list[str]:
    return (folder / "said").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("compiled", [False, True])
def test_uv_installs_packages(machine: ModuleType, tmp_path: Path, compiled: bool) -> None:
    machine.install_locked(tmp_path / "venv", Path("a.txt"), Path("b.txt"), compiled=compiled)
    assert said(tmp_path) == ["uv pip install -q --require-hashes --only-binary :all: -r a.txt -r b.txt"
                              + " --compile-bytecode" * compiled]


@pytest.mark.parametrize(("configuration", "arguments", "settings"), [
    (["global.no-index='true'", "global.find-links='/srv/wheels https://example.org/wheels'"], ["--no-index"],
     ["", "/srv/wheels,https://example.org/wheels"]),
    ([":env:.index-url='https://one.example.org/simple'", "global.index-url='https://two.example.org/simple'"], [],
     ["https://one.example.org/simple", ""]),
])
def test_uv_is_given_the_sources_of_pip(machine: ModuleType, tmp_path: Path, configuration: list[str],
                                        arguments: list[str], settings: list[str]) -> None:
    """A variable of the environment comes before a file of pip's configuration."""
    program(tmp_path / "venv/bin/pip", f"cat <<'END'\n{chr(10).join(configuration)}\nEND")
    program(tmp_path / "venv/bin/uv", f'printf "%s\\n" "$UV_DEFAULT_INDEX" "$UV_FIND_LINKS" "$*" > {tmp_path}/said')
    machine.install_locked(tmp_path / "venv", Path("a.txt"))
    words = ["pip install -q --require-hashes --only-binary :all: -r a.txt", *arguments]
    assert said(tmp_path) == [*settings, " ".join(words)]


@pytest.mark.parametrize("uv", ["exit 2", None])
def test_pip_installs_them_where_uv_cannot(machine: ModuleType, tmp_path: Path, uv: str | None,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    """The end of a step that takes so much longer says why."""
    if uv:
        program(tmp_path / "venv/bin/uv", uv)
    else:
        (tmp_path / "venv/bin/uv").unlink()
    machine.install_locked(tmp_path / "venv", Path("a.txt"), compiled=True)
    words = "install -q --require-hashes --only-binary :all: -r a.txt"
    assert said(tmp_path) == [f"pip {words} --disable-pip-version-check"]
    assert "uv cannot" in capsys.readouterr().out


def test_uv_is_that_of_the_lock(machine: ModuleType, tmp_path: Path) -> None:
    """Its own lines, with their hashes, and no others."""
    (tmp_path / "dev.txt").write_text(f"# first\n{LOCK}", encoding="utf-8")
    machine.install_uv(tmp_path / "venv", tmp_path / "dev.txt")
    assert (tmp_path / "only").read_text(encoding="utf-8") == LOCK.partition("uvicorn")[0]
    assert "--require-hashes" in said(tmp_path)[0]


def test_steps_beside_one_another(machine: ModuleType) -> None:
    """Each waits for the other; results stand in the order of the steps."""
    both = threading.Barrier(2, timeout=60)
    assert machine.run_concurrently(lambda: both.wait() * 0 + 1, lambda: both.wait() * 0 + 2) == [1, 2]


@pytest.mark.parametrize("failure", [SystemExit("no room"), RuntimeError("no room")])
def test_a_step_that_fails_ends_all_when_they_have_ended(machine: ModuleType, failure: BaseException) -> None:
    ended: list[str] = []

    def fail() -> None:
        raise failure

    def go_on() -> None:
        time.sleep(0.1)
        ended.append("other")

    with pytest.raises(type(failure), match="no room"):
        machine.run_concurrently(fail, go_on)
    assert ended == ["other"]
