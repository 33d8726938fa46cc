# SPDX-License-Identifier: GPL-3.0-or-later
"""Use cases of Placement: resource providers, candidates, allocations."""
