# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of flavors, key pairs and quotas."""
