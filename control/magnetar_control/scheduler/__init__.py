# SPDX-License-Identifier: GPL-3.0-or-later
"""The scheduler: host states in memory, filters, weighers."""
