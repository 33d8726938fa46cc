# SPDX-License-Identifier: GPL-3.0-or-later
"""Pictures of pages in a browser, for the documentation: a headless Chromium shows them and takes their pictures.

    python -m tests.support.lab.screens docs/pictures                   all pictures
    python -m tests.support.lab.screens docs/pictures --only consoles   of a real guest; needs root, libvirt and QEMU
    python -m tests.support.lab.screens FOLDER --page PAGE …            pages of the site: wide, dark, and as on a phone

The site is that of `python -m tools.docsite`. The guest has a libvirtd of its own, so it touches no other guests.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from tests.support.lab import guest
from tests.support.lab.agent import CACHE, LabAgent, eventually
from tests.support.lab.browser import PROGRAM, Browser
from tests.support.lab.own_libvirtd import OwnLibvirtd
from tests.support.lab.plane import LabControl

SITE = CACHE / "site"
#: Larger pictures load slowly on a forge.
MOST_BYTES = 200_000
#: A shell on the guest's screen, which does not ask for a login.
SHELL = "setsid getty -n -l /bin/sh 0 tty1 linux </dev/null >/dev/null 2>&1 &"
NOVNC_READY = "document.querySelector('#noVNC_container canvas')?.width > 600"
#: Ends when the guest has had time to answer, and the page to draw the answer.
PAUSE = "new Promise((done) => setTimeout(() => done(true), 8000))"
SERIAL_READY = "document.getElementById('status')?.textContent === 'connected'"


class View(NamedTuple):
    """A browser window: its size in pixels, and whether the page is dark."""

    width: int = 1200
    height: int = 750
    dark: bool = False


PHONE = View(390, 844)
#: Pictures of the documentation: name, page of the site, window.
PAGES = (
    ("site-light", "index.html", View()),
    ("site-dark", "index.html", View(dark=True)),
    ("compute-api", "reference/api/flavors.html", View()),
)


def show_page(browser: Browser, url: str, view: View) -> None:
    """Open a page in a window, and wait until it is complete."""
    browser.call("Emulation.setDeviceMetricsOverride", width=view.width, height=view.height, deviceScaleFactor=1,
                 mobile=view.width < 600)
    browser.call("Emulation.setEmulatedMedia", features=[
        {"name": "prefers-color-scheme", "value": "dark" if view.dark else "light"}])
    browser.open(url)
    eventually(lambda: browser.ask("document.readyState") == "complete", f"{url} is loaded")
    browser.ask("document.fonts.ready.then(() => true)")


def save_picture(browser: Browser, path: Path) -> None:
    """Write the picture of the page that the browser shows."""
    browser.screenshot(path)
    size = path.stat().st_size
    assert size <= MOST_BYTES, f"{path} has {size} bytes, and may have {MOST_BYTES}."
    print(f"{path}: {size} bytes", flush=True)


def picture_site(folder: Path) -> None:
    """Take the pictures of the documentation site."""
    with Browser() as browser:
        for name, page, view in PAGES:
            show_page(browser, (SITE / page).as_uri(), view)
            save_picture(browser, folder / f"{name}.png")


def picture_pages(folder: Path, pages: list[str]) -> None:
    """Take pictures of pages of the site for a review: light and dark, and narrow as on a phone."""
    with Browser() as browser:
        for page in pages:
            for kind, view in (("light", View()), ("dark", View(dark=True)), ("phone", PHONE)):
                show_page(browser, (SITE / page).as_uri(), view)
                browser.screenshot(folder / f"{page.removesuffix('.html').replace('/', '-')}-{kind}.png")
                wide = browser.ask("document.documentElement.scrollWidth")
                if wide > view.width:
                    print(f"{page} is {wide} pixels wide in a window of {view.width}", flush=True)


@contextmanager
def cloud_with_guest() -> Iterator[tuple[LabAgent, LabControl]]:
    """Run a cloud with a server web1, whose guest has booted and has a shell on its screen."""
    images = guest.build()
    with tempfile.TemporaryDirectory(prefix="magnetar-lab-", dir="/var/tmp") as folder, \
            OwnLibvirtd(Path(folder)) as libvirtd, LabAgent(libvirt_uri=libvirtd.uri) as agent, \
            LabControl(agent) as control:
        for command in (f"image create guest --disk-format qcow2 --container-format bare --file {images['disk']}",
                        "flavor create small --vcpus 1 --ram 128 --disk 1",
                        "server create web1 --image guest --flavor small --nic none --wait"):
            done = control.openstack(f"--os-compute-api-version 2.37 {command}")
            assert done.returncode == 0, done.stdout
        agent.up("web1")
        agent.sh("web1", SHELL)
        yield agent, control


def picture_consoles(folder: Path) -> None:
    """Take pictures of a guest's graphical console and of its serial console, after typed commands."""
    with cloud_with_guest() as (_agent, control), Browser() as browser:
        url = control.openstack("console url show --novnc web1 -f value -c url").stdout.strip()
        show_page(browser, url, View(1000, 560))
        eventually(lambda: browser.ask(NOVNC_READY), "noVNC shows the screen")
        browser.ask("document.querySelector('#noVNC_container canvas').focus()")
        browser.type("cat /proc/version\nls /\n")
        browser.ask(PAUSE)
        save_picture(browser, folder / "console-screen.png")
        url = control.openstack("console url show --serial web1 -f value -c url").stdout.strip()
        base, _console, token = url.replace("ws://", "http://").partition("/console/")
        show_page(browser, f"{base}/console/serial.html?path=console/{quote(token)}", View(1000, 520))
        eventually(lambda: browser.ask(SERIAL_READY), "the serial console is connected")
        browser.type("sh cat /proc/version\n")
        browser.ask(PAUSE)
        save_picture(browser, folder / "console-serial.png")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser("python -m tests.support.lab.screens", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--only", choices=("site", "consoles"), help="only these pictures of the documentation")
    parser.add_argument("--page", nargs="+", metavar="PAGE", help="pages to look at, such as reference/servers.html")
    options = parser.parse_args()
    if shutil.which(PROGRAM) is None:
        print(f"{PROGRAM} is missing, which takes the pictures. Install Debian's package of that name.")
        return 1
    if options.only != "consoles" and not (SITE / "index.html").exists():
        print(f"{SITE} is missing. Build it: python -m tools.docsite")
        return 1
    if options.page:
        picture_pages(options.folder, options.page)
        return 0
    if options.only != "consoles":
        picture_site(options.folder)
    if options.only != "site":
        picture_consoles(options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
