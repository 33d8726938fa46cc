# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP over SSH to an agent's unix socket: one login, and a channel for each connection.

The channel is OpenSSH's ``direct-streamlocal@openssh.com`` (PROTOCOL, 2.4): the user's sshd process connects to the
socket, so the agent sees that user's credentials. Nothing runs on the host, and no port is opened.
"""

from __future__ import annotations

import io
import shlex
import socket
from http.client import HTTPConnection

from ..core.errors import Unreachable
from ..core.http.endpoint import parse_endpoint
from . import login
from .library import load_paramiko

#: Prints the obstacle to connecting to the socket $1, and the user's name.
PROBE_SCRIPT = r"""
p=$1 d=$1
while [ ! -e "${d:=/}" ]; do d=${d%/*}; done
if [ -d "$d" ] && [ ! -x "$d" ]; then echo denied
elif [ ! -S "$p" ]; then echo missing
elif [ ! -w "$p" ]; then echo denied
elif grep -F -- " $p" /proc/net/unix | grep -q " 00010000 "; then echo forbidden
else echo silent
fi
id -un
"""
FORBIDDEN = ("sshd does not let %(user)s forward to a unix socket. Set `AllowStreamLocalForwarding yes` in "
             "/etc/ssh/sshd_config there (`local` will do), see that neither `DisableForwarding`, nor `restrict` or "
             "`no-port-forwarding` before the key in authorized_keys, forbids it, and reload sshd.")
REASONS = {
    "missing": "there is no socket %(path)s. Is the agent installed and running there? (systemctl status "
               "magnetar-agent) Another path goes behind the host: ssh://HOST/path.",
    "denied": "the user %(user)s may not use %(path)s. Add it to the group there: `usermod -aG magnetar %(user)s`; "
              "it counts from the next login on.",
    "silent": "nobody listens on %(path)s. Start the agent there: systemctl start magnetar-agent.",
    "forbidden": FORBIDDEN,
    "": "it refuses to connect to %(path)s. Either the agent does not run there, or the user %(user)s is not in the "
        "group magnetar, or " + FORBIDDEN,
}


class SshDial:
    """A ``core.http.transport.Dial`` that opens connections to the agent at *endpoint* (``ssh://…``) over SSH.

    *private_key*: a file with the only private key to use. *known_hosts*: a file with host keys, in addition to the
    default files.
    """

    def __init__(self, endpoint, private_key=None, known_hosts=None):
        self._endpoint, self._name = parse_endpoint(endpoint), endpoint
        self._private_key, self._known_hosts = private_key, known_hosts
        self._login = None

    def __call__(self, timeout):
        """Return an open connection to the agent's unix socket, over the existing SSH login if possible, otherwise over
        a new one. *timeout*: in seconds. Raises ``Unreachable``.
        """
        try:
            return self._open_connection(timeout) or self._fresh(timeout)
        except Unreachable as error:
            unreachable = Unreachable("Cannot reach the agent at %s: %s" % (self._name, error.message), **error.details)
            unreachable.again = error.again
            raise unreachable from None

    def close(self):
        """Close the SSH login with all its connections. The next connection logs in again."""
        if self._login is not None:
            self._login.close()
            self._login = None

    def _open_connection(self, timeout):
        """Return a connection over the existing SSH login; ``None`` if there is no login, or the connection cannot be
        opened."""
        if self._login is None or not self._login.active:
            return None
        try:
            return self._connection(timeout)
        except Unreachable:
            return None

    def _fresh(self, timeout):
        self.close()
        self._login = login.SshLogin(self._endpoint, self._private_key, self._known_hosts, timeout)
        return self._connection(timeout)

    def _connection(self, timeout):
        library = load_paramiko()
        try:
            channel = self._login.streamlocal(self._endpoint.path, timeout)
        except library.ChannelException as error:
            raise self._refused(error.code == 1, timeout) from None
        except (library.SSHException, EOFError, OSError) as error:
            unreachable = Unreachable("the SSH connection was lost (%s)." % (str(error) or type(error).__name__))
            unreachable.again = True
            raise unreachable from None
        connection = HTTPConnection("localhost", timeout=timeout)
        connection.auto_open = 0
        connection.sock = Pipe(channel)
        return connection

    def _refused(self, prohibited, timeout):
        """Return the error if sshd did not connect to the agent's socket. *prohibited*: whether sshd reports that its
        settings forbid the connection; if not, a command on the host finds the reason.
        """
        verdict, user = ("forbidden", "") if prohibited else self._find_obstacle(timeout)
        values = {"path": self._endpoint.path, "user": user or self._login.user}
        unreachable = Unreachable(REASONS[verdict] % values)
        unreachable.again = verdict == "silent"
        return unreachable

    def _find_obstacle(self, timeout):
        """Run a command on the host to find out why the agent's socket is not accessible. Return a key of ``REASONS``
        and the user's name; two empty strings if the command fails.
        """
        command = "sh -c %s sh %s" % (shlex.quote(PROBE_SCRIPT), shlex.quote(self._endpoint.path))
        words = self._login.output(command, timeout).split()[-2:]
        return tuple(words) if len(words) == 2 and words[0] in REASONS else ("", "")


class Pipe:
    """A wrapper around an SSH channel with the socket methods that ``http.client`` needs. The channel stays open until
    the wrapper and all its file objects are closed.
    """

    def __init__(self, channel):
        self._channel, self._users = channel, 1

    def settimeout(self, seconds):
        self._channel.settimeout(seconds)

    def sendall(self, content):
        """Send the bytes *content*. Raises ``BrokenPipeError`` if the other side has closed the channel."""
        try:
            self._channel.sendall(content)
        except socket.timeout:
            raise
        except OSError as error:
            raise BrokenPipeError(str(error)) from None

    def makefile(self, _mode, _buffering=None):
        self._users += 1
        return io.BufferedReader(_Reader(self._channel, self.close))

    def close(self):
        self._users -= 1
        if self._users == 0:
            self._channel.close()


class _Reader(io.RawIOBase):
    def __init__(self, channel, closed):
        super().__init__()
        self._channel, self._closed = channel, closed

    def readable(self):
        return True

    def readinto(self, buffer):
        content = self._channel.recv(len(buffer))
        buffer[:len(content)] = content
        return len(content)

    def close(self):
        if not self.closed:
            super().close()
            self._closed()
