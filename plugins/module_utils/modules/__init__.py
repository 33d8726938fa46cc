# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules without Ansible: their options, and the conversion of option values to requests and of answers to
results.

``ResourceModule`` and ``InfoModule`` serve every ``Kind``; a file for each resource type holds its differences. Nothing
here imports Ansible, so the module process and the action plugin run the same code.
"""

from __future__ import annotations
