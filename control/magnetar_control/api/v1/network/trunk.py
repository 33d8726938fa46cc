# SPDX-License-Identifier: GPL-3.0-or-later
"""Trunks of the network service."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from magnetar_control.api.network import attributes
from magnetar_control.compute.caller import Caller
from magnetar_control.services.network.ports.trunks import VLAN
from magnetar_core.kinds import NetworkPort, NetworkTrunk
from magnetar_core.reconcile import Document

from .networking import Networking, Row, reference


class Trunks(Networking):
    kind, plural, body, held = NetworkTrunk, "trunks", attributes.TRUNK, "subports"
    references = ("port", "_ports")

    def shown(self, row: Row) -> Document:
        return {"port": row["port_id"], "admin_state_up": row["admin_state_up"], "status": row["status"],
                "subports": [{"port": one["port_id"], "segmentation_id": one["segmentation_id"]}
                             for one in row["sub_ports"]]}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        def port(field: str, key: str) -> str:
            return reference(caller, NetworkPort, "ports", (field, key),
                             lambda row: row["project_id"] == caller.project)

        want = {**want, "port": port("port", want["port"])}
        if want.get("subports") is not None:
            found = [{**one, "port": port(f"subports[{at}].port", one["port"])}
                     for at, one in enumerate(want["subports"])]
            want["subports"] = sorted(found, key=lambda one: int(one["segmentation_id"]))
            want["_ports"] = [one["port"] for one in found]
        return want

    def parts(self, want: Document, id: str | None) -> list[Document] | None:
        if want.get("subports") is None:
            return None
        return [{"port_id": one["port"], "segmentation_type": VLAN, "segmentation_id": one["segmentation_id"]}
                for one in want["subports"]]

    def values(self, want: Document, names: Iterable[str]) -> Document:
        found = super().values(want, (name for name in names if name != "_ports"))
        if "port" in found:
            found["port_id"] = found.pop("port")
        return found

    def create(self, caller: Caller, want: Document, dry: bool) -> Row:
        """With its subports at once: one that is not up takes none afterwards."""
        store: Any = caller.cloud.services.network.resources[self.plural]
        (found,) = store.create(caller.context, {**self.checked(want), "sub_ports": self.parts(want, None) or []},
                                dry=dry)
        return dict(found)
