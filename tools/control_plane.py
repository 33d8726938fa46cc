# SPDX-License-Identifier: GPL-3.0-or-later
"""The control plane of `./quickstart`: `magnetar serve` as a user of its own, who may use the agent's socket and has
one folder. Where systemd runs it has the sandbox of the API's unit; else it has no capability and gets none.

Standard library only, as machine.py.
"""

from __future__ import annotations

import grp
import http.client
import os
import pwd
import re
from pathlib import Path

import machine

USER, AGENT_GROUP = "magnetar-serve", "magnetar"
FOLDER = machine.STATE / "control"
CLOUDS = FOLDER / "clouds.yaml"
ADDRESS = ("127.0.0.1", 8774)
UNIT = Path("/etc/systemd/system/magnetar-serve.service")
TEMPLATE = Path(__file__).with_name("magnetar-serve.service.j2")
API_TEMPLATE = machine.ROOT / "roles/api/templates/magnetar-api.service.j2"


def unit() -> str:
    """The unit of `magnetar serve`, with the sandbox of the API's."""
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, value in (("venv", machine.AGENT_VENV), ("user", USER), ("agent_group", AGENT_GROUP),
                        ("state", FOLDER.relative_to("/var/lib")), ("sandbox", _sandbox())):  # fmt: skip
        text = text.replace(f"{{{{ {name} }}}}", str(value))
    return text


def _sandbox() -> str:
    """The paragraph of the API's unit about what it may, but for the paths that its operator adds."""
    text = re.sub(r"{% if .*?{% endif %}\n", "", API_TEMPLATE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return next(part for part in text.split("\n\n") if part.startswith("CapabilityBoundingSet="))


def up(fresh: bool) -> None:
    """It runs beside the agent, with this machine as its host; it is started anew when it was installed anew (*fresh*).
    """
    with machine.step("Control plane (API, conductor, services)"):
        user = _user()
        fresh = _handed_over(user) or fresh
        if machine.SYSTEMD:
            machine.service(UNIT, unit(), fresh=fresh)
        elif fresh or not _serves():
            machine.stop("control")
            machine.start("control", *_as(user), f"{machine.AGENT_VENV}/bin/magnetar", "serve", umask=0o077)
        machine.until(_serves, "The API")


def down() -> None:
    """It has ended, and its user is gone; its folder goes with the agent's."""
    with machine.step("Control plane: remove"):
        machine.no_service(UNIT)
        machine.stop("control")
        if _there():
            machine.run("userdel", USER)


def _serves() -> bool:
    """True when the API answers."""
    return machine.well(http.client.HTTPConnection(*ADDRESS, timeout=20))


def _there() -> bool:
    return any(user.pw_name == USER for user in pwd.getpwall())


def _user() -> pwd.struct_passwd:
    """The user, who cannot log in; made when there is none."""
    if not _there():
        machine.run("useradd", "--system", "--user-group", "--no-create-home", "--home-dir", FOLDER, "--shell",
                    "/usr/sbin/nologin", USER)
    return pwd.getpwnam(USER)


def _as(user: pwd.struct_passwd) -> list[str]:
    """Words before a command that run it as the user: in the agent's group, without any capability."""
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}",
            f"--groups={grp.getgrnam(AGENT_GROUP).gr_gid}", "--no-new-privs", "--inh-caps=-all", "--ambient-caps=-all",
            "--bounding-set=-all", "--reset-env", "--"]


def _handed_over(user: pwd.struct_passwd) -> bool:
    """Make the folder the user's; True when it was not. Of an earlier installation it was root's, and so is who writes
    there: that is ended first. The folder itself is last, so that nobody else is in it meanwhile."""
    if FOLDER.exists() and FOLDER.stat().st_uid == user.pw_uid:
        return False
    machine.no_service(UNIT)
    machine.stop("control")
    FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    FOLDER.chmod(0o700)
    for folder, folders, files in os.walk(FOLDER):
        for path in (Path(folder, name) for name in (*folders, *files)):
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o700)
    os.chown(FOLDER, user.pw_uid, user.pw_gid)
    return True
