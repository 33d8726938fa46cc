# SPDX-License-Identifier: GPL-3.0-or-later
"""The microversions that change behaviour, each with a name.

An operation, field or query parameter that only exists in some versions declares them itself. ``ApiChange`` is for all
other changes: handlers ask ``call.at(ApiChange.NAME)`` and compare no version numbers.
"""

from __future__ import annotations

from enum import Enum


class ApiChange(Enum):
    """The changes of behaviour of the Compute API. Each member has the first microversion with the new behaviour (53
    for 2.53), and a description of this behaviour."""

    DELETE_ON_TERMINATION = 3, "Servers show of their volumes whether these are deleted with them."
    FLAVOR_ACCESS_PRIVATE_ONLY = 7, "Access to a public flavor is refused with 409."
    EVACUATION_ANSWERS_NOTHING = 14, "evacuate answers without a body; before, with the password."
    DESCRIPTIONS = 19, "A new server has the description that it was given, and not its name."
    SHELVED_VOLUMES = 20, "Volumes are attached to and detached from shelved servers; before, that is refused with 409."
    DELETED_ACTIONS = 21, "The actions of deleted servers are shown too."
    EVACUATION_SCHEDULED = 29, "evacuate has the scheduler check a host that is named, unless it is forced."
    LIVE_MIGRATION_HOST_CHECKED = 30, ("The scheduler is asked about the host of a live migration, unless force says "
                                       "otherwise; before, it is not.")
    ALL_CONSOLE_TOKENS = 31, "Tokens of all consoles are shown; before, those of RDP only."
    HYPERVISOR_PAGES = 33, "Lists of hypervisors are paged, and link to the next page."
    LIVE_MIGRATION_UNCHECKED = 34, "A live migration that finds no other host fails afterwards, and is not refused."
    KEYPAIR_PAGES = 35, "The list of key pairs is paged, and links to the next page."
    NETWORKS_REQUIRED = 37, "A new server says which networks it wants, be it auto or none."
    STATUS_CHECKED = 38, "Lists refuse a status that is none of Nova's words; before, no server fits it."
    USAGE_PAGES = 40, "Usage is paged by servers, and links to the next page; before, it ends at max_limit."
    IMAGE_IN_BODY = 45, "createImage and createBackup answer with the image's uuid in the body, not in Location."
    EMBEDDED_FLAVORS = 47, "Servers show the sizes of their flavor, and not a link to it."
    DIAGNOSTICS_FORM = 48, "Diagnostics have one form for all hypervisors."
    EVENTS_FOR_ALL = 51, "The events of an action are shown to all who may see it, without tracebacks."
    HOST_UUIDS = 53, "Services and hypervisors are named by their uuids in paths and markers, and not by numbers."
    COLD_MIGRATION_HOST = 56, "migrate takes a host; before, its argument is not looked at."
    ACTION_PAGES = 58, "Lists of actions are paged, and show when each last changed."
    MIGRATION_PAGES = 59, "Lists of migrations are paged, newest first, and show uuids."
    MULTIATTACH = 60, "Volumes that several servers may have can be attached."
    EVENT_HOSTS = 62, "Events show at which host they were."
    QUEUED_MIGRATIONS_ABORT = 65, "A live migration can be aborted before it runs, too."
    DOWN_CELLS = 69, "What is in a cell that does not answer is listed with what is known of it, and not left out."
    PORTS_WITH_RESOURCES = 72, "Servers are made with ports that ask for bandwidth; before, that is refused with 400."
    LOCK_REASONS = 73, "lock takes a reason; before, its argument is not looked at."
    FULL_UPDATE = 75, "Update and rebuild of a server answer with all that show does."
    OLD_SORT_KEYS = 75, "Lists of servers refuse sort keys that order nothing; before, they are ignored."
    HYPERVISOR_SERVERS = 75, "A hypervisor without servers has an empty list of them, where it had no list."
    UNSHELVE_TO_ZONE = 77, "unshelve says where an offloaded server is to be; before, its argument is not looked at."
    EVENT_DETAILS = 84, "Events show details to those whom policy allows them."
    ATTACHMENT_UPDATES = 85, "An attached volume can be updated; before, that is a swap of volumes."
    EXTRA_SPECS_CHECKED = 86, "Extra specs in the namespaces that Nova knows are checked."
    RESCUE_OF_VOLUMES = 87, "Servers that boot from volumes can be rescued."
    HYPERVISOR_UPTIME = 88, "Hypervisors show for how long they are up, and not what is on them."
    REIMAGED_VOLUMES = 93, "A rebuild recreates a root disk that is a volume; before, it only takes its own image."
    EVACUATED_STOPPED = 95, "Evacuated servers stay stopped; before, they are as they were."
    IMAGE_PROPERTIES_SHOWN = 98, "Servers show the properties of their image."
    CONSOLE_TLS_PORT = 99, "Tokens of consoles show the port for TLS."
    ATTACH_ANSWERS_202 = 101, "Attaching a volume answers 202 without a body."

    def __init__(self, version: int, change: str) -> None:
        self.version, self.change = version, change
