#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: console_info
version_added: "0.1.0"
short_description: Get the URL of a console of a server of a cloud
description:
  - Returns URLs of the screen or the serial console of a running server. They share one token, which works once and
    expires soon.
  - A URL gives access to the console, and to any session that is logged in there.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.console_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.server_action
"""

EXAMPLES = r"""
- name: The screen of web1, for a browser
  magnetar.compute.console_info:
    cloud: mycloud
    server: web1
  register: screen

- name: Location of web1
  ansible.builtin.debug:
    msg: "{{ screen.console.page }}"

- name: Its serial console
  magnetar.compute.console_info:
    cloud: mycloud
    server: web1
    type: serial
"""

RETURN = r"""
console:
  description: The console.
  returned: on success
  type: dict
  contains:
    server:
      description: Uuid of the server.
      type: str
      sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
    type:
      description: The requested type.
      type: str
      sample: novnc
    protocol:
      description: The protocol, V(vnc), V(spice) or V(serial).
      type: str
      sample: vnc
    url:
      description: The URL that C(openstack console url show) prints. For V(serial) it is the address of the WebSocket.
      type: str
      sample: https://cloud.example:8774/console/vnc.html?autoconnect=true&resize=scale&path=console/socket%3Ftoken%3D…
    page:
      description: The page for a browser.
      type: str
      sample: https://cloud.example:8774/console/vnc.html?autoconnect=true&resize=scale&path=console/socket%3Ftoken%3D…
    socket:
      description: The WebSocket, for C(magnetar console) and other clients.
      type: str
      sample: wss://cloud.example:8774/console/socket?token=…
    expires_at:
      description: When they are not good any more, if they were not used.
      type: str
      sample: '2026-11-20T20:10:00.000000Z'
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.console import ConsoleInfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ConsoleInfoModule()

if __name__ == "__main__":
    run_module_process(MODULE)
