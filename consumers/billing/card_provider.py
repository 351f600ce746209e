"""The card provider: an interface, and a stand-in with the strict rules of a real one.

A charge carries an idempotency key. The same key again gives the first charge back and takes
nothing. That makes "charge once" possible: a caller that dies before it wrote the charge down can
only ask again. Stripe's "Idempotent requests" is the model.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from cellfeed.store.engines.sqlite.files import SqliteFile

DECLINED_FIRST_PERCENT: Final = 5
"""Share of cards, in percent, that the sandbox declines the first time."""


class CardDeclined(Exception):
    """The card was declined this time; the same charge may succeed later."""


class KeyReused(Exception):
    """The idempotency key was used before for another amount: a defect of the caller, never
    charged."""


@dataclass(frozen=True, slots=True)
class Charge:
    """Money that was taken, in cents."""

    charge_id: str
    idempotency_key: str
    amount_cents: int


class CardProvider(Protocol):
    """The calls of a card provider that billing uses."""

    def charge(self, idempotency_key: str, card: str, amount_cents: int) -> Charge:
        """Takes the money from a card once per key. Raises CardDeclined, KeyReused."""
        ...


class SandboxCardProvider:
    """A provider in a SQLite file of its own: durable, shared by processes, and outside the
    datastore as a real one is.

    Declines, deterministically, ``DECLINED_FIRST_PERCENT`` of the cards (by the SHA-256 of the
    card) the first time they are tried.
    """

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path)
        with self._file.write() as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS charge (idempotency_key TEXT PRIMARY KEY, charge_id"
                " TEXT NOT NULL, amount_cents INTEGER NOT NULL)"
            )
            connection.execute(
                "CREATE TABLE IF NOT EXISTS decline (idempotency_key TEXT PRIMARY KEY)"
            )

    def charge(self, idempotency_key: str, card: str, amount_cents: int) -> Charge:
        with self._file.write() as connection:
            row = connection.execute(
                "SELECT charge_id, amount_cents FROM charge WHERE idempotency_key = ?",
                (idempotency_key,),
            ).fetchone()
            if row is not None:
                if row[1] != amount_cents:
                    raise KeyReused(
                        f"key {idempotency_key} was charged {row[1]} cents, not {amount_cents}"
                    )
                return Charge(row[0], idempotency_key, row[1])
            declined = False
            if declines_first(card):
                declined = (
                    connection.execute(
                        "INSERT OR IGNORE INTO decline VALUES (?)", (idempotency_key,)
                    ).rowcount
                    == 1
                )
            charge_id = "ch_" + hashlib.sha256(idempotency_key.encode()).hexdigest()[:24]
            if not declined:
                connection.execute(
                    "INSERT INTO charge VALUES (?, ?, ?)",
                    (idempotency_key, charge_id, amount_cents),
                )
        if declined:
            raise CardDeclined(f"card declined for {idempotency_key}")
        return Charge(charge_id, idempotency_key, amount_cents)

    def charges(self) -> list[Charge]:
        """Every charge ever taken, for the books."""
        with self._file.read() as connection:
            return [
                Charge(row[1], row[0], row[2])
                for row in connection.execute("SELECT * FROM charge ORDER BY idempotency_key")
            ]

    def totals(self) -> tuple[int, int, int]:
        """``(charges, cents, declines)`` so far."""
        with self._file.read() as connection:
            [(count, cents)] = connection.execute(
                "SELECT count(*), coalesce(sum(amount_cents), 0) FROM charge"
            ).fetchall()
            [(declines,)] = connection.execute("SELECT count(*) FROM decline").fetchall()
        return count, cents, declines


def declines_first(card: str) -> bool:
    """Whether the sandbox declines this card the first time."""
    return (
        int.from_bytes(hashlib.sha256(card.encode()).digest()[:4], "big") % 100
        < DECLINED_FIRST_PERCENT
    )
