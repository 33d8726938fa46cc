# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The connection plugin for servers: commands and files go through the guest agent."""

from __future__ import annotations

DOCUMENTATION = r"""
name: guest
version_added: "0.2.0"
short_description: Run tasks in a server through its guest agent
description:
  - Runs commands and copies files through the QEMU guest agent of a server. The guest needs no network, no address, no
    SSH server and no user for Ansible.
  - Modules such as M(ansible.builtin.command), M(ansible.builtin.copy) and M(ansible.builtin.setup) work over it; most
    need Python in the guest. M(ansible.builtin.raw) needs a shell only.
  - Commands run as the user of the guest agent, which is root. C(become) changes to another user; passwords of
    C(become) cannot be given, and root needs none.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.connection.variables
options:
  server:
    description: The server, by uuid or name. By default the name of the host in the inventory.
    type: str
    vars:
      - name: inventory_hostname
      - name: magnetar_server
  executable:
    description: The shell in the guest that commands are given to, with C(-c).
    type: str
    default: /bin/sh
    vars:
      - name: ansible_guest_executable
  pipelining:
    description: Whether modules are sent as the input of Python, without temporary files in the guest. It is faster.
    type: bool
    default: true
    env:
      - name: ANSIBLE_PIPELINING
    ini:
      - section: connection
        key: pipelining
    vars:
      - name: ansible_pipelining
  command_timeout:
    description:
      - Seconds that a command may take. Then the task fails, and the command goes on in the guest. V(0) is no limit.
    type: int
    default: 0
    vars:
      - name: ansible_guest_command_timeout
notes:
  - The guest needs C(qemu-guest-agent), QEMU 2.5 or newer. Servers with C(guest_agent=false) in their hardware have no
    channel for it.
  - Some distributions forbid C(guest-exec) and C(guest-file-*) in the settings of their guest agent.
  - An agent asks for the scope C(operate). A cloud lets administrators only, by the rule
    C(magnetar:servers:guest) of its policy.
  - A command may write 2 MiB of output at most.
seealso:
  - plugin: magnetar.compute.servers
    plugin_type: inventory
"""

EXAMPLES = r"""
# shop.magnetar.yml: an inventory of servers that are reached through their guest agents
plugin: magnetar.compute.servers
endpoint: ssh://deploy@kvm1.example.org
compose:
  ansible_connection: "'magnetar.compute.guest'"
  magnetar_server: magnetar.id

---
# A playbook for one server
- hosts: web1
  vars:
    ansible_connection: magnetar.compute.guest
    magnetar_endpoint: https://kvm1.example.org:6553
    magnetar_token: "{{ lookup('ansible.builtin.env', 'KVM1_TOKEN') }}"
  tasks:
    - name: Install nginx
      ansible.builtin.apt:
        name: nginx
"""

import base64
import os
import time

from ansible.errors import AnsibleConnectionFailure, AnsibleError, AnsibleFileNotFound
from ansible.module_utils.common.text.converters import to_bytes, to_native, to_text
from ansible.plugins.connection import ConnectionBase
from ansible.utils.display import Display

from ansible_collections.magnetar.compute.plugins.module_utils import run
from ansible_collections.magnetar.compute.plugins.module_utils.core.errors import MagnetarError
from ansible_collections.magnetar.compute.plugins.module_utils.core.http.client import new_request_id
from ansible_collections.magnetar.compute.plugins.module_utils.core.http.guest_commands import (
    INPUT,
    LONGEST_WAIT,
    PIECE,
)
from ansible_collections.magnetar.compute.plugins.module_utils.core.options import CONNECTION, CONNECTION_FILES

