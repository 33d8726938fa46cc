# SPDX-License-Identifier: GPL-3.0-or-later
"""Cinder's API v3 over the embedded volume service."""
