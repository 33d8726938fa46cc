# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that are domains of other programs: what a domain would become, what hinders that, and the adoption itself.

The agent never writes the definition of an adopted domain: ``spec.domain_spec`` and the hypervisor refuse to.
"""
