"""A Kafka consumer in Python (confluent-kafka): prints each trip, then commits its offset.

Started again it continues behind the last commit. A record without a value says that the row was
erased: forget your copy of it.
"""

from __future__ import annotations

import json
import signal
import sys
from types import FrameType

from confluent_kafka import Consumer, KafkaException


def end(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


signal.signal(signal.SIGTERM, end)
consumer = Consumer(
    {
        "bootstrap.servers": sys.argv[1],
        "group.id": "python-example",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
)
consumer.subscribe(["trips.BASE"])
try:
    while True:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        key, value = message.key() or b"", message.value()
        fare = "erased" if value is None else json.loads(value)["body"]["fare_cents"]
        print(f"{message.partition()}/{message.offset()} {key.decode()} {fare}", flush=True)
        consumer.commit(message=message, asynchronous=False)
except KeyboardInterrupt:
    pass
finally:
    consumer.close()
