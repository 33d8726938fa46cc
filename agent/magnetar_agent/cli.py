# SPDX-License-Identifier: GPL-3.0-or-later
"""The command ``magnetar``: run an agent, keep its tokens, check its host, adopt domains, export servers,
show consoles and logs."""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar_agent.host import host_check
from magnetar_core.daemon.report import start_process_report
from magnetar_core.errors import InvalidSettings, MagnetarError
from magnetar_core.http.endpoint import SOCKET

from . import adopt_command, export_command, logs_command
from . import settings as configuration
from .completion import SHELLS, completion_script
from .setting_values import SCOPES

if TYPE_CHECKING:
    from magnetar_agent.api.access import BearerTokens

#: The most simulated hosts of a process: as many loopback addresses are set aside.
MOST_HOSTS = 64_000
Command = Callable[[argparse.Namespace], int]
#: Adds further subcommands to the command line.
Adds = Callable[["argparse._SubParsersAction[argparse.ArgumentParser]"], None]  # noqa: SLF001 - its only name


def build_command_line(also: Adds | None = None) -> argparse.ArgumentParser:
    """Return the argument parser of the command ``magnetar``. *also*: a function that adds subcommands of other
    packages to the given subparsers."""
    top = argparse.ArgumentParser(
        prog="magnetar", description="Runs virtual machines: the agent of this host, or a cloud of hosts.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Examples:\n  magnetar agent --check-config\n  magnetar token create awx --scope operate\n"
               "  source <(magnetar completion bash)")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _agent(_command(commands, "agent", run_agent, "Run the host agent until it gets a signal to stop.",
                    "magnetar agent\n  magnetar agent --config /etc/magnetar/agent.yml --check-config\n"
                    "  magnetar agent --fake --state-dir /tmp/m --socket /tmp/m/agent.sock   (no libvirt needed)\n"
                    "  magnetar agent --fake --hosts 1000 --state-dir /tmp/m   (a thousand hosts; settings in "
                    "/tmp/m/hosts.yml)"))
    _token(_command(commands, "token", None, "Create, list and revoke bearer tokens for HTTPS.",
                    "magnetar token create awx --scope operate\n  magnetar token list\n  magnetar token revoke awx"))
    _host(commands)
    _console(_command(
        commands, "console", run_console, "Connect this terminal to the serial console of a server; Ctrl-] ends it.",
        "magnetar console web1\n  magnetar console --cloud mycloud web1\n"
        "  magnetar console \"$(openstack console url show --serial -f value -c url web1)\""))
    adopt_command.add_adopt_command(_command, commands)
    export_command.add_export_command(_command, commands)
    logs_command.add_logs_command(_command, commands)
    shell = _command(commands, "completion", functools.partial(run_completion, top),
                     "Print a completion script for the shell.",
                     "source <(magnetar completion bash)\n  magnetar completion zsh > ~/.zfunc/_magnetar")
    shell.add_argument("shell", choices=SHELLS)
    _command(commands, "version", run_version, "Print the version.", "magnetar version")
    if also:
        also(commands)
    return top


