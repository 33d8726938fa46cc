# SPDX-License-Identifier: GPL-3.0-or-later
"""Claims: resources that servers and migrations hold of hosts."""
