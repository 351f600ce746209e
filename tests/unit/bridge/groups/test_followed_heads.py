"""A follower of the logs' ends knows each of them, and is given each shard that changed."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.groups.followed_heads import FollowedHeads
from cellfeed.store.engines.contract.values import Head, HeadChanges
from cellfeed.store.engines.sqlite import heads as heads_module
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.engines.sqlite.heads import changed_heads
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.limits import ADDED_ID_MAX
from tests.support.shard_rows import cell_of_shard

SHARDS = 130
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "look", "look in vain", "put before the heads", "put after them"]),
        st.sampled_from([0, 63, 64, 129]),
    ),
    max_size=10,
)


@given(STEPS)
def test_each_look_knows_every_cell_from_before_it_and_gives_every_shard_that_changed(
    steps: list[tuple[str, int]],
) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(SqliteEngine(Path(folder), "trips", SHARDS)) as engine,
    ):
        followed = FollowedHeads(engine)
        known: dict[int, Head] = {}
        refs = count(1)
        heads_of = changed_heads

        def put(shard: int) -> None:
            engine.put([cell_of_shard(shard, SHARDS, next(refs))])

        def look() -> None:
            before = engine.heads()
            given_heads = followed.look()
            known.update(given_heads)
            assert known == followed.heads
            assert all(known[shard].watermark >= head.watermark for shard, head in before.items())

        for step, shard in steps:
            with ExitStack() as inside:

                def around(*args: Any, step: str = step, shard: int = shard) -> HeadChanges:
                    if step == "look in vain":
                        raise StorageUnavailable("the file cannot be read just now")
                    if step == "put before the heads":
                        put(shard)
                    found = heads_of(*args)
                    if step == "put after them":
                        put(shard)
                    return found

                inside.enter_context(patch.object(heads_module, "changed_heads", around))
                if step == "put":
                    put(shard)
                else:
                    with suppress(StorageUnavailable):
                        look()
        look()
        assert known == engine.heads()


def test_followed_heads_await_minions_while_a_cell_is_committed_and_not_shown(
    tmp_path: Path,
) -> None:
    with closing(SqliteEngine(tmp_path, "trips", 4)) as engine:
        followed = FollowedHeads(engine)
        followed.look()
        shown = followed.heads[2]
        for head, awaits in (
            (shown._replace(next_added_id=1), True),
            (shown._replace(next_added_id=ADDED_ID_MAX), False),  # the master is away
            (shown._replace(next_added_id=2, watermark=1), True),
            (shown._replace(next_added_id=2, watermark=2), False),
        ):
            found = HeadChanges({2: head}, None)
            with patch.object(engine, "heads_since", return_value=found):
                assert followed.look() == {2: head}
            assert followed.awaits_minions is awaits
