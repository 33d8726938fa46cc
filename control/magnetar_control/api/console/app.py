# SPDX-License-Identifier: GPL-3.0-or-later
"""The application of consoles: pages, files and the WebSocket."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from magnetar_control.compute.cloud import Cloud
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Application
from magnetar_control.web.websocket import WebSocket
from magnetar_core.errors import Forbidden

from .frames import frame_refusal_page, framing_site, tells_of_frames
from .proxy import ConsoleProxy
from .sites import ConsoleSites
from .xterm import XTERM, terminal_script, terminal_stylesheet

#: The project's own pages.
PAGES = Path(__file__).parent / "pages"
#: Folders of noVNC that its page needs, and names in them.
NOVNC = ("app", "core", "vendor")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_OURS = re.compile(r"/((?:serial|spice)\.(?:html|js|css))")
#: The modules of spice-html5 that the project's own page loads.
_SPICE = re.compile(r"/spice-html5/((?:thirdparty/)?[A-Za-z0-9_-]+\.js)")
#: Types of files by extension.
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".css": "text/css; charset=utf-8", ".json": "application/json", ".svg": "image/svg+xml", ".png": "image/png",
         ".ttf": "font/ttf", ".woff": "font/woff", ".mp3": "audio/mpeg", ".oga": "audio/ogg"}
#: Seconds for which browsers cache files.
CACHE_SECONDS = 3600
SOCKET = "/socket"


class ConsoleApplication(Application):
    """The web application at ``/console``: it serves the HTML pages of VNC, SPICE and serial consoles, and the
    WebSocket that these pages connect to."""

    def __init__(self, cloud: Cloud) -> None:
        self.settings, self.proxy, self.sites = cloud.settings, ConsoleProxy(cloud), ConsoleSites(cloud.settings)

    def admit(self, request: Request) -> Answer:
        return self.handle(request)

    def handle(self, request: Request) -> Answer:
        """Return a console page, or a script, style sheet or other file that such a page loads."""
        try:
            return self._file(request)
        except Fault as fault:
            return self.refused(request, fault)

    def _file(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            raise Fault(405, f"{request.method} is not possible here.", {"Allow": "GET, HEAD"})
        path = request.path
        if path == SOCKET:
            raise Fault(426, "This is a WebSocket: open it with a client for WebSockets.", {"Upgrade": "websocket"})
        content: bytes | None = None
        if path == "/xterm.js":
            content = terminal_script(self.settings.xterm_dir)
        elif path == "/xterm.css":
            content = terminal_stylesheet(self.settings.xterm_dir)
        elif match := _OURS.fullmatch(path):
            content = (PAGES / match[1]).read_bytes()
        elif match := _SPICE.fullmatch(path):
            content = _read(self.settings.spice_dir / match[1])
        elif _of_novnc(path):
            content = _read(self.settings.novnc_dir / path[1:])
        if content is None:
            raise Fault(404, self._missing(path))
        if path.endswith(".html") and (site := framing_site(self.sites, request.headers, request.root)):
            return frame_refusal_page(site, in_frame=tells_of_frames(request.headers))
        return Answer(content, 200, self._headers(request.root, path), TYPES[Path(path).suffix])

    def _missing(self, path: str) -> str:
        if path in XTERM:
            return (f"xterm.js is not installed at {self.settings.xterm_dir}: Debian's package node-xterm has it, and "
                    "xterm_dir of the settings says where it is.")
        if path == "/vnc.html":
            return (f"noVNC is not installed at {self.settings.novnc_dir}: Debian's package novnc has it, and "
                    "novnc_dir of the settings says where it is.")
        if path == "/spice-html5/main.js":
            return (f"spice-html5 is not installed at {self.settings.spice_dir}: Debian's package spice-html5 has it, "
                    "and spice_dir of the settings says where it is.")
        return f"There is nothing at {path[:200]}. The URL of a console comes from `openstack console url show`."

    def _headers(self, root: str, path: str) -> dict[str, str]:
        """Return the security and cache headers for the console page or file at *path*. The headers prevent the page
        from loading files of other sites, and from sending its URL, which contains the console token, to other sites.
        Only sites in the settings may show the page in a frame. *root*: the URL of the API."""
        host = urlsplit(root).netloc
        socket_sources = f" ws://{host} wss://{host}" if re.fullmatch(r"[A-Za-z0-9.:\[\]-]+", host) else ""
        sites = "".join(f" {site}" for site in self.settings.console_allowed_origins)
        policy = (
            f"default-src 'self'; connect-src 'self'{socket_sources}; img-src 'self' data: blob:; media-src 'self' "
                  "blob:; style-src 'self' 'unsafe-inline'; object-src 'none'; base-uri 'none'; form-action 'none'; "
                  f"frame-ancestors 'self'{sites}")
        return {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer",
                "X-Content-Type-Options": "nosniff", "Vary": "Sec-Fetch-Dest, Referer",
                "Cache-Control": "no-cache" if path.endswith(".html") else f"max-age={CACHE_SECONDS}"}

    async def websocket(self, socket: WebSocket) -> None:
        if socket.path != SOCKET:
            await super().websocket(socket)
            return
        try:
            self.sites.check(socket.headers, socket.root)
        except Forbidden as error:
            await socket.refuse(self.proxy.refusal(error))
            return
        await self.proxy.serve(socket)


def _of_novnc(path: str) -> bool:
    """Return whether *path* is a file of noVNC that the page of a VNC console loads. The application serves no other
    file of noVNC."""
    first, *names = path[1:].split("/")
    return path == "/vnc.html" or (first in NOVNC and bool(names) and all(map(_NAME.fullmatch, names)))


def _read(path: Path) -> bytes | None:
    if path.suffix not in TYPES or not path.is_file():
        return None
    return path.read_bytes()
