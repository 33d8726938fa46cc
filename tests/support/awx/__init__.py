# SPDX-License-Identifier: GPL-3.0-or-later
"""A small AWX for tests: the collection awx.awx, and an API that answers it."""
