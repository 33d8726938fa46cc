# SPDX-License-Identifier: GPL-3.0-or-later
"""The module server_import, which makes a server of an OVA: images and volumes of its disks, and the server."""

from __future__ import annotations

import time

from ...core.errors import ImageRefused, Immutable, InvalidField, NotFound
from ...core.images.imported_hardware import imported_hardware
from ...core.images.ova import BLOCK, is_archive, read_ova
from ...core.kinds.common import DESCRIPTION, NAME, TAG
from ...core.options import File, Option, name_options
from ...core.reconcile import assumed_warning
from ...core.values import Choices, Integer, ListOf, MapOf, Text
from .. import results
from ..image import ImageModule
from ..module import Module, texts_of_field

GIB = 1 << 30
#: Values of ``state``, with the power state of a new server.
POWER = {"running": "running", "stopped": "off"}
#: Metadata of a volume: the OVA and the disk in it that it was made of.
CHECKSUM, DISK = "ova_checksum", "ova_disk"
#: Property of an image that an import made for the volume of a further disk, and removes: the name of the server.
IMPORTED_FOR = "ova_imported_for"


class ServerImportModule(Module):
    """The module server_import. It creates a server with the disks and the hardware of an OVA, unless a server with
    this name exists."""

    name = "server_import"
    files = ("filename",)
    options = name_options(
        name=Option(NAME, "Name of the server. The image of its first disk gets the same name. Each further disk "
                    "becomes a volume C(NAME-disk2), C(NAME-disk3) and so on.", required=True),
        filename=Option(File(), "The OVA, on the machine where the module runs. It is sent once for each disk.",
                        aliases=("ova", "path")),
        host_path=Option(Text(1, 4096), "The OVA on the agent's host, in one of the agent's C(image_paths)."),
        networks=Option(MapOf(Text(1), Text()), "Network of the host for each network of the OVA, by the name that the "
                        "OVA has for it. An empty name leaves the NICs of a network out.", default={},
                        aliases=("network_mappings",)),
        vcpus=Option(Integer(1), "Number of virtual CPUs in place of the OVA's."),
        ram=Option(Integer(1), "Memory in MiB in place of the OVA's.", aliases=("memory",)),
        disk=Option(Integer(1), "Size of the root disk in GiB, at least that of the OVA's first disk; by default the "
                    "same, rounded up."),
        properties=Option(MapOf(Text(1), Text()), "Properties of the image that replace those found in the OVA, such "
                          "as V(hw_disk_bus) and V(hw_vif_model).", default={}),
        description=Option(DESCRIPTION, "Free text of a new server.", default=""),
        metadata=Option(MapOf(Text(1, 255), Text(0, 255)), "Metadata of a new server.", default={}),
        tags=Option(ListOf(TAG, 50, unique=True), "Tags of a new server.", default=[]),
        state=Option(Choices(*POWER), "Whether a new server runs or is off. An existing server keeps its power "
                     "state.", default="running"),
    )
    rules = {"required_one_of": [["filename", "host_path"]], "mutually_exclusive": [["filename", "host_path"]]}

    def execute(self, params, check_mode, diff_mode, client):
        if client.of_cloud:
            raise InvalidField("cloud", "is not for imports of OVAs, which the agent of a host reads. Name the agent "
                               "as endpoint, or unpack the OVA and upload its disks as images")
        work = _Import(params, check_mode, client)
        if work.exists("server", params["name"]):
            work.ensure("server", params["name"], {})
        else:
            work.make_server()
        return work.result(diff_mode)


