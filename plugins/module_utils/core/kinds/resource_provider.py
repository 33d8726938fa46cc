# SPDX-License-Identifier: GPL-3.0-or-later
"""resource_provider and trait: what a cloud's host offers to servers, as in Placement: its inventories and its traits
(properties and capabilities).
"""

from __future__ import annotations

from typing import Any, Optional

from ..errors import InvalidField
from ..fields import FIXED, READ, Field, Kind, Record
from ..values import Boolean, Integer, ListOf, MapOf, Text, Value
from ..versions import Version

_NAME = Text(1, 255, "[A-Z0-9_]+", "must be capital letters, digits and _")


class Ratio(Value):
    """The value type of positive numbers, which may also be given as strings."""

    form = (int, float)

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        try:
            ratio = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else 0.0
        except ValueError:
            ratio = 0.0
        if not 0 < ratio < float("inf"):
            raise InvalidField(path, "must be a number above 0", value)
        return ratio

    def schema(self, version: Optional[Version] = None) -> dict[str, Any]:
        return {"type": ["number", "string"], "exclusiveMinimum": 0}

    def option(self) -> dict[str, Any]:
        return {"type": "float"}


INVENTORY = Record(
    total=Field(Integer(1), "Total amount; only for classes that its agent does not report."),
    reserved=Field(Integer(), "Amount that servers do not get."),
    min_unit=Field(Integer(1), "The least that one server may claim."),
    max_unit=Field(Integer(1), "The most that one server may claim."),
    step_size=Field(Integer(1), "Claims of a server are multiples of it."),
    allocation_ratio=Field(Ratio(), "Overcommit ratio."))


class ResourceProvider(Kind):
    """A host of a cloud as Placement sees it. It exists as long as the host, and cannot be created."""

    noun, plural = "resource_provider", "resource_providers"
    sample_changes = {"own_traits": ([], ["CUSTOM_SSD"])}

    id = Field(Text(1, 64), "The uuid.", on=READ, sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(Text(1, 255), "The host's name.", on=FIXED, required=True, aliases=("host",), sample="kvm1")
    own_traits = Field(ListOf(_NAME, 1000, unique=True), "Traits from operators, in addition to the traits that its "
                       "agent reports, such as V(CUSTOM_SSD). Missing custom traits are created. Given traits replace "
                       "the existing ones.",
                       sample=["CUSTOM_SSD"])
    own_inventories = Field(
        MapOf(_NAME, INVENTORY, 500), "Settings of operators for its inventories, by resource class. Of V(VCPU), "
                                      "V(MEMORY_MB), V(DISK_GB), V(PCPU) and other classes that its agent reports: "
                                      "V(reserved) and V(allocation_ratio). Of custom classes also V(total), "
                                      "V(min_unit), V(max_unit) and V(step_size). Given inventories replace the "
                                      "existing ones; other classes follow settings, aggregates and the agent.",
        sample={"VCPU": {"allocation_ratio": 4.0}, "CUSTOM_LICENSE": {
            "total": 8, "reserved": 0, "min_unit": 1, "max_unit": 2147483647, "step_size": 1, "allocation_ratio": 1.0}})
    traits = Field(ListOf(Text()), "All its traits.", on=READ, sample=["COMPUTE_NODE", "CUSTOM_SSD"])
    inventories = Field(Value(), "All its inventories, by resource class.", on=READ, sample={"VCPU": {
        "total": 16, "reserved": 0, "min_unit": 1, "max_unit": 16, "step_size": 1, "allocation_ratio": 4.0}})
    usages = Field(MapOf(Text(), Integer()), "Claimed amounts of them.", on=READ, sample={"VCPU": 3})
    aggregates = Field(ListOf(Text()), "Names of the host aggregates that it is in.", on=READ, sample=["fast"])
    generation = Field(Integer(), "A number that is another one when inventories, traits or aggregates are.", on=READ,
                       sample=7)


class HostTrait(Kind):
    """A trait, and the hosts of a cloud that have it."""

    noun, plural = "trait", "traits"
    selectable = False

    name = Field(Text(), "The name.", on=READ, sample="CUSTOM_SSD")
    custom = Field(Boolean(), "Whether operators have made it.", on=READ, sample=True)
    hosts = Field(ListOf(Text()), "Names of the hosts that have it.", on=READ, sample=["kvm1"])
