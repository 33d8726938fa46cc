# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of the control plane for a subcommand, which are loaded only when it runs."""

from __future__ import annotations

import argparse
import contextlib
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from . import settings_file as configuration

if TYPE_CHECKING:
    from magnetar_control.compute.caller import Caller

    from .serve import Parts


def open_parts(options: argparse.Namespace) -> contextlib.closing[Parts]:
    """Return a context manager that opens the databases and the clients of other services that a command needs
    (``serve.Parts``), and closes them at the end. *options*: parsed arguments with ``config``, the path of the settings
    file."""
    from .serve import Parts

    return contextlib.closing(Parts(configuration.load_settings(options.config)))


@contextlib.contextmanager
def open_operator(options: argparse.Namespace) -> Iterator[Caller]:
    """Yield a caller with the role admin, with which a command runs API operations. Policy rules are not checked: an
    operator who can read the settings can change the databases anyway."""
    from magnetar_control.compute.caller import Caller
    from magnetar_control.compute.cloud import Cloud
    from magnetar_control.services import Context

    with open_parts(options) as parts:
        cloud = Cloud(parts.settings, parts.store, parts.services(), parts.agents, parts.hosts)
        yield Caller(cloud, Context("", None, frozenset({"admin"})), f"req-{uuid.uuid4()}")


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print *rows* as aligned columns under the headings *head*. Print nothing if there are no rows."""
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        print("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())
