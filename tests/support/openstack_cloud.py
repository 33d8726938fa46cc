# SPDX-License-Identifier: GPL-3.0-or-later
"""The collections openstack.cloud and awx.awx, as the package ``ansible`` has them: downloaded into ``.cache`` with its
hash, unpacked alone, and never installed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The package, of which only these collections are unpacked.
PACKAGE = "ansible==12.3.0"
HASH = "cd156f82fa87f7a899212b0efa9f7ca3a24d609212de9f78428a572eb01e5414"
PREFIXES = ("ansible_collections/openstack/cloud/", "ansible_collections/awx/awx/")


def collections() -> Path:
    """Return the folder for ``ANSIBLE_COLLECTIONS_PATH``. Raises ``RuntimeError`` when the package cannot be
    downloaded."""
    cache = ROOT / ".cache" / "collections-of-others" / HASH[:12]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / "done").exists():
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                _download(Path(folder))
                (wheel,) = Path(folder).glob("*.whl")
                with zipfile.ZipFile(wheel) as packed:
                    packed.extractall(cache, [name for name in packed.namelist() if name.startswith(PREFIXES)])
            (cache / "done").touch()
    return cache


def _download(folder: Path) -> None:
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{HASH}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:",
         "--dest", folder, "-r", wanted], check=False, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"{PACKAGE} was not downloaded: {done.stderr.strip()[-500:]}")


def play(playbook: Path, clouds: Path, folder: Path, **values: str) -> str:
    """Return the output of ``ansible-playbook`` for the *playbook*, which must succeed. The file *clouds* has the cloud
    ``magnetar``; *folder* is the user's home."""
    # The collection asks for openstack.version, which openstacksdk has and does not import by itself any more.
    (folder / "sitecustomize.py").write_text("import openstack.version\n")
    program = Path(sys.executable).with_name("ansible-playbook")
    words = [word for name, value in values.items() for word in ("-e", f"{name}={value}")]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1",
                   "PYTHONPATH": str(folder), "ANSIBLE_COLLECTIONS_PATH": str(collections()),
                   "ANSIBLE_LOCALHOST_WARNING": "0", "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
                   "OS_CLIENT_CONFIG_FILE": str(clouds)}
    done = subprocess.run([program, "-i", "localhost,", "-c", "local", *words, playbook], check=False, text=True,
                          capture_output=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout
