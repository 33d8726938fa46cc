# SPDX-License-Identifier: GPL-3.0-or-later
"""The cloud of a task, with PyYAML as the reader of clouds.yaml; see ``core.http.clouds``."""

from __future__ import annotations

from .core.errors import InvalidField
from .core.http import clouds
from .core.http.clouds import ONLY, chosen_cloud, deciding_variable

__all__ = ["ONLY", "chosen_cloud", "deciding_variable", "read_cloud_entry", "read_only_cloud"]


def read_cloud_entry(params):
    """Return the entry of clouds.yaml, or its equivalent from ``OS_*`` variables, that the module parameters *params*
    select; ``None`` if they select an agent.
    """
    return clouds.cloud_entry(params, _load)


def read_only_cloud():
    """Return the name of the cloud in clouds.yaml. Raises ``InvalidField`` unless the file has exactly one."""
    return clouds.find_only_cloud(_load)


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
