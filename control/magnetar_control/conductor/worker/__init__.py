# SPDX-License-Identifier: GPL-3.0-or-later
"""Workers of a conductor: they take actions, try them again, and end them."""