display = Display()
#: The most bytes of a command's output. libvirt passes on about 3 MiB, and closes the channel of a guest agent that
#: answers with more than 10.
OUTPUT = 2 * 2**20
#: The exit status, and the beginning of the errors, of a command with more output.
TOO_MUCH = 253
TOO_MUCH_MARK = b"magnetar: too much output: "
#: Runs the command $1 with the shell $0; its input is the file $2, which is removed, where there is one. Guest agents
#: run programs with few variables. The output goes through files of root, where the guest can write such.
WRAPPER = """
: "${HOME:=/root}" "${PATH:=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"; export HOME PATH
if [ -n "$2" ]; then exec <"$2"; rm -f -- "$2"; fi
d=$(umask 077; mktemp -d /tmp/.ansible-output-XXXXXX 2>/dev/null) || exec "$0" -c "$1"
"$0" -c "$1" >"$d/out" 2>"$d/err"; s=$?
n=$(($(wc -c <"$d/out") + $(wc -c <"$d/err")))
if [ "$n" -gt %d ]; then echo "magnetar: too much output: $n" >&2; s=%d; else cat "$d/out"; cat "$d/err" >&2; fi
rm -rf -- "$d"; exit "$s"
""" % (OUTPUT, TOO_MUCH)
#: Creates a file that only root may read. A guest agent would create one that everybody may write.
CREATE_FILE = 'umask 077 && rm -f -- "$1" && cat >"$1"'
#: Creates a temporary file with its input, and prints its path.
CREATE_TEMPORARY = 'umask 077 && path=$(mktemp /tmp/.ansible-input-XXXXXX) && cat >"$path" && echo "$path"'
#: Seconds for which a frozen guest (a copy of its disks begins) is asked again.
FROZEN_SECONDS = 60.0
#: Seconds between two such questions.
FROZEN_PAUSE = 1.0
#: Errors of a guest that cannot be reached. Other errors are of the command.
UNREACHABLE = ("no-guest-agent", "conflict", "not-found", "unreachable", "timed-out", "hypervisor-down", "guest-silent",
               "unavailable", "unauthenticated", "forbidden", "ambiguous", "not-supported", "too-many-requests")
OPTIONS = tuple(option.name for option in CONNECTION if option.name not in ("direct", "timeout"))


