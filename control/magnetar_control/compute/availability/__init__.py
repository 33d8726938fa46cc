# SPDX-License-Identifier: GPL-3.0-or-later
"""Availability: which servers are evacuated when their host dies, and the incidents of dead hosts."""
