"""Quotas: how much one principal may ask of one process in a second.

Each principal has a token bucket for each rate, which is full after a second without use. Each
answer is taken from it, below zero as well: its size is known when it is made. A principal with a
bucket below zero is **in debt**, and waits until the debt is paid. So the mean of a rate is exact,
and a burst has at most a second's worth and one answer.

Workers refuse a request in debt, and slow streams down. Gateways let it wait
(:mod:`cellfeed.bridge.gateway.throttling`), as Kafka's brokers do
(https://kafka.apache.org/documentation/#design_quotas).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from cellfeed.store.limits import QUOTA_DEBT_MAX_S, QUOTA_PRINCIPALS_MAX
from cellfeed.store.security.peer_limits import EVERYBODY_ELSE, Quota


class _Bucket:
    """The rest of one rate: at most a second's worth."""

    __slots__ = ("at_s", "left", "rate")

    def __init__(self, rate: float, now_s: float) -> None:
        self.rate = self.left = rate
        self.at_s = now_s

    def take(self, amount: float, now_s: float) -> None:
        self.left = min(self.rate, self.left + (now_s - self.at_s) * self.rate) - amount
        self.left = max(self.left, -self.rate * QUOTA_DEBT_MAX_S)
        self.at_s = now_s

    def debt_s(self, now_s: float) -> float:
        """Seconds until nothing is owed."""
        return max(-self.left / self.rate - (now_s - self.at_s), 0.0)


class _Account:
    """The buckets of one principal; None where it has no limit."""

    __slots__ = ("put_bytes", "quota", "read_bytes", "requests")

    def __init__(self, quota: Quota, now_s: float) -> None:
        def bucket(rate: float | None) -> _Bucket | None:
            return None if rate is None else _Bucket(rate, now_s)

        self.quota = quota
        self.requests = bucket(quota.requests_per_s)
        self.put_bytes = bucket(quota.put_bytes_per_s)
        self.read_bytes = bucket(quota.read_bytes_per_s)

    def debt_s(self, now_s: float) -> float:
        buckets = self.requests, self.put_bytes, self.read_bytes
        return max((each.debt_s(now_s) for each in buckets if each is not None), default=0.0)


class Quotas:
    """By principal; see the module. Used on one event loop. False where nobody has a limit."""

    def __init__(
        self, rules: Mapping[str, Quota] | None = None, clock_s: Callable[[], float] | None = None
    ) -> None:
        self.rules: Mapping[str, Quota] = dict(rules or {})
        self._clock_s = clock_s or time.monotonic
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        """The least recently used first. One that was removed is full when it comes again."""
        self.waits = 0
        self.waited_s = 0.0
        """Requests that waited for a quota, and for how long, seconds."""

    def __bool__(self) -> bool:
        return bool(self.rules)

    def of(self, principal: str) -> Quota:
        """Its own, or that of everybody else."""
        return self.rules.get(principal) or self.rules.get(EVERYBODY_ELSE) or Quota()

    def debt_s(self, principal: str) -> float:
        """Seconds until the principal owes nothing: 0.0 where it may ask."""
        if not self.rules:
            return 0.0
        return self._account(principal).debt_s(self._clock_s())

    def request_debt_s(self, principal: str) -> float:
        """Likewise, of the rate of requests alone."""
        if not self.rules:
            return 0.0
        requests = self._account(principal).requests
        return 0.0 if requests is None else requests.debt_s(self._clock_s())

    def spend(
        self, principal: str, *, requests: int = 0, put_bytes: int = 0, read_bytes: int = 0
    ) -> None:
        """Takes a request or an answer that was served."""
        if not self.rules:
            return
        now_s, account = self._clock_s(), self._account(principal)
        for bucket, amount in (
            (account.requests, requests),
            (account.put_bytes, put_bytes),
            (account.read_bytes, read_bytes),
        ):
            if bucket is not None and amount:
                bucket.take(amount, now_s)

    def waited(self, seconds: float) -> None:
        """Counts one wait for a quota."""
        self.waits += 1
        self.waited_s += seconds

    def read_bytes_max(self, principal: str, wanted: int) -> int:
        """How many of the wanted bytes one answer should have: a second's worth at most."""
        rate = self.of(principal).read_bytes_per_s if self.rules else None
        return wanted if rate is None else min(wanted, int(rate))

    def _account(self, principal: str) -> _Account:
        found = self._accounts.get(principal)
        if found is None:
            found = self._accounts[principal] = _Account(self.of(principal), self._clock_s())
            if len(self._accounts) > QUOTA_PRINCIPALS_MAX:
                self._accounts.popitem(last=False)
        else:
            self._accounts.move_to_end(principal)
        return found
