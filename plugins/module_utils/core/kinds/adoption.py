# SPDX-License-Identifier: GPL-3.0-or-later
"""adoption: a libvirt domain of the host that Magnetar did not make, and the server that it becomes."""

from __future__ import annotations

from ..fields import FIXED, READ, Field, Kind
from ..values import Boolean, Choices, ListOf, Text, Uuid, Value
from .common import NAME

#: Values of ``status``.
ADOPTABLE, HINDERED, ADOPTED = "adoptable", "hindered", "adopted"


class Adoption(Kind):
    """A libvirt domain that another program has defined. The resource is present when the domain is a server of the
    agent, and absent when it is not. The domain exists either way, and keeps its definition and its disks.
    """

    noun, plural = "adoption", "adoptions"
    sample_actions = ("record", "mark_domain")
    sample_changes = {"status": ("adoptable", "adopted")}
    report_doc = ("The domains of the host that Magnetar did not make, sorted by name; with C(status), those that it "
                  "has adopted.")

    id = Field(Uuid(), "The uuid of the domain. Its server has the same uuid.", on=FIXED,
               sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(Text(1, 255), "The name of the libvirt domain. It stays.", on=FIXED, required=True,
                 aliases=("domain",), sample="web1")
    server_name = Field(NAME, "The name of the server; the name of the domain when omitted.", on=FIXED, sample="web1")
    status = Field(Choices(ADOPTABLE, HINDERED, ADOPTED), "Whether the domain can be adopted, something hinders its "
                   "adoption, or it is adopted.", on=READ, sample=ADOPTED)
    power_state = Field(Text(), "The power state of the domain.", on=READ, sample="running")
    autostart = Field(Boolean(), "Whether libvirt starts the domain when the host boots. It stays so.", on=READ,
                      sample=True)
    server = Field(Value(), "The fields of the server, as it is or would be: {name, flavor, networks, machine, "
                   "virt_type, power, resume_on_host_boot}.", on=READ,
                   sample={"name": "web1", "flavor": {"vcpus": 2, "ram": 2048, "disk": 20, "ephemeral": 0, "swap": 0},
                           "networks": [{"network": "default", "mac": "52:54:00:12:34:56", "model": "virtio"}],
                           "machine": "pc-q35-7.2", "virt_type": "kvm", "power": "running",
                           "resume_on_host_boot": True})
    disks = Field(ListOf(Value(), 2**31), "The disks, which stay where they are: {device, bus, kind, format, path, "
                  "size in bytes, readonly, shareable, backing}. C(backing) has path and format of each backing file.",
                  on=READ, sample=[{"device": "vda", "bus": "virtio", "kind": "disk", "format": "qcow2",
                                    "path": "/var/lib/libvirt/images/web1.qcow2", "size": 21474836480,
                                    "readonly": False, "shareable": False,
                                    "backing": [{"path": "/var/lib/libvirt/images/base.qcow2", "format": "qcow2"}]}])
    stays = Field(ListOf(Value(), 2**31), "The parts of the definition that a server has no fields for, and that stay "
                  "as they are: {part, value}.", on=READ,
                  sample=[{"part": "firmware", "value": "UEFI, variables in /var/lib/libvirt/qemu/nvram/web1_VARS.fd"}])
    hindrances = Field(ListOf(Value(), 2**31), "What hinders the adoption: {reason, message}. The message says what to "
                       "do.", on=READ,
                       sample=[])
