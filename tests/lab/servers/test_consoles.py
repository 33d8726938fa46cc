# SPDX-License-Identifier: GPL-3.0-or-later
"""Consoles of a real guest: in a browser that opens what OpenStack's client prints, and on a terminal. Then, what the
guest is told while it runs."""

from __future__ import annotations

import base64
import os
import pty
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.support.lab.agent import CACHE, LIMIT, LabAgent, eventually
from tests.support.lab.browser import Browser
from tests.support.lab.plane import SERVE, LabControl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.lab

#: Asks for a login on the guest's screen, whose shell is in /run.
LOGIN = ("printf '#!/bin/sh\\ncd /run; exec sh\\n' >/run/shell; chmod +x /run/shell; "
         "setsid getty -n -l /run/shell 0 tty1 linux </dev/null >/dev/null 2>&1 &")
#: Where the pages of noVNC and SPICE draw the screen, and whether they say that a URL is not good any more.
NOVNC, SPICE = "#noVNC_container canvas", "#screen canvas"
OVER = {NOVNC: "document.getElementById('noVNC_status')?.className.includes('noVNC_status_error')",
        SPICE: "document.getElementById('status')?.textContent.includes('not connected')"}
#: Whether the page takes keys.
READY = {NOVNC: "true", SPICE: "document.getElementById('status')?.textContent === 'connected'"}
#: Whether the canvas CANVAS shows the PNG that stands for IMAGE in Base64. SPICE sends JPEG where it finds the way
#: slow, so few pixels may be of another brightness, and all may differ a little.
SAME = """(async () => {
  const canvas = document.querySelector('CANVAS'), image = new Image();
  image.src = 'data:image/png;base64,IMAGE';
  await image.decode();
  if (!canvas || canvas.width !== image.width || canvas.height !== image.height) return false;
  const other = new OffscreenCanvas(image.width, image.height);
  other.getContext('2d').drawImage(image, 0, 0);
  const [seen, meant] = [canvas, other].map((one) =>
    one.getContext('2d').getImageData(0, 0, image.width, image.height).data);
  return seen.filter((value, at) => Math.abs(value - meant[at]) > 96).length < seen.length / 10000;
})()"""
#: Whether xterm.js has drawn text: a canvas with several colours.
DRAWN = """[...document.querySelectorAll('#terminal canvas')].some((one) => new Set(new Uint32Array(
  one.getContext('2d').getImageData(0, 0, one.width, one.height).data.buffer)).size > 9)"""


class Lab:
    """A cloud with a server web1 that is up."""

    def __init__(self, agent: LabAgent, control: LabControl) -> None:
        self.agent, self.control = agent, control
        self.id = ""

    def openstack(self, words: str) -> str:
        """What OpenStack's client prints."""
        done = self.control.openstack(words)
        assert done.returncode == 0, done.stdout
        return done.stdout.strip()

    def screen(self) -> bytes:
        """The guest's screen, as QEMU has it: a PNG."""
        stream, found = self.agent.libvirt.newStream(), b""
        self.agent.domain(self.id).screenshot(stream, 0)
        while piece := stream.recv(1 << 18):
            found += piece
        stream.finish()
        return found

    def shown(self, browser: Browser, canvas: str) -> bool:
        """Whether the browser shows the guest's screen. Its cursor blinks, so it may take another look."""
        image = base64.b64encode(self.screen()).decode()
        return bool(browser.ask(SAME.replace("CANVAS", canvas).replace("IMAGE", image)))

    def has(self, path: str) -> None:
        """Wait until the guest has a file."""
        eventually(lambda: self.agent.ask(self.id, f"sh ls {path}")["code"] == 0, f"the guest has {path}")


@pytest.fixture(scope="module")
def lab(guest_image: dict[str, Path]) -> Iterator[Lab]:
    with LabAgent(spice=True) as agent, LabControl(agent) as control:
        made = Lab(agent, control)
        made.openstack("image create guest --disk-format qcow2 --container-format bare "
                       f"--file {guest_image['disk']}")
        made.openstack("flavor create small --vcpus 1 --ram 128 --disk 1")
        made.id = made.openstack("server create web1 --image guest --flavor small --network default --wait -f value "
                                 "-c id")
        agent.up(made.id)
        agent.sh(made.id, LOGIN)
        yield made


