# SPDX-License-Identifier: GPL-3.0-or-later
"""CPU modes, models and features of guests, from libvirt's domain capabilities and CPU comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.hardware.cpu import DISABLE, MAXIMUM, PASSTHROUGH, CpuChoices, Features
from magnetar_agent.virt.connection.connection import text_of
from magnetar_agent.virt.connection.limits import Lane
from magnetar_core.errors import HypervisorError

if TYPE_CHECKING:
    from magnetar_agent.virt.connection.pool import ConnectionPool


class CpuModels:
    """The methods of ``LocalHypervisor`` for CPU models. Results are cached until libvirt is connected again."""

    connection: ConnectionPool

    def __init__(self) -> None:
        self._cpu_connection: Any = None
        self._cpu_answers: dict[Any, Any] = {}

    def cpu_choices(self, virt_type: str) -> CpuChoices:
        """Return the CPU modes and models that libvirt supports for guests of this *virt_type* (kvm or qemu). Models
        for which libvirt does not report usability count as usable."""
        def ask(conn: Any) -> CpuChoices:
            offered = self._capabilities(conn, virt_type)
            return CpuChoices(
                frozenset(str(mode.get("name")) for mode in offered.iterfind("mode") if mode.get("supported") == "yes"),
                {str(model.text): model.get("usable") != "no" for model in offered.iterfind(
                    "mode[@name='custom']/model")})
        return self.connection.call("tell the CPU models of guests", ask, Lane.HOST)

    def cpu_features(self, virt_type: str, model: str = "", features: Features = ()) -> frozenset[str]:
        """Return the features (flags) of the CPU *model* after the changes *features*, pairs (policy, name). Without
        *model*, start from libvirt's host-model. Raises ``HypervisorError`` if the host does not support *features*."""
        def ask(conn: Any) -> frozenset[str]:
            key = (virt_type, model, features)
            answer = self._kept().get(key)
            if answer is None:
                cpu = _described(self._capabilities(conn, virt_type), model, features)
                answer = self._cpu_answers[key] = _features(conn, virt_type, cpu, bool(features))
            return answer
        return self.connection.call(f"tell the features of the CPU {model or 'host-model'}", ask,
                                    Lane.HOST)

    def _kept(self) -> dict[Any, Any]:
        if self._cpu_connection is not (generation := self.connection.generation):
            self._cpu_connection, self._cpu_answers = generation, {}
        return self._cpu_answers

    def _capabilities(self, conn: Any, virt_type: str) -> ET.Element:
        offered = self._kept().get(virt_type)
        if offered is None:
            offered = self._cpu_answers[virt_type] = _offered(conn, virt_type)
        return offered


def migratable_cpu(conn: Any, domain: ET.Element) -> str | None:
    """Return the CPU of a running guest as the XML element ``cpu``, so that the target host of a migration can compare
    it with its own CPU; ``None`` without KVM. *domain*: the XML of the guest's domain. For host-passthrough, which
    names no model, the element describes the host's CPU."""
    cpu = domain.find("cpu")
    if cpu is None or domain.get("type") != "kvm":
        return None
    if cpu.get("mode") in (PASSTHROUGH, MAXIMUM) and cpu.find("model") is None:
        features = tuple((str(feature.get("policy")), str(feature.get("name"))) for feature in cpu.iterfind("feature"))
        return _described(_offered(conn, "kvm"), "", features)
    return ET.tostring(cpu, encoding="unicode")


def _offered(conn: Any, virt_type: str) -> ET.Element:
    root = ET.fromstring(conn.getDomainCapabilities(None, None, "q35", virt_type))  # noqa: S314 (libvirt wrote it)
    cpu = root.find("cpu")
    return ET.Element("cpu") if cpu is None else cpu


def _described(offered: ET.Element, model: str, features: Features) -> str:
    """Return an XML element ``cpu`` for the CPU *model* with *features*, pairs (policy, name). Without *model* the
    element describes the host's CPU as listed in *offered*, the CPU part of libvirt's domain capabilities."""
    cpu = ET.Element("cpu", mode="custom", match="exact")
    if model:
        ET.SubElement(cpu, "model", fallback="forbid").text = model
    else:
        cpu.extend(offered.findall("mode[@name='host-model']/*"))
    for policy, name in features:
        for old in cpu.findall("feature"):
            if old.get("name") == name:
                cpu.remove(old)
        ET.SubElement(cpu, "feature", policy=policy, name=name)
    return ET.tostring(cpu, encoding="unicode")


def _features(conn: Any, virt_type: str, cpu: str, compared: bool) -> frozenset[str]:
    if compared and (words := missing_cpu_features(conn, virt_type, cpu)):
        raise HypervisorError(f"the host cannot give the CPU {words}.")
    whole = ET.fromstring(conn.baselineHypervisorCPU(  # noqa: S314 (libvirt wrote it)
        None, None, None, virt_type, [cpu], libvirt.VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES))
    return frozenset(str(feature.get("name")) for feature in whole.iterfind("feature")
                     if feature.get("policy") != DISABLE)


def missing_cpu_features(conn: Any, virt_type: str, cpu: str) -> str:
    """Return a text with the model of *cpu* (an XML element) and the features that this host cannot provide for guests
    of *virt_type* (kvm or qemu); "" if none is missing."""
    try:
        conn.compareHypervisorCPU(None, None, None, virt_type, cpu, libvirt.VIR_CONNECT_COMPARE_CPU_FAIL_INCOMPATIBLE)
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_CPU_INCOMPATIBLE:
            raise
        model = ET.fromstring(cpu).findtext("model") or "of the source"  # noqa: S314 (libvirt or this module wrote it)
        words = text_of(error)
        return f"{model}: {words.partition('host CPU: ')[2] or words}"
    return ""
