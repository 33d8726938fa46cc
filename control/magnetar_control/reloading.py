# SPDX-License-Identifier: GPL-3.0-or-later
"""SIGHUP: a service reads its settings file again. Settings in ``RELOADED`` take effect immediately; the log names the
others that have changed, which need a restart. Wrong settings are logged and change nothing."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING

from magnetar_control.compute.availability.ha_policy import check_project_policies
from magnetar_control.compute.offered_shares import offered_shares
from magnetar_control.fencing.fence_devices import fence_devices
from magnetar_control.notifications.receivers import receivers_of
from magnetar_control.scheduler.rules import scheduler_rules
from magnetar_control.services.image import quotas as image_quotas
from magnetar_control.services.network import quotas as network_quotas
from magnetar_control.services.quotas import Quotas
from magnetar_control.services.volume import quotas as volume_quotas
from magnetar_core.errors import InvalidSettings, MagnetarError

from .settings import Settings
from .settings_file import RELOADED

if TYPE_CHECKING:
    from .serve import Parts

log = logging.getLogger(__name__)


def changed_settings(before: Settings, after: Settings) -> list[str]:
    """Return the names of the settings that have different values in *before* and *after*, sorted."""
    return sorted(setting.name for setting in dataclasses.fields(Settings)
                  if getattr(before, setting.name) != getattr(after, setting.name))


def check_service_settings(settings: Settings) -> None:
    """Check the settings that need more than a check of their type: scheduler rules, fence devices, policies,
    notification receivers, shares and the log level. Raises ``InvalidSettings``."""
    for check in (scheduler_rules, fence_devices, check_project_policies, receivers_of, offered_shares):
        check(settings)
    if not isinstance(logging.getLevelName(settings.log_level.upper()), int):
        raise InvalidSettings(f"log_level must be debug, info, warning or error, and is {settings.log_level!r}.")


class SettingsReloader:
    """The reloader of a running service's settings. *settings*: the object that the service uses, which is changed in
    place. *read*: returns new settings from file and command line."""

    def __init__(self, settings: Settings, read: Callable[[], Settings]) -> None:
        self.settings, self._read = settings, read
        self._parts: Parts | None = None
        self._asked: SimpleQueue[bool] = SimpleQueue()

    def follow(self, parts: Parts) -> None:
        """From now on, update *parts*, the objects of the service, when settings change."""
        self._parts = parts

    def ask(self) -> None:
        """Make the reloader's thread read the settings again. This may be called in a signal handler."""
        self._asked.put(True)

    def start(self) -> None:
        """Start the thread that reads the settings again after each call of ``ask``."""
        threading.Thread(target=self._run, name="settings", daemon=True).start()

    def _run(self) -> None:
        while self._asked.get():
            if (settings := self.read()) is not None:
                self.apply(settings)

    def read(self) -> Settings | None:
        """Return the settings that file and command line have now. If they are invalid, log the reason and return
        ``None``."""
        try:
            settings = self._read()
            check_service_settings(settings)
            if self._parts and self._parts.working:
                self._parts.working.vendordata_of(settings)
        except (MagnetarError, OSError) as error:
            log.error("the settings are not read again: %s", error)  # noqa: TRY400
            return None
        return settings

    def apply(self, settings: Settings, elsewhere: Collection[str] = ()) -> None:
        """Apply those changes in *settings* that need no restart (``RELOADED``), and log the names of all changed
        settings. *elsewhere*: names of settings that other processes of the service apply, so that they need no restart
        either."""
        changed = changed_settings(self.settings, settings)
        reloaded = [name for name in changed if name in RELOADED]
        self.settings.take_over(settings, reloaded)
        if self._parts is not None:
            follow_settings(self._parts, reloaded)
        waiting = [name for name in changed if name not in RELOADED and name not in elsewhere]
        log.info("the settings are read again: %s", ", ".join(reloaded) or "none of those that can be reloaded has "
                 "changed")
        if waiting:
            log.warning("these settings take effect when the service is started again: %s", ", ".join(waiting))


def follow_settings(parts: Parts, changed: Collection[str]) -> None:
    """Update the objects in *parts* that depend on the *changed* settings (names), such as log level and quota
    defaults."""
    settings = parts.settings
    if "log_level" in changed:
        logging.getLogger().setLevel(settings.log_level.upper())
    if any(name.startswith("quota_") for name in changed):
        for quota, limits in ((parts.networks.quota, network_quotas.default_network_limits(settings)),
                              (parts.volumes.quota, volume_quotas.default_volume_limits(settings)),
                              (parts.images.quota, image_quotas.image_quota_defaults(settings))):
            _set_defaults(quota, limits)
    if "shares" in changed and parts.cloud is not None:
        parts.cloud.shares = offered_shares(settings)
    if parts.working is not None and changed:
        parts.working.follow_settings()


def _set_defaults(quota: Quotas, limits: Mapping[str, int]) -> None:
    quota.defaults = {name: limits.get(name, default) for name, default in quota.defaults.items()}
