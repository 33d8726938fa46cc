# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar adopt``: list the libvirt domains of other programs, say what would become of them, adopt or release them.

Nothing changes without ``--yes``.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import InvalidField, MagnetarError
from magnetar_core.http.client import Client
from magnetar_core.http.endpoint import SOCKET
from magnetar_core.kinds.host import ADOPTABLE, ADOPTED, Adoption
from magnetar_core.plan import describe_outcome

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    Report = dict[str, Any]

NOUN = Adoption.noun


def add_adopt_command(add_command: Any, commands: Any) -> None:
    """Add the command ``adopt`` to the subparsers *commands*. *add_command*: the function ``_command`` of ``cli``,
    which adds a subcommand."""
    command = add_command(commands, "adopt", run_adopt_command, "List the libvirt domains of other programs, and adopt "
                          "them as servers; nothing changes without --yes.",
                          "magnetar adopt\n  magnetar adopt web1\n  magnetar adopt web1 --yes\n"
                          "  magnetar adopt web1 --release --yes")
    command.add_argument("domain", nargs="*", help="name or uuid of a libvirt domain (default: list all)")
    command.add_argument("--all", action="store_true", dest="adopts_all", help="all domains that nothing hinders")
    command.add_argument("--yes", action="store_true", help="do it; without it, only say what would be done")
    command.add_argument("--release", action="store_true", help="release adopted domains, which stay as they are")
    command.add_argument("--server-name", metavar="NAME", help="name of the server (default: that of the domain)")
    command.add_argument("--json", action="store_true", dest="prints_json", help="print the resources as JSON")
    command.add_argument("--socket", metavar="PATH", help=f"unix socket of the host's agent (default: {SOCKET})")


def run_adopt_command(options: argparse.Namespace) -> int:
    """Run ``magnetar adopt``, which turns existing libvirt domains into servers. Return the exit status: 1 if a domain
    cannot be adopted."""
    if options.server_name and len(options.domain) != 1:
        raise InvalidField("--server-name", "is for one domain; name it")
    if options.adopts_all and (options.domain or options.release):
        raise InvalidField("--all", "is for all domains that nothing hinders; name no domain, and do not use --release")
    with Client(f"unix://{options.socket or SOCKET}") as client:
        if not (options.domain or options.adopts_all):
            if options.yes or options.release:
                raise InvalidField("domain", "is required; name the domains, or give --all")
            _print_list(client.list(NOUN), options.prints_json)
            return 0
        domains = options.domain or [report["id"] for report in client.list(NOUN) if report["status"] == ADOPTABLE]
        return max([_work_on_domain(client, domain, options) for domain in domains], default=0)


def _work_on_domain(client: Client, domain: str, options: argparse.Namespace) -> int:
    """Adopt or release one libvirt domain; without ``--yes``, only print what would be done. Return the exit status: 1
    if the agent rejects the request."""
    want = {"server_name": options.server_name} if options.server_name else {}
    try:
        if not (options.yes or options.release) and not want:
            report = client.get(NOUN, domain)
            _print_report(report, options.prints_json)
            return int(report["status"] not in (ADOPTABLE, ADOPTED))
        answer = client.delete(NOUN, domain, dry_run=not options.yes) if options.release else client.ensure(
            NOUN, domain, want, dry_run=not options.yes)
    except MagnetarError as error:
        print(f"magnetar: {error.message}", file=sys.stderr)
        return 1
    if options.prints_json:
        print(json.dumps(answer, indent=2))
        return 0
    resource = answer["resource"] or {"name": domain}
    print(describe_outcome(resource["name"], answer, not options.yes))
    return 0


def _print_list(reports: Sequence[Report], prints_json: bool) -> None:
    if prints_json:
        print(json.dumps(reports, indent=2))
        return
    if not reports:
        print("There are no libvirt domains of other programs on this host.")
        return
    rows = [("DOMAIN", "STATUS", "POWER", "WHAT HINDERS"), *(
        (report["name"], report["status"], report["power_state"],
         ", ".join(hindrance["reason"] for hindrance in report["hindrances"]) or "-") for report in reports)]
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    for row in rows:
        print("  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]]))
    print("magnetar adopt DOMAIN says more about one; with --yes it is adopted.")


def _print_report(report: Report, prints_json: bool) -> None:
    print(json.dumps(report, indent=2) if prints_json else "\n".join(_lines(report)))


def _lines(report: Report) -> Iterator[str]:
    server = report["server"]
    flavor = server["flavor"]
    yield f"domain {report['name']} ({report['id']}): {report['status']}, {report['power_state']}"
    yield (f"server {server['name']}: {flavor['vcpus']} CPUs, {flavor['ram']} MiB, {flavor['disk']} GiB, "
           f"{server['machine']}, {server['virt_type']}")
    for disk in report["disks"]:
        backing = "".join(f" on {layer['path']} ({layer['format']})" for layer in disk.get("backing", ()))
        yield f"disk {disk.get('device', '')}: {disk['path'] or 'empty'} ({disk.get('format')}){backing}"
    for nic in server["networks"]:
        place = nic.get("network") or f"bridge {nic.get('bridge')}"
        yield f"nic {nic['mac']}: {place} ({nic['model']})"
    for stay in report["stays"]:
        yield f"stays: {stay['part']}: {stay['value']}"
    for hindrance in report["hindrances"]:
        yield f"hinders: {hindrance['message']}"
    if report["status"] == ADOPTABLE:
        yield f"Nothing hinders its adoption: magnetar adopt {report['name']} --yes"
