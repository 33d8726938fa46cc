# SPDX-License-Identifier: GPL-3.0-or-later
"""The module server, which creates, changes or removes one server, or many in one call."""

from __future__ import annotations

import base64
import json
import re

from ..core.errors import InvalidField
from ..core.kinds.flavor import Flavor
from ..core.kinds.server import Server
from ..core.options import Option, bounded_options, check_options, name_options
from ..core.values import Boolean, Integer, ListOf, Text, Value
from . import results
from .module import ABSENT, PRESENT, key_from_params, looks_like_uuid
from .resource import ResourceModule

SIZES = ("vcpus", "ram", "disk", "ephemeral", "swap")
NIC_KEYS = ("network", "bridge", "port", "physical_network", "vnic_type", "trusted", "max_tx_rate", "min_tx_rate",
            "vlan", "mac", "model", "tag", "address", "port_security", "allowed_addresses")
#: Keys that may be ``null``, which means none.
NULLABLE = ("address",)
#: Options of the module, each with the field of the request that it sets.
SENT = {"host": "host", "admin_password": "admin_pass"}
#: Keys of an item of ``nics``, as in openstack.cloud.server, to keys of an item of ``networks``.
NIC_WORDS = {"net-name": "network", "net-id": "network", "port-name": "port", "port-id": "port", "tag": "tag",
             "bridge": "bridge", "mac": "mac", "model": "model"}


#: Value of ``image`` for a blank root disk: Ansible does not distinguish an omitted option from null.
NO_IMAGE = "none"


class ServerItem(Value):
    """The value type of an item of the module option ``servers``: the options of one server."""

    def __init__(self, fields):
        self.fields = fields

    def option(self):
        return {"type": "dict"}


def _size(name):
    declared = Flavor.field(name)
    return Option(declared.value, declared.doc + " In place of O(flavor).")


#: Options that exclude each other: an option in an item of ``servers`` replaces the others of the module.
ALTERNATIVES = tuple(("flavor", size) for size in SIZES) + (
    ("networks", "nics", "network"), ("boot_volume", "image"), ("boot_volume", "boot_from_volume"))
#: Options of an item, each with the module's options that it replaces.
REPLACED = {name: {other for group in ALTERNATIVES if name in group for other in group} - {name}
            for group in ALTERNATIVES for name in group}

SPECIFIC = name_options(
    flavor=Option(Text(), "Flavor by name or uuid. The server keeps its sizes until another flavor is requested. It "
                  "can change while the server is off, or with O(allow_reboot); a smaller root or ephemeral disk is "
                  "refused, a swap disk of another size is created again."),
    **{name: _size(name) for name in SIZES},
    networks=Option(
        ListOf(Value()), "NICs in order. Each is the name of a network, or a mapping with V(network) (also V(name)) "
                         "or V(bridge), V(port) or V(physical_network), and V(vnic_type), V(trusted), V(max_tx_rate), "
                         "V(min_tx_rate), V(vlan), V(mac), V(model), V(tag), V(address), V(port_security), "
                         "V(allowed_addresses). An omitted MAC address is generated once. In a cloud V(port) is an "
                         "existing port, by name or uuid."),
    nics=Option(
        ListOf(Value()), "NICs in the words of C(openstack.cloud.server), a string such as "
        "V(net-name=lan,tag=front) or a mapping with V(net-name) or V(net-id), or in a cloud "
        "V(port-name) or V(port-id), and V(tag)."),
    network=Option(Text(), "A network, by name or uuid, in place of O(networks)."),
    host=Option(Text(1, 255), "Host of the server in a cloud, for users who may choose hosts. A new server is created "
                "there; a server on another host is migrated, live while it runs, as M(magnetar.compute.migration) "
                "does.", aliases=("hypervisor_hostname",)),
    admin_password=Option(Text(1), "Password for the guest of a new server of a cloud, once, in its config drive. It "
                          "is not compared later; see C(change_password) of M(magnetar.compute.server_action).",
                          secret=True, aliases=("admin_pass",)),
    purge_networks=Option(
        Boolean(), "Whether NICs missing in O(networks), O(nics) or O(network) are removed, when one of these is "
                   "given. When V(false), they stay, such as NICs of M(magnetar.compute.interface_attachment).",
        default=False),
    userdata=Option(
        Value(), "Data for the guest's first boot: text as it is, or a mapping, which is sent as C(#cloud-config). At "
        "most 65535 bytes in base64. Cannot change later, and is not compared.", secret=True,
        aliases=("user_data",)),
    boot_volume=Option(Text(), "Volume to boot from, by name or uuid; without O(image).", aliases=("root_volume",)),
    boot_from_volume=Option(
        Boolean(), "Whether the root disk is a volume that is made from O(image), of O(volume_size) GiB."),
    volume_size=Option(Integer(1, 2**20), "Size in GiB of the volume of O(boot_from_volume); the size of the image "
                       "when omitted."),
    terminate_volume=Option(Boolean(), "Whether the volume of O(boot_volume) or O(boot_from_volume) is deleted with "
                            "the server."),
    volumes=Option(ListOf(Text()), "Volumes of a new server, by name or uuid; see "
                   "M(magnetar.compute.volume_attachment) for an existing server."),
)


