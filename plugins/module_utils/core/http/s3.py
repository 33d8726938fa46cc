# SPDX-License-Identifier: GPL-3.0-or-later
"""A client for buckets of object stores with the S3 protocol: objects are put, read, deleted and listed by a prefix.

Requests are signed with AWS Signature Version 4, and have path-style addresses (``ENDPOINT/BUCKET/KEY``). Only the
standard library is used, so that agents and the control plane need no further packages.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import hmac
import http.client
import random
import socket
import ssl
import threading
import time
from typing import Callable, Iterator, Mapping, Optional, Sequence
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree as ET

from ..errors import InvalidSettings
from .s3_location import S3Credentials, S3Location, read_s3_credentials

#: Seconds that a connection may be silent.
TIMEOUT = 60.0
#: An attempt may last so many times as long as a connection may be silent.
PATIENCE = 10
#: Bytes of an object, of a list, and of any other answer that are read at most.
MOST_OBJECT, MOST_LIST, MOST_ANSWER = 64 << 20, 16 << 20, 1 << 16
#: Bytes that are read at once.
PIECE = 1 << 20
#: Requests for one call: the first one, and repetitions after failures that may be temporary.
ATTEMPTS = 5
#: Longest wait before the first repetition, in seconds. Each further wait may be twice as long, up to ``LONGEST``.
SHORTEST, LONGEST = 0.5, 20.0
#: Answers after which a request is repeated.
TEMPORARY = (429, 500, 502, 503, 504)
TEMPORARY_CODES = ("InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown")
#: Codes of a store that is full, or of a quota that is used up.
FULL_CODES = ("QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull")
#: Code of this module for a TLS certificate that is not accepted.
BAD_CERTIFICATE = "BadCertificate"
SAFE = "-_.~"


class S3Error(Exception):
    """A failed request to an object store. *status*: the status of the HTTP response; 0 if there was no response.
    *code*: the error code of the object store, such as ``AccessDenied``; empty if there is none."""

    def __init__(self, message: str, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.message, self.status, self.code = message, status, code

    @property
    def full(self) -> bool:
        """Return whether the object store has no room left, or a quota is used up."""
        return self.status == 507 or self.code in FULL_CODES

    @property
    def temporary(self) -> bool:
        """Return whether the same request may soon succeed."""
        return self.status in TEMPORARY or self.code in TEMPORARY_CODES or (self.status == 0 and not self.code)

    @property
    def missing(self) -> bool:
        """Return whether the requested object does not exist. A 404 without a code may be of a proxy."""
        return self.status == 404 and self.code == "NoSuchKey"

    @property
    def remedy(self) -> str:
        """Return a sentence that says what an operator should do."""
        if self.full:
            return "Delete backups, or raise the quota."
        if self.code == "RequestTimeTooSkewed":
            return "Set the clock of this host."
        if self.code == "NoSuchBucket":
            return "Create the bucket, or correct its name."
        if self.code == BAD_CERTIFICATE:
            return "Name the CA that has signed it."
        if self.status in (301, 307, 308, 400):
            return "Check the endpoint and the region."
        if self.status in (401, 403):
            return "Check the keys in the credentials file, and what they permit in the bucket."
        return "Check the endpoint, and that this host reaches it."


def sign_s3_request(method: str, url: str, headers: Mapping[str, str], body_hash: str, region: str,
                    credentials: S3Credentials, moment: dt.datetime) -> dict[str, str]:
    """Return *headers* together with the headers of AWS Signature Version 4, such as ``authorization``.

    - *url*: the URL of the request, with path and query encoded, and the query's parameters sorted.
    - *body_hash*: the SHA-256 of the body, in hexadecimal digits.
    - *moment*: the current time, in UTC.
    """
    parts, date = urlsplit(url), moment.strftime("%Y%m%dT%H%M%SZ")
    signed = {**headers, "host": parts.netloc, "x-amz-content-sha256": body_hash, "x-amz-date": date}
    if credentials.token:
        signed["x-amz-security-token"] = credentials.token
    names = ";".join(sorted(name.lower() for name in signed))
    lines = sorted("%s:%s\n" % (name.lower(), value.strip()) for name, value in signed.items())
    canonical = "\n".join((method, parts.path or "/", parts.query, "".join(lines), names, body_hash))
    scope = "/".join((date[:8], region, "s3", "aws4_request"))
    text = "\n".join(("AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = b"AWS4" + credentials.secret_key.encode()
    for word in scope.split("/"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    signed["authorization"] = "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s" % (
        credentials.access_key, scope, names, signature)
    return signed


class S3Bucket:
    """The objects of an S3 bucket whose keys begin with the prefix of *location*. The methods take and return object
    keys without this prefix.

    Every method raises ``S3Error``, or ``InvalidSettings`` if the credentials file or the CA file cannot be used. A
    request is repeated after a failure that may be temporary, up to *attempts* requests in all, after random waits that
    grow. *wait*: the function that waits. All requests may be repeated without harm. *timeout*: seconds of silence
    after which a request has failed; it may last ``PATIENCE`` times as long. The credentials file is read for each
    request, so new access keys need no restart.
    """

    def __init__(self, location: S3Location, attempts: int = ATTEMPTS, timeout: float = TIMEOUT,
                 wait: Callable[[float], None] = time.sleep) -> None:
        self.location, self.attempts, self.timeout, self.wait = location, attempts, timeout, wait

    def check_access(self) -> None:
        """Raise ``S3Error`` if the bucket does not exist, or the object store does not accept the access keys
        (HeadBucket)."""
        self._request("HEAD", None)

    def put_object(self, key: str, body: bytes) -> None:
        """Create or replace the object *key*. Readers see the old or the new object, never a part."""
        self._request("PUT", key, body=body)

    def get_object(self, key: str, start: int = 0, length: Optional[int] = None, most: int = MOST_OBJECT) -> bytes:
        """Return the content of the object *key*, of *most* bytes at most. With *length*, return only *length* bytes
        from the offset *start* on, and raise ``S3Error`` if the object has fewer bytes. Without *length*, *start* is
        ignored."""
        headers = {} if length is None else {"range": "bytes=%d-%d" % (start, start + length - 1)}
        content = self._request("GET", key, headers=headers, most=most if length is None else length)
        if length is not None and len(content) != length:
            raise S3Error("The object %s has no %d bytes at offset %d" % (key, length, start), 416)
        return content

    def has_object(self, key: str) -> bool:
        """Return whether the object *key* exists."""
        try:
            self._request("HEAD", key)
        except S3Error as error:
            if error.missing or (error.status == 404 and not error.code):  # answers to HEAD have no body with a code
                return False
            raise
        return True

    def delete_object(self, key: str) -> None:
        """Delete the object *key*. A missing one is ignored."""
        try:
            self._request("DELETE", key)
        except S3Error as error:
            if not error.missing:
                raise

    def list_objects(self, prefix: str, limit: int = 1000) -> Iterator[str]:
        """Yield the keys of all objects whose key begins with *prefix*. Each request (ListObjectsV2) returns at most
        *limit* keys."""
        return self._list(prefix, (("max-keys", str(limit)),), "{*}Contents/{*}Key")

    def list_folders(self) -> Iterator[str]:
        """Yield the names of the top-level folders: the part before the first slash of each key that contains a slash.
        Each name is yielded once."""
        for key in self._list("", (("delimiter", "/"),), "{*}CommonPrefixes/{*}Prefix"):
            yield key.rstrip("/")

    def _list(self, prefix: str, query: Sequence[tuple[str, str]], path: str) -> Iterator[str]:
        beginning, token = self._full(""), ""
        while True:
            content = self._request("GET", None, query=(
                *query, ("list-type", "2"), ("prefix", beginning + prefix),
                *([("continuation-token", token)] if token else [])), most=MOST_LIST)
            try:
                page = ET.fromstring(content)  # noqa: S314 - of the operator's own object store
            except ET.ParseError:
                raise S3Error("The endpoint answered with no list of objects", 400) from None
            for element in page.iterfind(path):
                key = element.text or ""
                if not key.startswith(beginning + prefix):  # callers may delete what is listed
                    raise S3Error("The endpoint listed the key %r, which does not begin with %r as asked"
                                  % (key[:100], beginning + prefix), 400)
                yield key[len(beginning):]
            if page.findtext("{*}IsTruncated") != "true":
                return
            before, token = token, page.findtext("{*}NextContinuationToken") or ""
            if token in ("", before):
                raise S3Error("The endpoint answered with a part of the list of objects, and does not say how it goes "
                              "on", 400)

    def _full(self, key: str) -> str:
        return "%s/%s" % (self.location.prefix, key) if self.location.prefix else key

    def _request(self, method: str, key: Optional[str], query: Sequence[tuple[str, str]] = (), body: bytes = b"",
                 headers: Optional[Mapping[str, str]] = None, most: int = MOST_ANSWER) -> bytes:
        """Send a request for the object *key*, or for the bucket if *key* is ``None``. Return the body of the response,
        of *most* bytes at most. After a failure that may be temporary, repeat the request."""
        path = "/" + self.location.bucket + ("" if key is None else "/" + self._full(key))
        url = self.location.endpoint_url.rstrip("/") + quote(path, safe="/" + SAFE)
        if query:
            url += "?" + "&".join("%s=%s" % (quote(name, safe=SAFE), quote(value, safe=SAFE))
                                  for name, value in sorted(query))
        for number in range(1, self.attempts + 1):
            try:
                return self._send(method, url, dict(headers or {}), body, most)
            except S3Error as error:
                if number == self.attempts or not error.temporary:
                    raise
            self.wait(random.uniform(0.5, 1) * min(LONGEST, SHORTEST * 2 ** number))  # noqa: S311 - no secret
        raise AssertionError("the last attempt returns or raises")

    def _send(self, method: str, url: str, headers: dict[str, str], body: bytes, most: int) -> bytes:
        parts = urlsplit(url)
        credentials = read_s3_credentials(self.location.credentials_file)
        headers = sign_s3_request(method, url, headers, hashlib.sha256(body).hexdigest(), self.location.region,
                                  credentials, dt.datetime.now(dt.timezone.utc))
        try:
            with contextlib.closing(self._connection(parts.scheme, parts.netloc)) as connection, \
                    _ended_after(connection, PATIENCE * self.timeout):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may refuse before it has read all
                    connection.request(method, "%s?%s" % (parts.path, parts.query) if parts.query else parts.path,
                                       body or (b"" if method == "PUT" else None), headers)
                response = connection.getresponse()
                refused = response.status // 100 != 2
                content = _read_body(response, MOST_ANSWER if refused else most + 1)
        except ssl.SSLCertVerificationError as error:
            raise S3Error("The certificate of %s is not accepted (%s)" % (parts.netloc, error.verify_message),
                          code=BAD_CERTIFICATE) from error
        except (OSError, UnicodeError, http.client.HTTPException) as error:  # UnicodeError: of a wrong host name
            raise S3Error("%s does not answer (%s)" % (parts.netloc, error or type(error).__name__)) from error
        if refused:
            raise _refusal(method, response, content)
        if len(content) > most:
            raise S3Error("%s was answered with more than the %d bytes that are expected" % (method, most), 400)
        return content

    def _connection(self, scheme: str, host: str) -> http.client.HTTPConnection:
        if scheme == "http":
            return http.client.HTTPConnection(host, timeout=self.timeout)
        try:
            context = ssl.create_default_context(cafile=self.location.ca_file)
        except OSError as error:
            raise InvalidSettings("%s, the file with the CA of the object store, cannot be used: %s."
                                  % (self.location.ca_file, error.strerror or error)) from None
        return http.client.HTTPSConnection(host, timeout=self.timeout, context=context)


@contextlib.contextmanager
def _ended_after(connection: http.client.HTTPConnection, seconds: float) -> Iterator[None]:
    """Connect, and end the connection after *seconds*, however it is used within the context. Then raise
    ``TimeoutError``: the end may look like that of an answer.
    """
    connection.connect()
    sock, ended = connection.sock, threading.Event()  # the connection forgets it before the answer is read

    def end() -> None:
        ended.set()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # that of TLS would read on without decryption

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not ended.is_set():
            raise
    finally:
        timer.cancel()
    if ended.is_set():
        raise TimeoutError("an answer took longer than %g s" % seconds)


def _read_body(response: http.client.HTTPResponse, most: int) -> bytes:
    """Return the body of *response*, or the first *most* bytes. Raises ``IncompleteRead`` if it ends too early."""
    content = bytearray()
    while len(content) < most:
        piece = response.read(min(PIECE, most - len(content)))
        if not piece:
            if response.length:
                raise http.client.IncompleteRead(bytes(content[:PIECE]), response.length)
            break
        content += piece
    return bytes(content)


def _refusal(method: str, response: http.client.HTTPResponse, content: bytes) -> S3Error:
    """Return the error for *response*, an HTTP response whose status is not 2xx. *content*: the body of the response,
    usually XML with an error code."""
    code = message = ""
    with contextlib.suppress(ET.ParseError):  # answers to HEAD and of proxies have no XML
        document = ET.fromstring(content)  # noqa: S314 - as above
        code, message = document.findtext("{*}Code") or "", document.findtext("{*}Message") or ""
    words = " ".join(filter(None, (str(response.status), code or response.reason)))
    why = " (%s)" % message.strip().rstrip(".")[:200] if message else ""
    return S3Error("%s was answered with %s%s" % (method, words, why), response.status, code)
