"""Of too many connections one goes: the newest of a crowded address, else the most patient one."""

from __future__ import annotations

from dataclasses import dataclass

from cellfeed.store.http.server.room import one_too_many
from cellfeed.store.security.peer_limits import PeerLimits


@dataclass(eq=False)
class Peer:
    host: str
    waits_s: float = 0.0
    lets_wait: bool = True


LIMITS = PeerLimits(connections=6, connections_per_address=3)


def crowd(host: str, count: int) -> list[Peer]:
    return [Peer(host, waits_s=float(number)) for number in range(count)]


def test_there_is_room_up_to_the_limits() -> None:
    everyone = [*crowd("10.0.0.1", 3), *crowd("10.0.0.2", 3)]
    assert one_too_many(everyone[0], everyone, LIMITS) is None


def test_an_address_with_its_share_gets_no_more() -> None:
    everyone = crowd("10.0.0.1", 4)
    assert one_too_many(everyone[1], everyone, LIMITS) is everyone[1]


def test_another_address_gets_in_beside_a_crowded_one() -> None:
    everyone = [*crowd("10.0.0.1", 3), *crowd("10.0.0.2", 2)]
    assert one_too_many(everyone[-1], everyone, LIMITS) is None


def test_programs_of_this_machine_share_no_address() -> None:
    everyone = crowd("127.0.0.1", 5)
    assert one_too_many(everyone[0], everyone, LIMITS) is None


def test_the_connection_that_waits_for_longest_makes_room() -> None:
    everyone = [*crowd("127.0.0.1", 6), Peer("10.0.0.1")]
    assert one_too_many(everyone[-1], everyone, LIMITS) is everyone[5]
    everyone[5].lets_wait = False
    assert one_too_many(everyone[-1], everyone, LIMITS) is everyone[4]


def test_a_new_connection_goes_where_all_others_are_served() -> None:
    everyone = [*crowd("127.0.0.1", 6), Peer("10.0.0.1")]
    for each in everyone[:-1]:
        each.lets_wait = False
    assert one_too_many(everyone[-1], everyone, LIMITS) is everyone[-1]
