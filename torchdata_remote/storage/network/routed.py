"""urllib3's pools that follow a redirect by the proxy that is right for its target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import urllib3


class RoutedPools(urllib3.PoolManager):
    """Pools of direct connections, which hand a request to the pools that its URL needs."""

    route: Callable[[str], urllib3.PoolManager]

    def urlopen(self, method: str, url: str, redirect: bool = True, **options: Any) -> Any:  # type: ignore[override]
        """Send a request. urllib3 calls this for each redirect, with the headers of the request before."""
        pools = self.route(url)
        headers = options.get("headers") or {}
        # Not the Host that a proxy manager has set for the URL before
        options["headers"] = {name: value for name, value in headers.items() if name.lower() != "host"}
        if pools is self:
            return super().urlopen(method, url, redirect=redirect, **options)
        return pools.urlopen(method, url, redirect=redirect, **options)


class ProxiedPools(RoutedPools, urllib3.ProxyManager):
    """The same by one proxy."""
