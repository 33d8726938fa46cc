# SPDX-License-Identifier: GPL-3.0-or-later
"""The sites whose pages may open consoles. A browser sends the site of a page (``Origin``) and the requested site
(``Host``); a page can change neither."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from magnetar_control.settings import Settings
from magnetar_core.errors import Forbidden, InvalidSettings

PORTS = {"http": 80, "https": 443}
#: The characters of a name or an address with a port.
_HOST = re.compile(r"[A-Za-z0-9.:\[\]_-]+")


class Site(NamedTuple):
    """The origin of a web page, as browsers define it: scheme, host and port."""

    scheme: str
    host: str
    port: int


def site_of(url: str) -> Site | None:
    """Return the site (scheme, host, port) of *url*; ``None`` if *url* is not a web URL. For example, the header
    ``Origin`` may contain ``null`` in place of a URL."""
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:
        return None
    if parts.scheme not in PORTS or not parts.hostname or not port or not _HOST.fullmatch(parts.netloc):
        return None
    return Site(parts.scheme, parts.hostname, port)


class ConsoleSites:
    """The web sites, from the settings, whose pages may open consoles or show them in a frame. Raises
    ``InvalidSettings`` for a value in the settings that is not a site."""

    def __init__(self, settings: Settings) -> None:
        self.trust_proxy = settings.trust_proxy
        self.ours = {_checked(name, url) for name in ("console_url", "public_url") if (url := getattr(settings, name))}
        self.others = {_checked("console_allowed_origins", url) for url in settings.console_allowed_origins}

    def check(self, headers: Mapping[str, str], root: str) -> None:
        """Check the headers ``Host`` and ``Origin`` of a request for a console. Raises ``Forbidden`` unless the request
        addresses this API, and the page that opens the console belongs to this API's site or to an allowed site.

        This prevents that a page of another site opens a console in a user's browser (CVE-2015-0259). Clients other
        than browsers may omit the headers. *root*: the URL of the API in the request.
        """
        if self.ours and not self._meant(headers):
            raise Forbidden("This is not the address under which consoles are. Open the URL that you were given.")
        origin = headers.get("origin")
        if origin and site_of(origin) not in self.allowed(root):
            raise Forbidden("A page of another site opens this console. Sites that may are listed in "
                            "console_allowed_origins of the API's settings.")

    def allowed(self, root: str) -> set[Site]:
        """Return the sites whose pages may open consoles or frame them. *root*: the URL of the API in the request."""
        own_site = site_of(root)
        return (self.ours or ({own_site} if own_site else set())) | self.others

    def _meant(self, headers: Mapping[str, str]) -> bool:
        name = headers.get("x-forwarded-host" if self.trust_proxy else "host") or headers.get("host", "")
        return any(site_of(f"{site.scheme}://{name}") == site for site in self.ours)


def _checked(name: str, url: str) -> Site:
    site = site_of(url) if isinstance(url, str) else None
    if site is None:
        raise InvalidSettings(f"{name}: {url!r} is no URL such as https://cloud.example.")
    return site
