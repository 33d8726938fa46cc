# SPDX-License-Identifier: GPL-3.0-or-later
"""The place of a bucket in an object store with the S3 protocol, the keys for it, and the checks of both."""

from __future__ import annotations

import configparser
import os
import re
import stat
from dataclasses import dataclass, field
from typing import Optional
from urllib.parse import urlsplit

from ..errors import InvalidSettings

#: How the URIs of objects begin.
SCHEME = "s3://"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}(?:/[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}){0,7}")
_REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class S3Credentials:
    """The access key and secret key of an account of an object store. *token*: the session token that belongs to
    temporary keys; empty for permanent keys."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class S3Location:
    """The place of objects in an object store. *prefix*: the beginning of all object keys, without slashes at its ends;
    empty for none. *credentials_file*: the file with the access keys (see ``read_s3_credentials``). *ca_file*: the file
    with the CA of the object store's certificate; ``None`` for the CAs of the system."""

    endpoint_url: str
    bucket: str
    credentials_file: str
    prefix: str = ""
    region: str = "us-east-1"
    ca_file: Optional[str] = None

    def uri(self, *names: str) -> str:
        """Return the URI of the object whose key, without the prefix, is *names* joined by slashes."""
        return SCHEME + "/".join(filter(None, (self.bucket, self.prefix, *names)))


def read_s3_credentials(path: str) -> S3Credentials:
    """Read the keys of an object store from the section ``default`` of the file *path*, which has the format of the
    AWS command line (``aws_access_key_id``, ``aws_secret_access_key``, and ``aws_session_token`` for temporary keys).
    Raises ``InvalidSettings`` if others than its owner can read the file, or if it has no keys."""
    try:
        with open(path, encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise InvalidSettings("%s can be read by others than its owner. Run: chmod 600 %s" % (path, path))
            parser = configparser.ConfigParser(interpolation=None, default_section="")
            parser.read_string(file.read())
        section = parser["default"]
        keys = (section["aws_access_key_id"], section["aws_secret_access_key"], section.get("aws_session_token", ""))
        if not all(key.isascii() and key.isprintable() and " " not in key for key in keys):
            raise KeyError
        return S3Credentials(*keys)
    except OSError as error:
        raise InvalidSettings("%s, the file with the keys of the object store, cannot be read: %s."
                              % (path, error.strerror)) from None
    except (configparser.Error, KeyError, UnicodeDecodeError):
        raise InvalidSettings("%s must have a section [default] with aws_access_key_id and aws_secret_access_key, "
                              "without spaces." % path) from None


def check_s3_endpoint(url: str) -> str:
    """Return an error text if *url* is not the URL of an object store; "" if it is valid."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return "must be a URL such as https://s3.example.com"
    if not good or "@" in parts.netloc or parts.query or parts.fragment or not url.isprintable() or " " in url:
        return "must be a URL such as https://s3.example.com, without keys and query"
    return ""


def check_s3_bucket(name: str) -> str:
    """Return an error text if *name* is not the name of a bucket; "" if it is valid."""
    return "" if _BUCKET.fullmatch(name) else "must have 3 to 63 letters, digits, . - and _"


def check_s3_prefix(prefix: str) -> str:
    """Return an error text if *prefix* cannot be the beginning of keys; "" if it is valid."""
    return "" if _PREFIX.fullmatch(prefix) else (
        "must have words of letters, digits, . - and _, with / between them, such as clouds/lab")


def check_s3_region(name: str) -> str:
    """Return an error text if *name* is not the name of a region; "" if it is valid."""
    return "" if _REGION.fullmatch(name) else "must have letters, digits, . - and _, such as eu-central-1"
