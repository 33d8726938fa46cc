# SPDX-License-Identifier: GPL-3.0-or-later
"""Use cases about hosts, their services, aggregates, zones and cells."""
