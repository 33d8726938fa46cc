# SPDX-License-Identifier: GPL-3.0-or-later
"""The balance of hosts."""
