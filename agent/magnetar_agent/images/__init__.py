# SPDX-License-Identifier: GPL-3.0-or-later
"""Content of images: its sources (``sources``), its format (``content``), its storage (``store``)."""
