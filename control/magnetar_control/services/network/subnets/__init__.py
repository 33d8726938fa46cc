# SPDX-License-Identifier: GPL-3.0-or-later
"""Subnets, subnet pools and addresses."""
