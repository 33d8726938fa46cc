# SPDX-License-Identifier: GPL-3.0-or-later
"""The command ``magnetar``: run an agent, keep its tokens, check its host, show consoles, complete the shell."""

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
from magnetar_core.errors import MagnetarError
from magnetar_core.http.endpoint import SOCKET

from . import settings as configuration
from .completion import SHELLS, script
from .setting_values import SCOPES

if TYPE_CHECKING:
    from magnetar_agent.api.access import BearerTokens

Command = Callable[[argparse.Namespace], int]
#: Adds further subcommands to the command line.
Adds = Callable[["argparse._SubParsersAction[argparse.ArgumentParser]"], None]  # noqa: SLF001 - its only name


def parser(also: Adds | None = None) -> argparse.ArgumentParser:
    """The whole command line, with the subcommands of other packages that *also* adds."""
    top = argparse.ArgumentParser(
        prog="magnetar", description="Runs virtual machines: the agent of this host, or a cloud of hosts.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Examples:\n  magnetar agent --check-config\n  magnetar token create awx --scope operate\n"
               "  source <(magnetar completion bash)")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _agent(_command(commands, "agent", run_agent, "Run the host agent until it is told to stop.",
                    "magnetar agent\n  magnetar agent --config /etc/magnetar/agent.yml --check-config\n"
                    "  magnetar agent --fake --state-dir /tmp/m --socket /tmp/m/agent.sock   (no libvirt needed)"))
    _token(_command(commands, "token", None, "Make, list and revoke bearer tokens for HTTPS.",
                    "magnetar token create awx --scope operate\n  magnetar token list\n  magnetar token revoke awx"))
    _host(commands)
    _console(_command(
        commands, "console", run_console, "Show the serial console of a server here, and type in it; Ctrl-] ends it.",
        "magnetar console web1\n  magnetar console --cloud mycloud web1\n"
        "  magnetar console \"$(openstack console url show --serial -f value -c url web1)\""))
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
    found = commands.add_parser(name, help=text, description=text, epilog=f"Examples:\n  {examples}",
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    if run:
        found.set_defaults(run=run)
    return found


def _agent(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", type=Path, metavar="FILE",
                         help=f"settings (default: {configuration.FILE} when it exists)")
    command.add_argument("--socket", type=Path, metavar="PATH", help="unix socket, in place of the setting")
    command.add_argument("--state-dir", type=Path, metavar="DIR", help="folder of the state, in place of the setting")
    command.add_argument("--libvirt-uri", metavar="URI", help="libvirt connection, in place of the setting")
    command.add_argument("--fake", action="store_true", help="manage an imaginary host in memory: for trying and tests")
    command.add_argument("--check-config", action="store_true", help="check the settings, show them, and end")


def _token(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = _command(actions, "create", create_token, "Make a token and print it, this once.",
                      "magnetar token create awx --scope operate\n  magnetar token create prometheus --scope read")
    revoke = _command(actions, "revoke", revoke_token, "Forget a token; it stops working at once.",
                      "magnetar token revoke awx")
    shown = _command(actions, "list", list_tokens, "List the names and scopes of the tokens.", "magnetar token list")
    for one in (create, revoke):
        one.add_argument("name", help="what the audit log calls its bearer")
    create.add_argument("--scope", choices=SCOPES, default=SCOPES[0],
                        help="read: look only; operate: everything (default: read)")
    for one in (create, revoke, shown):
        one.add_argument("--config", type=Path, metavar="FILE", help="settings that name the tokens_file")
        one.add_argument("--tokens-file", type=Path, metavar="FILE", help="file of the tokens, in place of the setting")


def _host(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(commands, "host", None, "Say what this host can do for its guests, and what it lacks.",
                       "magnetar host check\n  magnetar host check --need ovn --need kvm")
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = _command(actions, "check", run_host_check, "Ask the host's agent, and say what the host lacks and what to "
                     "do about it. Status 1 where it lacks what is needed.",
                     "magnetar host check\n  magnetar host check --need ovn")
    check.add_argument("--need", action="append", default=[], choices=host_check.NAMES,
                       help=f"what must be there besides {' and '.join(host_check.ALWAYS)}; may be repeated")
    check.add_argument("--socket", metavar="PATH", help=f"where the agent listens (default: {SOCKET})")


def run_host_check(given: argparse.Namespace) -> int:
    """``magnetar host check``."""
    return host_check.run(given.socket or SOCKET, given.need)


def _console(command: argparse.ArgumentParser) -> None:
    command.add_argument("server", help="name or uuid; or the URL that `openstack console url show --serial` prints")
    command.add_argument("--cloud", metavar="NAME", help="of this cloud of clouds.yaml (default: OS_CLOUD, or the cloud"
                         " of the other OS_* variables; without these, this host)")
    command.add_argument("--socket", metavar="PATH", help=f"of the host whose agent listens there (default: {SOCKET})")
    command.add_argument("--ca-cert", metavar="FILE", help="PEM file with the CA of the API's certificate")
    command.add_argument("--insecure", action="store_true", help="believe any certificate of the API")
    command.add_argument("--break", action="store_true", dest="send_break", help="send a break first")


def run_console(given: argparse.Namespace) -> int:
    """``magnetar console``."""
    from . import terminal

    return terminal.run(given)


def run_agent(given: argparse.Namespace) -> int:
    """``magnetar agent``."""
    settings = configuration.load(given.config, socket=given.socket and given.socket.absolute(),
                                  state_dir=given.state_dir and given.state_dir.absolute(),
                                  libvirt_uri=given.libvirt_uri)
    from magnetar_agent.api import audit, serve
    from magnetar_agent.host.file_modes import UMASK

    if given.check_config:
        for line in configuration.describe(settings):
            print(f"{line['key']}: {line['value']}")
        for warning in serve.check_settings(settings):
            print(f"warning: {warning}", file=sys.stderr)
        return 0
    os.umask(UMASK)  # noqa: TID251 - before any thread
    audit.configure(settings.log_level)
    if given.fake:
        from magnetar_agent.fake import FakeHypervisor

        serve.run(settings, lambda: FakeHypervisor(settings.state_dir, guest_agents=True))
    else:
        from magnetar_agent.virt import LibvirtHypervisor

        serve.run(settings, lambda: LibvirtHypervisor(settings.libvirt_uri, settings.state_dir,
                                                      patience=settings.guest_answer_timeout))
    _end()
    return 0


def _end() -> None:
    """End now, even if a thread hangs in a call to libvirt; all that matters is on disk."""
    logging.shutdown()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def create_token(given: argparse.Namespace) -> int:
    """``magnetar token create``: the token goes to stdout, advice to stderr."""
    tokens = _tokens(given)
    print(tokens.create(given.name, given.scope))
    print(f"Keep it now; only its hash is kept in {tokens.path}. Send it as 'Authorization: Bearer …'.",
          file=sys.stderr)
    return 0


def revoke_token(given: argparse.Namespace) -> int:
    """``magnetar token revoke``."""
    _tokens(given).revoke(given.name)
    return 0


def list_tokens(given: argparse.Namespace) -> int:
    """``magnetar token list``."""
    for token in _tokens(given).list():
        print(f"{token.name}\t{token.scope}\t{token.created_at}")
    return 0


def run_completion(top: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    """``magnetar completion``, of all that the command line *top* knows."""
    print(script(top, given.shell), end="")
    return 0


def run_version(_given: argparse.Namespace) -> int:
    """``magnetar version``."""
    from magnetar_core.version import version

    print(version())
    return 0


def _tokens(given: argparse.Namespace) -> BearerTokens:
    from magnetar_agent.api.access import BearerTokens

    return BearerTokens(given.tokens_file or configuration.load(given.config).tokens_file)


def main(arguments: Sequence[str] | None = None, also: Adds | None = None) -> int:
    """The console command. Failures are one sentence on stderr and status 1."""
    given = parser(also).parse_args(arguments)
    try:
        return int(given.run(given))
    except MagnetarError as error:
        print(f"magnetar: {error.message}", file=sys.stderr)
        return 1
    except PermissionError as error:
        print(f"magnetar: {error.filename}: {error.strerror}. Run it as root.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
