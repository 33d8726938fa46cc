# SPDX-License-Identifier: GPL-3.0-or-later
"""Glance's API v2 over the embedded image service."""
