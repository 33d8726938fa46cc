# SPDX-License-Identifier: GPL-3.0-or-later
"""The cloud that a task asks; see ``core.clouds``, which has no YAML."""

from __future__ import annotations

from .core.errors import InvalidField
from .core.http import clouds
from .core.http.clouds import ONLY, deciding_variable, meant

__all__ = ["ONLY", "deciding_variable", "described", "meant", "only_cloud"]


def described(params):
    """As ``core.clouds.described``."""
    return clouds.described(params, _load)


def only_cloud():
    """As ``core.clouds.only_cloud``."""
    return clouds.only_cloud(_load)


def _load(stream):
    try:
        import yaml
    except ImportError:
        raise InvalidField("cloud", "needs PyYAML for clouds.yaml on the machine where the task is done; install it, "
                           "or set the OS_* variables") from None
    try:
        return yaml.safe_load(stream)
    except yaml.YAMLError:
        raise ValueError from None
