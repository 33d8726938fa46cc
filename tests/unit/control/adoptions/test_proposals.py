# SPDX-License-Identifier: GPL-3.0-or-later
"""What a domain would become in a cloud: the cases of ``tests/cases/adoptions/proposals.yml``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar_control.compute.adoptions.proposals import AdoptionCandidate, AdoptionRequest, Offers, propose_server
from magnetar_control.compute.cloud import HostView
from magnetar_control.store.accounts.flavors import FlavorRow
from magnetar_control.store.servers.server_row import ServerRow

CASES = yaml.safe_load((Path(__file__).parents[3] / "cases/adoptions/proposals.yml").read_text())
NIC = {"bridge": "br0", "mac": "52:54:00:00:00:01", "model": "virtio"}
HOST = HostView("kvm1", "1", "2", "unix:/x", "nova", up=True, disabled=False, forced_down=False, seen_at=None)


def flavor_rows(case: Mapping[str, Any], word: str, public: bool) -> list[FlavorRow]:
    return [FlavorRow.of_values({
        "number": number, "id": name, "name": name, "vcpus": size[0], "ram": size[1], "disk": size[2], "ephemeral": 0,
        "swap": 0, "rxtx_factor": 1.0, "is_public": public, "disabled": False, "description": None, "created_at": "",
        "updated_at": None, "extra_specs": json.dumps(case.get("specs") or {})})
        for number, (name, size) in enumerate((case.get(word) or {}).items())]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_proposal(case: dict[str, Any]) -> None:
    given = case.get("given") or {}
    report = {"id": "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", "name": "web1", "hindrances": given.get("hindrances", []),
              "addresses": given.get("addresses", {}), "server": {
                  "flavor": {"vcpus": 2, "ram": 2048, "disk": 20, "ephemeral": 0, "swap": 0},
                  "networks": given.get("networks", [NIC])}}
    row = ServerRow.of_values({"id": report["id"], **case["row"]}) if "row" in case else None
    networks = [{"id": f"{number:08d}-0000", "name": name, "bridge": bridge}
                for number, (name, bridge) in enumerate((case.get("networks") or {}).items())]
    request = AdoptionRequest(project_id="web", user_id="ann", **(case.get("request") or {}))
    offers = Offers([*flavor_rows(case, "private", False), *flavor_rows(case, "flavors", True)], networks)
    proposal = propose_server(AdoptionCandidate(HOST, report, row), request, offers)
    assert [reason for reason, _message in proposal.hindrances] == case.get("hinders", [])
    assert case.get("says", "") in " ".join(message for _reason, message in proposal.hindrances)
    assert (proposal.flavor or {}).get("name") == case.get("flavor")
    assert proposal.makes_flavor is case.get("makes_flavor", False) and proposal.name == "web1"
    assert [nic.network["name"] for nic in proposal.nics] == case.get("networks_of_nics", [])
    assert [address for nic in proposal.nics for address in nic.addresses] == case.get("addresses", [])
