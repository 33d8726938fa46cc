# SPDX-License-Identifier: GPL-3.0-or-later
"""Traits: named properties and capabilities of a host. Flavors and images require or forbid them.

Names come from OpenStack's os-traits (``standard``), and operators add ``CUSTOM_…`` ones. The tables list the traits
that agents detect; operators give hosts any other trait. Requests for a trait with any other name are refused; the
message has the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from . import groups, standard
from .architectures import AARCH64

REQUIRED, FORBIDDEN = "required", "forbidden"
CUSTOM = r"CUSTOM_[A-Z0-9_]{1,248}"
#: libvirt's name of an x86 CPU feature to its trait.
X86: Mapping[str, str] = {feature: "HW_CPU_X86_%s" % name for feature, name in {
    "3dnow": "3DNOW", "abm": "ABM", "aes": "AESNI", "amx-bf16": "AMXBF16", "amx-int8": "AMXINT8",
    "amx-tile": "AMXTILE", "avx": "AVX", "avx2": "AVX2", "avx512-bitalg": "AVX512BITALG", "avx512bw": "AVX512BW",
    "avx512cd": "AVX512CD", "avx512dq": "AVX512DQ", "avx512er": "AVX512ER", "avx512f": "AVX512F",
    "gfni": "AVX512GFNI", "avx512ifma": "AVX512IFMA", "avx512pf": "AVX512PF", "vaes": "AVX512VAES",
    "avx512vbmi": "AVX512VBMI", "avx512vbmi2": "AVX512VBMI2", "avx512vl": "AVX512VL", "avx512vnni": "AVX512VNNI",
    "vpclmulqdq": "AVX512VPCLMULQDQ", "avx512-vpopcntdq": "AVX512VPOPCNTDQ", "bmi1": "BMI", "bmi2": "BMI2",
    "pclmuldq": "CLMUL", "f16c": "F16C", "fma": "FMA3", "fma4": "FMA4", "ibpb": "AMD_IBPB",
    "md-clear": "INTEL_MD_CLEAR", "mmx": "MMX", "mpx": "MPX", "amd-no-ssb": "AMD_NO_SSB", "pcid": "INTEL_PCID",
    "pdpe1gb": "PDPE1GB", "sha-ni": "SHA", "spec-ctrl": "INTEL_SPEC_CTRL", "amd-ssbd": "AMD_SSBD",
    "ssbd": "INTEL_SSBD", "sse": "SSE", "sse2": "SSE2", "pni": "SSE3", "sse4.1": "SSE41", "sse4.2": "SSE42",
    "sse4a": "SSE4A", "ssse3": "SSSE3", "stibp": "STIBP", "svm": "SVM", "tbm": "TBM", "rtm": "TSX",
    "virt-ssbd": "AMD_VIRT_SSBD", "vmx": "VMX", "xop": "XOP"}.items()}
#: Additional traits of the same features.
X86_BY_VENDOR: Mapping[str, str] = {"svm": "HW_CPU_X86_AMD_SVM", "vmx": "HW_CPU_X86_INTEL_VMX"}
#: Features of guests on an emulated x86 CPU, whatever the host has: libvirt's default model for them is qemu64.
EMULATED = ("mmx", "sse", "sse2", "pni")
#: Capabilities of every host.
ALWAYS = frozenset("COMPUTE_%s" % name for name in (
    "NODE", "DEVICE_TAGGING", "TRUSTED_CERTS", "NET_ATTACH_INTERFACE", "NET_ATTACH_INTERFACE_WITH_TAG",
    "VOLUME_ATTACH", "VOLUME_ATTACH_WITH_TAG", "VOLUME_EXTEND", "VOLUME_MULTI_ATTACH", "RESCUE_BFV",
    "MIGRATE_AUTO_CONVERGE", "MIGRATE_POST_COPY",
    "ADDRESS_SPACE_EMULATED", *("VIOMMU_MODEL_%s" % model for model in ("INTEL", "VIRTIO", "AUTO")),
    "IMAGE_TYPE_QCOW2", "IMAGE_TYPE_RAW", "IMAGE_TYPE_ISO", "CONFIG_DRIVE_ISO9660", "CONFIG_DRIVE_VFAT",
    *("STORAGE_BUS_%s" % bus for bus in ("VIRTIO", "SCSI", "SATA", "IDE")),
    *("NET_VIF_MODEL_%s" % model for model in ("VIRTIO", "E1000", "E1000E", "RTL8139")),
    *("GRAPHICS_MODEL_%s" % model for model in ("VGA", "CIRRUS", "VMVGA", "QXL", "VIRTIO", "BOCHS", "NONE"))))
#: Traits of hosts that can share folders with guests, and of disabled hosts; traits by architecture of guests.
SHARES, DISABLED = "COMPUTE_SHARE_LOCAL_FS", "COMPUTE_STATUS_DISABLED"
ARCHITECTURES: Mapping[str, str] = {architecture: "COMPUTE_ARCH_%s" % name for architecture, name in {
    "x86_64": "X86_64", "aarch64": "AARCH64", "ppc64le": "PPC64LE", "s390x": "S390X", "riscv64": "RISCV64",
    "mipsel": "MIPSEL"}.items()}
#: Traits by the host's own architecture (``ARCHITECTURES``: of guests); trait for an IOMMU of aarch64 guests.
HOSTS: Mapping[str, str] = {architecture: name.replace("COMPUTE_", "HW_", 1) for architecture,
                            name in ARCHITECTURES.items()}
SMMUV3 = "COMPUTE_VIOMMU_MODEL_SMMUV3"
#: Traits by the values of ``firmware`` and ``tpm_versions`` in ``kinds.Host``; a TPM's interface follows from its
#: version.
FIRMWARE: Mapping[str, str] = {"bios": "COMPUTE_FIRMWARE_BIOS", "uefi": "COMPUTE_FIRMWARE_UEFI"}
_SECRETS = tuple("COMPUTE_SECURITY_TPM_SECRET_SECURITY_%s" % owner for owner in ("USER", "HOST", "DEPLOYMENT"))
TPM: Mapping[str, tuple[str, ...]] = {
    "1.2": ("COMPUTE_SECURITY_TPM_1_2", "COMPUTE_SECURITY_TPM_TIS", *_SECRETS),
    "2.0": ("COMPUTE_SECURITY_TPM_2_0", "COMPUTE_SECURITY_TPM_TIS", "COMPUTE_SECURITY_TPM_CRB", *_SECRETS)}
#: Traits by the values of ``disk_encryption``.
ENCRYPTION: Mapping[str, tuple[str, ...]] = {
    "luks": ("COMPUTE_EPHEMERAL_ENCRYPTION", "COMPUTE_EPHEMERAL_ENCRYPTION_LUKS")}
#: Trait of a host whose cores have several threads.
THREADS = "HW_CPU_HYPERTHREADING"
#: Traits by the values of ``memory_encryption``.
SEV: Mapping[str, str] = {"amd-sev": "HW_CPU_X86_AMD_SEV", "amd-sev-es": "HW_CPU_X86_AMD_SEV_ES"}
SECURE_BOOT, PASSTHROUGH = "COMPUTE_SECURITY_UEFI_SECURE_BOOT", "COMPUTE_ADDRESS_SPACE_PASSTHROUGH"
#: Trait of a host whose libvirt reports the serial numbers of cards, and the first version that does.
REMOTE_PORTS, TELLS_SERIALS = "COMPUTE_REMOTE_MANAGED_PORTS", (7, 9)
#: All traits that agents detect.
AGENT_TRAITS = frozenset((*X86.values(), *X86_BY_VENDOR.values(), *ALWAYS, SHARES, DISABLED, *ARCHITECTURES.values(),
                          *HOSTS.values(), SMMUV3, *FIRMWARE.values(),
                          *(name for by in (TPM, ENCRYPTION) for names in by.values() for name in names),
                          *SEV.values(), THREADS, SECURE_BOOT, PASSTHROUGH, REMOTE_PORTS))
#: All traits except custom ones.
STANDARD = standard.TRAITS | AGENT_TRAITS


def is_known_trait(name: str) -> bool:
    """Return whether *name* is a standard trait of OpenStack or a valid name of a custom trait."""
    return name in STANDARD or re.fullmatch(CUSTOM, name) is not None


class RequestedTraits(NamedTuple):
    """The traits that a server's host must have (*required*) or must not have (*forbidden*)."""

    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()

    def lacking(self, traits: Iterable[str]) -> list[str]:
        """Return the reasons why a host with these *traits* does not fit, such as ``lacks X`` or ``has Y``; empty if it
        fits.
        """
        present = frozenset(traits)
        return ["lacks %s" % name for name in sorted(self.required - present)] + [
            "has %s" % name for name in sorted(self.forbidden & present)]


