# SPDX-License-Identifier: GPL-3.0-or-later
"""Domains: their XML, power, devices, migration and statistics."""
