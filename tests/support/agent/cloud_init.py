# SPDX-License-Identifier: GPL-3.0-or-later
"""cloud-init's own datasource code, from Debian's package. The package is unpacked, not installed
(``tests.support.unpacked``), and its code runs in the system's Python.

``python3 cloud_init.py PLACE MACS`` runs there: it prints what cloud-init reads from the files of a config drive in the
folder PLACE, or from a metadata service with the URL PLACE, for NICs eth0, eth1, … with these MAC addresses.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PYTHON = "/usr/bin/python3"


def reads(files: dict[str, bytes], folder: Path, macs: list[str]) -> dict[str, Any]:
    """Return what cloud-init reads from a config drive with these *files*, written to *folder*."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return reads_at(str(folder), macs)


def reads_at(place: str, macs: list[str]) -> dict[str, Any]:
    """Return what cloud-init reads from *place*: the folder of a config drive, or the URL of a metadata service."""
    from tests.support.unpacked import unpacked  # not where this runs as a program

    done = subprocess.run(
        [PYTHON, "-s", __file__, place, *macs], check=False, text=True, capture_output=True,
        env={"PYTHONPATH": str(unpacked() / "usr/lib/python3/dist-packages"), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def show(place: str, macs: list[str]) -> None:
    """Print what cloud-init reads from *place*. Runs in the system's Python."""
    from cloudinit import sources  # type: ignore[import-not-found]
    from cloudinit.sources import DataSourceConfigDrive  # type: ignore[import-not-found]
    from cloudinit.sources.helpers import ec2, openstack  # type: ignore[import-not-found]

    if place.startswith("http"):
        reader = openstack.MetadataReader(place, retries=0)
        # Its own asks 169.254.169.254.
        reader._read_ec2_metadata = lambda: ec2.get_instance_metadata(
            metadata_address=place, retries=0)
        found = reader.read_v2()
    else:
        found = DataSourceConfigDrive.read_config_drive(place)
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