def requested_host_traits(specs: Mapping[str, Any], properties: Mapping[str, Any]) -> RequestedTraits:
    """Return the host traits that a flavor's extra *specs* and an image's *properties* request (``trait:NAME``). A
    flavor can require or forbid traits, in any request group except those with virtual GPUs. An image can only require
    traits."""
    traits: dict[str, set[str]] = {REQUIRED: set(), FORBIDDEN: set()}
    of_image = {name: value for name, value in properties.items() if name.startswith("trait:")}
    for source, words in ((specs, (REQUIRED, FORBIDDEN)), (of_image, (REQUIRED,))):
        for name, value in groups.requested_traits(source):
            if value in words:
                traits[value].add(name)
    return RequestedTraits(frozenset(traits[REQUIRED]), frozenset(traits[FORBIDDEN]))


def traits_of_features(features: Iterable[str]) -> frozenset[str]:
    """Return the traits of an x86 CPU with these *features*, which are libvirt's names of CPU features."""
    return frozenset(names[feature] for feature in features for names in (X86, X86_BY_VENDOR) if feature in names)


def host_traits(facts: Mapping[str, Any], kvm: bool, features: Iterable[str], shares: bool,
                custom: Iterable[str] = ()) -> list[str]:
    """Return the sorted traits of a host. *facts*: fields of ``kinds.Host``. *kvm*: whether its guests use KVM.
    *features*: the CPU features of its guests (libvirt's names). *shares*: whether the host can share directories with
    guests. *custom*: traits that its operator adds.
    """
    traits = set(ALWAYS) | set(custom)
    architecture = str(facts.get("architecture") or "")
    guests = {architecture, *(facts.get("emulated_architectures") or ())}
    traits.update(ARCHITECTURES[guest] for guest in guests if guest in ARCHITECTURES)
    if architecture in HOSTS:
        traits.add(HOSTS[architecture])
    if AARCH64 in guests:
        traits.add(SMMUV3)
    if architecture == "x86_64":
        traits |= traits_of_features(features)
    traits.update(FIRMWARE[firmware] for firmware in facts.get("firmware") or () if firmware in FIRMWARE)
    for field, names in (("tpm_versions", TPM), ("disk_encryption", ENCRYPTION)):
        traits.update(name for fact in facts.get(field) or () for name in names.get(fact, ()))
    if ((facts.get("cpu_info") or {}).get("topology") or {}).get("threads", 1) > 1:
        traits.add(THREADS)
    traits.update(SEV[model] for model in facts.get("memory_encryption") or () if model in SEV)
    traits.update(name for name, present in ((SHARES, shares), (SECURE_BOOT, facts.get("secure_boot")),
                                             (PASSTHROUGH, kvm))
                  if present)
    if _version(facts.get("libvirt_version")) >= TELLS_SERIALS:
        traits.add(REMOTE_PORTS)
    return sorted(traits)


def _version(text: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall("[0-9]+", str(text or "")))


def check_operator_traits(names: Iterable[str]) -> str:
    """Return an error message for *names*, the traits that an operator sets for a host; empty if they are valid."""
    names = list(names)
    if reported := next((name for name in names if name in AGENT_TRAITS), None):
        return "%r must not be given: the agent itself finds out whether the host has it" % reported
    wrong = next((name for name in names if not is_known_trait(name)), None)
    return "" if wrong is None else "%r must be a standard trait (`openstack trait list` has them), or CUSTOM_ and " \
        "capital letters, digits and _" % wrong


def check_custom_traits(names: Iterable[str]) -> str:
    """Return an error message for *names*, the custom traits in an agent's settings; empty if they are valid."""
    wrong = next((name for name in names if not re.fullmatch(CUSTOM, name)), None)
    return "" if wrong is None else "%r must be CUSTOM_ and capital letters, digits and _; others the agent finds " \
        "out itself" % wrong