def _command(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, run: Command | None,
             text: str, examples: str) -> argparse.ArgumentParser:
    subcommand = commands.add_parser(name, help=text, description=text, epilog=f"Examples:\n  {examples}",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    if run:
        subcommand.set_defaults(run=run)
    return subcommand


def _agent(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", type=Path, metavar="FILE",
                         help=f"settings (default: {configuration.FILE} when it exists)")
    command.add_argument("--socket", type=Path, metavar="PATH", help="unix socket, in place of the setting")
    command.add_argument("--state-dir", type=Path, metavar="DIR", help="folder of the state, in place of the setting")
    command.add_argument("--libvirt-uri", metavar="URI", help="libvirt connection, in place of the setting")
    command.add_argument("--fake", action="store_true", help="manage a simulated host in memory, for tests and first "
                         "steps")
    command.add_argument("--check-config", action="store_true", help="check the settings, show them, and exit")
    _simulation(command.add_argument_group("many simulated hosts in this process, with --fake"))


def _simulation(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--hosts", type=_count, metavar="N", help="simulate N hosts, for tests and to plan a cloud; "
                       "--socket is the simulation's own socket, for faults")
    group.add_argument("--prefix", default="kvm", metavar="TEXT", help="beginning of the hosts' names (default: kvm, "
                       "for kvm0001)")
    group.add_argument("--socket-folder", type=Path, metavar="DIR", help="folder with a unix socket for each host "
                       "(default: sockets in the state folder)")
    group.add_argument("--port", type=_count, metavar="PORT", help="serve HTTPS on this port, each host at its own "
                       "loopback address, in place of unix sockets")
    group.add_argument("--vcpus", type=_count, default=16, metavar="N", help="CPUs of each host (default: 16)")
    group.add_argument("--memory", type=_count, default=65536, metavar="MIB", help="MiB of memory of each host "
                       "(default: 65536)")
    group.add_argument("--disk", type=_count, default=1000, metavar="GIB", help="GiB of disk of each host (default: "
                       "1000)")
    group.add_argument("--boot-seconds", type=_seconds, default=0.0, metavar="S", help="seconds until a guest has "
                       "started (default: 0)")
    group.add_argument("--settings-file", type=Path, metavar="FILE", help="write the settings of a control plane with "
                       "these hosts here (default: hosts.yml in the state folder)")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("must be from 0 to 3600")
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if not 1 <= count <= 2**31:
        raise argparse.ArgumentTypeError("must be at least 1")
    return count


def _token(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = _command(actions, "create", create_token, "Create a token and print it; it is not shown again.",
                      "magnetar token create awx --scope operate\n  magnetar token create prometheus --scope read")
    revoke = _command(actions, "revoke", revoke_token, "Revoke a token; it stops working immediately.",
                      "magnetar token revoke awx")
    shown = _command(actions, "list", list_tokens, "List the names and scopes of the tokens.", "magnetar token list")
    for subcommand in (create, revoke):
        subcommand.add_argument("name", help="name of the token's user in the audit log")
    create.add_argument("--scope", choices=SCOPES, default=SCOPES[0],
                        help="read: reports only; operate: everything (default: read)")
    for subcommand in (create, revoke, shown):
        subcommand.add_argument("--config", type=Path, metavar="FILE", help="settings that name the tokens_file")
        subcommand.add_argument("--tokens-file", type=Path, metavar="FILE",
                                help="file of the tokens, in place of the setting")


def _host(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(commands, "host", None, "Report what this host can provide to guests, and what it lacks; with "
                       "a control plane, fence hosts of the cloud.",
                       "magnetar host check\n  magnetar host check --need ovn --need kvm")
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = _command(actions, "check", run_host_check, "Ask the host's agent, and report missing features with their "
                     "remedies. Status 1 if a needed feature is missing.",
                     "magnetar host check\n  magnetar host check --need ovn")
    check.add_argument("--need", action="append", default=[], choices=host_check.NAMES,
                       help=f"needed feature in addition to {' and '.join(host_check.ALWAYS)}; may be repeated")
    check.add_argument("--socket", metavar="PATH", help=f"unix socket of the agent (default: {SOCKET})")


def run_host_check(options: argparse.Namespace) -> int:
    """Run ``magnetar host check``, which asks the host's agent for missing features. Return the exit status."""
    return host_check.print_host_check(options.socket or SOCKET, options.need)


def _console(command: argparse.ArgumentParser) -> None:
    command.add_argument("server", help="name or uuid; or the URL that `openstack console url show --serial` prints")
    command.add_argument("--cloud", metavar="NAME", help="cloud of the server, by its name in clouds.yaml (default: "
                         "OS_CLOUD, or the other OS_* variables; without these, this host)")
    command.add_argument("--socket", metavar="PATH", help=f"unix socket of the host's agent (default: {SOCKET})")
    command.add_argument("--ca-cert", metavar="FILE", help="PEM file with the CA of the API's certificate")
    command.add_argument("--insecure", action="store_true", help="accept any certificate of the API")
    command.add_argument("--break", action="store_true", dest="send_break", help="send a break first")


def run_console(options: argparse.Namespace) -> int:
    """Run ``magnetar console`` and return its exit status."""
    from . import terminal

    return terminal.run_serial_terminal(options)


def run_agent(options: argparse.Namespace) -> int:
    """Run ``magnetar agent`` and return its exit status."""
    settings = configuration.load_agent_settings(options.config, socket=options.socket and options.socket.absolute(),
                                                 state_dir=options.state_dir and options.state_dir.absolute(),
                                                 libvirt_uri=options.libvirt_uri)
    from magnetar_agent.api import audit, serve
    from magnetar_agent.host.file_modes import UMASK

    if options.check_config:
        for line in configuration.describe_agent_settings(settings):
            print(f"{line['key']}: {line['value']}")
        for warning in serve.check_settings(settings):
            print(f"warning: {warning}", file=sys.stderr)
        return 0
    start_process_report("simulator" if options.hosts else "agent").folder = lambda: settings.report_dir
    os.umask(UMASK)  # noqa: TID251 - before any thread
    audit.configure_agent_logging(settings.log_level)
    if options.hosts:
        _run_simulation(options)
    elif options.fake:
        from magnetar_agent.fake import FakeHypervisor

        serve.run_agent_server(settings, lambda: FakeHypervisor(settings.state_dir, guest_agents=True))
    else:
        from magnetar_agent.virt import LibvirtHypervisor

        serve.run_agent_server(settings, lambda: LibvirtHypervisor(settings.libvirt_uri, settings.state_dir,
                                                                   patience=settings.guest_answer_timeout))
    _end()
    return 0


def _run_simulation(options: argparse.Namespace) -> None:
    if not options.fake:
        raise InvalidSettings("--hosts simulates hosts, so it needs --fake.")
    if options.hosts > MOST_HOSTS or (options.port or 0) > 65535:
        raise InvalidSettings(f"--hosts can be at most {MOST_HOSTS}, and --port at most 65535.")
    from magnetar_agent.simulator.hypervisor import HostSize
    from magnetar_agent.simulator.serve import SimulationOptions, run_simulation

    base = configuration.load_agent_settings(options.config) if options.config else configuration.AgentSettings()
    run_simulation(SimulationOptions(
        options.hosts, options.prefix, options.socket_folder, options.port,
        HostSize(options.vcpus, options.memory, options.disk, options.boot_seconds), options.state_dir, options.socket,
        options.settings_file), base)


def _end() -> None:
    """End the process immediately, without waiting for threads, because a thread may hang in a call to libvirt. All
    important data is on disk already."""
    logging.shutdown()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def create_token(options: argparse.Namespace) -> int:
    """Run ``magnetar token create`` and return its exit status. Prints the token to stdout, and advice to stderr."""
    tokens = _tokens(options)
    print(tokens.create(options.name, options.scope))
    print(f"Keep it now; only its hash is kept in {tokens.path}. Send it as 'Authorization: Bearer …'.",
          file=sys.stderr)
    return 0


def revoke_token(options: argparse.Namespace) -> int:
    """Run ``magnetar token revoke`` and return its exit status."""
    _tokens(options).revoke(options.name)
    return 0


def list_tokens(options: argparse.Namespace) -> int:
    """Run ``magnetar token list`` and return its exit status."""
    for token in _tokens(options).list():
        print(f"{token.name}\t{token.scope}\t{token.created_at}")
    return 0


def run_completion(top: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Run ``magnetar completion``, which prints a completion script for a shell. Return the exit status. *top*: the
    parser whose commands and options are completed."""
    print(completion_script(top, options.shell), end="")
    return 0


def run_version(_given: argparse.Namespace) -> int:
    """Run ``magnetar version`` and return its exit status."""
    from magnetar_core.version import installed_version

    print(installed_version())
    return 0


def _tokens(options: argparse.Namespace) -> BearerTokens:
    from magnetar_agent.api.access import BearerTokens

    return BearerTokens(options.tokens_file or configuration.load_agent_settings(options.config).tokens_file)


def main(arguments: Sequence[str] | None = None, also: Adds | None = None) -> int:
    """Run the command ``magnetar`` with *arguments* (default: ``sys.argv``) and return its exit status. On a failure,
    print one sentence to stderr and return 1. *also*: a function that adds subcommands of other packages."""
    options = build_command_line(also).parse_args(arguments)
    try:
        return int(options.run(options))
    except MagnetarError as error:
        print(f"magnetar: {error.message}", file=sys.stderr)
        return 1
    except PermissionError as error:
        print(f"magnetar: {error.filename}: {error.strerror}. Run it as root.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