class Connection(ConnectionBase):
    """The connection plugin that runs commands in a server through its QEMU guest agent, without a network."""

    transport = "magnetar.compute.guest"
    has_pipelining = True
    #: The user of commands without ``become``.
    default_user = "root"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._client = None

    def _connect(self):
        """Override ``ConnectionBase._connect``: connect to the agent or cloud. This does not contact the guest yet."""
        if self._client is None:
            options = {name: self.get_option(name) for name in OPTIONS}
            options.update({name: os.path.expanduser(options[name]) for name in CONNECTION_FILES if options[name]})
            try:
                self._client = run.connect_client(options)
            except MagnetarError as error:
                raise AnsibleConnectionFailure(error.message) from None
            self._connected = True
        return self

    def exec_command(self, cmd, in_data=None, sudoable=True):
        """Override ``ConnectionBase.exec_command``: run *cmd* with the shell of the guest. Return its exit status,
        output and errors.
        """
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        command, content = to_text(cmd, errors="surrogate_or_strict"), to_bytes(in_data or b"")
        display.vvv("EXEC %s" % command, host=self._server)
        path = self._put_input(content) if len(content) > INPUT else ""
        status, output, errors = self._run(["-c", WRAPPER, self.get_option("executable"), command, path],
                                           b"" if path else content)
        if status == TOO_MUCH and errors.startswith(TOO_MUCH_MARK):
            raise AnsibleError("The command has ended with %s bytes of output, and a command in a guest may have %d. "
                               "Have it write into a file, and fetch that." % (
                                   to_text(errors[len(TOO_MUCH_MARK):], errors="surrogate_or_replace").strip(), OUTPUT))
        return status, output, errors

    def put_file(self, in_path, out_path):
        """Override ``ConnectionBase.put_file``: copy the file *in_path* of the controller to *out_path* in the guest.
        """
        super().put_file(in_path, out_path)
        display.vvv("PUT %s TO %s" % (in_path, out_path), host=self._server)
        if not os.path.isfile(to_bytes(in_path, errors="surrogate_or_strict")):
            raise AnsibleFileNotFound("There is no file %s on the controller." % to_native(in_path))
        with open(to_bytes(in_path, errors="surrogate_or_strict"), "rb") as file:
            self._create(out_path, file.read(INPUT))
            while content := file.read(PIECE):
                self._write(out_path, file.tell() - len(content), content)

    def fetch_file(self, in_path, out_path):
        """Override ``ConnectionBase.fetch_file``: copy the file *in_path* of the guest to *out_path* on the controller.
        """
        super().fetch_file(in_path, out_path)
        display.vvv("FETCH %s TO %s" % (in_path, out_path), host=self._server)
        offset, ended = 0, False
        with open(to_bytes(out_path, errors="surrogate_or_strict"), "wb") as file:
            while not ended:
                piece = self._ask("read_file", {"path": in_path, "offset": offset, "size": PIECE})
                content = base64.b64decode(piece["content"])
                file.write(content)
                offset, ended = offset + len(content), piece["eof"]

    def reset(self):
        """Close the connection and open it again, as after a reboot of the guest."""
        self.close()
        self._connect()

    def close(self):
        """Override ``ConnectionBase.close``: close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None
        self._connected = False

    @property
    def _server(self):
        return self.get_option("server")

    def _create(self, path, content):
        """Create the file *path* with *content* (bytes) in the guest. Only root can read it."""
        status, _output, errors = self._run(["-c", CREATE_FILE, "sh", path], content)
        if status:
            raise AnsibleError("The file %s cannot be written in the guest: %s" % (
                path, to_text(errors, errors="surrogate_or_replace").strip() or "its shell says no reason"))

    def _put_input(self, content):
        """Write *content*, the input of a command, into a temporary file in the guest, because the input is too long
        for one request to the guest agent. Only root can read the file. Return its path.
        """
        status, output, errors = self._run(["-c", CREATE_TEMPORARY], content[:INPUT])
        path = to_text(output, errors="surrogate_or_replace").strip()
        if status or not path.startswith("/"):
            raise AnsibleError("No temporary file can be created in the guest: %s" % (
                to_text(errors, errors="surrogate_or_replace").strip() or "mktemp says no reason"))
        for offset in range(INPUT, len(content), PIECE):
            self._write(path, offset, content[offset:offset + PIECE])
        return path

    def _write(self, path, offset, content):
        self._ask("write_file", {"path": path, "offset": offset, "content": base64.b64encode(content).decode()})

    def _run(self, arguments, content):
        """Run the guest's shell with *arguments* (a list) and *content* (bytes) as its input. Wait until the shell
        exits, and return its exit status, standard output and standard error.
        """
        limit = self.get_option("command_timeout")
        deadline = time.monotonic() + limit if limit else None
        answer = self._ask("run", {"path": self.get_option("executable"), "arguments": arguments,
                                   "input": base64.b64encode(content).decode(), "run_id": new_request_id(),
                                   "wait": _wait(deadline)})
        while not answer["exited"]:
            if deadline is not None and time.monotonic() >= deadline:
                raise AnsibleError("The command has not ended within %d s (ansible_guest_command_timeout). It goes on "
                                   "in the guest, as process %d." % (limit, answer["pid"]))
            answer = self._ask("status", {"pid": answer["pid"], "wait": _wait(deadline)})
        if answer["truncated"]:
            raise AnsibleError("The command has written more output than the guest agent keeps, so its result is not "
                               "known. Have it write into a file, and fetch that.")
        status = answer["exit_code"] if answer["signal"] is None else 128 + answer["signal"]
        return status or 0, base64.b64decode(answer["stdout"]), base64.b64decode(answer["stderr"])

    def _ask(self, command, args):
        """Call the guest agent's *command* with *args*, and return the answer. Retry for ``FROZEN_SECONDS`` while the
        guest's file systems are frozen.
        """
        self._connect()
        began = time.monotonic()
        while True:
            try:
                return self._client.ask_guest(self._server, command, args)
            except MagnetarError as error:
                frozen = error.details.get("why") == "frozen" and time.monotonic() - began < FROZEN_SECONDS
                if not frozen:
                    raise _failure(error, command) from None
            time.sleep(FROZEN_PAUSE)


def _wait(deadline):
    """Return for how many seconds one request to the guest agent may wait for a command to exit. *deadline*: when the
    command must have exited, on the monotonic clock; ``None`` for no limit.
    """
    left = LONGEST_WAIT if deadline is None else deadline - time.monotonic()
    return max(0, min(LONGEST_WAIT, int(left + 0.999)))


def _failure(error, command):
    """Return Ansible's exception for *error*, which the guest agent's *command* caused: ``AnsibleConnectionFailure``
    (the host is unreachable) if the guest cannot be reached or run commands, otherwise ``AnsibleError``.
    """
    if error.code == "not-found" and "kind" not in error.details:
        return AnsibleConnectionFailure("The agent or cloud knows no guest commands: it is older than this collection. "
                                        "Update it. (%s)" % error.message)
    if error.code in UNREACHABLE or command == "run":
        return AnsibleConnectionFailure(error.message)
    return AnsibleError(error.message)
