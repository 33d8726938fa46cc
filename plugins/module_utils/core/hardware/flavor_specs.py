# SPDX-License-Identifier: GPL-3.0-or-later
"""Extra specs of flavors. Source: Nova's extra spec reference (2026)."""

from __future__ import annotations

from . import AGENT, API, SCHEDULER, Spec, Table
from .groups import GROUP, POLICY
from .merge import MEMORY_KEY
from .pci import TRAITS
from .rows import ANY, BY_SPEC, NO_FORMAT, NUMBER, PCPU, name_pattern
from .standard import GIVEN_CLASSES
from .traits import CUSTOM, is_known_trait

#: Names for hypervisors that Magnetar does not support.
_VMWARE = "(cpu|memory|disk_io|vif)_(limit|reservation|shares_share)"
#: Classes that earlier rows accept without a group; in a group they accept only ``CUSTOM_`` ones.
_CLASSES = "CUSTOM_[A-Z0-9_]+|VCPU|PCPU|MEMORY_MB|DISK_GB|MEM_ENCRYPTION_CONTEXT"
#: Pattern of amounts that request nothing.
NONE = "0+"
_SCHEDULED = frozenset((SCHEDULER,))
_CLOUD = frozenset((API,))
#: Classes whose amount an extra spec can set instead of the flavor, in the order of ``Amounts``.
RESOURCES = ("VCPU", "MEMORY_MB", "DISK_GB")
#: Names of ``capabilities:`` in Nova that hosts do not report as a number or word, and what to request instead.
NO_FIGURES = {
    "aggregates": "what aggregates of a host say is asked for by aggregate_instance_extra_specs:NAME",
    "instances": "servers of a host are asked for by the hints same_host and different_host, how many there are by "
                 "capabilities:num_instances",
    "pci_stats|pci_device_pools": "PCI devices are asked for by pci_passthrough:alias",
    "numa_topology": "NUMA cells are asked for by hw:numa_nodes, hw:cpu_policy and hw:mem_page_size",
    "supported_instances|supported_hv_specs": "what guests can be is asked for by the image's hw_architecture, "
                                              "img_hv_type and hw_vm_mode, or by trait:COMPUTE_ARCH_…",
    "disk_available_least": "hosts do not tell it with their heartbeats; capabilities:free_disk_gb is what nobody has "
                            "claimed"}
#: Classes that flavors do not request, and the request to use instead.
NO_CLASSES = {
    "NET_BW_[EI]GR_KILOBIT_PER_SEC": "ports ask for bandwidth (QoS rules of minimum bandwidth), of the provider of "
                                     "their physical network",
    "NUMA_(THREAD|MEMORY_MB)": "NUMA cells are asked for by hw:numa_nodes"}
#: Better alternatives to a class that operators give a host, for messages.
CLASS_HINTS = {
    **dict.fromkeys(("PCI_DEVICE", "SRIOV_NET_VF", "FPGA", "PGPU"), "PCI devices are asked for by "
                    "pci_passthrough:alias, virtual functions by ports"),
    **dict.fromkeys(("NUMA_SOCKET", "NUMA_CORE"), "NUMA cells are asked for by hw:numa_nodes"),
    "VGPU_DISPLAY_HEAD": "the displays of a virtual GPU are those of its type; ask for resources:VGPU"}

ROWS = (
    *(Spec(name_pattern(name), row.pattern(), row=row) for name, row in BY_SPEC.items()),
    Spec(r"aggregate_instance_extra_specs:.+", ANY, _SCHEDULED),
    *(Spec("capabilities:(%s)(:.+)?" % names, ANY, lacks=why) for names, why in NO_FIGURES.items()),
    Spec(r"capabilities:.+", ANY, _SCHEDULED),
    Spec(r"accel:device_profile", ANY, usual="|None", lacks="there is no accelerator service (Cyborg)"),
    Spec(r"hw:ephemeral_encryption_format", "plain|luks|luksv2", usual="luks", lacks=NO_FORMAT),
    Spec(r"hw:redirected_usb_ports", NUMBER, usual="0", lacks="no USB devices are redirected"),
    Spec(r"hw:sound_model", "sb16|es1370|pcspk|ac97|ich6|ich9|usb|virtio", lacks="guests have no sound"),
    Spec(r"hw:usb_model", ANY, lacks="the USB controller is qemu-xhci, where there is one (hw_pointer_model)"),
    Spec(r"os:monitors", "[1-8]", usual="1", lacks="each guest has one monitor"),
    Spec(r"os:vram", "64|128|256|512|1024", lacks="it is for Hyper-V; here there is hw_video:ram_max_mb"),
    Spec(r"os:resolution", "1024x768|1280x1024|1600x1200|1920x1200|2560x1600|3840x2160",
         lacks="the resolution is the guest's choice"),
    Spec("quota:" + _VMWARE, NUMBER, usual="0", lacks="it is for VMware; with libvirt there are quota:cpu_shares, "
         "cpu_quota, disk_* and vif_*"),
    Spec(r"quota:(cpu|disk_io|memory|vif)_shares_level", "custom|high|normal|low", usual="normal",
         lacks="it is for VMware; with libvirt there is quota:cpu_shares"),
    Spec(r"resources:(%s)" % "|".join(RESOURCES), NUMBER, _SCHEDULED),
    Spec(PCPU, NUMBER, frozenset((AGENT, SCHEDULER))),
    Spec(r"resources(%s)?:(%s|%s)" % (GROUP, CUSTOM, "|".join(GIVEN_CLASSES)), NUMBER, _SCHEDULED),
    Spec(r"resources:" + MEMORY_KEY, NUMBER, _SCHEDULED),
    Spec(r"resources%s:VGPU" % GROUP, NUMBER, frozenset((AGENT, SCHEDULER))),
    *(Spec("resources(%s)?:(%s)" % (GROUP, names), NUMBER, usual=NONE, lacks=why) for names, why in NO_CLASSES.items()),
    Spec(r"resources(%s)?:(%s)" % (GROUP, _CLASSES), NUMBER, usual=NONE,
         lacks="the scheduler counts VCPU, PCPU, MEMORY_MB, DISK_GB and MEM_ENCRYPTION_CONTEXT in resources: without a "
               "group, and VGPU, CUSTOM_ ones and those that operators give hosts in groups, too"),
    Spec(r"trait(%s)?:(?P<what>[A-Z0-9_]+)" % GROUP, "required|forbidden", frozenset((AGENT, SCHEDULER)),
         exists=is_known_trait),
    Spec(r"trait%s:%s" % (GROUP, TRAITS), "required|forbidden", frozenset((AGENT, SCHEDULER))),
    Spec(r"trait(%s)?:[A-Z0-9_]+" % GROUP, "required|forbidden", lacks="there is no such trait; `openstack trait list` "
         "has all, and others begin with CUSTOM_"),
    Spec(POLICY, "none|isolate", _SCHEDULED),
    Spec(r"magnetar:ha", "always|best-effort|never", _CLOUD),
    Spec(r"magnetar:ha_priority", "[0-9]", _CLOUD),
)
FLAVOR_SPECS = Table("extra spec", ROWS, r"(accel|aggregate_instance_extra_specs|capabilities|hw|hw_rng|hw_video|"
                                         r"magnetar|os|pci_passthrough|quota|resources[\w-]*|trait[\w-]*):|group_policy$")
