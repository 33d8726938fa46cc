# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Attributes of modules that change resources (DOCUMENTATION), report them (INFO), and run actions (ACTION)."""

from __future__ import annotations

COMMON = r"""
  action_group:
    description: Use C(group/magnetar.compute.all) in C(module_defaults) to set options of all modules.
    support: full
    membership:
      - magnetar.compute.all
  direct:
    description: Runs inside of the Ansible process when the endpoint is reachable from there, without a module process.
    support: full
    details: See O(direct).
"""


class ModuleDocFragment:
    DOCUMENTATION: str = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check mode and return the predicted object without changing anything.
    support: full
    details: The agent plans with the same code that a real run uses.
  diff_mode:
    description: Returns what has changed, or would in check mode, when diff mode is on.
    support: full
  idempotent:
    description: Run again with the same options and no change from outside, it changes nothing.
    support: full
""" + COMMON

    INFO: str = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check mode and return the same.
    support: full
    details: This module changes nothing.
  diff_mode:
    description: Returns what has changed when diff mode is on.
    support: N/A
    details: This module changes nothing.
  idempotent:
    description: Run again with the same options and no change from outside, it changes nothing.
    support: full
    details: This module changes nothing.
""" + COMMON

    ACTION: str = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check mode and return the predicted object without changing anything.
    support: full
    details: Checks that the server exists.
  diff_mode:
    description: Returns what has changed when diff mode is on.
    support: partial
    details:
      - Actions that are states, such as V(rescue) and V(stop), return what has changed.
      - Others leave no difference.
  idempotent:
    description: Run again with the same options and no change from outside, it changes nothing.
    support: partial
    details:
      - Actions that are states, and V(create_image) with the same name, change nothing when run again.
      - Others are done by each run. A connection that fails in between never makes one happen twice.
""" + COMMON
