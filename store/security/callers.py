"""The sender of a request over HTTP, with its rights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from cellfeed.store.errors import Forbidden
from cellfeed.store.security.access import Security
from cellfeed.store.security.rights import Kind, Operation

Still = Callable[[Security], bool]
"""Whether the credentials count in a later reading of users and tokens."""


class Caller:
    """One principal under one reading of users and ACLs. ``how``: by which credentials;
    ``expires_at_s``: when they end, Unix time. The checks raise Forbidden, which names the missing
    right.

    Nothing is allowed by default: a listener that asks for credentials is never an open one."""

    __slots__ = ("datastore", "expires_at_s", "how", "principal", "security", "still")

    def __init__(
        self,
        principal: str,
        how: str,
        datastore: str,
        security: Security,
        still: Still,
        expires_at_s: float | None = None,
    ) -> None:
        self.principal = principal
        self.how = how
        self.datastore = datastore
        self.security = security
        self.still = still
        self.expires_at_s = expires_at_s

    def under(self, security: Security) -> Caller:
        """The same one, under a later reading."""
        return Caller(
            self.principal, self.how, self.datastore, security, self.still, self.expires_at_s
        )

    def may_column(self, operation: Operation, column: str) -> bool:
        return not self.security.is_open and self.security.may_column(
            self.principal, self.datastore, column, operation
        )

    def may_all(self, operation: Operation) -> bool:
        """Whether it may do that with every cell of the datastore."""
        return not self.security.is_open and self.security.may_all(
            self.principal, self.datastore, operation
        )

    def check_columns(self, operation: Operation, columns: Iterable[str]) -> None:
        for column in columns:
            if not self.may_column(operation, column):
                raise self._forbidden(operation, "column", column)

    def check_all(self, operation: Operation) -> None:
        if not self.may_all(operation):
            raise self._forbidden(operation, "datastore", self.datastore)

    def check_read(self, columns: Iterable[str] | None) -> None:
        """To read columns; None: all of them."""
        if columns is None:
            self.check_all("read")
        else:
            self.check_columns("read", columns)

    def check_datastore(self, operation: Operation) -> None:
        """For an operation that shows no cell."""
        if not self.may_datastore(operation):
            raise self._forbidden(operation, "datastore", self.datastore)

    def check_group(self, operation: Operation, group: str) -> None:
        if not self.may_group(operation, group):
            raise self._forbidden(operation, "group", group)

    def may_datastore(self, operation: Operation) -> bool:
        """Whether it may do that, where no cell is shown."""
        return not self.security.is_open and self.security.may(
            self.principal, "datastore", self.datastore, operation
        )

    def may_group(self, operation: Operation, group: str) -> bool:
        return not self.security.is_open and self.security.may(
            self.principal, "group", group, operation
        )

    def sees_group(self, group: str) -> bool:
        """Whether it may know how far a group is: by a right on the group, or on the datastore."""
        return not self.security.is_open and self.security.sees_group(
            self.principal, self.datastore, group
        )

    def check_some(self) -> None:
        """To describe the datastore, or anything of it."""
        if self.security.is_open or not self.security.may_describe_some(
            self.principal, self.datastore
        ):
            raise self._forbidden("describe", "datastore", self.datastore)

    def _forbidden(self, operation: Operation, kind: Kind, name: str) -> Forbidden:
        return Forbidden(
            f"{self.principal!a} has no right to {operation} {kind} {ascii(name)[:80]}; an"
            f" operator gives it: cellfeed acls allow PRINCIPAL {operation} {kind} NAME"
        )


class Trusted(Caller):
    """A peer of this machine at a listener that asks for no credentials: it may do everything."""

    def under(self, security: Security) -> Caller:
        return self

    def may_column(self, operation: Operation, column: str) -> bool:
        return True

    def may_all(self, operation: Operation) -> bool:
        return True

    def may_datastore(self, operation: Operation) -> bool:
        return True

    def may_group(self, operation: Operation, group: str) -> bool:
        return True

    def sees_group(self, group: str) -> bool:
        return True

    def check_columns(self, operation: Operation, columns: Iterable[str]) -> None:
        pass

    def check_all(self, operation: Operation) -> None:
        pass

    def check_datastore(self, operation: Operation) -> None:
        pass

    def check_group(self, operation: Operation, group: str) -> None:
        pass

    def check_some(self) -> None:
        pass


TRUSTED: Final[Caller] = Trusted("ANONYMOUS", "loopback", "", Security({}, (), b""), lambda _: True)
