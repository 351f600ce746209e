"""The bounded searches, and the planted faults with the search that finds each."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from docs.inside.cluster_model.state import Budget, Rules, Scenario, SemiSync

_PROMOTED: Final = (
    "node 0 dies",
    "a promotion to epoch 4 begins",
    "the minions stop receiving",
    "node 1 raises the epoch to 4",
    "the minions follow node 1",
    "node 1 takes writes",
)
_RAISED: Final = (
    "node 0 dies",
    "a promotion to epoch 4 begins",
    "node 0 restarts",
    "the minions stop receiving",
    "node 1 raises the epoch to 4",
)
_UNFINISHED: Final = ("node 1 dies", "the promotion is not finished")

SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "puts",
            "puts and reads: deaths and restarts on both sides of a promotion, and the return of"
            " the old master",
            frozenset({"put", "read"}),
            Budget(writes=2, crashes=2, promotions=1, rejoins=1),
        ),
        Scenario(
            "cuts",
            "the same with a cut link",
            frozenset({"put", "read"}),
            Budget(writes=2, crashes=1, cuts=1, promotions=1, rejoins=1),
        ),
        Scenario(
            "return",
            "an old master that holds more returns, and the new one dies",
            frozenset({"put", "read"}),
            Budget(writes=2, crashes=3, promotions=2, rejoins=2),
            begins=("process 0 commits put 0 on node 0", *_PROMOTED),
        ),
        Scenario(
            "lineage",
            "a new master dies before anybody follows it, is given up, and returns after another"
            " promotion",
            frozenset({"put", "read"}),
            Budget(writes=2, crashes=3, promotions=2, rejoins=2, give_ups=1, kills=1),
            begins=(*_RAISED, *_UNFINISHED),
        ),
        Scenario(
            "re-pointed",
            "the same, when a minion follows the new master already",
            frozenset({"put", "read"}),
            Budget(writes=2, crashes=2, promotions=2, rejoins=1, give_ups=1),
            begins=(*_RAISED, "the minions follow node 1", *_UNFINISHED),
        ),
        Scenario(
            "given-up",
            "the same from the beginning, with a kill at each step",
            frozenset({"put"}),
            Budget(writes=1, crashes=2, promotions=2, rejoins=1, give_ups=1, kills=1),
        ),
        Scenario(
            "state",
            "compare-and-set of a lease by two processes, over restarts and a promotion",
            frozenset({"state"}),
            Budget(writes=3, crashes=2, promotions=1),
        ),
        Scenario(
            "state-async",
            "the same without semi-synchronous replication: commits may be lost, versions never"
            " come twice",
            frozenset({"state"}),
            Budget(writes=4, crashes=1, promotions=1),
            semi_sync=False,
        ),
        Scenario(
            "settings",
            "servers whose own configuration switches semi-synchronous replication on, with a"
            " time-out",
            frozenset({"put", "state"}),
            Budget(writes=1, crashes=2, promotions=1),
            restarts_with=SemiSync.FALLS_BACK,
        ),
        Scenario(
            "buffer",
            "a buffered put, its copy on this cluster, and the drain",
            frozenset({"copy"}),
            Budget(writes=1, crashes=2, promotions=1, own_losses=1),
        ),
        Scenario(
            "erasure",
            "an erasure without semi-synchronous replication",
            frozenset({"erase"}),
            Budget(writes=2, crashes=2, promotions=1, rejoins=1),
            semi_sync=False,
        ),
        Scenario(
            "switch",
            "a planned switch with asynchronous replication, killed at each step",
            frozenset({"put", "state"}),
            Budget(writes=2, promotions=1, kills=1, rejoins=1),
            semi_sync=False,
            planned=True,
            keeps_all=True,
        ),
        Scenario(
            "growth",
            "a cluster that began with one node gets minions, and loses its first node",
            frozenset({"put", "read"}),
            Budget(writes=2, crashes=1, promotions=1, rejoins=2),
            minions=(),
        ),
        Scenario(
            "growth-async",
            "the same without semi-synchronous replication",
            frozenset({"put", "read"}),
            Budget(writes=2, crashes=1, promotions=1, rejoins=2),
            semi_sync=False,
            minions=(),
        ),
    )
}


def small(scenario: Scenario) -> Scenario:
    """The scenario with one fault instead of two, where it begins at the beginning."""
    budget = scenario.budget
    if scenario.begins:
        budget = budget._replace(crashes=2, rejoins=1)
    else:
        budget = budget._replace(
            crashes=min(budget.crashes, 1),
            writes=min(budget.writes, 2),
            rejoins=min(budget.rejoins, 1),
        )
    if budget.cuts or scenario.planned:
        budget = budget._replace(writes=1)
    return replace(scenario, budget=budget)


class Plant(NamedTuple):
    """A fault in the design: ``rules`` is the design with one rule broken, ``scenario`` finds
    it."""

    about: str
    rules: Rules
    scenario: str


PLANTS: Final = {
    "unguarded-state": Plant(
        "a state commit asks nothing: after a restart no minion is waited for",
        Rules(state_is_guarded=False),
        "state",
    ),
    "unguarded-buffer": Plant(
        "a buffer copy asks nothing", Rules(buffer_is_guarded=False), "buffer"
    ),
    "fenced-state": Plant(
        "a fenced master takes a state commit", Rules(state_asks_read_only=False), "switch"
    ),
    "semi-sync-falls-back": Plant(
        "the guard asks whether semi-synchronous replication is enabled, not how it waits",
        Rules(guard_asks_how_it_waits=False),
        "settings",
    ),
    "revision-by-one": Plant(
        "a promotion raises the revision by one", Rules(revision_gap=1), "state-async"
    ),
    "role-not-live": Plant(
        "a process does not learn of minions that join within an epoch",
        Rules(role_is_live=False),
        "growth-async",
    ),
    "first-minion-without-semi-sync": Plant(
        "semi-synchronous replication does not begin with the first minion",
        Rules(semi_sync_with_first_minion=False),
        "growth",
    ),
    "maybe-added-is-no-copy": Plant(
        "a copy of unknown outcome counts as none", Rules(maybe_added_counts=False), "buffer"
    ),
    "switch-does-not-wait": Plant(
        "a planned switch does not wait for the fenced master's position",
        Rules(switch_waits=False),
        "switch",
    ),
    "erasure-at-commit": Plant(
        "an erasure is answered at the master's commit", Rules(erasure_waits=False), "erasure"
    ),
    "drain-does-not-wait": Plant(
        "the drain removes a copy before a minion of its own cluster has the cell",
        Rules(drain_waits=False),
        "buffer",
    ),
    "drain-by-old-flag": Plant(
        "the drain decides by an accepted flag that it read earlier",
        Rules(drain_asks_again=False),
        "buffer",
    ),
    "rejoin-without-prefix": Plant(
        "an old master follows again, whatever it holds", Rules(rejoin_asks_prefix=False), "return"
    ),
    "unchanged-answers-at-once": Plant(
        "a repeated write that changes nothing is answered although no minion has what it found",
        Rules(unchanged_answers_wait=False),
        "puts",
    ),
    "guard-by-believed-role": Plant(
        "the guard asks for semi-synchronous replication by the role that the process believes",
        Rules(guard_asks_the_masters_role=False),
        "growth",
    ),
    "promotion-not-promised": Plant(
        "a majority does not remember that a promotion was begun: the old epoch continues beside a"
        " raised one",
        Rules(promotion_is_promised=False),
        "lineage",
    ),
    "collected-start-again": Plant(
        "a minion that a promotion stopped receives again after a restart",
        Rules(collected_stay_stopped=False),
        "puts",
    ),
    "lagging-joiner-promoted": Plant(
        "a minion is promoted that has not heard of the first minion of its epoch",
        Rules(promoted_has_heard_of_a_minion=False),
        "growth",
    ),
    "raise-over-newer": Plant(
        "a promotion passes over minions that have heard of a higher epoch since it began",
        Rules(raise_asks_for_newer=False),
        "re-pointed",
    ),
    "rejoin-by-position": Plant(
        "a node is a prefix by its position, although it raised an epoch that the master never"
        " heard of",
        Rules(rejoin_asks_lineage=False),
        "lineage",
    ),
}
