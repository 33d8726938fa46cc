#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: certificate
short_description: Keep a small certificate authority, and the certificates of hosts and clients that it signs
version_added: "0.1.0"
description:
  - Creates a CA, or a certificate that the CA signs, and renews it in time. Nothing is done while the certificate is
    as described.
  - It runs where the key of the CA is, usually on the controller with C(delegate_to=localhost). A host makes its key
    itself and passes a certificate request as O(request), so that no key of a host is ever sent.
  - Only the public key is taken from the request. Names and usage come from the task.
options:
  path:
    description: File of the certificate (PEM).
    type: path
    required: true
  key_path:
    description: File of the private key. A missing key is generated, readable by its owner only.
    type: path
  request:
    description: Certificate request (PEM) of the owner of the private key, in place of O(key_path).
    type: str
  ca_path:
    description: Certificate of the CA that signs. Without it, the certificate is a CA's own.
    type: path
  ca_key_path:
    description: Private key of the CA that signs.
    type: path
  ca_passphrase:
    description: Passphrase of the CA's private key. It encrypts the key of a new CA.
    type: str
  common_name:
    description: Name of the CA, the host or the client. For a client, the agent takes it as the caller's name.
    type: str
    required: true
  names:
    description: DNS names and addresses of a server's certificate.
    type: list
    elements: str
    default: []
  usage:
    description: Permitted uses of the certificate. Ignored for a CA.
    type: list
    elements: str
    choices: [server, client]
    default: [client]
  valid_for:
    description: Lifetime of a new certificate in days.
    type: int
    default: 365
  renew_before:
    description: Replace a certificate this number of days before it expires.
    type: int
    default: 30
  force:
    description: Replace the certificate even if it is as described.
    type: bool
    default: false
requirements:
  - cryptography, which ansible-core needs too
attributes:
  check_mode:
    description: Reports the necessary action and does nothing.
    support: full
  diff_mode:
    description: Shows names, usage and end of the certificate before and after the task.
    support: full
author:
  - Magnetar contributors (@magnetar)
"""

EXAMPLES = r"""
- name: A CA
  magnetar.compute.certificate:
    path: pki/ca.pem
    key_path: pki/ca.key
    common_name: Example hosts
    valid_for: 3650
  delegate_to: localhost
  run_once: true

- name: A certificate for AWX
  magnetar.compute.certificate:
    path: pki/awx.pem
    key_path: pki/awx.key
    common_name: awx.example
    ca_path: pki/ca.pem
    ca_key_path: pki/ca.key
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
certificate:
  description: The certificate (PEM); left out in check mode when there is none that fits.
  type: str
  returned: success
reason:
  description: Why the certificate is made or replaced.
  type: str
  returned: changed
  sample: it ends in 12 days
"""

import contextlib
import datetime as dt
import ipaddress
import os
import tempfile

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    HAS_CRYPTOGRAPHY = True
except ImportError:
    HAS_CRYPTOGRAPHY = False

UTC = dt.timezone.utc
#: Maximum difference between the clocks of two hosts.
SKEW = dt.timedelta(hours=1)


class Failure(Exception):
    """The error for a certificate that cannot be issued. The message has the reason and a remedy."""


def read_certificate_file(path):
    """Return the content of the file *path* as bytes; ``None`` when the file does not exist."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Failure("%s cannot be read: %s." % (path, error.strerror)) from error


def write_certificate_file(path, content, mode):
    """Write *content* (bytes) atomically to the file *path* with the permissions *mode*. Missing directories are
    created. Only the owner can access the directory of the file, if it is new."""
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, mode=0o700, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def private_key(path, passphrase):
    """Return the private key in the file *path*; ``None`` when the file does not exist."""
    content = read_certificate_file(path)
    if content is None:
        return None
    try:
        return serialization.load_pem_private_key(content, passphrase)
    except (ValueError, TypeError) as error:
        raise Failure("%s is not a private key that can be used with the given passphrase: %s. Correct ca_passphrase, "
                      "or move the file away to have another key made." % (path, error)) from error


