# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook that mirrors cloud images, to a cloud and to an agent."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar_core.http.client import Client
from tests.support.control.cloud import Cloud
from tests.unit.core.images import qcow2

from .play import ROOT, prepared

pytestmark = pytest.mark.slow
Listing = Callable[[], dict[str, str]]


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=1, host_down_after=600.0) as made:
        yield made


class Source(http.server.SimpleHTTPRequestHandler):
    """A web server with images that logs its downloads."""

    downloads: list[str]

    def log_message(self, format: str, *arguments: Any) -> None:
        if self.command == "GET":
            self.downloads.append(self.path)


class Mirror:
    """A list of images, and a web server that has them."""

    def __init__(self, folder: Path, cloud: Cloud, *words: str) -> None:
        self.folder, self.words, self.downloads = prepared(folder, cloud), words, list[str]()
        self.images: dict[str, dict[str, Any]] = {}
        (book,) = yaml.safe_load((ROOT / "playbooks/images.yml").read_text())
        (tasks,) = [task for task in book["tasks"] if "ansible.builtin.include_tasks" in task]
        tasks["ansible.builtin.include_tasks"] = str(ROOT / "playbooks/tasks/mirror_image.yml")
        # A busy machine takes long to accept a connection.
        book["module_defaults"]["group/magnetar.compute.all"]["api_timeout"] = 120
        (folder / "book.json").write_text(json.dumps([book]))
        (folder / "web").mkdir()
        handler = type("Handler", (Source,), {"downloads": self.downloads})
        self.server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(handler, directory=str(folder / "web")))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def offer(self, name: str, content: bytes, **more: Any) -> str:
        """Offer the image; its digest."""
        (self.folder / "web" / name).write_bytes(content)
        digest = hashlib.sha512(content).hexdigest()
        self.images[name] = {"name": name, "url": f"http://127.0.0.1:{self.server.server_port}/{name}",
                             "sha512": digest, **more}
        return digest

    def run(self, *words: str) -> tuple[int, str]:
        """Run the playbook; its status and its output without line breaks."""
        (self.folder / "images.yml").write_text(json.dumps(list(self.images.values())))
        env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(self.folder), "ANSIBLE_LOCAL_TEMP": str(self.folder),
               "ANSIBLE_REMOTE_TEMP": str(self.folder / "tmp"), "PYTHONDONTWRITEBYTECODE": "1",
               "OS_CLIENT_CONFIG_FILE": str(self.folder / "clouds.yaml"), "MAGNETAR_DIRECT": "always"}
        self.downloads.clear()
        program = str(Path(sys.executable).parent / "ansible-playbook")
        done = subprocess.run([program, str(self.folder / "book.json"), "-i", "kvm1,", "-c", "local",
                               "-e", "ansible_become=false", "-e", "magnetar_hosts=all",
                               "-e", f"images_folder={self.folder}/cache",
                               "-e", f"images_file={self.folder}/images.yml",
                               "-e", f"ansible_python_interpreter={sys.executable}", *self.words, *words],
                              env=env, capture_output=True, text=True, timeout=900, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())


def mirrored(mirror: Mirror, listing: Listing) -> None:
    """Mirror two images, a new version, broken ones, and remove old versions."""
    before = listing()
    mirror.offer("debian", qcow2(), format="qcow2", min_ram=64, properties={"os_distro": "debian"})
    mirror.offer("tiny", b"\1" * 71680)
    status, said = mirror.run("--check")
    assert not status and listing() == before and mirror.downloads == [], said
    status, said = mirror.run()
    assert not status and sorted(mirror.downloads) == ["/debian", "/tiny"], said
    assert "2 images are as listed." in said and set(listing()) - set(before) == {"debian", "tiny"}, listing()
    for words in ((), ("--check",)):
        status, said = mirror.run(*words)
        assert not status and mirror.downloads == [] and "changed=0" in said, said

    first = listing()["tiny"]
    mirror.offer("tiny", b"\2" * 71680)
    mirror.offer("broken", b"\3" * 71680)
    mirror.images["broken"]["sha512"] = "0" * 128
    status, said = mirror.run()
    assert status and "Not mirrored:" in said and "broken: " in said, said
    names = set(listing()) - set(before)
    (old,) = (name for name in names if name.startswith("tiny-"))
    assert {"debian", "tiny", old} <= names and "tiny.new" not in names, names
    assert listing()[old] == first != listing()["tiny"]

    del mirror.images["broken"]
    status, said = mirror.run("-e", "images_keep=0")
    assert not status and mirror.downloads == [] and old not in listing(), said
    mirror.images["tiny"].pop("sha512")
    status, said = mirror.run()
    assert status and "either sha256 or sha512" in said, said


def test_of_a_cloud(cloud: Cloud, tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, cloud, "-e", "images_cloud=magnetar")

    def listing() -> dict[str, str]:
        return {image["name"]: image["id"] for image in cloud.admin.get("/image/v2/images").json["images"]}

    mirrored(mirror, listing)
    assert list((tmp_path / "cache").iterdir()) == []


def test_of_an_agent(cloud: Cloud, tmp_path: Path) -> None:
    endpoint = f"unix://{cloud.folder}/kvm1/agent.sock"
    mirror = Mirror(tmp_path, cloud, "-e", f"magnetar_endpoint={endpoint}")
    with Client(endpoint) as client:
        mirrored(mirror, lambda: {image["name"]: image["id"] for image in client.list("image")})
