# SPDX-License-Identifier: GPL-3.0-or-later
"""Login to a host over SSH, with the configuration, known hosts, keys and jump hosts of ``ssh``.

Host keys are always checked, and passwords never used.
"""

from __future__ import annotations

import getpass
import os
import socket
import subprocess

from ..core.errors import InvalidField, Unreachable
from . import known_hosts
from .keys import authenticate_user
from .library import load_paramiko
from .settings import Hop, resolve_hop

STREAMLOCAL = "direct-streamlocal@openssh.com"
#: Seconds between keep-alive messages, so that firewalls keep the connection and dead ones are noticed.
KEEP_ALIVE = 15
#: Maximum bytes that are read of a command's output.
LIMIT = 4096
USER_FILES, SYSTEM_FILES = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2"), ("/etc/ssh/ssh_known_hosts",)


class SshLogin:
    """An SSH login on the host of *endpoint*. ``active``: whether it is still connected.

    *private_key*: a file with the only private key to use. *extra*: a known_hosts file in addition to the default ones.
    Raises ``Unreachable``.
    """

    def __init__(self, endpoint, private_key, extra, timeout):
        self._transports, self._extra, self._timeout = [], extra, timeout
        target = resolve_hop(endpoint.host, endpoint.port, endpoint.user)
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
        """Open a channel to the unix socket *path* on the host, and return it. Raises Paramiko's exceptions."""
        return self._transports[-1].open_streamlocal(path, timeout)

    def output(self, command, timeout):
        """Run *command* on the host and return its output; empty if it cannot run."""
        try:
            channel = self._transports[-1].open_session(timeout=timeout)
            try:
                channel.settimeout(timeout)
                channel.exec_command(command)
                return channel.makefile("rb").read(LIMIT).decode(errors="replace")
            finally:
                channel.close()
        except (load_paramiko().SSHException, EOFError, OSError):
            return ""

    # The connection to the host.

    def _reached(self, target):
        """Connect to the SSH port of *target* (a ``Hop``), through its jump hosts or proxy command if it has them.
        Return the socket or channel.
        """
        if target.command:
            return _connect_command(target)
        if not target.jumps:
            return _connect_tcp(target, self._timeout)
        sock = None
        for at, jump in enumerate(target.jumps):
            if sock is None:
                sock = self._reached(jump)
            self._log_in(jump, sock)
            next_hop = (target.jumps + (target,))[at + 1]
            sock = self._forwarded(jump, next_hop)
        return sock

    def _forwarded(self, jump, next_hop):
        library = load_paramiko()
        try:
            return self._transports[-1].open_channel("direct-tcpip", (next_hop.host, next_hop.port), ("127.0.0.1", 0),
                                                     timeout=self._timeout)
        except (library.SSHException, EOFError) as error:
            raise Unreachable("%s, which the way goes through, does not connect to %s (%s)."
                              % (jump.label, next_hop.label, error)) from None

    def _log_in(self, target, sock):
        library = load_paramiko()
        lines = self._known_hosts_lines(target)
        transport = _transport(library, sock)
        self._transports.append(transport)
        transport.banner_timeout = transport.auth_timeout = transport.handshake_timeout = self._timeout
        _prefer_key_types(transport, {line.type for line in lines})
        try:
            transport.start_client(timeout=self._timeout)
            _check_host_key(target, lines, transport.get_remote_server_key())
            transport.set_keepalive(KEEP_ALIVE)
            authenticate_user(library, transport, target, _user(target))
        except (library.SSHException, EOFError, OSError) as error:
            raise _login_error(target, error) from None

    def _known_hosts_lines(self, target):
        """Return the lines of the known_hosts files for *target* (a ``Hop``). Raises ``InvalidField`` or
        ``Unreachable`` if a file cannot be read.
        """
        files = [os.path.expanduser(name) for name in (target.known_hosts or USER_FILES) + SYSTEM_FILES]
        if self._extra:
            extra = os.path.expanduser(self._extra)
            if not os.path.exists(extra):
                raise InvalidField("ssh_known_hosts", "does not exist", self._extra)
            files.append(extra)
        try:
            return known_hosts.lines_of_host(known_hosts.read_known_hosts(files), target.key_name)
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
    """Return a Paramiko ``Transport`` over *sock* that can also open channels to unix sockets. *library*: Paramiko."""

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
            """Override Paramiko's method: append the missing fields to the message that opens a channel to a unix
            socket. Paramiko does not support this type of channel.
            """
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
    """A socket that acknowledges received data immediately (TCP_QUICKACK). sshd sends a response as two small messages,
    and would delay the second for 40 ms, until the first is acknowledged.
    """

    def recv(self, *args):
        received = super().recv(*args)
        if hasattr(socket, "TCP_QUICKACK"):
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return received