def make_private_key(path, passphrase):
    """Generate an EC key, store it at *path*, encrypted with *passphrase* (bytes) if that is not empty, and return it.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    hidden = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    write_certificate_file(path, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                                   hidden), 0o600)
    return key


def general_names(names):
    """Return *names* as a list of ``x509`` subject alternative names: IP addresses, and DNS names for all other texts.
    Raises ``Failure``."""
    converted = []
    for name in names:
        try:
            converted.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            try:
                converted.append(x509.DNSName(name))
            except ValueError as error:
                raise Failure("names: %r is neither an address nor a DNS name." % name) from error
    return converted


def key_usages(words):
    """Return the OIDs of the extended key usages in *words*, each ``server`` or ``client``."""
    oids = {"server": x509.oid.ExtendedKeyUsageOID.SERVER_AUTH, "client": x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH}
    return [oids[usage] for usage in words]


def certificate_extension(certificate, kind):
    """Return the value of the certificate's extension of the class *kind* (of ``x509``); ``None`` when it is missing.
    """
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def certificate_end(certificate):
    """Return the expiry time of *certificate* with a time zone; older releases of cryptography return it without one.
    """
    if hasattr(certificate, "not_valid_after_utc"):
        return certificate.not_valid_after_utc
    return certificate.not_valid_after.replace(tzinfo=UTC)


def public_bytes(key):
    """Return a public key as bytes, for comparison."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def describe_certificate(certificate):
    """Return a text that describes *certificate* in a diff: subject, issuer, names, usages and expiry date; empty for
    ``None``."""
    if certificate is None:
        return ""
    names, usage = (certificate_extension(certificate, kind) for kind in (x509.SubjectAlternativeName,
                                                                          x509.ExtendedKeyUsage))
    return "subject: %s\nissuer: %s\nnames: %s\nusage: %s\nends: %s\n" % (
        certificate.subject.rfc4514_string(), certificate.issuer.rfc4514_string(),
        ", ".join(sorted(str(name.value) for name in names or ())),
        ", ".join(sorted({"1.3.6.1.5.5.7.3.1": "server", "1.3.6.1.5.5.7.3.2": "client"}.get(purpose.dotted_string,
                                                                                            "other")
                         for purpose in usage or ())),
        certificate_end(certificate).strftime("%Y-%m-%d"))


