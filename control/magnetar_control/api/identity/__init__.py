# SPDX-License-Identifier: GPL-3.0-or-later
"""Keystone's API v3 over the embedded identity service."""
