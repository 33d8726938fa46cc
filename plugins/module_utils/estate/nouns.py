# SPDX-License-Identifier: GPL-3.0-or-later
"""The nouns that an estate can declare, each with its module, in the order in which they are created."""

from __future__ import annotations

from ..core.kinds import (
    AddressGroup,
    AddressScope,
    Flavor,
    FloatingIp,
    HostAggregate,
    Network,
    NetworkPort,
    NetworkRouter,
    NetworkTrunk,
    QosPolicy,
    SecurityGroup,
    ServerGroup,
    Subnet,
    SubnetPool,
    Volume,
    VolumeSnapshot,
)
from ..core.kinds import CloudVolumeType as VolumeType
from ..modules.image import ImageModule
from ..modules.keypair import KeypairModule
from ..modules.resource import ResourceModule
from ..modules.server import ServerModule

#: The modules by noun. Each noun comes after the nouns that its fields can refer to; removals have the reverse order.
MODULES = {module.kind.noun: module for module in (
    ResourceModule(Flavor), KeypairModule(), ImageModule(), ResourceModule(VolumeType), ResourceModule(QosPolicy),
    ResourceModule(AddressScope), ResourceModule(SubnetPool), ResourceModule(Network), ResourceModule(Subnet),
    ResourceModule(AddressGroup), ResourceModule(SecurityGroup), ResourceModule(NetworkRouter),
    ResourceModule(NetworkPort), ResourceModule(NetworkTrunk), ResourceModule(HostAggregate),
    ResourceModule(ServerGroup), ResourceModule(Volume), ResourceModule(VolumeSnapshot), ServerModule(),
    ResourceModule(FloatingIp))}
NOUNS = tuple(MODULES)
#: Options of these modules that a declaration cannot have, each with the reason.
REFUSED = {
    "filename": "needs an upload, which is no part of a plan; use url or host_path, or the module image before",
    "servers": "is the list itself here: declare each server",
    "continue_on_error": "is no option of a declaration",
    "wait": "is no option of a declaration: an estate is always waited for",
}
#: Nouns whose removal loses data.
WITH_DATA = ("image", "volume", "volume_snapshot", "server")
#: Verbs that lose data of a resource that stays.
LOSING = frozenset(("wipe", "reimage", "drop", "erase"))
#: Verbs that end the run of a guest, and those that begin it.
STOPPING, STARTING = frozenset(("stop", "destroy")), frozenset(("start", "start_paused"))
#: Verbs that move a server or its data.
MOVING = frozenset(("migrate", "move", "shelve", "unshelve"))
CREATE, UPDATE, RECREATE, REMOVE = "create", "update", "recreate", "remove"
REBOOT, STOP, MOVE, DATA_LOSS = "reboot", "stop", "move", "data_loss"


def change_of_answer(want, answer):
    """Return the kind of change that *answer*, the answer to a dry run, predicts: create, update, recreate or remove.
    *want*: the desired fields; ``None``: the resource is removed.
    """
    if want is None:
        return REMOVE
    verbs = [step["verb"] for step in answer["steps"]]
    if "forget" in verbs or ("record" in verbs and verbs.index("record")):
        return RECREATE
    return CREATE if answer.get("revision") == "absent" else UPDATE


def change_costs(noun, change, answer, in_cloud):
    """Return the disadvantages of a *change* to a resource of the type *noun*: ``reboot`` or ``stop`` (of a running
    guest), ``move`` (the server may move to another host), ``data_loss``. *answer*: the answer to the dry run of the
    change. *in_cloud*: whether the resource is in a cloud.
    """
    verbs = [step["verb"] for step in answer["steps"]]
    costs = []
    if change in (REMOVE, RECREATE):
        return [DATA_LOSS] if noun in WITH_DATA else []
    if change == UPDATE:
        stopped = next((at for at, verb in enumerate(verbs) if verb in STOPPING), None)
        if stopped is not None:
            costs.append(REBOOT if STARTING & set(verbs[stopped:]) else STOP)
        resized = noun == "server" and any(leaf["path"].split(".")[0] == "flavor" for leaf in answer["diff"])
        if MOVING & set(verbs) or (in_cloud and resized):
            costs.append(MOVE)
        if LOSING & set(verbs):
            costs.append(DATA_LOSS)
    return costs


def narrowed_permissions(permissions, change, costs):
    """Remove from *permissions* (options of ``core.ensure.Permissions``) everything that the planned *change* does not
    need, and return the result. *costs*: the result of ``change_costs``.
    """
    narrowed = dict(permissions)
    if REBOOT not in costs:
        narrowed.pop("allow_reboot", None)
    if change != RECREATE and narrowed.get("on_immutable") == "recreate":
        narrowed["on_immutable"] = "fail"
    if DATA_LOSS not in costs and narrowed.get("on_immutable") == "rebuild":
        narrowed["on_immutable"] = "fail"
    return narrowed