def _connect_tcp(target, timeout):
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
        unreachable = Unreachable("%s: %s. Does an SSH server listen there?" % (target.label, error.strerror or error))
        unreachable.again = isinstance(error, ConnectionRefusedError)
        raise unreachable from None


class _Piped(socket.socket):
    """A socket that is connected to standard input and output of a proxy command. Unlike Paramiko's class for this
    purpose, it notices when the command ends.
    """

    process = None

    def close(self):
        super().close()
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


def _connect_command(target):
    ours, theirs = socket.socketpair()
    piped = _Piped(fileno=ours.detach())
    try:
        # The user wrote the command for the shell, as ssh runs it.
        words = ["/bin/sh", "-c", "exec " + target.command]
        piped.process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL,  # noqa: S603
                                         start_new_session=True)
    except BaseException:
        piped.close()
        raise
    finally:
        theirs.close()
    return piped


def _prefer_key_types(transport, types):
    """Make *transport* prefer host keys of these *types*, the types that the known_hosts files have for the host."""
    if "ssh-rsa" in types:
        types = types | {"rsa-sha2-512", "rsa-sha2-256"}
    options = transport.get_security_options()
    options.key_types = sorted(options.key_types, key=lambda key_type: key_type not in types)


def _check_host_key(target, lines, key):
    """Raise ``Unreachable`` unless *key*, the key that the host *target* presents, is accepted by *lines* of
    known_hosts files.
    """
    verdict = known_hosts.judge_host_key(lines, key.asbytes())
    if verdict.word == known_hosts.KNOWN:
        return
    shown = "%s %s" % (key.get_name(), known_hosts.host_key_fingerprint(key.asbytes()))
    if verdict.word == known_hosts.UNKNOWN:
        raise Unreachable(
            "the host key of %s is not known, so nobody can tell whether it is the right host. It shows %s. Compare "
            "that with the host's own (`ssh-keygen -lf /etc/ssh/ssh_host_%s_key.pub` there), then log in once with "
            "`ssh -p %d %s`, or add it: `ssh-keyscan -p %d %s >> ~/.ssh/known_hosts`. A file of known hosts may be "
            "given as ssh_known_hosts." % (target.label, shown, key.get_name().split("-")[1].replace("sha2", "ecdsa"),
                                           target.port, target.host, target.port, target.host))
    if verdict.word == known_hosts.REVOKED:
        raise Unreachable("THE HOST KEY OF %s IS REVOKED: %s is marked so in %s. Whoever has it may pretend to be that "
                          "host. Nothing was sent." % (target.label, shown, verdict.line.place))
    raise Unreachable(
        "THE HOST KEY OF %s HAS CHANGED: it shows %s, but %s says %s %s. SOMEBODY MAY BE IN BETWEEN, TO READ AND "
        "CHANGE EVERYTHING; nothing was sent. If the host was reinstalled, find out its key another way, and then "
        "replace the line: `ssh-keygen -R '%s'` and `ssh-keyscan`."
        % (target.label, shown, verdict.line.place, verdict.line.type,
           known_hosts.host_key_fingerprint(verdict.line.key), target.key_name))


def _login_error(target, error):
    """Return the error, with the reason, for a login on *target* (a ``Hop``) that failed with Paramiko's exception
    *error*.
    """
    reason = str(error) or type(error).__name__
    if isinstance(error, load_paramiko().ssh_exception.IncompatiblePeer):
        return Unreachable("%s and Paramiko have no algorithm in common (%s). Update the older of the two."
                           % (target.label, reason))
    through = ("It is reached through `%s`; `ssh %s` shows what that says." % (target.command, target.name)
               if target.command else "Is it an SSH server, and not too busy?")
    unreachable = Unreachable("%s ended the SSH connection before the login was done (%s). %s"
                              % (target.label, reason, through))
    unreachable.again = True
    return unreachable
