# SPDX-License-Identifier: GPL-3.0-or-later
"""libvirt's events of domains, translated to ``hypervisor.DomainEvent``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.host.hypervisor import DomainEvent

if TYPE_CHECKING:
    from collections.abc import Callable

#: Event and detail of VIR_DOMAIN_EVENT_ID_LIFECYCLE to *what* and *reason* of ``DomainEvent``; None: any other detail.
EVENTS: dict[tuple[int, int | None], tuple[str, str]] = {
    (libvirt.VIR_DOMAIN_EVENT_DEFINED, None): ("defined", "unknown"),
    (libvirt.VIR_DOMAIN_EVENT_UNDEFINED, None): ("undefined", "unknown"),
    (libvirt.VIR_DOMAIN_EVENT_STARTED, None): ("started", "unknown"),
    (libvirt.VIR_DOMAIN_EVENT_STARTED, libvirt.VIR_DOMAIN_EVENT_STARTED_RESTORED): ("started", "saved"),
    (libvirt.VIR_DOMAIN_EVENT_SUSPENDED, None): ("suspended", "unknown"),
    (libvirt.VIR_DOMAIN_EVENT_SUSPENDED, libvirt.VIR_DOMAIN_EVENT_SUSPENDED_IOERROR): ("suspended", "io-error"),
    (libvirt.VIR_DOMAIN_EVENT_RESUMED, None): ("resumed", "unknown"),
    (libvirt.VIR_DOMAIN_EVENT_PMSUSPENDED, None): ("suspended", "guest"),
    (libvirt.VIR_DOMAIN_EVENT_STOPPED, None): ("stopped", "unknown"),
    (libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_STOPPED_SHUTDOWN): ("stopped", "guest"),
    (libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_STOPPED_DESTROYED): ("stopped", "outside"),
    (libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_STOPPED_SAVED): ("stopped", "saved"),
    (libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_STOPPED_CRASHED): ("crashed", "panic"),
    (libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_STOPPED_FAILED): ("crashed", "failed"),
    (libvirt.VIR_DOMAIN_EVENT_CRASHED, None): ("crashed", "panic"),
}


def listen_to_domains(conn: Any, tell: Callable[[DomainEvent], None]) -> None:
    """Call *tell* for each libvirt event of any domain, in libvirt's event thread. *conn*: the ``virConnect``."""
    def happened(_conn: Any, domain: Any, event: int, detail: int, _opaque: Any) -> None:
        words = EVENTS.get((event, detail)) or EVENTS.get((event, None))
        if words:
            tell(DomainEvent(domain.UUIDString(), *words))

    def rebooted(_conn: Any, domain: Any, _opaque: Any) -> None:
        tell(DomainEvent(domain.UUIDString(), "rebooted"))

    def detached(_conn: Any, domain: Any, _alias: str, _opaque: Any) -> None:
        tell(DomainEvent(domain.UUIDString(), "detached"))

    def kept(_conn: Any, domain: Any, _alias: str, _opaque: Any) -> None:
        tell(DomainEvent(domain.UUIDString(), "kept"))

    def agent(_conn: Any, domain: Any, state: int, _reason: int, _opaque: Any) -> None:
        if state == libvirt.VIR_CONNECT_DOMAIN_EVENT_AGENT_LIFECYCLE_STATE_CONNECTED:
            tell(DomainEvent(domain.UUIDString(), "agent"))

    conn.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_AGENT_LIFECYCLE, agent, None)
    conn.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED, detached, None)
    conn.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVAL_FAILED, kept, None)
    conn.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, happened, None)
    conn.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_REBOOT, rebooted, None)
