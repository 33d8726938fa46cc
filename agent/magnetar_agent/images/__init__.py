# SPDX-License-Identifier: GPL-3.0-or-later
"""Content of images: where it comes from (``sources``), what it is (``content``), where it is kept (``store``)."""
