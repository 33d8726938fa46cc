# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine OVN, which makes networks between hosts."""
