# SPDX-License-Identifier: GPL-3.0-or-later
"""What a machine needs: OS packages, virtual environments, libvirt, the agent. Every step may be done twice."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

from tools.progress import Failed, run, step

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache"
VENV = ROOT / ".venv"
AGENT_VENV = Path("/opt/magnetar")
PYTHON = Path("/usr/bin/python3")
DIST_PACKAGES = Path("/usr/lib/python3/dist-packages")
LIBVIRT = ("libvirt*.py", "libvirtmod*.so", "libvirt_python-*.egg-info")
SOURCES = ("agent", "plugins/module_utils/core", "pyproject.toml", "README.md", "COPYING")


def root_only() -> None:
    """Packages, libvirt and the agent need root."""
    if os.geteuid():
        raise Failed(f"This sets up packages and services, so it has to run as root. Try: sudo {' '.join(sys.argv)}")


# OS packages --------------------------------------------------------------------------------------------------------
def listed(*profiles: str) -> list[str]:
    """Packages of *profiles* in bindep.txt."""
    found = []
    for line in (ROOT / "bindep.txt").read_text().splitlines():
        match = re.fullmatch(r"(\S+) \[platform:dpkg (\w+)\]", line.strip())
        if match and match[2] in profiles:
            found.append(match[1])
    return found


def packages(*profiles: str) -> None:
    """Install what is missing of *profiles*."""
    missing = [name for name in listed(*profiles) if not _installed(name)]
    if not missing:
        return
    with step(f"Debian packages: {' '.join(missing)}"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "update", "-qq"], env=quiet)
        run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], env=quiet)


def _installed(name: str) -> bool:
    answer = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status}", name], capture_output=True, text=True,
                            check=False)
    return answer.stdout == "installed"


# Virtual environments -----------------------------------------------------------------------------------------------
def digest(paths: Iterable[Path]) -> str:
    """Digest of the content of files and folders; compiled files do not count."""
    found = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                found.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()


def requirements(*extras: str) -> list[str]:
    """Requirements of *extras* in pyproject.toml."""
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return [name for extra in extras for name in optional[extra]]


def _venv(path: Path) -> Path:
    """A virtual environment of Debian's Python with Debian's libvirt-python in it; answers its site-packages."""
    if not (path / "bin/pip").exists():
        run([PYTHON, "-m", "venv", path])
    site = next((path / "lib").glob("python3*/site-packages"))
    for pattern in LIBVIRT:  # else pip would build it, with a compiler and libvirt's headers
        for source in DIST_PACKAGES.glob(pattern):
            link = site / source.name
            if not link.exists():
                link.symlink_to(source)
    return site


def development() -> None:
    """``.venv``: what the tests and playbooks need, and the checkout's packages under their names."""
    stamp = VENV / ".stamp"
    wanted = digest([ROOT / "pyproject.toml"])
    links = CACHE / "src"
    links.mkdir(parents=True, exist_ok=True)
    for name, target in (("magnetar_core", "plugins/module_utils/core"), ("magnetar_agent", "agent")):
        _link(links / name, ROOT / target)
    collection = CACHE / "ansible_collections/magnetar/compute"
    collection.parent.mkdir(parents=True, exist_ok=True)
    _link(collection, ROOT)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    with step("Python environment of the checkout (.venv)"):
        site = _venv(VENV)
        run([VENV / "bin/pip", "install", "-q", "--disable-pip-version-check", *requirements("agent", "dev")])
        (site / "magnetar-checkout.pth").write_text(f"{links}\n")
        command = VENV / "bin/magnetar"
        command.write_text(f"#!{VENV}/bin/python\nimport sys\nfrom magnetar_agent.cli import main\nsys.exit(main())\n")
        command.chmod(0o755)
        stamp.write_text(wanted)


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def agent_environment() -> bool:
    """``/opt/magnetar``: the distribution of this checkout with what an agent needs. True when it was changed."""
    stamp = AGENT_VENV / ".stamp"
    wanted = digest(ROOT / name for name in SOURCES)
    if stamp.exists() and stamp.read_text() == wanted:
        return False
    with step(f"Agent environment ({AGENT_VENV})"), tempfile.TemporaryDirectory() as folder:
        _venv(AGENT_VENV)
        copy = Path(folder) / "magnetar"
        for name in SOURCES:  # a copy: building leaves files behind
            source, target = ROOT / name, copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        pip = [AGENT_VENV / "bin/pip", "install", "-q", "--disable-pip-version-check"]
        run([*pip, f"{copy}[agent]"])
        run([*pip, "--force-reinstall", "--no-deps", copy])
        stamp.write_text(wanted)
    return True


def clean_environments() -> None:
    """Remove both environments."""
    for path in (VENV, AGENT_VENV):
        if path.exists():
            shutil.rmtree(path)
