# SPDX-License-Identifier: GPL-3.0-or-later
"""Paramiko, loaded at the first use: users without ssh endpoints need not install it."""

from __future__ import annotations

import functools
import socket
import sys
import warnings

from ..core.errors import Unreachable


@functools.lru_cache(maxsize=None)
def load_paramiko():
    """Import and return the module ``paramiko``. Raises ``Unreachable``, with advice on its installation, if it is
    missing.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about ciphers that are not used here
            import paramiko as found
    except ImportError as error:
        raise Unreachable(
            "ssh:// needs the Python package paramiko where the connection is made, and %s on %s has none (%s). "
            "Install it there: `%s -m pip install paramiko`, or the distribution's python3-paramiko. If that is not "
            "the controller, direct execution was not possible: `direct: always` says why."
            % (sys.executable, socket.gethostname(), error, sys.executable)) from None
    import logging

    logging.getLogger("paramiko").addHandler(logging.NullHandler())  # errors are reported as results
    return found
