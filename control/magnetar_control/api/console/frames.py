# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages of consoles in frames of dashboards, such as Horizon's. Browsers show an empty frame for a page that a site may
not frame, so such a site gets a page that explains the fix."""

from __future__ import annotations

import base64
import hashlib
import html
import logging
import threading
import time
from collections.abc import Mapping

from magnetar_control.web import Answer

from .sites import PORTS, ConsoleSites, site_of

log = logging.getLogger(__name__)
#: Values of browsers for a page that is loaded into another page (Fetch Metadata, "Sec-Fetch-Dest").
FRAMES = ("iframe", "frame", "embed", "object")
#: Seconds between two warnings. Any client may request a page and name any site.
WARN_EVERY = 600.0
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Console</title></head>
<body><h1>This console is not shown here</h1>
<p>{site} shows the console in a frame, and the cloud does not allow it to. An operator of the cloud adds the site of
the dashboard to <code>console_allowed_origins</code> in the settings of the API, and restarts the API:</p>
<pre>console_allowed_origins: [{origin}]</pre>
<p>Until then, <a href="" target="_blank">open the console in a tab of its own</a>.</p>{script}</body></html>
"""
#: The script that goes on to the console if the page is in no frame: the user came by a link.
SCRIPT = "if (window.top === window) location.replace(location.href)"
_SCRIPT_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()


class FrameLog:
    """A log of pages that show a console in a frame without permission. It logs at most one warning every
    ``WARN_EVERY`` seconds, because any client can cause such entries; between two warnings it logs with the level
    debug."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_warning = 0.0

    def add(self, site: str) -> None:
        """Log that a page of *site* shows a console in a frame, which the settings do not allow."""
        with self._lock:
            now = time.monotonic()
            level = logging.WARNING if now >= self._next_warning else logging.DEBUG
            if level == logging.WARNING:
                self._next_warning = now + WARN_EVERY
        log.log(level, "%s shows a console, and is not in console_allowed_origins", site)


_FRAME_LOG = FrameLog()


def framing_site(sites: ConsoleSites, headers: Mapping[str, str], root: str) -> str | None:
    """Return the site that shows the requested console page in a frame, if the settings do not allow that site;
    otherwise ``None``. Over HTTPS and on loopback, browsers report whether a page is in a frame. Over plain HTTP they
    do not report this: then every other site in the header ``Referer`` counts as a framing site, even if its page only
    links to the console."""
    site = site_of(headers.get("referer", ""))
    if tells_of_frames(headers):
        if headers["sec-fetch-dest"] not in FRAMES or headers.get("sec-fetch-site") in (None, "same-origin", "none"):
            return None
        if site is None:
            return None if sites.others else "A page of another site"
    elif site is None:
        return None
    if site in sites.allowed(root):
        return None
    name = f"[{site.host}]" if ":" in site.host else site.host
    return f"{site.scheme}://{name}" + ("" if site.port == PORTS[site.scheme] else f":{site.port}")


def tells_of_frames(headers: Mapping[str, str]) -> bool:
    """Return whether the client is a browser that reports frames: the request has the header ``Sec-Fetch-Dest``.
    Browsers send this header over HTTPS and to loopback addresses, not over plain HTTP."""
    return "sec-fetch-dest" in headers


def frame_refusal_page(site: str, *, in_frame: bool = True) -> Answer:
    """Return the HTML page that a browser gets instead of the console page when *site* may not show it in a frame.
    *in_frame*: whether it is certain that the page is in a frame. If it is not certain, a script in the page opens the
    console unless the page is in a frame."""
    _FRAME_LOG.add(site)
    origin = html.escape(site) if "://" in site else "https://dashboard.example"
    page = PAGE.format(site=html.escape(site), origin=origin, script="" if in_frame else f"<script>{SCRIPT}</script>")
    policy = "default-src 'none'" + ("" if in_frame else f"; script-src 'sha256-{_SCRIPT_HASH}'")
    return Answer(page, 403 if in_frame else 200, {
        "Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff"}, "text/html; charset=utf-8")
