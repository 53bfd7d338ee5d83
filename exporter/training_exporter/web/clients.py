"""Who asks: this machine, a stranger, or the bearer of a certificate."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from tornado.httputil import HTTPServerRequest

from training_exporter.web.web_config import WebConfig


def is_local(request: HTTPServerRequest) -> bool:
    """Whether a program on this machine asks for itself: no proxy, and no web page by a name that it made up."""
    if any(name in request.headers for name in ("X-Forwarded-For", "X-Real-Ip", "Forwarded", "Via")):
        return False
    host = urlsplit(f"//{request.host}").hostname or ""
    return _is_loopback(request.remote_ip or "") and (host == "localhost" or _is_address(host))


def _is_loopback(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_name_allowed(request: HTTPServerRequest, web: WebConfig) -> bool:
    """Whether the client's certificate bears one of the allowed names, where names are asked for."""
    if not web.client_names:
        return True
    certificate = request.get_ssl_certificate()
    names = certificate.get("subjectAltName", ()) if isinstance(certificate, dict) else ()
    return any(value in web.client_names for _, value in names)
