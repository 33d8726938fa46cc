#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: adopt_info
version_added: "0.2.0"
short_description: Report which libvirt domains can be adopted
description:
  - Reports the libvirt domains of a host that Magnetar did not make. For each it says what the server would be, which
    parts of the domain stay as they are because a server has no fields for them, and what hinders an adoption, with
    what to do.
  - Domains that are adopted are reported too.
  - In a cloud, for administrators, the domains of all hosts that are up, or of the host in O(filters).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.adopt_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.adopt
"""

EXAMPLES = r"""
- name: Report all domains of other programs
  magnetar.compute.adopt_info:
  register: found

- name: Report those of a host of the cloud mycloud
  magnetar.compute.adopt_info:
    cloud: mycloud
    filters:
      host: kvm1

- name: Adopt those that nothing hinders
  magnetar.compute.adopt:
    id: "{{ item.id }}"
  loop: "{{ found.adoptions | selectattr('status', 'equalto', 'adoptable') }}"
  loop_control:
    label: "{{ item.name }}"

- name: Report what hinders the others
  magnetar.compute.adopt_info:
    filters:
      status: hindered
    fields: [name, hindrances]
"""

RETURN = r"""
adoptions:
  description: 'The domains of the host that Magnetar did not make, sorted by name; with C(status), those that it has
      adopted. Of a cloud, the domains of all hosts that are up, or of the host in O(filters).'
  returned: on success
  type: list
  elements: dict
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
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.adopt import AdoptInfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = AdoptInfoModule()

if __name__ == "__main__":
    run_module_process(MODULE)
