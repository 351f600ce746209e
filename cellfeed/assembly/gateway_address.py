"""Where consumers of an instance find its log."""

from __future__ import annotations

from cellfeed.config.host_port import host_port
from cellfeed.config.model import Config
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import NotFound


def first_gateway(directory: RunDir, config: Config) -> str:
    """``host:port`` of the first gateway of the configuration. Raises NotFound."""
    if not config.gateways:
        raise NotFound(
            "a warehouse or a lake without a bootstrap address needs a gateway in the same"
            " configuration"
        )
    gateway = config.gateways[0]
    ready = directory.ready(gateway.name)
    return host_port(gateway.host, ready.ports["kafka"] if ready else gateway.port)
