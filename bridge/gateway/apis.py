"""The APIs that the gateway speaks, by key. An API is one module ``api_<key>_<name>.py`` with KEY, VERSIONS and ``handle``; what is not listed is not
advertised."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType
from typing import Any, Final, NamedTuple

from bridge.gateway import (
    api_00_produce,
    api_01_fetch,
    api_02_list_offsets,
    api_03_metadata,
    api_08_offset_commit,
    api_09_offset_fetch,
    api_10_find_coordinator,
    api_11_join_group,
    api_12_heartbeat,
    api_13_leave_group,
    api_14_sync_group,
    api_15_describe_groups,
    api_16_list_groups,
    api_17_sasl_handshake,
    api_18_api_versions,
    api_22_init_producer_id,
    api_23_offset_for_leader_epoch,
    api_29_describe_acls,
    api_32_describe_configs,
    api_35_describe_log_dirs,
    api_36_sasl_authenticate,
    api_42_delete_groups,
    api_46_list_partition_reassignments,
    api_47_offset_delete,
    api_48_describe_client_quotas,
    api_50_describe_user_scram_credentials,
    api_60_describe_cluster,
    api_61_describe_producers,
    api_66_list_transactions,
    api_74_list_config_resources,
)
from bridge.gateway.context import GatewayContext, Peer
from bridge.gateway.protocol import RequestHead, is_flexible

Handler = Callable[[GatewayContext, Any, RequestHead, Peer], Awaitable[Mapping[str, Any] | list[bytes]]]
"""Takes the parsed request; gives the response's fields, or its whole frame in pieces."""


class Api(NamedTuple):
    key: int
    versions: tuple[int, int]
    handle: Handler


def _api(module: ModuleType) -> Api:
    return Api(module.KEY, module.VERSIONS, module.handle)


APIS: Final[dict[int, Api]] = {
    api.key: api
    for api in map(
        _api,
        (
            api_00_produce,
            api_01_fetch,
            api_02_list_offsets,
            api_03_metadata,
            api_08_offset_commit,
            api_09_offset_fetch,
            api_10_find_coordinator,
            api_11_join_group,
            api_12_heartbeat,
            api_13_leave_group,
            api_14_sync_group,
            api_15_describe_groups,
            api_16_list_groups,
            api_17_sasl_handshake,
            api_18_api_versions,
            api_22_init_producer_id,
            api_23_offset_for_leader_epoch,
            api_29_describe_acls,
            api_32_describe_configs,
            api_35_describe_log_dirs,
            api_36_sasl_authenticate,
            api_42_delete_groups,
            api_46_list_partition_reassignments,
            api_47_offset_delete,
            api_48_describe_client_quotas,
            api_50_describe_user_scram_credentials,
            api_60_describe_cluster,
            api_61_describe_producers,
            api_66_list_transactions,
            api_74_list_config_resources,
        ),
    )
}

FLEXIBLE_FROM: Final[dict[int, int]] = {
    key: next((version for version in range(api.versions[0], api.versions[1] + 1) if is_flexible(key, version)), api.versions[1] + 1)
    for key, api in APIS.items()
}
"""From which version on an API's requests have tagged fields."""
