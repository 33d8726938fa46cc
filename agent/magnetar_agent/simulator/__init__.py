# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulator of many hosts in one process, for tests, benches, and everybody who plans a cloud.

Each simulated host is the real agent over a fake hypervisor: the same application, routes, drivers and documents. Only
the parts that would need a thread, a process or files for each host are shared or kept in memory.
"""
