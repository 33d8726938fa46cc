# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints the reference page of the agent's settings: ``python -m tools.reference agent >docs/reference/agent.md``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from magnetar_agent.settings import FILE, AgentSettings, describe_agent_settings

HEAD = f"""# Settings of the agent

For operators of compute hosts: all settings of `{FILE}` (or `--config FILE`). `python -m tools.reference agent` prints
this page from `agent/magnetar_agent/settings.py`.

```yaml
listen: 0.0.0.0:6553
tls_cert: /etc/magnetar/tls/agent.pem
tls_key: /etc/magnetar/tls/agent.key
tls_client_ca: /etc/magnetar/tls/ca.pem
client_certs: {{awx.example: operate, viewer.example: read}}
image_paths: [/var/lib/magnetar/import, /srv/images]
```

```sh
magnetar agent --check-config          # checks the file and shows the settings
```

With the role, set them in `agent_settings`. All settings are optional, and unknown keys are refused. Sizes are bytes,
times seconds. Restart the agent after a change.

## Settings
"""
#: Headings of the tables, and the settings below each.
GROUPS = {
    "Access": ("listen", "socket", "socket_group", "tls_cert", "tls_key", "tls_client_ca", "client_certs",
               "tokens_file", "connections_per_address", "body_max_bytes"),
    "Operations": ("state_dir", "libvirt_uri", "sysfs", "parallel", "wait", "grace", "heartbeat",
                   "guest_answer_timeout", "event_keys_kept", "log_level", "report_dir"),
    "Images and disks": (
        "instances_path", "image_paths", "export_paths", "image_max_bytes", "image_max_virtual_bytes",
        "rescue_max_virtual_bytes", "pools", "backup_directory", "backup_mounted", "backup_pool",
        "backup_s3_endpoint_url", "backup_s3_store_bucket", "backup_s3_prefix", "backup_s3_region",
        "backup_s3_ca_cert_file", "backup_s3_credentials_file", "shares", "root_format", "root_pool", "rbd_blocklist",
        "volume_clear", "volume_clear_size", "enable_rbd_download", "rbd_user", "rbd_pool", "rbd_ceph_conf",
        "rbd_connect_timeout"),
    "Guests": ("virt_type", "hw_machine_type", "spice", "restart_on_crash", "shutdown_timeout",
               "shutdown_retry_interval", "detach_timeout", "native_tls", "specs_without_effect",
               "console_log_bytes"),
    "CPUs and memory": (
        "cpu_mode", "cpu_models", "cpu_model_extra_flags", "cpu_dedicated_set", "cpu_shared_set",
        "reserved_huge_pages", "file_backed_memory", "num_memory_encrypted_guests", "realtime_scheduler_priority",
        "pack_numa_cells", "physical_network_numa_nodes", "tunnel_numa_nodes"),
    "Devices": ("pci_device_spec", "pci_alias", "enabled_mdev_types", "pmem_namespaces"),
    "Capacity": (
        "cpu_allocation_ratio", "ram_allocation_ratio", "disk_allocation_ratio",
        "reserve_disk_resource_for_image_cache", "resource_provider_bandwidths", "traits",
        "provider_config_location", "address_of_host"),
    "Networks": ("integration_bridge", "guest_ports"),
    "Data for guests": ("metadata_service", "config_drive_format", "vendordata_jsonfile_path", "inject_partition",
                        "inject_password", "inject_key"),
}
#: Pages and sections with more about a setting.
LINKS = {
    "listen": "[access](../howto/grant-access-to-an-agent.md)",
    "rescue_max_virtual_bytes": "[rescue disks](scheduling.md#disks-beside-the-flavors)",
    "hw_machine_type": "[machine types](#default-machine-types)",
    "cpu_mode": "[CPU modes](#cpu-modes)",
    "cpu_models": "[CPU modes](#cpu-modes)",
    "file_backed_memory": "[guest memory in files](#guest-memory-in-files)",
    "num_memory_encrypted_guests": "[encrypted memory](hardware.md#encrypted-memory)",
    "resource_provider_bandwidths": "[bandwidths](#bandwidths)",
    "physical_network_numa_nodes": "[networks of the cloud](../howto/place-servers-near-cards.md)",
    "pci_device_spec": "[fields](#fields-of-pci-devices) and [PCI devices](pci-devices.md)",
    "pci_alias": "[fields](#fields-of-pci-devices)",
    "enabled_mdev_types": "[fields](#fields-of-pci-devices) and [virtual GPUs]"
                          "(../howto/share-virtual-gpus.md)",
    "pmem_namespaces": "[namespaces](#namespaces-of-persistent-memory)",
    "reserve_disk_resource_for_image_cache": "[images](images.md#on-the-disk)",
    "traits": "[traits](scheduling.md#traits)",
    "provider_config_location": "[custom resources](placement.md#provideryaml)",
    "pools": "[types of pools](#types-of-pools)",
    "instances_path": "[shared disks](../howto/share-disks-between-hosts.md)",
    "backup_directory": "[backups](../howto/back-up-a-volume.md)",
    "backup_pool": "[backups](../howto/back-up-a-volume.md)",
    "backup_s3_endpoint_url": "[backups](../howto/back-up-a-volume.md#keep-backups-in-an-object-store)",
    "shares": "[shares](../howto/offer-a-share.md)",
    "root_format": "[root formats](#root-formats)",
    "shutdown_timeout": "[Stop a server](../howto/stop-a-server.md)",
    "native_tls": "[native TLS](#native-tls)",
    "metadata_service": "[metadata](metadata.md)",
    "integration_bridge": "[networks](ovn-ports.md)",
    "guest_ports": "[networks](port-security.md)",
    "inject_partition": "[partitions for injection](#partitions-for-injection)",
    "enable_rbd_download": "[images from Ceph](#images-from-ceph)",
}
#: Defaults that depend on the machine.
DEFAULTS = {"parallel": "twice the CPUs, at least 10"}
TAIL = """
## Boot of the host

After a boot of the host, the servers that ran start again. Servers that a cloud has created wait until one of its
conductors confirms that they still belong to this host. The cloud may have built them on other hosts meanwhile, see
[Evacuate a host](../howto/evacuate-a-host.md).

## Values

### Default machine types

`hw_machine_type` applies to new servers if neither the server nor its image names a type. It is a list of
ARCHITECTURE=TYPE. A server keeps the version that it is created with, see [machine types](hardware.md#machine-types).

| Architecture | Type if left out |
|---|---|
| aarch64 | virt |
| ppc64le | pseries |
| s390x | s390-ccw-virtio |
| all others | q35 |

### CPU modes

| `cpu_mode` | CPU of guests |
|---|---|
| host-model | libvirt's nearest model with the features of the host's CPU |
| host-passthrough | the host's CPU as it is; KVM only |
| custom | the first model in `cpu_models` that this host can provide and that has the required features |
| maximum | everything that KVM or emulation can give |
| none | QEMU's default |

Flavor and image of a guest require features by `trait:HW_CPU_X86_*`. See [the CPU of
guests](hardware.md#the-cpu-of-guests).

### Guest memory in files

With `file_backed_memory`, guests have memory in files (in qemu.conf's memory_backing_dir) from their next start on. It
needs ram_allocation_ratio 1, and excludes large pages. See [memory in files](hardware.md#memory-in-files).

### Bandwidths

`resource_provider_bandwidths` has two forms of entries, in kbit/s. See [minimum
bandwidth](qos.md#minimum-bandwidth).

| Form | Provider |
|---|---|
| NETWORK:EGRESS:INGRESS | a physical network or rp_tunnelled |
| NETWORK/CARD:EGRESS: | a card (its network device) whose virtual functions servers have |

### Fields of PCI devices

| Setting | Field | Value |
|---|---|---|
| pci_device_spec | vendor_id, product_id, resource_class | |
| pci_device_spec | address | may have * and ? |
| pci_device_spec | managed, one_time_use, live_migratable | true or false |
| pci_device_spec | traits | separated by commas |
| pci_device_spec | physical_network | of NICs; null: networks between hosts |
| pci_device_spec | trusted, remote_managed | virtual functions of SmartNICs |
| pci_alias | name, vendor_id, product_id, resource_class, traits, live_migratable | |
| pci_alias | device_type | type-PCI, type-PF or type-VF |
| pci_alias | numa_policy | legacy, preferred, required or socket |
| enabled_mdev_types | type | |
| enabled_mdev_types | address | devices of this type; may have * and ?; left out for the last: all others |
| enabled_mdev_types | traits | separated by commas |

### Namespaces of persistent memory

`pmem_namespaces` lists names as in ndctl, in mode devdax, or paths of files in their place. See [persistent
memory](hardware.md#persistent-memory).

### Types of pools

The pool default (dir, STATE_DIR/volumes) always exists. Other pools are entries of `pools`:

| Type | Storage |
|---|---|
| dir | a folder |
| nfs | a folder that must be a mount point |
| lvm, rbd | a storage pool of libvirt |

### Root formats

| `root_format` | Root disk |
|---|---|
| qcow2 | an overlay on the image |
| raw, copy | a copy of the image, raw or as qcow2 respectively; takes time and room |
| lvm | a raw copy; all of the server's own disks are logical volumes of the root_pool |
| rbd | a clone of the image; all of the server's own disks are RBD images of the root_pool |

See [logical volumes](../howto/put-servers-on-lvm.md) and [images of
Ceph](../howto/put-servers-on-ceph.md).

### Native TLS

With `native_tls` on both hosts, memory and disks of live migrations go straight from QEMU to QEMU, under QEMU's own
TLS. Otherwise they go through the agents. It needs open ports and certificates for QEMU. See
[migration](../howto/migrate-without-the-agents.md).

### Partitions for injection

| `inject_partition` | Target, as with Nova |
|---|---|
| -2 | nowhere |
| -1 | the partition where libguestfs finds the operating system |
| 0 | a disk without partitions |
| 1 and up | that partition |

See [injection](../howto/write-data-into-root-disks.md).

### Images from Ceph

With `enable_rbd_download`, the agent reads an image from Ceph if the image service keeps it there and gives its
location (Glance's show_image_direct_url). If that fails, it uses HTTP: [Ceph](../howto/read-images-from-ceph.md).
"""


def agent_settings_page() -> str:
    """Return the whole page in Markdown."""
    described = {row["key"]: row["doc"] for row in describe_agent_settings()}
    defaults = AgentSettings()
    tables = []
    for heading, names in GROUPS.items():
        cells = [(name, _default_text(name, getattr(defaults, name)), _meaning(name, described[name]))
                 for name in names]
        rows = "".join(f"| `{name}` | {default} | {meaning} |\n" for name, default, meaning in cells)
        tables.append(f"\n### {heading}\n\n| Key | Default | Meaning |\n|---|---|---|\n{rows}")
    return HEAD + "".join(tables) + TAIL


def _meaning(name: str, text: str) -> str:
    """Return the table cell with a setting's meaning and the links to pages about it."""
    cell = text.replace("|", "\\|")
    return f"{cell} See {LINKS[name]}." if name in LINKS else cell


def _default_text(name: str, value: Any) -> str:
    """Return the default *value* of a setting in the syntax of the settings file; "none" if there is none."""
    if name in DEFAULTS:
        return DEFAULTS[name]
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value) if isinstance(value, str | int | Path) else "{}"
