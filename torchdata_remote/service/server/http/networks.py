"""Whose an address is, for limits of each: with IPv6 everybody has 2**64 addresses."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

_HOST_BITS = 64  # of an IPv6 network, the smallest that providers give


@lru_cache(10_000)
def network_of(address: str) -> str:
    """Return an IPv4 address as it is, also one that is written as IPv6, and of an IPv6 address its network.

    >>> network_of("10.0.0.1"), network_of("::ffff:10.0.0.1"), network_of("2001:db8:1:2:3:4:5:6")
    ('10.0.0.1', '10.0.0.1', '2001:db8:1:2::/64')
    """
    if ":" not in address:
        return address
    parsed = ipaddress.IPv6Address(address.partition("%")[0])  # without the interface of a link-local one
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed) >> _HOST_BITS << _HOST_BITS, 128 - _HOST_BITS)))
