# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type trunk: trunks of the network service."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from magnetar_control.api.network import attributes
from magnetar_control.compute.caller import Caller
from magnetar_control.services.network.ports.trunks import VLAN
from magnetar_core.document import Document
from magnetar_core.kinds import NetworkPort, NetworkTrunk

from .networking import Networking, Row, resolve_reference


class Trunks(Networking):
    kind, plural, body, held = NetworkTrunk, "trunks", attributes.TRUNK, "subports"
    references = ("port", "_ports")

    def as_document(self, row: Row) -> Document:
        return {"port": row["port_id"], "admin_state_up": row["admin_state_up"], "status": row["status"],
                "subports": [{"port": subport["port_id"], "segmentation_id": subport["segmentation_id"]}
                             for subport in row["sub_ports"]]}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        def port(field: str, key: str) -> str:
            return resolve_reference(caller, NetworkPort, "ports", (field, key),
                                     lambda row: row["project_id"] == caller.project)

        want = {**want, "port": port("port", want["port"])}
        if want.get("subports") is not None:
            subports = [{**subport, "port": port(f"subports[{at}].port", subport["port"])}
                        for at, subport in enumerate(want["subports"])]
            want["subports"] = sorted(subports, key=lambda subport: int(subport["segmentation_id"]))
            want["_ports"] = [subport["port"] for subport in subports]
        return want

    def parts(self, want: Document, id: str | None) -> list[Document] | None:
        if want.get("subports") is None:
            return None
        return [{"port_id": subport["port"], "segmentation_type": VLAN, "segmentation_id": subport["segmentation_id"]}
                for subport in want["subports"]]

    def values(self, want: Document, names: Iterable[str]) -> Document:
        values = super().values(want, (name for name in names if name != "_ports"))
        if "port" in values:
            values["port_id"] = values.pop("port")
        return values

    def create(self, caller: Caller, want: Document, dry: bool) -> Row:
        """Override ``Networking.create``: create the trunk and its subports in one request, because subports cannot be
        added later while the trunk is not up. Return the row of the trunk. *dry*: only predict the row."""
        store: Any = caller.cloud.services.network.resources[self.plural]
        (trunk,) = store.create(caller.context, {**self.checked(want), "sub_ports": self.parts(want, None) or []},
                                dry=dry)
        return dict(trunk)
