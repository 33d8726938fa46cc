# SPDX-License-Identifier: GPL-3.0-or-later
"""Steps that several flows share."""
