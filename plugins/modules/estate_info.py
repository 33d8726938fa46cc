#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: estate_info
version_added: "0.2.0"
short_description: Report what differs from the declarations of an estate
description:
  - Compares the declared resources of several hosts and clouds with what exists, and reports the differences (drift).
    Changes nothing, and writes no plan.
  - A place that cannot be reached, and a resource whose change cannot be predicted, is reported in V(errors); the task
    does not fail for it.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.estate_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.estate
"""

EXAMPLES = r"""
- name: Report drift as a page, with resources that nobody declared
  magnetar.compute.estate_info:
    declarations:
      - flavor:
          - {name: shop, vcpus: 1, ram: 512}
    unmanaged: report
    html_report: /srv/estate/drift.html
  register: found

- name: Fail in CI when something differs
  magnetar.compute.estate_info:
    declarations:
      - flavor:
          - {name: shop, vcpus: 1, ram: 512}
  register: found
  failed_when: found is failed or found.estate.errors | length > 0
"""

RETURN = r"""
estate:
  description: What differs.
  returned: 'on success, and when items failed'
  type: dict
  contains:
    counts: {description: 'Number of changes by kind, of unmanaged and unchanged resources, and of errors.', type: dict,
        sample: {create: 0, update: 1, recreate: 0, remove: 0, unmanaged: 0, pending: 0, applied: 0, unchanged: 41,
          failed: 0, not_begun: 0, errors: 0}}
    costs: {description: 'What the changes cost: C(reboot) or C(stop) of a running guest, C(move) to another host if the
          scheduler chooses one, C(data_loss).', type: list, elements: str, sample: [reboot]}
    places: {description: 'The places, and whether each is a cloud.', type: list, elements: dict, sample: [{name: kvm1,
            endpoint: 'https://kvm1.example.org:8775', cloud: false}]}
    items: {description: The changes in the order in which they are applied. Secrets in V(changes) are hidden.,
        type: list, elements: dict, sample: [{place: kvm1, noun: server, name: web1, declared: true, change: update,
            costs: [reboot], actions: [record, stop, define, drive, start], changes: {flavor.ram: {old: 512,
                new: 1024}}}]}
    unmanaged: {description: Resources that exist and are not declared (with O(unmanaged=report))., type: list,
        elements: dict, sample: [{place: kvm1, noun: server, name: legacy, id: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}]}
    errors: {description: 'Resources whose change cannot be predicted, and places that cannot be reached.', type: list,
        elements: dict, sample: [{place: kvm1, noun: server, name: web2, code: not-found, message: There is no image
              'debian' on this host.}]}
text: {description: The same as text for users., returned: 'on success, and when items failed', type: str,
    sample: 'Drift: 1 to update, 1 not declared, 41 unchanged.'}
drift: {description: Whether something differs or is not declared., returned: on success, type: bool, sample: true}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.estate.module import EstateInfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = EstateInfoModule()

if __name__ == "__main__":
    run_module_process(MODULE)
