# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of the control plane for a subcommand, which are loaded only when it runs."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from . import settings_file as configuration

if TYPE_CHECKING:
    from .serve import Parts


def open_parts(options: argparse.Namespace) -> contextlib.closing[Parts]:
    """Return a context manager of the parts, made from the settings that *options* name (``--config``)."""
    from .serve import Parts

    return contextlib.closing(Parts(configuration.load_settings(options.config)))
