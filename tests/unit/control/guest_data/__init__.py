# SPDX-License-Identifier: GPL-3.0-or-later
"""What guests of a cloud are told."""
