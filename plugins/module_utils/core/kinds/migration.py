# SPDX-License-Identifier: GPL-3.0-or-later
"""migration: the move of a server from one host to another, as each of the two agents sees it."""

from __future__ import annotations

from ..fields import FIXED, READ, Field
from ..values import Boolean, Choices, Integer, Nullable, Text, Uuid, Value
from .common import Resource

#: Values of ``phase``, in order. A request for a past phase does nothing, so flows can run again from the start.
PHASES = ("prepared", "moved", "settled")


class Migration(Resource):
    """The state of a migration on its source host or on its target host. Each of the two hosts stores such a resource;
    both have the same uuid.
    """

    noun, plural = "migration", "migrations"

    server = Field(Uuid(), "The uuid of the server.", required=True, on=FIXED,
                   sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    side = Field(Choices("source", "target"), "Whether this host is the source or the target.", required=True,
                 on=FIXED, sample="source")
    peer = Field(Text(1, 255), "Common name in the certificate of the other agent.", required=True, on=FIXED,
                 sample="kvm2")
    address = Field(Nullable(Text(1, 300)), "host:port of the other agent; the source needs it, and the target for "
                    "volumes.", default=None, sample="kvm2:6553")
    type = Field(Choices("live", "cold"), "live: the guest runs on; cold: it is off while its disks are copied.",
                 default="live", on=FIXED, sample="live")
    phase = Field(Choices(*PHASES), "The phase that it must reach.", default="prepared", sample="settled")
    manifest = Field(Nullable(Value()), "Sizes, networks and disks of the server, as the source shows them. The "
                     "target needs it.", default=None, on=FIXED, compared=False, option=False)
    max_downtime = Field(Nullable(Integer(1, 60000)), "Milliseconds that the guest may stand still.", default=None,
                         sample=300)
    downtime_steps = Field(Nullable(Integer(3, 100)), "Steps that raise the permitted downtime from max_downtime / "
                           "downtime_steps to max_downtime; needs downtime_delay.",
                           default=None, sample=10)
    downtime_delay = Field(Nullable(Integer(1, 86400)), "Seconds between two such steps; needs downtime_steps.",
                           default=None, sample=75)
    bandwidth = Field(Nullable(Integer(1, 1000000)), "Limit in MiB per second.", default=None, sample=100)
    auto_converge = Field(Boolean(), "Slow the guest down when it writes memory faster than the network transfers it. "
                          "Never together with post-copy.", default=True, sample=True)
    post_copy = Field(Boolean(), "Whether the event force_complete may switch to post-copy: the guest runs at the "
                      "target while the rest of its memory follows. Otherwise the guest is paused until all memory is "
                      "transferred.", default=False,
                      sample=False)
    time_limit = Field(Nullable(Integer(1, 604800)), "Seconds of copying before on_time_limit acts. A cold migration "
                       "can only be aborted, since the guest is off.", default=None,
                       sample=600)
    on_time_limit = Field(Choices("abort", "pause", "post_copy"),
                          "abort: the server stays where it is; pause: the guest is paused until all memory is "
                          "transferred; post_copy: it runs at the target while the rest of its memory follows.",
                          default="abort",
                          sample="abort")

    status = Field(Choices("prepared", "running", "moved", "completed", "failed"), "Progress of the migration.",
                   on=READ,
                   sample="completed")
    progress = Field(Nullable(Value()), "{phase, done, total, remaining, dirty_rate, seconds_left} in bytes, while it "
                                        "runs.", on=READ,
                     sample={"phase": "memory", "done": 123456789, "total": 134217728, "remaining": 10760939,
                             "dirty_rate": 1048576, "seconds_left": 1})
    native_tls = Field(Nullable(Boolean()), "Whether memory and disks go straight from QEMU to QEMU, as the setting "
                       "native_tls of both hosts says, and not through the agents; null until that is known.", on=READ,
                       sample=False)
    fault = Field(Nullable(Value()), "{code, message, created} of the last failure, until one succeeds.", on=READ,
                  sample=None)
    host = Field(Text(0, 255), "The host of this half.", on=READ, sample="kvm1")
