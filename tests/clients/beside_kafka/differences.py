"""The answers of a gateway that differ from a broker's, each with its reason."""

from __future__ import annotations

from typing import Final

_READ_ONLY = "a gateway takes no records and knows no transactions, and says so at once"


_UNCHANGED = "nothing of a gateway is changed through Kafka's protocol, and it says so at once"


_WORDS = "what is said beside an error code is for people"


DIFFERENCES: Final[dict[str, str]] = {
    "api_00_produce: a record: *: error_code": _READ_ONLY,
    "api_00_produce: a record: *: error_message": _READ_ONLY,
    "api_22_init_producer_id: in transactions: *": _READ_ONLY,
    "api_19_create_topics: *": _UNCHANGED,
    "api_20_delete_topics: *": _UNCHANGED,
    "api_21_delete_records: *": _UNCHANGED,
    "api_30_create_acls: *: error_message": _WORDS,
    "api_31_delete_acls: *: error_message": _WORDS,
    "api_33_alter_configs: *": _UNCHANGED,
    "api_37_create_partitions: *": _UNCHANGED,
    "api_44_incremental_alter_configs: *": _UNCHANGED,
    "api_68_consumer_group_heartbeat: *": (
        "only the classic protocol is served; a consumer with another one gets an error at once"
    ),
    "api_10_find_coordinator: transaction: *": _READ_ONLY,
    "api_10_find_coordinator: *: error_message": _WORDS,
    "api_32_describe_configs: *: error_message": _WORDS,
    "api_32_describe_configs: topic: *": (
        "a broker's settings can be changed, and it has more of them"
    ),
    "api_32_describe_configs: group: *: error_code (version *, broker 3.9)": (
        "since Kafka 4 a group has settings, and may have none"
    ),
    "api_29_describe_acls: *: error_message": _WORDS,
    "api_48_describe_client_quotas: *: error_message": _WORDS,
    "api_50_describe_user_scram_credentials: *: error_message": _WORDS,
    "api_61_describe_producers: *: error_message": _WORDS,
    "api_61_describe_producers: some: *: active_producers": _READ_ONLY,
    "api_74_list_config_resources: kind 8: * (version 1, broker 4.1)": (
        "loggers of a gateway are set where it is started"
    ),
    "api_18_api_versions: as it is: api_keys": (
        "a gateway has none of a broker's APIs for writing and administration"
    ),
    "api_18_api_versions: as it is: *features*": "they are a broker's own",
    "api_15_describe_groups: gone: groups: protocol_type": (
        "of a group whose members are gone only its offsets stay"
    ),
    "api_16_list_groups: gone: groups: protocol_type": (
        "of a group whose members are gone only its offsets stay"
    ),
    "api_47_offset_delete: another topic, gone: *": (
        "of a group whose members are gone only its offsets stay: without any it is not there"
    ),
    "api_08_offset_commit: unnamed: *": (
        "a group without a name keeps no offsets: there is no place for them in ZooKeeper's tree"
    ),
    "api_08_offset_commit: unknown: * (version 9, broker 4.1)": (
        "since Kafka 4 a group that is not there has an error of its own"
    ),
}
"""``api: question: field`` (``*`` stands for anything) and why the gateway answers otherwise.
Fields of lists have no index."""
