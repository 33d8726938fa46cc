# SPDX-License-Identifier: GPL-3.0-or-later
"""A host without the net: the roles bring wheels, and a release is installed from these, by its locks."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import zipfile

import pytest

from tests.support.roles.agent import play, tasks
from tests.support.roles.release import release

pytestmark = pytest.mark.slow
#: Stands for the script of the role: keeps what it was called with, and what it saw in the folder of wheels.
SCRIPT = """
import json, pathlib, sys
wheels = pathlib.Path(sys.argv[-1])
seen = sorted(path.name for path in wheels.iterdir()) if wheels.is_dir() else None
pathlib.Path(sys.argv[2], "called").write_text(json.dumps([sys.argv[1:], seen]))
"""
ROLES = [("agent", "install.yml", "agent"), ("common", "../../common/tasks/release.yml", "control")]


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(("role", "file", "extras"), ROLES)
def test_the_roles_bring_wheels_and_name_them(tmp_path, role, file, extras, given):
    script = tmp_path / "roles/agent/files/release.py"
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT)
    (tmp_path / "roles" / role).mkdir(exist_ok=True)
    (tmp_path / "house").mkdir()
    (tmp_path / "house/one-1-py3-none-any.whl").touch()
    archive, venv = tmp_path / "sources.tar.gz", tmp_path / "venv"
    archive.touch()
    variables = {
        f"{role}_venv": str(venv), f"{role}_stamp": {"stdout": ""}, "role_path": str(tmp_path / "roles" / role),
        f"{role}_packed": {"stdout": json.dumps({"archive": str(archive), "digest": "abc"})},
        "common_extras": "control", f"{role}_wheelhouse": str(tmp_path / "house") if given else ""}
    good, said = play(tmp_path, tasks(file, "Release"), **variables)
    assert good, said
    words = ["install", str(venv), f"{venv}/magnetar.tar.gz", "abc", extras]
    assert json.loads((venv / "called").read_text()) == (
        [[*words, f"{venv}/wheels"], ["one-1-py3-none-any.whl"]] if given else [words, None])


def wheel(name: str, text: str) -> bytes:
    """A wheel with one module."""
    packed, info = io.BytesIO(), f"{name}-1.dist-info"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(f"{name}.py", text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return packed.getvalue()


#: Builds the project as setuptools would, from what the locks have installed.
BACKEND = """
import pathlib, one
def build_wheel(folder, config_settings=None, metadata_directory=None):
    pathlib.Path(folder, "magnetar-1-py3-none-any.whl").write_bytes(bytes.fromhex(one.WHEEL))
    return "magnetar-1-py3-none-any.whl"
"""


@pytest.fixture
def packed(tmp_path):
    """An archive of a project that needs the package one, and a folder with its wheel."""
    needed = wheel("one", f"WHEEL = {wheel('magnetar', 'import one').hex()!r}\n")
    files = {"pyproject.toml": '[build-system]\nrequires = ["two"]\nbuild-backend = "backend"\nbackend-path = ["."]\n',
             "backend.py": BACKEND,
             "requirements/agent.txt": f"one==1 --hash=sha256:{hashlib.sha256(needed).hexdigest()}\n"}
    with tarfile.open(tmp_path / "magnetar.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"magnetar/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/one-1-py3-none-any.whl").write_bytes(needed)
    return tmp_path / "magnetar.tar.gz", tmp_path / "wheels"


def test_a_release_is_installed_from_wheels_alone(packed, tmp_path):
    archive, wheels = packed
    release.install(tmp_path / "opt", str(archive), "a" * 64, "agent", str(wheels))
    python = (tmp_path / "opt/bin").resolve() / "python"
    subprocess.run([python, "-c", "import magnetar"], check=True)


def test_a_wheel_with_another_hash_is_refused(packed, tmp_path):
    archive, wheels = packed
    (wheels / "one-1-py3-none-any.whl").write_bytes(wheel("one", "WHEEL = 'other'\n"))
    with pytest.raises(SystemExit, match="THESE PACKAGES DO NOT MATCH THE HASHES"):
        release.install(tmp_path / "opt", str(archive), "a" * 64, "agent", str(wheels))
    assert not (tmp_path / "opt/bin").exists()
