# SPDX-License-Identifier: GPL-3.0-or-later
"""The terminal session of README's picture, recorded on a cloud of two hosts with fake hypervisors.

    python -m tests.support.modules.session docs/pictures/servers.txt

The playbook is README's own, with a small file as image, because the URL in README does not exist.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from magnetar_control.services.identity import clouds_yaml
from tests.support.control.cloud import Cloud
from tests.support.modules.documents import BIN, ROOT, fences

COMMANDS = (
    "ansible-playbook servers.yml",
    "ansible-playbook servers.yml | tail -n 2",
    "openstack server list -c Name -c Status -c Networks -c Image -c Flavor",
)


def record_session(folder: Path) -> Iterator[str]:
    """Yield each command with its output, on a cloud that runs for the recording."""
    image = folder / "debian.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", image, "1M"], check=True)
    play, = fences("README.md", "yaml")
    play = re.sub(r"\burl: .*", f"filename: {image}", play)
    play = re.sub(r"^ *(checksum|become): .*\n", "", play, flags=re.MULTILINE)
    (folder / "servers.yml").write_text(play.replace("kvm_hosts", "localhost"))
    (folder / "hosts").write_text(
        f"localhost ansible_connection=local ansible_python_interpreter={sys.executable}\n")
    with Cloud(hosts=2) as cloud:
        clouds_yaml(folder / "clouds.yaml", f"http://127.0.0.1:{cloud.port}", cloud.password)
        environment = {
            "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(folder), "LC_ALL": "C.UTF-8", "COLUMNS": "80",
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".cache"), "ANSIBLE_INVENTORY": str(folder / "hosts"),
            "ANSIBLE_GATHERING": "explicit", "OS_CLOUD": "magnetar",
            "OS_CLIENT_CONFIG_FILE": str(folder / "clouds.yaml")}
        for command in COMMANDS:
            yield f"$ {command}\n{_printed(command, folder, environment)}\n"


def _printed(command: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=folder, env=environment, check=False,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return re.sub(r" +$", "", done.stdout, flags=re.MULTILINE).strip("\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made, Path(sys.argv[1]).open("w", encoding="utf-8") as file:
        for text in record_session(Path(made)):
            print(text, file=file, flush=True)
