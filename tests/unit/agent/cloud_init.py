# SPDX-License-Identifier: GPL-3.0-or-later
"""cloud-init's own datasource code, of Debian's package.

The package is downloaded and unpacked into ``.cache``, not installed: installed, it would take this machine over at its
next boot. Its code runs in the system's Python. ``python3 cloud_init.py FOLDER MACS`` is what runs there: it prints
what cloud-init makes of the files of a config drive in a folder, and of NICs eth0, eth1, … with these MAC addresses.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PYTHON = "/usr/bin/python3"


def packages() -> list[str]:
    """What is unpacked: the profile ``unpacked`` of bindep.txt."""
    lines = (ROOT / "bindep.txt").read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line.rstrip("]").endswith(" unpacked")]


def run(*words: str | Path, cwd: Path | None = None) -> str:
    """Run a program; its words are in the error when it fails."""
    done = subprocess.run([str(one) for one in words], check=False, cwd=cwd, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def unpacked() -> Path:
    """The folder with cloud-init's Python modules, unpacked once."""
    wanted = packages()
    cache = ROOT / ".cache" / "unpacked" / hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:12]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / "done").exists():
            try:
                _download(cache, wanted)
            except RuntimeError:
                run("apt-get", "update")  # no package lists yet, or lists that name versions which are gone
                _download(cache, wanted)
            for deb in sorted(cache.glob("*.deb")):
                run("dpkg-deb", "-x", deb, cache / "tree")
            (cache / "done").touch()
    return cache / "tree/usr/lib/python3/dist-packages"


def _download(folder: Path, wanted: list[str]) -> None:
    run("apt-get", "-o", "APT::Sandbox::User=root", "download", *wanted, cwd=folder)


def reads(files: dict[str, bytes], folder: Path, macs: list[str]) -> dict[str, Any]:
    """What cloud-init makes of a config drive."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    done = subprocess.run(
        [PYTHON, "-s", __file__, folder, *macs], check=False, text=True, capture_output=True,
        env={"PYTHONPATH": str(unpacked()), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def show(folder: str, macs: list[str]) -> None:
    """Print it. Runs in the system's Python."""
    from cloudinit import sources  # type: ignore[import-not-found]
    from cloudinit.sources import DataSourceConfigDrive  # type: ignore[import-not-found]
    from cloudinit.sources.helpers import openstack  # type: ignore[import-not-found]

    found = DataSourceConfigDrive.read_config_drive(folder)
    names = {mac: f"eth{at}" for at, mac in enumerate(macs)}
    files = {path: content.decode("latin-1") for path, content in found.get("files", {}).items()}
    print(json.dumps({
        "version": found["version"], "metadata": {name: value for name, value in found["metadata"].items()
                                                  if name != "random_seed"},
        "seed": len(found["metadata"]["random_seed"]), "userdata": (found.get("userdata") or b"").decode(),
        "vendordata": sources.convert_vendordata(found.get("vendordata")), "vendordata2": found.get("vendordata2"),
        "keys": sources.normalize_pubkey_data(found["metadata"].get("public_keys")),
        "ec2": found.get("ec2-metadata"), "files": files,
        "network": openstack.convert_net_json(found["networkdata"], known_macs=names)}))


if __name__ == "__main__":
    show(sys.argv[1], sys.argv[2:])
