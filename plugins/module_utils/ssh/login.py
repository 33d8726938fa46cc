# SPDX-License-Identifier: GPL-3.0-or-later
"""Logging in to a host with SSH, as ``ssh`` does it: its configuration, known hosts, keys and jumps.

Host keys are always checked, and passwords never used.
"""

from __future__ import annotations

import getpass
import os
import socket
import subprocess

from ..core.errors import InvalidField, Unreachable
from . import known_hosts
from .keys import authenticate
from .library import paramiko
from .settings import Hop, hop

STREAMLOCAL = "direct-streamlocal@openssh.com"
#: Seconds between signs of life, so that firewalls keep the connection and dead ones are noticed.
KEEP_ALIVE = 15
#: Bytes that are read of what a command prints.
LIMIT = 4096
USER_FILES, SYSTEM_FILES = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2"), ("/etc/ssh/ssh_known_hosts",)


class SshLogin:
    """A login on the host of *endpoint*; ``active`` while it stands.

    *private_key*: the only key to use. *extra*: a file of known hosts besides the usual ones. Raises ``Unreachable``.
    """

    def __init__(self, endpoint, private_key, extra, timeout):
        self._transports, self._extra, self._timeout = [], extra, timeout
        target = hop(endpoint.host, endpoint.port, endpoint.user)
        if private_key:
            target = target._replace(identities=(os.path.expanduser(private_key),), only=True)
        try:
            self.user = _user(target)
            self._log_in(target, self._reached(target))
        except BaseException:
            self.close()
            raise

    @property
    def active(self):
        return bool(self._transports) and all(transport.is_active() for transport in self._transports)

    def close(self):
        while self._transports:
            self._transports.pop().close()

    def streamlocal(self, path, timeout):
        """A channel to the unix socket *path* of the host; raises what Paramiko raises."""
        return self._transports[-1].open_streamlocal(path, timeout)

    def output(self, command, timeout):
        """What *command* prints on the host, empty when it cannot be run."""
        try:
            channel = self._transports[-1].open_session(timeout=timeout)
            try:
                channel.settimeout(timeout)
                channel.exec_command(command)
                return channel.makefile("rb").read(LIMIT).decode(errors="replace")
            finally:
                channel.close()
        except (paramiko().SSHException, EOFError, OSError):
            return ""

    # the way there

    def _reached(self, target):
        """A socket, or what stands for one, that leads to the host."""
        if target.command:
            return _by_command(target)
        if not target.jumps:
            return _by_tcp(target, self._timeout)
        sock = None
        for at, jump in enumerate(target.jumps):
            if sock is None:
                sock = self._reached(jump)
            self._log_in(jump, sock)
            after = (target.jumps + (target,))[at + 1]
            sock = self._forwarded(jump, after)
        return sock

    def _forwarded(self, jump, after):
        library = paramiko()
        try:
            return self._transports[-1].open_channel("direct-tcpip", (after.host, after.port), ("127.0.0.1", 0),
                                                     timeout=self._timeout)
        except (library.SSHException, EOFError) as error:
            raise Unreachable("%s, which the way goes through, does not connect to %s (%s)."
                              % (jump.label, after.label, error)) from None

    def _log_in(self, target, sock):
        library = paramiko()
        lines = self._known(target)
        transport = _transport(library, sock)
        self._transports.append(transport)
        transport.banner_timeout = transport.auth_timeout = transport.handshake_timeout = self._timeout
        _prefer(transport, {line.type for line in lines})
        try:
            transport.start_client(timeout=self._timeout)
            _check(target, lines, transport.get_remote_server_key())
            transport.set_keepalive(KEEP_ALIVE)
            authenticate(library, transport, target, _user(target))
        except (library.SSHException, EOFError, OSError) as error:
            raise _failed(target, error) from None

    def _known(self, target):
        """What is known of the host's keys."""
        files = [os.path.expanduser(name) for name in (target.known_hosts or USER_FILES) + SYSTEM_FILES]
        if self._extra:
            extra = os.path.expanduser(self._extra)
            if not os.path.exists(extra):
                raise InvalidField("ssh_known_hosts", "does not exist", self._extra)
            files.append(extra)
        try:
            return known_hosts.of(known_hosts.read(files), target.key_name)
        except OSError as error:
            raise Unreachable("The known hosts in %s cannot be read: %s." % (error.filename, error.strerror)) from None


def _user(target: Hop):
    if target.user:
        return target.user
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise Unreachable("who logs in is unknown, as this process has no user name. Name the user: ssh://USER@%s."
                          % target.name) from None