class Issue:
    """The issuing of one certificate: its current state, its desired state, and the steps between them."""

    def __init__(self, params):
        self.params = params
        secret = params["ca_passphrase"]
        self.passphrase = secret.encode() if secret else None
        self.is_ca = not params["ca_path"]
        self.ca = self.ca_key = None
        if not self.is_ca:
            self.ca, self.ca_key = self._load(params["ca_path"]), private_key(params["ca_key_path"], self.passphrase)
        self.found = self._load(params["path"])
        self.key = private_key(params["key_path"], self.passphrase if self.is_ca else None) \
            if params["key_path"] else None
        self.public = self._requested() if params["request"] else (self.key and self.key.public_key())

    def _load(self, path):
        content = read_certificate_file(path)
        with contextlib.suppress(ValueError):
            return x509.load_pem_x509_certificate(content) if content else None
        raise Failure("%s is not a certificate. Move it away to have another made." % path)

    def _requested(self):
        try:
            request = x509.load_pem_x509_csr(self.params["request"].encode())
        except ValueError as error:
            raise Failure("request is not a certificate request in PEM: %s." % error) from error
        if not request.is_signature_valid:
            raise Failure("request is not signed with the key that it is for.")
        return request.public_key()

    def reason(self):
        """Return why a new certificate is required; ``None`` when the existing one fits."""
        params, certificate = self.params, self.found
        if certificate is None:
            return "there is none"
        if params["force"]:
            return "force is set"
        if self.public is None or public_bytes(certificate.public_key()) != public_bytes(self.public):
            return "it is for another key"
        remaining = certificate_end(certificate) - dt.datetime.now(UTC)
        if remaining < dt.timedelta(days=params["renew_before"]):
            return "it ends in %d days" % remaining.days if remaining.days >= 0 else "it has ended"
        if certificate.subject != self._subject():
            return "it is for another name"
        if self.is_ca:
            return None
        if set(certificate_extension(certificate, x509.SubjectAlternativeName)
               or ()) != set(general_names(params["names"])):
            return "its names differ"
        if set(certificate_extension(certificate, x509.ExtendedKeyUsage) or ()) != set(key_usages(params["usage"])):
            return "its usage differs"
        return None if self._signed() else "another CA signed it"

    def _signed(self):
        if self.ca is None or self.found.issuer != self.ca.subject:
            return False
        try:
            self.ca.public_key().verify(self.found.signature, self.found.tbs_certificate_bytes,
                                        ec.ECDSA(self.found.signature_hash_algorithm))
        except InvalidSignature:
            return False
        return True

    def _subject(self):
        return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, self.params["common_name"])])

    def make(self):
        """Generate the private key if there is none, then sign and store the certificate."""
        params = self.params
        if not self.is_ca and (self.ca is None or self.ca_key is None):
            raise Failure("The CA is not there: %s and %s are both needed."
                          % (params["ca_path"], params["ca_key_path"]))
        if not self.is_ca and not isinstance(self.ca_key, ec.EllipticCurvePrivateKey):
            raise Failure("%s is not an elliptic-curve key." % params["ca_key_path"])
        if self.public is None:
            self.key = make_private_key(params["key_path"], self.passphrase if self.is_ca else None)
            self.public = self.key.public_key()
        self.found = self._builder().sign(self.key if self.is_ca else self.ca_key, hashes.SHA256())
        write_certificate_file(params["path"], self.found.public_bytes(serialization.Encoding.PEM), 0o644)

    def _builder(self):
        params, now = self.params, dt.datetime.now(UTC)
        last = now + dt.timedelta(days=params["valid_for"])
        signer = self.public if self.is_ca else self.ca_key.public_key()
        builder = x509.CertificateBuilder(
            issuer_name=self._subject() if self.is_ca else self.ca.subject, subject_name=self._subject(),
            public_key=self.public, serial_number=x509.random_serial_number(), not_valid_before=now - SKEW,
            not_valid_after=last if self.is_ca else min(last, certificate_end(self.ca)))
        extensions = [
            (x509.BasicConstraints(ca=self.is_ca, path_length=0 if self.is_ca else None), True),
            (x509.KeyUsage(digital_signature=not self.is_ca, key_cert_sign=self.is_ca, crl_sign=self.is_ca,
                           content_commitment=False, key_encipherment=False, data_encipherment=False,
                           key_agreement=False, encipher_only=False, decipher_only=False), True),
            (x509.SubjectKeyIdentifier.from_public_key(self.public), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), False),
        ]
        if not self.is_ca:
            extensions.append((x509.ExtendedKeyUsage(key_usages(params["usage"])), False))
            if params["names"]:
                extensions.append((x509.SubjectAlternativeName(general_names(params["names"])), False))
        for value, critical in extensions:
            builder = builder.add_extension(value, critical)
        return builder

    def pem(self):
        """Return the certificate in PEM format."""
        return self.found.public_bytes(serialization.Encoding.PEM).decode()


def ensure_certificate(module):
    """Issue or keep the certificate that the task describes, and return the result of the task."""
    issue = Issue(module.params)
    before, reason = describe_certificate(issue.found), issue.reason()
    if reason and not module.check_mode:
        issue.make()
    result = {"changed": reason is not None}
    after = describe_certificate(issue.found)
    if reason:
        result["reason"] = reason
        after = after if not module.check_mode else "%s%s: a new certificate for %s\n" % (
            before, reason, module.params["common_name"])
    if not reason or not module.check_mode:
        result["certificate"] = issue.pem()
    result["diff"] = {"before": before, "after": after, "before_header": module.params["path"],
                      "after_header": module.params["path"]}
    return result


SPECIFICATION = {
    "argument_spec": {
        "path": {"type": "path", "required": True},
        "key_path": {"type": "path", "no_log": False},
        "request": {"type": "str"},
        "ca_path": {"type": "path"},
        "ca_key_path": {"type": "path", "no_log": False},
        "ca_passphrase": {"type": "str", "no_log": True},
        "common_name": {"type": "str", "required": True},
        "names": {"type": "list", "elements": "str", "default": []},
        "usage": {"type": "list", "elements": "str", "choices": ["server", "client"], "default": ["client"]},
        "valid_for": {"type": "int", "default": 365},
        "renew_before": {"type": "int", "default": 30},
        "force": {"type": "bool", "default": False},
    },
    "required_one_of": [["key_path", "request"]],
    "mutually_exclusive": [["key_path", "request"]],
    "required_together": [["ca_path", "ca_key_path"]],
}


def main():
    """Run the module."""
    module = AnsibleModule(supports_check_mode=True, **SPECIFICATION)
    if not HAS_CRYPTOGRAPHY:
        module.fail_json(msg=missing_required_lib("cryptography"))
    try:
        module.exit_json(**ensure_certificate(module))
    except Failure as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
