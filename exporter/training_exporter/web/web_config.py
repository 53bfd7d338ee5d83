"""`--web.config.file` in exporter-toolkit's format: TLS, client certificates, basic authentication, headers."""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voluptuous import All, In, Invalid, Optional, Required

from training_exporter.documents import DocumentError, Fault, mapping, parse, read

logger = logging.getLogger(__name__)

# https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
_VERSIONS = {
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_HEADERS = (
    "Strict-Transport-Security",
    "X-Frame-Options",
    "X-Content-Type-Options",
    "X-XSS-Protection",
    "Content-Security-Policy",
)
_BCRYPT = re.compile(r"\$2[abxy]\$\d\d\$[./A-Za-z0-9]{53}")
_GO_CIPHER = re.compile(r"TLS_(ECDHE_(?:RSA|ECDSA))_WITH_(AES_(?:128|256)_GCM_SHA(?:256|384)|CHACHA20_POLY1305)\w*")


@dataclass(frozen=True, slots=True)
class WebConfig:
    """What the file says; the default is a server without TLS and without authentication."""

    tls: ssl.SSLContext | None = None
    users: Mapping[str, str] = field(default_factory=dict)  # name -> bcrypt hash
    client_names: frozenset[str] = frozenset()  # allowed subject alternative names of client certificates
    verifies_clients: bool = False  # every connection carries a verified client certificate
    headers: Mapping[str, str] = field(default_factory=dict)


class WebConfigFile:
    """The file and what was last read of it; a version that cannot be used leaves the one before in force."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = self._stamps()
        self.current = load(path)

    def refresh(self) -> bool:
        """Read again if the file or a certificate changed; True if there is something new."""
        stamp = self._stamps()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self.current = load(self._path)
        except DocumentError as error:
            logger.error("web configuration is not taken over: %s", error)  # noqa: TRY400 (a message, not a bug of ours)
            return False
        logger.info("web configuration %s is taken over", self._path)
        return True

    def _stamps(self) -> list[tuple[int, int] | None]:
        return [_stamp(path) for path in (self._path, *_files(self._path))]


def load(path: Path) -> WebConfig:
    """The web configuration in a file; DocumentError names every fault."""
    try:
        text = read(path)
    except (OSError, UnicodeDecodeError) as error:
        raise DocumentError(str(path), [Fault(0, "", f"cannot be read: {error}")]) from error
    data, faults = parse(text, _FILE, empty={})
    if data is None:
        raise DocumentError(str(path), faults)
    try:
        return _built(data, path.parent)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise DocumentError(str(path), [Fault(0, "tls_server_config", str(error))]) from error


def _built(data: Mapping[str, Any], directory: Path) -> WebConfig:
    tls = data.get("tls_server_config")
    return WebConfig(
        tls=None if tls is None else _context(tls, directory),
        users=data.get("basic_auth_users") or {},
        client_names=frozenset(tls.get("client_allowed_sans", ())) if tls else frozenset(),
        verifies_clients=tls is not None and tls.get("client_auth_type") == "RequireAndVerifyClientCert",
        headers=data.get("http_server_config", {}).get("headers", {}),
    )


def _context(tls: Mapping[str, Any], directory: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.get("min_version", "TLS12")]
    context.maximum_version = _VERSIONS[tls.get("max_version", "TLS13")]
    if ciphers := tls.get("cipher_suites"):
        context.set_ciphers(":".join(map(_openssl_cipher, ciphers)))
    if tls.get("prefer_server_cipher_suites", True):
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    certificate, key = directory / tls["cert_file"], directory / tls["key_file"]
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"certificate {certificate} with key {key}: {error}") from error
    if ca := tls.get("client_ca_file"):
        context.load_verify_locations(directory / ca)
    context.verify_mode = _CLIENT_AUTH[tls.get("client_auth_type", "NoClientCert")]
    return context


def _no_password() -> str:
    # without this OpenSSL would ask on the terminal and the server would wait for ever
    raise ValueError("the key is encrypted, and there is nobody to ask for its password")


def _openssl_cipher(name: str) -> str:
    found = _GO_CIPHER.fullmatch(name)
    if found is None:
        raise ValueError(f"cipher suite {name} is unknown")
    exchange, bulk = found.groups()
    return f"{exchange.replace('_', '-')}-{bulk.replace('AES_', 'AES').replace('_', '-')}"


def _files(path: Path) -> list[Path]:
    """Files that the configuration names, as far as it can be read now."""
    try:
        data, _ = parse(read(path), _FILE, empty={})
    except (OSError, UnicodeDecodeError):
        return []
    tls = (data or {}).get("tls_server_config") or {}
    return [path.parent / tls[key] for key in ("cert_file", "key_file", "client_ca_file") if key in tls]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise Invalid("expected text")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise Invalid("expected true or false")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise Invalid("expected a list")
    return tuple(map(_text, value))


def _users(value: object) -> Mapping[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Invalid("expected a mapping of user names to bcrypt hashes")
    for name, digest in value.items():
        if not isinstance(digest, str) or not _BCRYPT.fullmatch(digest):
            raise Invalid("expected a bcrypt hash, such as `htpasswd -nBC 10 USER` prints", [str(name)])
    return {str(name): digest for name, digest in value.items()}


def _refused(reason: str) -> Callable[[object], Any]:
    def refuse(_: object) -> None:
        raise Invalid(f"not supported: {reason}")

    return refuse


def _tls_whole(tls: dict[str, Any]) -> dict[str, Any]:
    wants = tls.get("client_auth_type", "NoClientCert")
    if wants == "NoClientCert" and ("client_ca_file" in tls or "client_allowed_sans" in tls):
        raise Invalid("client certificates are named and client_auth_type does not ask for them")
    if wants != "NoClientCert" and "client_ca_file" not in tls:
        raise Invalid(f"client_auth_type {wants} needs client_ca_file")
    return tls


_TLS = All(
    mapping(
        {
            Required("cert_file"): _text,
            Required("key_file"): _text,
            Optional("client_auth_type"): In(list(_CLIENT_AUTH)),
            Optional("client_ca_file"): _text,
            Optional("client_allowed_sans"): _texts,
            Optional("min_version"): In(list(_VERSIONS)),
            Optional("max_version"): In(list(_VERSIONS)),
            Optional("cipher_suites"): _texts,
            Optional("prefer_server_cipher_suites"): _truth,
            Optional("curve_preferences"): _refused("Python cannot order the curves"),
            Optional("cert"): _refused("give cert_file"),
            Optional("key"): _refused("give key_file"),
            Optional("client_ca"): _refused("give client_ca_file"),
        }
    ),
    _tls_whole,
)
_HTTP = mapping(
    {
        Optional("http2"): _truth,  # HTTP/1.1 is what every client that asks for HTTP/2 falls back to
        Optional("headers"): mapping({Optional(name): _text for name in _HEADERS}),
    }
)
_FILE = mapping(
    {
        Optional("tls_server_config"): _TLS,
        Optional("http_server_config"): _HTTP,
        Optional("basic_auth_users"): _users,
    }
)
