#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: server_export
version_added: "0.2.0"
short_description: Export a stopped server to a folder, from which it runs without Magnetar
description:
  - Writes the disks of a stopped server, as qcow2 files without backing files, and a definition for libvirt to a
    folder of its host. The folder has a list of checksums, and a README.txt that says how to start the guest on
    another host with libvirt alone.
  - The server and its disks do not change. The export stays when the server is removed.
  - An export that exists is not written again, even if the server has run since. Export it under another name, or
    remove the export first.
  - A server that runs, has encrypted disks, or is adopted is refused, and so is a folder without enough room, also in
    check mode. After a failure, nothing of the export is left.
  - Servers of a single host only. For a server of a cloud, name the agent of its host as O(endpoint).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.server_export
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.server_export_info
  - module: magnetar.compute.server
"""

EXAMPLES = r"""
- name: Stop the server
  magnetar.compute.server:
    name: web1
    state: stopped

- name: Export it to the folder web1-moved in the first of the agent's export_paths
  magnetar.compute.server_export:
    name: web1-moved
    server: web1
  register: exported

- name: Start the server again
  magnetar.compute.server:
    name: web1
    state: running

- name: Remove the files of the export
  magnetar.compute.server_export:
    name: web1-moved
    state: absent
"""

RETURN = r"""
server_export:
  description: 'The server export after the task; in check mode, as it would be. With O(state=absent), the last known
      server export, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: 'The uuid; generated when the resource is created, unless given.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name., type: str, sample: web1}
    description: {description: Free text of at most 255 characters., type: str, sample: for the shop}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: 'When it was last changed, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    server: {description: 'The server, by name or uuid. It must be stopped while it is exported.', type: str,
        sample: 0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11}
    folder: {description: 'Folder on the host for the export; new or empty. It must lie in one of the agent''s
          C(export_paths). Default: a folder with the name of the export in the first of them.', type: str,
        sample: /var/lib/magnetar/exports/web1}
    server_name: {description: The server's name when it was exported., type: str, sample: web1}
    files: {description: 'The files in the folder: {name, bytes, sha256}.',
        type: list, elements: dict, sample: [{name: vda.qcow2, bytes: 1073741824,
            sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08}]}
    stored_bytes: {description: Bytes of all files., type: int, sample: 1073745920}
    notes: {description: 'What differs from the server, or must be checked on the other host.', type: list,
        elements: str, sample: ['The guest had access to the share scratch, which the export leaves out.']}
    status: {description: 'Whether the export is complete; C(missing): its files have been moved or removed.',
        type: str, sample: available}
    host: {description: The host., type: str, sample: kvm1}
    fault: {description: '{code, message, created} of the last failure, until one succeeds.', type: raw}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record, write]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {server: {old: null, new: 0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the agent., returned: when the agent has answered,
    type: str, sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.server_export import ServerExportModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ServerExportModule()

if __name__ == "__main__":
    run_module_process(MODULE)