class ServerModule(ResourceModule):
    kind = Server
    replaced = ("flavor", "networks", "user_data")
    states = {
        PRESENT: {},
        "running": {"power": "running"},
        "stopped": {"power": "off"},
        "paused": {"power": "paused"},
        "suspended": {"power": "suspended"},
        "shelved": {"power": "shelved"},
    }
    state_doc = (
        "V(present) creates or updates the server and leaves its power state; a new server runs. V(running), "
        "V(stopped), V(paused) and V(suspended) are V(present) with that power state. V(shelved), in a cloud, is "
        "V(present) without a host: the server is off, its root disk in an image. V(absent) removes the server with "
        "its disks.")
    on_immutable = ("fail", "ignore", "recreate", "rebuild")
    on_immutable_doc = (
        "V(recreate) removes the server and creates it again, which loses its data. V(rebuild) makes only its root "
        "disk again, together with swap, config drive and (unless O(preserve_ephemeral)) ephemeral disk; uuid, name, "
        "NICs with their MACs, metadata and volumes stay; a root disk on a volume gets the content of O(image).")
    permissions = name_options(
        allow_reboot=Option(
            Boolean(), "Whether a running server may be shut down, changed and started again if a change needs that, "
                       "such as another flavor. Without it, such a change to a running server fails.", default=False),
        preserve_ephemeral=Option(
            Boolean(), "Whether the ephemeral disk is kept with O(on_immutable=rebuild).", default=False),
    )
    own = SPECIFIC
    masked = ("userdata",)

    def __init__(self):
        super().__init__()
        item = tuple(_without_default(f) for f in self.fields + self.own + self.common())
        self.item_options = item
        self._bounded_options = bounded_options(item)
        self.options = self.options + name_options(
            servers=Option(
                ListOf(ServerItem(item), 10000), "Many servers in one call. Items have the options of one server; "
                                                 "options next to this list are the defaults of its items. Items do "
                                                 "not depend on each other."),
            continue_on_error=Option(
                Boolean(), "With O(servers), every item is always tried. If items failed, the task fails when this is "
                "V(false); when V(true), it fails only if all failed, and RV(failed_ids) names them.", default=False),
        )

    @property
    def rules(self):
        return {
            "required_one_of": [["name", "id", "servers"]],
            "mutually_exclusive": [["name", "servers"], ["id", "servers"], ["flavor", "vcpus"], ["flavor", "ram"],
                                   ["networks", "nics", "network"]],
        }

    def want(self, params):
        want = super().want(params)
        if want.get("image") == NO_IMAGE:
            want["image"] = None
        flavor = _flavor(params)
        if flavor is not None:
            want["flavor"] = flavor
        networks = _networks(params)
        if networks is not None:
            want["networks"] = networks
        if want.get("hardware"):  # Ansible fills in the omitted keys of a mapping
            want["hardware"] = _without_none(want["hardware"])
        block_devices = _block_device_mapping(params, want)
        if block_devices:
            want["block_device_mapping"] = block_devices
        if params.get("userdata") is not None:
            want["user_data"] = encode_user_data(params["userdata"])
        want.update({field: params[name] for name, field in SENT.items() if params.get(name) is not None})
        return want

    def ensure(self, client, key, params, waiting):
        try:
            return super().ensure(client, key, params, waiting)
        except InvalidField as error:
            raise _about_option(params, error) from None

    def merge(self, params):
        names_nics = any(params.get(name) is not None for name in ("networks", "nics", "network"))
        return super().merge(params) + (["networks"] if names_nics and not params.get("purge_networks") else [])

    def execute(self, params, check_mode, diff_mode, client):
        _check_password(params, client)
        if params.get("servers") is None:
            return super().execute(params, check_mode, diff_mode, client)
        return self._batch(params, check_mode, diff_mode, client)

    def _batch(self, params, check_mode, diff_mode, client):
        """Send all items of the module option ``servers`` in one request, and return the module result. An item with an
        invalid option fails and is not sent.
        """
        shared = {option.option: params.get(option.option) for option in self.item_options
                  if option.option not in ("name", "id")}
        items = [self._item(shared, options) for options in params["servers"]]
        _refuse_duplicates(items)
        labels = [item.get("name") or item.get("id") or "servers[%d]" % at for at, item in enumerate(items)]
        answers, requests, ports = [None] * len(items), [], {}
        for at, item in enumerate(items):
            try:
                request = self._request(item, "servers[%d]." % at)
                _refuse_taken_ports(ports, request["want"], at)
                requests.append((at, request))
            except InvalidField as error:
                answers[at] = {"error": error.as_dict()}
        answer = {"results": []}
        if requests:
            answer = client.ensure_many(self.kind.noun, [body for _at, body in requests], dry_run=check_mode,
                                        wait=params["wait"], timeout=params["timeout"])
        if "results" not in answer:
            return results.module_result(self.kind.noun, "", answer, diff_mode)
        for (at, _body), item_answer in zip(requests, answer["results"]):
            answers[at] = item_answer
        result = results.batch_result(self.kind.noun, labels, answers, diff_mode, params["continue_on_error"])
        return dict(result, request_id=answer.get("request_id"))

    def _item(self, shared, options):
        """Return all options of an item of ``servers``: its own *options*, completed by *shared*, the options of the
        module.
        """
        own_options = _without_none(options)
        replaced = {name for option in own_options for name in REPLACED.get(option, ())}
        return dict(shared, **dict(dict.fromkeys(replaced), **own_options))

    def _request(self, item, where):
        """Return *item* of ``servers`` in the form of an item of ``Client.ensure_many``. *where*: a prefix of option
        names in errors.
        """
        key = key_from_params(item, where)
        check_options(self._bounded_options, item, where)
        want = None if item["state"] == ABSENT else self.want(item)
        return dict(self.allowed(item), key=key, want=want, merge=self.merge(item))