class _Import:
    """An import of an OVA with the module parameters *params*. Every step may be repeated, so an import that was
    interrupted continues.
    """

    def __init__(self, params, check_mode, client):
        self.params, self.check_mode, self.client = params, check_mode, client
        self._deadline = time.monotonic() + params["timeout"]
        #: Pairs of a label, such as "image web1", and the answer for it.
        self.answers = []
        self.ovf, self.warnings = None, []

    @property
    def _waiting(self):
        return {"dry_run": self.check_mode, "wait": True, "timeout": max(1, int(self._deadline - time.monotonic()))}

    def make_server(self):
        """Create the images, the volumes of further disks, and the server. Before that, a dry run checks that the host
        would accept the server."""
        name = self.params["name"]
        self.ovf = self._description()
        hardware = imported_hardware(self.ovf, _texts(self.params["networks"]), _texts(self.params["properties"]))
        self.warnings += hardware.warnings
        want = self._server(hardware, self.ovf["disks"][0]["size"])
        self._check_networks(want)
        image = self._ensure_image(name, 0, hardware.properties)
        for number in range(1, len(self.ovf["disks"])):
            self._ensure_volume(number, image)
        want = self._server(hardware, image.get("virtual_size") or self.ovf["disks"][0]["size"])
        self.ensure("server", name, want)

    def _server(self, hardware, size):
        """Return the fields of the new server. *hardware*: an ``ImportedHardware``. *size*: bytes of the root disk;
        ``None`` if unknown. Raises ``InvalidField`` if CPUs or memory are stated neither by an option nor by the OVA.
        """
        params = self.params
        sizes = {name: params[name] or self.ovf[name] for name in ("vcpus", "ram")}
        for name, value in sizes.items():
            if not value:
                raise InvalidField(name, "is required: the OVA does not name it")
        volumes = [{"source_type": "volume", "destination_type": "volume", "uuid": self._disk_name(number),
                    "disk_bus": bus} for number, bus in enumerate(hardware.buses, 1)]
        return {"flavor": dict(sizes, disk=params["disk"] or -(-(size or 0) // GIB)), "image": params["name"],
                "networks": [dict(nic) for nic in hardware.nics], "block_device_mapping": volumes,
                "config_drive": False, "power": POWER[params["state"]], "description": params["description"],
                "metadata": _texts(params["metadata"]), "tags": params["tags"]}

    def _disk_name(self, number):
        return "%s-disk%d" % (self.params["name"], number + 1)

    def _check_networks(self, want):
        """Raise an error if the host would refuse to create the server with the fields *want*. A dry run accepts
        missing networks with a warning. Except in check mode, raise ``InvalidField`` for this warning. Otherwise the
        import would fail only after the images are created."""
        answer = self.client.ensure("server", self.params["name"], want, **dict(self._waiting, dry_run=True))
        for network in {nic["network"] for nic in want["networks"]}:
            if not self.check_mode and assumed_warning("network", network) in (answer.get("warnings") or ()):
                raise InvalidField("networks", "must name networks of the host, and there is none called %r; make it "
                                   "with the network module" % network)

    def exists(self, noun, name):
        """Return whether the host has the resource *name* of the type *noun*."""
        return self._get(noun, name) is not None

    def ensure(self, noun, name, want):
        """Create or change the resource *name* of the type *noun*, so that it has the fields *want*. Append the answer
        to ``answers``, and return the resource."""
        return self._note(noun, name, self.client.ensure(noun, name, want, **self._waiting))

    def _get(self, noun, name):
        try:
            return self.client.get(noun, name)
        except NotFound:
            return None

    def _note(self, noun, name, answer):
        self.answers.append((noun, name, answer))
        return answer.get("resource") or {}

    def _description(self):
        """Return the description of the OVA, in the form of the field ``ovf`` of an image. Raises ``InvalidField`` if
        the file is not an OVA, has no disk, or does not have exactly one guest."""
        option = "filename" if self.params["filename"] else "host_path"
        try:
            described = self._described_here() if option == "filename" else self._described_on_host()
        except Immutable:
            raise self._taken_name(self.params["name"]) from None
        if not described or not described["disks"]:
            raise InvalidField(option, "must be an OVA with a disk. Make an image of any other disk by the module "
                               "image", self.params[option])
        if described["guests"] != 1:
            raise InvalidField(option, "must be an OVA of one guest, and describes %d. Make images of its disks by "
                               "ova_disk of the module image, and servers of these" % described["guests"],
                               self.params[option])
        return described

    def _described_here(self):
        try:
            with open(self.params["filename"], "rb") as file:
                def read(at, length):
                    file.seek(at)
                    return file.read(length)
                return read_ova(read, file.seek(0, 2)).description.as_document() if is_archive(read(0, BLOCK)) else None
        except OSError as error:
            raise InvalidField("filename", "cannot be read: %s" % error.strerror, self.params["filename"]) from None

    def _described_on_host(self):
        """Return the description of the OVA from a dry run that would create an image, in which the agent reads the
        file. The agent refuses an OVA with several disks, and its error lists the disks. In this case, repeat the dry
        run with the first disk."""
        want = {"source": {"path": self.params["host_path"]}}
        dry = dict(self._waiting, dry_run=True)
        try:
            answer = self.client.ensure("image", self.params["name"], want, **dry)
        except ImageRefused as error:
            if not error.details.get("disks"):
                raise
            want["ova_disk"] = error.details["disks"][0]
            answer = self.client.ensure("image", self.params["name"], want, **dry)
        return answer["resource"].get("ovf")

    def _ensure_image(self, name, number, properties):
        """Create the image *name* from the disk with the index *number* in the OVA, and return the image. *properties*:
        properties of the image. Raises ``InvalidField`` if an image of this name exists and has other content."""
        disks = self.ovf["disks"]
        options = {"name": name, "filename": self.params["filename"], "host_path": self.params["host_path"],
                   "state": "present", "on_immutable": "fail", "properties": dict(properties) or None,
                   DISK: disks[number]["name"] if len(disks) > 1 else None}
        try:
            return self._note("image", name, ImageModule().ensure(self.client, name, options, self._waiting))
        except Immutable:
            raise self._taken_name(name) from None

    def _taken_name(self, image):
        return InvalidField("name", "leads to the image %s, which exists and is not of this OVA. Choose another name, "
                            "or remove the image" % image, self.params["name"])

    def _ensure_volume(self, number, image):
        """Create the volume for the further disk with the index *number* in the OVA. The volume is created from a
        temporary image, which is then removed. An image of the disk that was made in another way is used and stays.
        *image*: the image of the first disk."""
        name, disk = self._disk_name(number), self.ovf["disks"][number]["name"]
        origin = {CHECKSUM: image.get("checksum") or "", DISK: disk}
        present = self._get("volume", name)
        if present is not None and present["metadata"] != origin:
            raise InvalidField("name", "leads to the volume %s, which exists and is not of this OVA" % name,
                               self.params["name"])
        mark, content = {IMPORTED_FOR: self.params["name"]}, self._get("image", name)
        own = content is None or content["properties"] == mark
        if present is None or present["status"] == "creating" or (own and content is not None):
            self._ensure_image(name, number, mark if own else {})
            self.ensure("volume", name, {"image": name, "metadata": origin})
            if own and not self.check_mode:
                self.client.delete("image", name, timeout=self._waiting["timeout"])

    def result(self, diff_mode):
        """Return one module result that combines all answers."""
        leaves = [dict(leaf, path="%s.%s.%s" % (noun, name, leaf["path"]))
                  for noun, name, answer in self.answers for leaf in answer.get("diff") or ()]
        steps = [{"verb": "%s %s: %s" % (noun, name, step["verb"])}
                 for noun, name, answer in self.answers for step in answer.get("steps") or ()]
        _noun, name, last = self.answers[-1]
        own = {assumed_warning(noun, name) for noun, name, _answer in self.answers}
        warnings = [text for _noun, _name, answer in self.answers for text in answer.get("warnings") or ()
                    if text not in own]
        whole = dict(last, changed=any(answer["changed"] for _noun, _name, answer in self.answers), diff=leaves,
                     steps=steps, warnings=self.warnings + warnings)
        return dict(results.module_result("server", name, whole, diff_mode), ovf=self.ovf,
                    volumes=[name for noun, name, _answer in self.answers if noun == "volume"])


def _texts(mapping):
    """Return *mapping* with numbers and booleans converted to strings, because YAML reads some words as numbers or
    booleans."""
    return texts_of_field(_TEXTS, mapping)


#: A field of a mapping of texts, for ``_texts``.
_TEXTS = Option(MapOf(Text(), Text()), "").with_name("texts")