def _transport(library, sock):
    """Paramiko's ``Transport`` that knows the channel to a unix socket."""

    class Transport(library.Transport):
        _tail = b""

        def open_streamlocal(self, path, timeout):
            tail = library.Message()
            tail.add_string(path)
            tail.add_string("")  # reserved
            tail.add_int(0)  # reserved
            self._tail = tail.asbytes()
            return self.open_channel(STREAMLOCAL, timeout=timeout)

        def _send_user_message(self, data):
            """What ``open_channel`` says of a kind that it does not know lacks the kind's own fields."""
            head = library.Message()
            head.add_byte(b"\x5a")  # SSH_MSG_CHANNEL_OPEN
            head.add_string(STREAMLOCAL)
            if data.asbytes().startswith(head.asbytes()):
                data.add_bytes(self._tail)
            super()._send_user_message(data)

    try:
        return Transport(sock)
    except BaseException:
        sock.close()
        raise


class _Prompt(socket.socket):
    """Acknowledges at once. An answer is two small messages, and sshd, which has no TCP_NODELAY before it runs a
    command, would hold back the second until the first is acknowledged: 40 ms for each request."""

    def recv(self, *args):
        found = super().recv(*args)
        if hasattr(socket, "TCP_QUICKACK"):
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return found


def _by_tcp(target, timeout):
    try:
        sock = socket.create_connection((target.host, target.port), timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a request is two small messages: head and body
        return _Prompt(fileno=sock.detach())
    except socket.gaierror as error:
        raise Unreachable("the host name %s is unknown (%s). Check the endpoint, and HostName in ~/.ssh/config."
                          % (target.host, error.strerror)) from None
    except (socket.timeout, TimeoutError):
        raise Unreachable("%s did not answer within %g s. Check the network and firewalls; api_timeout gives it "
                          "longer." % (target.label, timeout)) from None
    except OSError as error:
        found = Unreachable("%s: %s. Does an SSH server listen there?" % (target.label, error.strerror or error))
        found.again = isinstance(error, ConnectionRefusedError)
        raise found from None


class _Piped(socket.socket):
    """A socket whose other end is a command's standard input and output. (Paramiko's own does not see its end.)"""

    process = None

    def close(self):
        super().close()
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


def _by_command(target):
    ours, theirs = socket.socketpair()
    found = _Piped(fileno=ours.detach())
    try:
        # The shell is that of ssh: the command is written for it, by the user.
        words = ["/bin/sh", "-c", "exec " + target.command]
        found.process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL,  # noqa: S603
                                         start_new_session=True)
    except BaseException:
        found.close()
        raise
    finally:
        theirs.close()
    return found


def _prefer(transport, types):
    """Ask for host keys of the known *types* first, so that a known host shows the key that is known."""
    if "ssh-rsa" in types:
        types = types | {"rsa-sha2-512", "rsa-sha2-256"}
    options = transport.get_security_options()
    options.key_types = sorted(options.key_types, key=lambda one: one not in types)


def _check(target, lines, key):
    """Refuse a host whose key is not the known one."""
    found = known_hosts.judge(lines, key.asbytes())
    if found.word == known_hosts.KNOWN:
        return
    shown = "%s %s" % (key.get_name(), known_hosts.fingerprint(key.asbytes()))
    if found.word == known_hosts.UNKNOWN:
        raise Unreachable(
            "the host key of %s is not known, so nobody can tell whether it is the right host. It shows %s. Compare "
            "that with the host's own (`ssh-keygen -lf /etc/ssh/ssh_host_%s_key.pub` there), then log in once with "
            "`ssh -p %d %s`, or add it: `ssh-keyscan -p %d %s >> ~/.ssh/known_hosts`. A file of known hosts may be "
            "given as ssh_known_hosts." % (target.label, shown, key.get_name().split("-")[1].replace("sha2", "ecdsa"),
                                           target.port, target.host, target.port, target.host))
    if found.word == known_hosts.REVOKED:
        raise Unreachable("THE HOST KEY OF %s IS REVOKED: %s is marked so in %s. Whoever has it may pretend to be that "
                          "host. Nothing was sent." % (target.label, shown, found.line.place))
    raise Unreachable(
        "THE HOST KEY OF %s HAS CHANGED: it shows %s, but %s says %s %s. SOMEBODY MAY BE IN BETWEEN, TO READ AND "
        "CHANGE EVERYTHING; nothing was sent. If the host was installed anew, find out its key another way, and then "
        "replace the line: `ssh-keygen -R '%s'` and `ssh-keyscan`."
        % (target.label, shown, found.line.place, found.line.type, known_hosts.fingerprint(found.line.key),
           target.key_name))


def _failed(target, error):
    """Why logging in failed, for a person."""
    reason = str(error) or type(error).__name__
    if isinstance(error, paramiko().ssh_exception.IncompatiblePeer):
        return Unreachable("%s and Paramiko have no algorithm in common (%s). Update the older of the two."
                           % (target.label, reason))
    through = ("It is reached through `%s`; `ssh %s` shows what that says." % (target.command, target.name)
               if target.command else "Is it an SSH server, and not too busy?")
    found = Unreachable("%s ended the SSH connection before the login was done (%s). %s"
                        % (target.label, reason, through))
    found.again = True
    return found
