# SPDX-License-Identifier: GPL-3.0-or-later
"""Use cases about projects and users: quotas, usage, key pairs."""
