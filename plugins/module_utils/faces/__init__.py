# SPDX-License-Identifier: GPL-3.0-or-later
"""The faces of the kinds in Ansible, one file per noun: which options a module has, and how they become a document.

Pure like the core (no import of Ansible): the module process and the action plugin run the same code.
"""

from __future__ import annotations
