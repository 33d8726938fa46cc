# SPDX-License-Identifier: GPL-3.0-or-later
"""Databases: engines, schema, tables, and helpers of queries."""