def _check_password(params, client):
    """Raise ``InvalidField`` if ``admin_password`` is set and *client* uses a single host, whose agent would set the
    password again in every run.
    """
    places = [""] if params.get("admin_password") else []
    places += ["servers[%d]." % at for at, item in enumerate(params.get("servers") or []) if item.get("admin_password")]
    if places and not client.of_cloud and not client.info().get("cloud"):
        raise InvalidField(places[0] + "admin_password", "is for a cloud; on one host set it with userdata, or with "
                           "change_password of server_action")


def _refuse_taken_ports(ports, want, at):
    """Raise ``InvalidField`` if *want*, the desired fields of item *at* of ``servers``, has a port that an earlier item
    has. *ports*: ``{port: index of the item that has it}``; the ports of *want* are added.
    """
    for number, nic in enumerate((want or {}).get("networks") or []):
        port = nic.get("port")
        if port and ports.setdefault(port, at) != at:
            raise InvalidField("servers[%d].networks[%d].port" % (at, number), "is that of servers[%d] already; a port "
                               "is for one server" % ports[port], port)


def _refuse_duplicates(items):
    """Raise ``InvalidField`` if two *items* of ``servers`` name the same server, since the items could contradict each
    other.
    """
    first = {}
    for at, item in enumerate(items):
        option = "id" if item.get("id") else "name"
        key = item.get(option)
        meant = key.replace("-", "").lower() if key and looks_like_uuid(key) else key
        if key and first.setdefault(meant, at) != at:
            raise InvalidField("servers[%d].%s" % (at, option), "is that of servers[%d] already; give each server "
                               "once, with all its options" % first[meant], key)


def _without_default(field):
    """Return the option *field* without its default, for items of ``servers``: an omitted option of an item has the
    value of the module's option.
    """
    if not isinstance(field, Option):
        return field
    return Option(field.value, field.doc, secret=field.secret, aliases=field.aliases).with_name(field.name)


def _flavor(params):
    sizes = {name: params[name] for name in SIZES if params.get(name) is not None}
    if params.get("flavor") is None:
        return sizes or None
    if sizes:
        raise InvalidField("flavor", "cannot be combined with %s; give one or the other" % ", ".join(sizes))
    return params["flavor"]


