# SPDX-License-Identifier: GPL-3.0-or-later
"""The translation of a server's ``hardware`` into its domain: one file for each part of the machine, with pure
functions from the fields (``core.hardware.rows``) to the values that ``templates/domain.xml.j2`` fills in.

These functions apply the defaults of fields that are left out.
"""
