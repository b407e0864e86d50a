"""The token of a dataset service: from the options, or from the environment for the hosts that it names."""

from __future__ import annotations

import ipaddress
import os
import re

from ...errors import AccessDeniedError

TOKEN_VARIABLE = "TORCHDATA_REMOTE_TOKEN"  # noqa: S105  # the name of the variable
HOSTS_VARIABLE = "TORCHDATA_REMOTE_TOKEN_HOSTS"
_TOKEN = re.compile(r"[\x21-\x7e]+")
# Nothing that one HTTP library could take for the end of the host, and another one for a part of it
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]+))?")


def token_for(host: str, passed: str | None) -> str | None:
    """Return the token for a service, if there is one.

    That of the environment is sent to this machine, and to the hosts of ``TORCHDATA_REMOTE_TOKEN_HOSTS`` only: the URL
    of another host may be in a manifest, and its owner must not receive the token.

    Args:
        host: with its port.
        passed: token of the options, which belongs to this host.

    Raises:
        AccessDeniedError: if it cannot be sent in a header. The message does not show it.
    """
    token = (passed or (os.environ.get(TOKEN_VARIABLE) if _is_named(host) else None) or "").strip()
    if token and not _TOKEN.fullmatch(token):
        raise AccessDeniedError(
            f"datasets://{host}/: the token has characters that are invalid in a header.", url=f"datasets://{host}/"
        )
    return token or None


def token_advice(host: str) -> str:
    """Say how to pass a token to a service that requires one, or another one."""
    return (
        f"Pass its token by storage_options={{'token': ...}}, or the environment variable {TOKEN_VARIABLE}, which "
        f"other machines than this one receive if you set {HOSTS_VARIABLE}={host}."
    )


def _is_named(host: str) -> bool:
    """Whether the environment's token is for a host: one that it names, with this port or without any, or loopback."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    named = {name.strip().lower() for name in os.environ.get(HOSTS_VARIABLE, "").split(",")}
    return host.lower() in named or match[1].lower() in named or is_loopback(match[1].strip("[]"))


def is_loopback(host: str) -> bool:
    """Whether a host always means this machine. A name that resolves to it does not count: anyone can register one."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