@pytest.mark.parametrize(("kind", "canvas"), [("novnc", NOVNC), pytest.param(
    "spice", SPICE, marks=pytest.mark.deep(shard="consoles by SPICE"))])  # the same way as of noVNC leads there
def test_the_screen_in_a_browser(lab: Lab, tmp_path: Path, kind: str, canvas: str) -> None:
    with Browser() as browser:
        browser.open(lab.openstack(f"console url show --{kind} web1 -f value -c url"))
        eventually(lambda: browser.ask(READY[canvas]), "the page is connected")
        eventually(lambda: lab.shown(browser, canvas), "the browser shows the guest's screen")
        browser.screenshot(tmp_path / "login.png")
        browser.ask(f"document.querySelector('{canvas}').focus()")
        browser.type(f"\ntouch {kind}\n")
        lab.has(f"/run/{kind}")
        eventually(lambda: lab.shown(browser, canvas), "the browser shows what was typed")
        browser.screenshot(tmp_path / "typed.png")
        browser.open(browser.ask("window.location.href"))
        eventually(lambda: browser.ask(OVER[canvas]), "the URL is not good twice")


def test_the_serial_console_in_a_browser(lab: Lab, tmp_path: Path) -> None:
    found = lab.openstack("console url show --serial web1 -f value -c url")
    assert found.startswith("ws://")
    base, _console, rest = found.replace("ws://", "http://").partition("/console/")
    with Browser() as browser:
        browser.open(f"{base}/console/serial.html?path=console/{quote(rest)}")
        said = "document.getElementById('status')?.textContent"
        eventually(lambda: browser.ask(said) == "connected", "it is connected")
        browser.type("sh touch /run/serial\n")
        lab.has("/run/serial")
        eventually(lambda: browser.ask(DRAWN), "the page shows what the guest said")
        browser.screenshot(tmp_path / "serial.png")


def test_the_serial_console_on_a_terminal(lab: Lab) -> None:
    environment = {**os.environ, "OS_CLIENT_CONFIG_FILE": str(lab.control.folder / "clouds.yaml"),
                   "PYTHONPATH": str(CACHE / "src")}
    for number, words in enumerate((["--cloud", "magnetar", "web1"], ["--socket", str(lab.agent.socket), lab.id])):
        ours, theirs = pty.openpty()
        process = subprocess.Popen([sys.executable, "-c", SERVE, "console", *words], stdin=theirs, stdout=theirs,
                                   stderr=theirs, env=environment)
        try:
            os.close(theirs)
            said_on(ours, "GUEST ready")  # before the console was opened
            os.write(ours, f"sh echo $((6 * 7 + {number}))\n".encode())
            said_on(ours, f'"output":"{42 + number}')
            os.write(ours, b"\x1d")
            assert process.wait(LIMIT) == 0
        finally:
            process.kill()
            process.wait()
            os.close(ours)


def test_news_reach_the_guest(lab: Lab) -> None:
    """The last test: the server has another name afterwards. The guest's DHCP client has its address by then."""
    assert told(lab, "openstack/latest/meta_data.json", '"name":"web1"')
    lab.openstack("security group create shop")
    lab.openstack("server set web1 --name shop1 --property tier=front")
    lab.openstack("server add security group shop1 shop")
    assert told(lab, "openstack/latest/meta_data.json", '"name":"shop1"', '"tier":"front"')
    assert told(lab, "latest/meta-data/security-groups", "default", "shop")
    assert told(lab, "latest/meta-data/hostname", "web1")  # Nova keeps it


def told(lab: Lab, path: str, *words: str) -> bool:
    """Wait until the metadata service tells the guest this."""
    ask = f"sh printf 'GET /{path} HTTP/1.0\\r\\n\\r\\n' | nc -w 5 169.254.169.254 80"

    def says() -> bool:
        said = str(lab.agent.ask(lab.id, ask)["output"]).replace(" ", "")
        return all(word in said for word in words)

    return bool(eventually(says, f"the guest is told {words} at {path}"))


def said_on(terminal: int, words: str) -> None:
    """Read the terminal until the *words* were there."""
    said, end = "", time.monotonic() + LIMIT
    while words not in said:
        assert select.select([terminal], [], [], max(end - time.monotonic(), 0))[0], said
        said += os.read(terminal, 4096).decode(errors="replace")
