# SPDX-License-Identifier: GPL-3.0-or-later
"""Which host gets a server: host states in memory, filters, weighers."""
