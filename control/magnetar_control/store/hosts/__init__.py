# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of hosts, services, aggregates and conductors."""
