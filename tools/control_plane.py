# SPDX-License-Identifier: GPL-3.0-or-later
"""The control plane of `./quickstart`: `magnetar serve` under a separate user with access to the agent's socket and one
folder. With systemd it has the sandbox of the API's unit; without, it has no capability and cannot gain any.

Standard library only, like machine.py.
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


def control_plane_unit() -> str:
    """Return the text of the systemd unit that runs `magnetar serve`, with the sandbox of the API's unit."""
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, value in (("venv", machine.AGENT_VENV), ("user", USER), ("agent_group", AGENT_GROUP),
                        ("state", FOLDER.relative_to("/var/lib")), ("sandbox", _sandbox())):  # fmt: skip
        text = text.replace(f"{{{{ {name} }}}}", str(value))
    return text


def _sandbox() -> str:
    """Return the sandbox settings in the template of the API's unit, without the paths that an operator may add."""
    text = re.sub(r"{% if .*?{% endif %}\n", "", API_TEMPLATE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return next(part for part in text.split("\n\n") if part.startswith("CapabilityBoundingSet="))


def start_control_plane(fresh: bool) -> None:
    """Run the control plane next to the agent, with this machine as its host; restart it after a new installation
    (*fresh*).
    """
    with machine.timed_step("Control plane (API, conductor, services)"):
        user = _user()
        fresh = _handed_over(user) or fresh
        if machine.SYSTEMD:
            machine.run_service(UNIT, control_plane_unit(), fresh=fresh)
        elif fresh or not _serves():
            machine.stop_process("control")
            machine.start_process("control", *_as(user), f"{machine.AGENT_VENV}/bin/magnetar", "serve", umask=0o077)
        machine.wait_until_ready(_serves, "The API")


def remove_control_plane() -> None:
    """Stop the control plane and remove its user. Its folder is removed with the agent's."""
    with machine.timed_step("Control plane: remove"):
        machine.remove_service(UNIT)
        machine.stop_process("control")
        if _user_exists():
            machine.run_checked("userdel", USER)


def _serves() -> bool:
    """Return whether the API answers."""
    return machine.answers_healthz(http.client.HTTPConnection(*ADDRESS, timeout=20))


def _user_exists() -> bool:
    return any(user.pw_name == USER for user in pwd.getpwall())


def _user() -> pwd.struct_passwd:
    """Return the user of the control plane, without a login shell; add the user when there is none."""
    if not _user_exists():
        machine.run_checked("useradd", "--system", "--user-group", "--no-create-home", "--home-dir", FOLDER, "--shell",
                            "/usr/sbin/nologin", USER)
    return pwd.getpwnam(USER)


def _as(user: pwd.struct_passwd) -> list[str]:
    """Return the words to put before a command so that it runs as *user*, in the agent's group and without
    capabilities.
    """
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}",
            f"--groups={grp.getgrnam(AGENT_GROUP).gr_gid}", "--no-new-privs", "--inh-caps=-all", "--ambient-caps=-all",
            "--bounding-set=-all", "--reset-env", "--"]


def _handed_over(user: pwd.struct_passwd) -> bool:
    """Make the user the owner of the control plane's folder; return whether it had another owner. In earlier
    installations root owned the folder and ran the process that writes there, so that process is stopped first. The
    folder itself changes last, so that no other user enters it meanwhile.
    """
    if FOLDER.exists() and FOLDER.stat().st_uid == user.pw_uid:
        return False
    machine.remove_service(UNIT)
    machine.stop_process("control")
    FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    FOLDER.chmod(0o700)
    for folder, folders, files in os.walk(FOLDER):
        for path in (Path(folder, name) for name in (*folders, *files)):
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o700)
    os.chown(FOLDER, user.pw_uid, user.pw_gid)
    return True
