# SPDX-License-Identifier: GPL-3.0-or-later
"""Blocking work for hosts: in order for each, and no host waits for another one."""

from __future__ import annotations

import threading

from magnetar_control.conductor.hosts.host_jobs import HostJobs
from tests.support.waiting import eventually


def test_the_jobs_of_a_host_run_in_their_order_whatever_hangs_elsewhere():
    jobs, done, go = HostJobs(most=4, idle=0.05), [], threading.Event()
    jobs.put("hangs", go.wait)
    for number in range(20):
        for host in "abc":
            jobs.put(host, lambda host=host, number=number: done.append((host, number)))
    eventually(lambda: len(done) == 60)
    for host in "abc":
        assert [number for name, number in done if name == host] == list(range(20))
    assert jobs.count("hangs") == 1
    go.set()
    eventually(lambda: not jobs._jobs and not jobs._threads)  # at rest there is no thread


def test_a_job_that_fails_keeps_no_other_from_running(caplog):
    jobs, done = HostJobs(most=1, idle=0.05), threading.Event()
    jobs.put("a", lambda: 1 / 0)
    jobs.put("a", done.set)
    assert done.wait(60) and "was not handled" in caplog.text


def test_jobs_that_are_dropped_do_not_run():
    jobs, begun, go, done = HostJobs(most=1), threading.Event(), threading.Event(), []

    def first():
        begun.set()
        go.wait()

    jobs.put("a", first)
    jobs.put("a", lambda: done.append("a"))
    jobs.put("b", lambda: done.append("b"))
    jobs.put("c", lambda: done.append("c"))
    assert begun.wait(60)
    jobs.drop("a")
    jobs.drop("b")
    go.set()
    eventually(lambda: not jobs._jobs)
    jobs.close()
    assert done == ["c"]
