"""How often a failing cell is tried again, by the kind of its error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cellfeed.store.errors import InvalidRequest, Unavailable

_DOUBLINGS_MAX: Final = 40
"""Beyond it every wait is the longest one: a store may be away for a million tries."""


class TimedOut(TimeoutError):
    """A function ran longer than its trigger's ``timeout_s``. Never raised inside the function: the
    process that ran it has ended."""


class ProcessEnded(Exception):
    """The process ended while it ran the function: an exit inside it, a crash of native code, a
    kill for want of memory; or somebody killed it just then."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often a failing cell is tried before it is parked, and how long between the tries:
    doubling from ``first_wait_s`` to ``longest_wait_s``. The defaults last three minutes: they
    survive a provider that is started again.

    Raises InvalidRequest for less than one try or a negative wait.
    """

    attempts: int = 20
    first_wait_s: float = 0.1
    longest_wait_s: float = 15.0

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise InvalidRequest(f"attempts {self.attempts!r}: a cell is tried once at least")
        if not (self.first_wait_s >= 0 and self.longest_wait_s >= 0):
            raise InvalidRequest(
                f"waits of {self.first_wait_s!r} and {self.longest_wait_s!r} s: seconds from 0 on"
                " are meant"
            )

    def wait_s(self, attempt: int) -> float:
        """Seconds before the next try, after ``attempt`` tries."""
        return min(self.first_wait_s * 2.0 ** min(attempt - 1, _DOUBLINGS_MAX), self.longest_wait_s)


Retry = RetryPolicy | Mapping[type[BaseException], RetryPolicy]
"""One policy for all errors, or one for each kind. The nearest kind counts: of an error's classes
in the order of its MRO the first that has a policy."""

DEFAULT_RETRY: Final[Mapping[type[BaseException], RetryPolicy]] = {
    BaseException: RetryPolicy(),
    ProcessEnded: RetryPolicy(attempts=5),
    TimedOut: RetryPolicy(attempts=5),
    Unavailable: RetryPolicy(longest_wait_s=5.0),
}
"""Also for kinds of errors that a mapping has no policy for. A cell that ends its process takes the
others there with it, so it has fewer tries. A store that is away costs no tries, only waits."""


def check_retry(retry: object) -> Retry:
    """Raises InvalidRequest for a value that is no retry policy and no mapping of error types to
    policies."""
    if isinstance(retry, RetryPolicy):
        return retry
    if isinstance(retry, Mapping):
        for kind, policy in retry.items():
            if not (
                isinstance(kind, type)
                and issubclass(kind, BaseException)
                and isinstance(policy, RetryPolicy)
            ):
                raise InvalidRequest(
                    f"retry: {kind!r}: {policy!r} is not an error type with its RetryPolicy"
                )
        return dict(retry)
    raise InvalidRequest(
        f"retry={retry!r} is neither a RetryPolicy nor a mapping of error types to policies"
    )


def policy_for(retry: Retry, kind: type[BaseException]) -> RetryPolicy:
    """The policy for an error of that kind. The tries of a cell count together; the policy of its
    last error says whether there is another one."""
    if isinstance(retry, RetryPolicy):
        return retry
    return next(
        policies[each]
        for policies in (retry, DEFAULT_RETRY)
        for each in kind.__mro__
        if each in policies
    )
