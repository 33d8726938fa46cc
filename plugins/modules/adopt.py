#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: adopt
version_added: "0.2.0"
short_description: Make a server of a libvirt domain that another program has defined
description:
  - Adopts a domain of virt-install, virt-manager, Cockpit, Terraform or Vagrant as a server of the host's agent, or of
    a cloud that has the host. A guest that runs keeps running. The domain keeps its definition, its uuid and its name,
    and its disks stay where they are. The agent only adds a mark to the metadata of the domain.
  - In check mode, the task returns what the server would be, or fails with what hinders the adoption. Run
    M(magnetar.compute.adopt_info) first, which reports the same for all domains.
  - An adopted server can be started, stopped, paused, suspended, rebooted, renamed, released and deleted, and has
    consoles. Other changes of its domain are refused by name. The server follows changes that other programs make.
  - O(state=released) ends the adoption. The domain is then as it was before.
  - Deletion of an adopted server with M(magnetar.compute.server) removes the domain from libvirt. Its disks, its UEFI
    variables and the state of its TPM stay.
  - In a cloud, O(host) names the host. The server gets the project and user that you name, a flavor of the domain's
    size, and ports with the MAC addresses and addresses of the domain's NICs. For administrators.
  - A NIC on a bridge or libvirt network that the cloud does not know hinders the adoption. Name its network in
    O(networks), or use O(without_ports).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.adopt
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.adopt_info
  - module: magnetar.compute.server
"""

EXAMPLES = r"""
- name: Adopt the domain mail
  magnetar.compute.adopt:
    name: mail

- name: Adopt one whose name a server has already
  magnetar.compute.adopt:
    name: wiki
    server_name: intranet-wiki

- name: Adopt one as a server of a project of the cloud mycloud
  magnetar.compute.adopt:
    cloud: mycloud
    host: kvm1
    name: shop
    project: web
    networks:
      br0: office
    make_flavor: true

- name: Release it; the domain stays as it is
  magnetar.compute.adopt:
    name: mail
    state: released
"""

RETURN = r"""
adoption:
  description: 'The adoption after the task; in check mode, as it would be. With O(state=released), the last known
      adoption, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: The uuid of the domain. Its server has the same uuid., type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name of the libvirt domain. It stays., type: str, sample: web1}
    server_name: {description: The name of the server; the name of the domain when omitted., type: str, sample: web1}
    host: {description: 'The host of the domain; in a cloud, required to adopt.', type: str, sample: kvm1}
    addresses: {description: 'In a cloud: addresses of NICs by MAC address; by default those that the host has leased to
          them.', type: dict, sample: {'52:54:00:12:34:56': [192.0.2.7]}}
    status: {description: 'Whether the domain can be adopted, something hinders its adoption, or it is adopted.',
        type: str, sample: adopted}
    power_state: {description: The power state of the domain., type: str, sample: running}
    autostart: {description: Whether libvirt starts the domain when the host boots. It stays so., type: bool,
        sample: true}
    server: {description: 'The fields of the server, as it is or would be: {name, flavor, networks, machine,
          virt_type, power, resume_on_host_boot}; in a cloud also project_id, user_id and ports.', type: dict,
        sample: {name: web1, flavor: {vcpus: 2, ram: 2048, disk: 20, ephemeral: 0, swap: 0}, networks: [
            {network: default, mac: '52:54:00:12:34:56', model: virtio}], machine: pc-q35-7.2, virt_type: kvm,
          power: running, resume_on_host_boot: true}}
    disks: {description: 'The disks, which stay where they are: {device, bus, kind, format, path,
          size in bytes, readonly, shareable, backing}. C(backing) has path and format of each backing
          file.', type: list, elements: dict, sample: [{device: vda, bus: virtio, kind: disk, format: qcow2,
            path: /var/lib/libvirt/images/web1.qcow2, size: 21474836480, readonly: false, shareable: false,
            backing: [{path: /var/lib/libvirt/images/base.qcow2, format: qcow2}]}]}
    stays: {description: 'The parts of the definition that a server has no fields for, and that stay as they
          are: {part, value}.', type: list, elements: dict, sample: [{part: firmware, value: 'UEFI, variables
              in /var/lib/libvirt/qemu/nvram/web1_VARS.fd'}]}
    hindrances: {description: 'What hinders the adoption: {reason, message}. The message says what to do.', type: list,
        elements: raw, sample: []}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record, mark_domain]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {status: {old: adoptable, new: adopted}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the agent., returned: when the agent has answered,
    type: str, sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.adopt import AdoptModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = AdoptModule()

if __name__ == "__main__":
    run_module_process(MODULE)
