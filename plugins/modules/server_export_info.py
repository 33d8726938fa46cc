#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: server_export_info
version_added: "0.2.0"
short_description: Report exports of servers
description:
  - Reports the exports of servers of a host, with their files and checksums.
  - The status V(missing) means that the files have been moved or removed.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.server_export_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.server_export
"""

EXAMPLES = r"""
- name: Report all exports of the host
  magnetar.compute.server_export_info:
  register: found

- name: Report the notes of one
  magnetar.compute.server_export_info:
    name: web1-moved
    fields: [name, notes]
"""

RETURN = r"""
server_exports:
  description: The matching server exports; empty when there are none.
  returned: on success
  type: list
  elements: dict
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
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.server_export import ServerExportInfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ServerExportInfoModule()

if __name__ == "__main__":
    run_module_process(MODULE)
