# SPDX-License-Identifier: GPL-3.0-or-later
"""Use cases of the balance of hosts."""
