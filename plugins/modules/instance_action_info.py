#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: instance_action_info
version_added: "0.1.0"
short_description: Report the actions on a server of a cloud
description:
  - Reports the requests for a server, latest first, and the events of one of them.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.instance_action_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.server_info
  - module: magnetar.compute.server_action
"""

EXAMPLES = r"""
- name: The actions on web1
  magnetar.compute.instance_action_info:
    cloud: mycloud
    server: web1
  register: done

- name: The events of the last one
  magnetar.compute.instance_action_info:
    cloud: mycloud
    server: web1
    id: "{{ done.instance_actions[0].id }}"
"""

RETURN = r"""
instance_actions:
  description: 'The requests for the server, latest first; empty when there are none.'
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: The id of the request., type: str, sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
    server: {description: Uuid of the server., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    action: {description: The requested action., type: str, sample: create}
    message: {description: C(Error) when it failed., type: str}
    user_id: {description: The user who sent the request., type: str, sample: 4f1c9a0e5d0f4a2b9d0e0c6c8a1f2b3d}
    project_id: {description: The project of the request., type: str, sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
    started_at: {description: When it was asked., type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: When it last went on., type: str, sample: '2026-11-20T20:00:01Z'}
    events: {description: 'Its steps: {event, started_at, finished_at, result}, and for admins {host,
          details}. Only for the request that C(id) names.', type: list, elements: dict, sample: [
          {event: compute__do_build_and_run_instance, host: kvm1, result: Success, started_at: '2026-11-20T20:00:00Z',
            finished_at: '2026-11-20T20:00:01Z'}]}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.instance_action import InstanceActionInfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InstanceActionInfoModule()

if __name__ == "__main__":
    run_module_process(MODULE)
