# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar host adopt``: list the libvirt domains of a host that other programs have defined, adopt them as servers
of a project, or release them. Nothing changes without ``--yes``.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import InvalidField, MagnetarError
from magnetar_core.plan import describe_outcome

from .command_parts import open_operator, print_table

if TYPE_CHECKING:
    from magnetar_control.compute.caller import Caller

EXAMPLES = ("magnetar host adopt kvm1\n"
            "  magnetar host adopt kvm1 mail --project web --user 3b5c1d6a0e4f4f0c9d5a6b7c8d9e0f1a --yes\n"
            "  magnetar host adopt kvm1 shop --project web --user 3b5c1d6a0e4f4f0c9d5a6b7c8d9e0f1a "
            "--network br0=office\n"
            "  magnetar host adopt kvm1 mail --release --yes")


def add_adoption_command(command: Any, actions: Any) -> None:
    """Add the command ``adopt`` to *actions*, the subparsers of the group ``host``. *command*: the function
    ``_add_command`` of ``cli``, which adds a subcommand."""
    parser = command(actions, "adopt", run_host_adopt,
                     "List the libvirt domains of a host that other programs have defined, adopt them as servers of a "
                     "project, or release them. Guests run on. Nothing changes without --yes. Status 1 if a domain "
                     "cannot be adopted or released.", EXAMPLES)
    parser.add_argument("host", help="name of the host")
    parser.add_argument("domain", nargs="*", help="name or uuid of a domain (default: list all)")
    parser.add_argument("--yes", action="store_true", help="do it; without it, only say what would be done")
    parser.add_argument("--release", action="store_true", help="release adopted domains, which run on")
    parser.add_argument("--project", help="name or id of the project that gets the servers")
    parser.add_argument("--user", metavar="ID", help="id of the user that gets the servers")
    parser.add_argument("--server-name", metavar="NAME", help="name of the server (default: that of the domain)")
    parser.add_argument("--flavor", help="name or id of the flavor (default: one of the domain's size)")
    parser.add_argument("--make-flavor", action="store_true", help="make a private flavor if none is equal")
    parser.add_argument("--network", action="append", default=[], metavar="PLACE=NETWORK", help="the network that a "
                        "bridge or libvirt network of the domain is; may be repeated")
    parser.add_argument("--without-ports", action="store_true", help="make no ports for the domain's NICs")
    parser.add_argument("--json", action="store_true", help="as JSON, as of /v1/adoption")


def run_host_adopt(options: argparse.Namespace) -> int:
    """Run ``magnetar host adopt``. Return the exit status: 1 if a host does not answer, or a domain cannot be adopted
    or released."""
    want = _requested_fields(options)
    with open_operator(options) as caller:
        if not options.domain:
            return _print_domains(caller, options)
        return max(_work_on_domain(caller, f"{options.host}:{domain}", want, options) for domain in options.domain)


def _requested_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of an adoption request, such as ``project`` and ``flavor``, from the command line *options*.
    Empty fields are left out. Raises ``InvalidField`` if a required option is missing, or an option is malformed or
    does not fit the others."""
    if options.server_name and len(options.domain) != 1:
        raise InvalidField("--server-name", "is for one domain; name it")
    if not options.domain and (options.yes or options.release):
        raise InvalidField("domain", "is required; name the domains")
    if options.domain and not options.release and not (options.project and options.user):
        raise InvalidField("--project", "and --user are required to adopt: name who gets the server")
    networks = dict(pair.partition("=")[::2] for pair in options.network)
    if not all(networks.values()):
        raise InvalidField("--network", "must be PLACE=NETWORK", options.network)
    fields = {"project": options.project, "user": options.user, "server_name": options.server_name,
              "flavor": options.flavor, "make_flavor": options.make_flavor, "networks": networks,
              "without_ports": options.without_ports}
    return {name: value for name, value in fields.items() if value}


def _print_domains(caller: Caller, options: argparse.Namespace) -> int:
    """Print the domains of the host, and what hinders their adoption. Return the exit status: 1 if the host does not
    answer."""
    from magnetar_control.api.v1.adoption import adoption_document
    from magnetar_control.compute.adoptions import adoptions
    from magnetar_control.compute.adoptions.proposals import AdoptionRequest

    candidates, silent = adoptions.list_candidates.function(caller, [options.host])
    proposals = adoptions.propose_adoptions.function(caller, candidates, AdoptionRequest(project_id="", user_id=""))
    reports = [adoption_document(proposal) for proposal in proposals]
    for text in silent:
        print(f"magnetar: {text}", file=sys.stderr)
    if options.json:
        print(json.dumps(reports, indent=2))
    else:
        print_table(["DOMAIN", "STATUS", "POWER", "WHAT HINDERS"], [
            [report["name"], report["status"], report["power_state"],
             ", ".join(hindrance["reason"] for hindrance in report["hindrances"]) or "-"] for report in reports])
    return int(bool(silent))


def _work_on_domain(caller: Caller, key: str, want: dict[str, Any], options: argparse.Namespace) -> int:
    """Adopt or release one domain (a released domain continues to run, but is no longer a server of the cloud); without
    ``--yes``, only print what would be done. Return the exit status: 1 if the request is refused."""
    from magnetar_control.api.v1.adoption import CloudAdoptions
    from magnetar_core.operations import Operation

    try:
        result = CloudAdoptions().ensure(caller, key, None if options.release else want, {}, not options.yes,
                                         Operation("ensure"))
    except MagnetarError as error:
        print(f"magnetar: {error.message}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(result.as_dict(), indent=2))
    else:
        print(describe_outcome(key, result.as_dict(), not options.yes))
    return 0
