"""A slot that changes hands between a gateway's claim and its reservation is coordinated by one
gateway."""

from __future__ import annotations

import pytest

from cellfeed.bridge.gateway.groups.slot_owners import TOPIC
from cellfeed.store.errors import Unavailable
from tests.unit.bridge.gateway.test_gateway_slots import TTL_S, Place, place

__all__ = ["place"]


def test_a_slot_that_is_lost_before_it_is_reserved_is_not_coordinated(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first gateway is paused behind its claim, past its session; the second has every slot by
    the time it wakes up."""
    a, b = place.gateway("a"), place.gateway("b")
    claim = place.coordinator.claim

    def paused_behind(*about: object) -> object:
        claimed = claim(*about)  # type: ignore[arg-type]
        monkeypatch.setattr(place.coordinator, "claim", claim)
        place.now_s += TTL_S + 1
        assert b.step({}).slots
        return claimed

    monkeypatch.setattr(place.coordinator, "claim", paused_behind)
    with pytest.raises(Unavailable, match="lost the moment they were claimed"):
        a.step({})
    assert a.step_without_coordination() == {}
    assert set(place.coordinator.owners("__gateways", TOPIC).values()) == {"b"}
