# SPDX-License-Identifier: GPL-3.0-or-later
"""Use cases of drains of hosts."""
