#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: estate
version_added: "0.2.0"
short_description: Plan the changes of a whole estate, and apply exactly that plan
description:
  - Compares the declared resources of several hosts and clouds with what exists, and writes all changes to a plan file.
    Later applies exactly that plan.
  - The plan has the revision of each resource that it changes. An agent or cloud refuses the change if the resource has
    changed since. Before the first change, all items of the plan are checked.
  - Resources are created and changed in the order of their nouns, such as networks before servers. Removals come last,
    in reverse.
  - A run that was interrupted can be repeated with the same plan, and continues. A plan that was applied already
    changes nothing.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.estate
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.estate_info
  - module: magnetar.compute.server
notes:
  - A plan takes no attachments and no uploads; use the modules of these nouns before or after it.
"""

EXAMPLES = r"""
- name: Plan a flavor and a server on the task's own endpoint
  magnetar.compute.estate:
    plan: /srv/estate/plan.json
    declarations:
      - flavor:
          - {name: shop, vcpus: 1, ram: 512}
        server:
          - {name: shop1, flavor: shop, image: none, tags: [shop]}
  register: planned

- name: Show what would change
  ansible.builtin.debug:
    msg: "{{ planned.text }}"

- name: Apply exactly that plan, and no plan that another run has written to the file since
  magnetar.compute.estate:
    state: applied
    plan: /srv/estate/plan.json
    plan_id: "{{ planned.estate.plan }}"

- name: Plan what the files in a folder declare for two hosts and a cloud, and the removal of other servers
  magnetar.compute.estate:
    folder: /srv/estate/declarations
    plan: /srv/estate/plan.json
    html_report: /srv/estate/plan.html
    unmanaged: absent
    unmanaged_nouns: [server]
    unmanaged_keep: ["golden-*"]
    places:
      kvm1: {endpoint: "https://kvm1.example.org:8775"}
      kvm2: {endpoint: "ssh://kvm2.example.org"}
      production: {cloud: production}
"""

RETURN = r"""
estate:
  description: 'The plan, or what was done of it.'
  returned: 'on success, and when items failed'
  type: dict
  contains:
    plan: {description: The id of the plan., type: str, sample: 5f9c1f0e3a3c4c8e8e0a2f4f6c1d7b11}
    counts: {description: 'Number of items by change, and with O(state=applied) by status; resources that are unmanaged
          or unchanged, and errors.', type: dict, sample: {create: 0, update: 1, recreate: 0, remove: 0, unmanaged: 0,
          pending: 0, applied: 0, unchanged: 41, failed: 0, not_begun: 0, errors: 0}}
    costs: {description: 'What the changes cost: C(reboot) or C(stop) of a running guest, C(move) to another host if the
          scheduler chooses one, C(data_loss).', type: list, elements: str, sample: [reboot]}
    places: {description: 'The places, and whether each is a cloud.', type: list, elements: dict, sample: [{name: kvm1,
            endpoint: 'https://kvm1.example.org:8775', cloud: false}]}
    items: {description: 'The changes in the order in which they are applied. Secrets in V(changes) are hidden.
          With O(state=applied) each has a V(status) (applied, unchanged, failed, not_begun, or pending when it
          is not done) and a V(message).', type: list, elements: dict, sample: [{place: kvm1, noun: server, name: web1,
            declared: true, change: update, costs: [reboot], actions: [record, stop, define, drive, start], changes: {
              flavor.ram: {old: 512, new: 1024}}, status: applied, message: ''}]}
    unmanaged: {description: Resources that exist and are not declared (with O(unmanaged=report))., type: list,
        elements: dict, sample: [{place: kvm1, noun: server, name: legacy, id: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}]}
    errors: {description: 'Resources whose change cannot be predicted, and places that cannot be reached.', type: list,
        elements: dict, sample: [{place: kvm1, noun: server, name: web2, code: not-found, message: There is no image
              'debian' on this host.}]}
text: {description: The same as text for users., returned: 'on success, and when items failed', type: str, sample: 'Plan
      5f9c1f0e: 1 to update, 41 unchanged.'}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.estate.module import EstateModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = EstateModule()

if __name__ == "__main__":
    run_module_process(MODULE)