def _networks(params):
    named = [name for name in ("networks", "nics", "network") if params.get(name) is not None]
    if not named:
        return None
    if len(named) > 1:
        raise InvalidField(named[0], "cannot be combined with %s; give one of them" % named[1])
    if named[0] == "network":
        return [{"network": params["network"]}]
    reader = _network if named[0] == "networks" else _nic
    return [reader(item, "%s[%d]" % (named[0], at)) for at, item in enumerate(params[named[0]])]


def _block_device_mapping(params, want):
    """Return the block device mapping of a server from the module parameters *params*, including the module options for
    volumes that the module openstack.cloud.server has too, such as ``boot_volume``. If the root volume is created from
    an image, the image is moved from *want* (the desired fields) into the mapping.
    """
    block_devices = [_without_none(item) for item in params.get("block_device_mapping") or []]
    root, made = None, params.get("boot_from_volume")
    if params.get("boot_volume") and made:
        raise InvalidField("boot_volume", "cannot be combined with boot_from_volume; give one or the other")
    for name, allowed in (("volume_size", made), ("terminate_volume", made or params.get("boot_volume"))):
        if params.get(name) and not allowed:
            raise InvalidField(name, "is for a server that boots from a volume; set boot_from_volume")
    if params.get("boot_volume"):
        root = {"source_type": "volume", "destination_type": "volume", "uuid": params["boot_volume"]}
    elif made:
        if not want.get("image"):
            raise InvalidField("image", "is required with boot_from_volume, whose volume is made from it")
        root = {"source_type": "image", "destination_type": "volume", "uuid": want.pop("image")}
        if params.get("volume_size"):
            root["volume_size"] = params["volume_size"]
    if root:
        if params.get("boot_volume") and want.get("image"):
            raise InvalidField("image", "cannot be combined with boot_volume; the volume holds what is booted")
        root.update(boot_index=0, delete_on_termination=bool(params.get("terminate_volume")))
        block_devices.insert(0, root)
    block_devices += [{"source_type": "volume", "destination_type": "volume", "uuid": name}
                      for name in params.get("volumes") or []]
    return block_devices


def _about_option(params, error):
    """Return *error*, about a field of the request, as an error about the module option that sets this field. An error
    about any other field is returned unchanged.
    """
    field = str(error.details.get("field"))
    match = re.match(r"(block_device_mapping|networks)\[(\d+)\]", field)
    if match is None:
        return error
    mapping, at = params.get("block_device_mapping") or [], int(match[2])
    root = [name for name in ("boot_volume", "boot_from_volume") if params.get(name)][:1]
    options = root + ["block_device_mapping[%d]" % index for index in range(len(mapping))]
    options += ["volumes[%d]" % index for index in range(len(params.get("volumes") or []))]
    if match[1] == "networks":
        options = ["network"] if params.get("network") else []
        options += ["nics[%d]" % index for index in range(len(params.get("nics") or []))]
    if at >= len(options) or options[at].startswith("block_device"):
        return error
    blamed = InvalidField(options[at], error.details["rule"])
    blamed.request_id = error.request_id
    blamed.message = error.message.replace(field, options[at], 1)
    return blamed


def _without_none(item):
    """Return *item* (options by name) without omitted options, which are ``None``."""
    return {name: value for name, value in item.items() if value is not None}


def _network(item, where):
    if isinstance(item, str):
        return {"network": item}
    if not isinstance(item, dict):
        raise InvalidField(where, "must be the name of a network, or a mapping", item)
    nic = dict(item)
    if "name" in nic:
        nic["network"] = nic.pop("name")
    return _checked(nic, NIC_KEYS, where)


def _nic(item, where):
    if isinstance(item, str):
        pairs = [part.partition("=") for part in item.split(",") if part.strip()]
        item = {key.strip(): value.strip() for key, _sign, value in pairs}
    if not isinstance(item, dict):
        raise InvalidField(where, "must be a text such as net-name=lan, or a mapping", item)
    _checked(item, NIC_WORDS, where)
    return {NIC_WORDS[key]: value for key, value in item.items()}


def _checked(item, allowed, where):
    for key in item:
        if key not in allowed:
            raise InvalidField("%s.%s" % (where, key), "is not known here; known are %s" % ", ".join(allowed))
    return {key: value for key, value in item.items() if value is not None or key in NULLABLE}


def encode_user_data(data):
    """Return user data in base64. *data*: a string, which is encoded unchanged, or a mapping or list, which becomes a
    ``#cloud-config`` document (in JSON, a subset of YAML).
    """
    if not isinstance(data, str):
        data = "#cloud-config\n" + json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    return base64.b64encode(data.encode("utf-8", "surrogateescape")).decode("ascii")
