# SPDX-License-Identifier: GPL-3.0-or-later
"""A check that ports of OVN can be plugged in on this host. It asks Open vSwitch's database and ovn-controller at their
sockets. Both speak JSON-RPC: OVSDB by RFC 7047, daemons as ``ovs-appctl`` does (ovs-appctl(8)). Nothing is changed.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path
from typing import Any

from magnetar_agent.host.networks import IntegrationBridge

RUN = Path("/run")
#: Seconds that a daemon may take to answer.
TIMEOUT = 3.0
#: The datapath of a bridge without a type.
KERNEL = "system"
#: The oldest OVN whose controllers support moving ports: two hosts have the port while a guest moves, and the new one
#: is silent until the guest runs there (activation-strategy, OVN's NEWS of 22.09).
OLDEST = (22, 9)
#: The oldest Open vSwitch: the long-term release of the year of that OVN. Older ones are untested with it.
OLDEST_SWITCH = (2, 17)
#: The most bytes of an answer.
MOST = 2**20


def inspect_integration_bridge(bridge: str, run: Path = RUN) -> IntegrationBridge:
    """Return the state of the Open vSwitch integration bridge *bridge*. Its ``reason`` is the first requirement of OVN
    that the host does not meet; "" if the host meets all requirements. *run*: folder of the daemons' sockets."""
    database = run / "openvswitch/db.sock"
    if not shutil.which("ovs-vsctl"):
        return _lacking(bridge, "it has no ovs-vsctl, by which libvirt plugs them in. Install Open vSwitch (package "
                                "openvswitch-switch).")
    try:
        bridges, systems = _rows(database, bridge)
    except FileNotFoundError:
        return _lacking(bridge, f"Open vSwitch does not run: there is no {database}. Start it (openvswitch-switch).")
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        return _lacking(bridge, f"Open vSwitch does not answer at {database} ({error}). Look at its log.")
    if not bridges:
        return _lacking(bridge, f"Open vSwitch has no bridge {bridge}. Start ovn-controller, which makes it, or name "
                                "the one that it has in the setting integration_bridge.")
    datapath = str(bridges[0]["datapath_type"] or KERNEL)
    chassis = str(dict(systems[0]["external_ids"][1]).get("system-id", "")) if systems else ""
    switch = _heard(run / "openvswitch", "ovs-vswitchd", "version")
    if not switch:
        return _lacking(bridge, f"ovs-vswitchd does not run: nothing answers in {run / 'openvswitch'}, and nothing "
                                "passes. Start it (openvswitch-switch), and look at its log.")
    if old := _older(switch[0], r"ovs-vswitchd \(Open vSwitch\)", OLDEST_SWITCH):
        return _lacking(bridge, f"{old} runs, and Open vSwitch must be {OLDEST_SWITCH[0]}.{OLDEST_SWITCH[1]} or newer "
                                "for OVN. Install a newer one (package openvswitch-switch).")
    status, version = _heard(run / "ovn", "ovn-controller", "connection-status", "version") or ("", "")
    reason = _too_old(version) if status == "connected" else (
        f"ovn-controller has no connection to the southbound database ({status}). Look at ovn-remote of Open vSwitch "
        "(ovs-vsctl get open_vswitch . external_ids) and at the log of ovn-controller." if status else
        f"ovn-controller does not run: nothing answers in {run / 'ovn'}. Start it (ovn-host).")
    return IntegrationBridge(bridge, datapath, chassis, reason)


def _lacking(bridge: str, reason: str) -> IntegrationBridge:
    return IntegrationBridge(bridge, reason=reason)


def _rows(database: Path, bridge: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of *bridge* in the table Bridge (one or none) and the rows of the table Open_vSwitch. *database*:
    the socket of Open vSwitch's database."""
    results = _json_rpc_result(database, "transact", [
        "Open_vSwitch", {"op": "select", "table": "Bridge", "where": [["name", "==", bridge]],
                         "columns": ["datapath_type"]},
        {"op": "select", "table": "Open_vSwitch", "where": [], "columns": ["external_ids"]}])
    return results[0]["rows"], results[1]["rows"]


def _older(version_text: str, daemon: str, least: tuple[int, int]) -> str:
    """Return name and version of a daemon, such as ``ovn-controller 23.03.1``, if *version_text* contains a version
    older than *least*; otherwise "". *daemon*: regular expression for the name."""
    number = re.match(rf"{daemon} (\d{{1,4}})\.(\d{{1,4}})", version_text)
    return number[0] if number and (int(number[1]), int(number[2])) < least else ""


def _too_old(version: str) -> str:
    """Return an error text if *version*, the version text of ovn-controller, is older than Magnetar requires; otherwise
    ""."""
    old = _older(version, "ovn-controller", OLDEST)
    return old and (f"{old} runs, and OVN must be {OLDEST[0]}.{OLDEST[1]:02} or newer: an older one has two guests "
                    "send as one while a server moves. Install a newer one (package ovn-host).")


def _heard(folder: Path, daemon: str, *questions: str) -> list[str]:
    """Return the responses of *daemon* to JSON-RPC calls of the methods *questions*, over its control socket in
    *folder*; empty if the daemon does not respond."""
    for path in sorted(folder.glob(f"{daemon}.*.ctl")):
        try:
            return [str(_json_rpc_result(path, question, [])).strip() for question in questions]
        except (OSError, ValueError, KeyError):
            continue
    return []


def _json_rpc_result(path: Path, method: str, parameters: list[Any]) -> Any:
    """Return the result of a JSON-RPC call over the unix socket *path*. Raises ``OSError``, or ``ValueError`` if the
    response is an error or malformed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(TIMEOUT)
        line.connect(str(path))
        line.sendall(json.dumps({"id": 0, "method": method, "params": parameters}).encode())
        received = b""
        while len(received) < MOST:
            more = line.recv(65536)
            if not more:
                break
            received += more
            try:
                answer = json.loads(received)
            except ValueError:
                continue  # the rest is on its way
            if answer.get("error"):
                raise ValueError(str(answer["error"])[:200])
            return answer["result"]
    raise ValueError("the answer is cut off")
