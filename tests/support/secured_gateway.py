"""Clients that enter a secured gateway."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import aiokafka
import confluent_kafka
import kafka
from aiokafka.helpers import create_ssl_context

from cellfeed.store.datastore import Datastore
from tests.support.certificates import Certificates

CELLS = 40

TIMEOUT_S = 30.0

PASSWORD = "correct horse, battery"


class Secured(NamedTuple):
    datastore: Datastore
    files: Certificates
    ports: dict[str, int]
    log: Path

    def at(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"


def confluent(
    secured: Secured,
    listener: str,
    mechanism: str,
    user: str,
    password: str,
    topic: str,
    group: str,
) -> int:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": secured.at(listener),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "security.protocol": "SASL_SSL" if listener == "sasl" else "SASL_PLAINTEXT",
            "sasl.mechanisms": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": secured.files.ca,
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe([topic])
        count, deadline_s = 0, time.monotonic() + TIMEOUT_S
        while count < CELLS and time.monotonic() < deadline_s:
            for message in consumer.consume(100, 0.2):
                if (error := message.error()) is not None:
                    raise PermissionError(error.name())
                count += 1
        consumer.commit(asynchronous=False)
        return count
    finally:
        consumer.close()


def kafka_python(
    secured: Secured,
    listener: str,
    mechanism: str,
    user: str,
    password: str,
    topic: str,
    group: str,
) -> int:
    try:
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=secured.at(listener),
            group_id=group,
            auto_offset_reset="earliest",
            security_protocol="SASL_SSL" if listener == "sasl" else "SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username=user,
            sasl_plain_password=password,
            ssl_cafile=secured.files.ca,
            bootstrap_timeout_ms=5_000,
        )
    except kafka.errors.KafkaError as error:
        raise PermissionError(type(error).__name__) from None
    try:
        count, deadline_s = 0, time.monotonic() + TIMEOUT_S
        while count < CELLS and time.monotonic() < deadline_s:
            count += sum(map(len, consumer.poll(timeout_ms=200).values()))
        consumer.commit()
        return count
    except kafka.errors.KafkaError as error:
        raise PermissionError(type(error).__name__) from None
    finally:
        consumer.close(autocommit=False)


def aiokafka_client(
    secured: Secured,
    listener: str,
    mechanism: str,
    user: str,
    password: str,
    topic: str,
    group: str,
) -> int:
    async def run() -> int:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=secured.at(listener),
            group_id=group,
            auto_offset_reset="earliest",
            security_protocol="SASL_SSL" if listener == "sasl" else "SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username=user,
            sasl_plain_password=password,
            ssl_context=create_ssl_context(cafile=secured.files.ca),
        )
        try:
            await consumer.start()
            count, deadline_s = 0, time.monotonic() + TIMEOUT_S
            while count < CELLS and time.monotonic() < deadline_s:
                count += sum(map(len, (await consumer.getmany(timeout_ms=200)).values()))
            await consumer.commit()
            return count
        except aiokafka.errors.KafkaError as error:
            raise PermissionError(type(error).__name__) from None
        finally:
            await consumer.stop()

    return asyncio.run(run())


Client = Callable[[Secured, str, str, str, str, str, str], int]

CLIENTS: list[Client] = [confluent, kafka_python, aiokafka_client]


def request(key: int, version: int, body: bytes) -> bytes:
    frame = struct.pack(">hhih", key, version, 1, -1) + body
    return struct.pack(">i", len(frame)) + frame
