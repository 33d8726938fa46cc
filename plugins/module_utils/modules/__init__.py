# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules do, without Ansible: their options, and from the values of these to a request and a result.

``ResourceModule`` and ``InfoModule`` serve every ``Kind``; a file per noun holds what is different for that one.
Nothing here imports Ansible, so the module process and the action plugin run the same code.
"""

from __future__ import annotations
