"""Asks the servers of a process now and then: the storage, the coordination, a loader's Kafka
cluster. So an idle process notices too that one of them is away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.store.background import SupervisedThread
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError, Unavailable
from cellfeed.store.progress import Kind, Watch
from cellfeed.store.releases import join_fleet

ASK_EVERY_S: Final = 2.0
"""Between two questions to one server, in seconds: several within the shortest sensible limit."""

SOURCE_TIMEOUT_S: Final = 5.0
"""Longest wait for the answer of a Kafka cluster, in seconds."""

GROUP: Final = "cellfeed.health"
"""The group whose members are asked for. Nobody joins it, so the answer is short."""


END_TIMEOUT_S: Final = 1.0
"""Longest wait for a question under way when the process ends, in seconds: its answer is not
needed."""


@contextmanager
def servers_asked(datastore: Datastore, coordinator: Coordinator) -> Iterator[None]:
    """Asks both until the end of the context. Each has a thread: one of them may hang. Raises
    ProtectData, before the process serves, where this release cannot work beside the others."""
    with suppress(Unavailable):  # such a process waits for its storage
        join_fleet(datastore.state)
    with (
        _asked(f"the storage of {datastore.name}", "storage", datastore.engine.change_token),
        _asked("the coordination", "coordination", partial(coordinator.members, GROUP)),
    ):
        yield


@contextmanager
def source_asked(bootstrap: str, client: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Asks the Kafka cluster of a loader for its brokers until the end of the context. ``client``:
    further settings of librdkafka (TLS, SASL)."""
    # A heavy library, which most kinds of process do without.
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **(client or {})})
    not_known = (KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE)  # noqa: SLF001

    def ask() -> None:
        try:
            admin.describe_cluster(request_timeout=SOURCE_TIMEOUT_S).result(SOURCE_TIMEOUT_S + 1)
        except KafkaException as error:
            if error.args[0].code() not in not_known:  # an old broker that answers
                raise Unavailable(str(error)) from error
        except TimeoutError as error:
            raise Unavailable(f"no answer within {SOURCE_TIMEOUT_S + 1:g} s") from error

    with _asked(f"the Kafka cluster at {bootstrap}", "source", ask):
        yield


@contextmanager
def _asked(part: str, kind: Kind, ask: Callable[[], object]) -> Iterator[None]:
    ended = threading.Event()
    thread = SupervisedThread(f"ask-{kind}", partial(_ask, Watch(part, kind), ask, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(END_TIMEOUT_S)


def _ask(watch: Watch, ask: Callable[[], object], ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            ask()
            watch.moved()
        except CellfeedError as error:
            watch.waits(str(error))
        except Exception:
            if not ended.is_set():  # the process has closed its connections
                raise
        ended.wait(ASK_EVERY_S)
    watch.close()
