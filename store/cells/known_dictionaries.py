"""The dictionaries that this process has met, by id, for every decoder of a body.

One table for the whole process is right because an id follows from the content: in every store it
can mean only one content, and one that differs is refused (:func:`know`). The table only grows, by
at most ``DICTIONARIES_MAX`` of each store.

A body may name a dictionary that was trained by another process a moment ago. Then the open stores
(sources) are asked, one look-up at a time: readers that meet the same one wait for it instead of
asking again. Whole datastores are asked before single nodes, whose time-outs are longer.

    a store has it                          it is known from then on
    none has it, and all of them answered   DataDamaged, naming it: it is lost, and so are the
                                            bodies until it is recovered
    none has it, and one did not answer     StorageUnavailable: try again
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import zstandard

from cellfeed.store.cells.dictionary import Dictionary, name_of
from cellfeed.store.errors import DataDamaged, ProtectData, StorageUnavailable, Unavailable

Find = Callable[[int], Dictionary | None]
"""Looks a dictionary up in a store. Raises Unavailable."""

_WINDOW_BYTES_MAX: Final = 1 << 23
_EMPTY_BODY: Final = zstandard.ZstdCompressor(level=3).compress(b"{}")


class KnownDictionary:
    """A dictionary made ready for zstd, usable by all threads: the shared state is made here, once,
    and only read afterwards."""

    def __init__(self, dictionary: Dictionary) -> None:
        self.dictionary = dictionary
        self.prefix = dictionary.dictionary_id.to_bytes(4)
        self._decoding = zstandard.ZstdCompressionDict(dictionary.content)
        self._encoding: zstandard.ZstdCompressionDict | None = None
        self._lock = threading.Lock()
        # zstd's table for decoding is made at the first use, without a lock of its own: here, by
        # one thread.
        self.decompressor().decompress(_EMPTY_BODY)

    def decompressor(self) -> zstandard.ZstdDecompressor:
        """A new one, for one thread."""
        return zstandard.ZstdDecompressor(
            dict_data=self._decoding, max_window_size=_WINDOW_BYTES_MAX
        )

    def compressor(self, level: int) -> zstandard.ZstdCompressor:
        """A new one, for one thread; the same ``level`` each time. Frames do not name the
        dictionary: the body does."""
        with self._lock:
            if self._encoding is None:
                encoding = zstandard.ZstdCompressionDict(self.dictionary.content)
                encoding.precompute_compress(level=level)
                self._encoding = encoding
        return zstandard.ZstdCompressor(
            level=level, dict_data=self._encoding, write_checksum=True, write_dict_id=False
        )


_known: dict[int, KnownDictionary] = {}
_sources: list[tuple[int, Find]] = []
_lock = threading.Lock()
_look_up = threading.Lock()


def know(dictionary: Dictionary) -> KnownDictionary:
    """Makes it known. Raises ProtectData when its id is known with another content."""
    known = _known.get(dictionary.dictionary_id)
    if known is None:
        made = KnownDictionary(dictionary)
        with _lock:
            known = _known.setdefault(dictionary.dictionary_id, made)
    if known.dictionary.content != dictionary.content:
        raise ProtectData(
            f"two dictionaries have the id {dictionary.name}; the later one must not be used: train"
            " it again"
        )
    return known


def known_dictionary(dictionary_id: int) -> KnownDictionary:
    """The dictionary that a body names; the module names its errors."""
    known = _known.get(dictionary_id)
    return known if known is not None else _find(dictionary_id)


def known_or_none(dictionary_id: int) -> KnownDictionary | None:
    """The dictionary, if this process has met it; nobody is asked."""
    return _known.get(dictionary_id)


def _find(dictionary_id: int) -> KnownDictionary:
    with _look_up:
        if (known := _known.get(dictionary_id)) is not None:
            return known
        with _lock:
            sources = [find for _, find in sorted(_sources, key=lambda source: source[0])]
        silent: Unavailable | None = None
        for find in sources:
            try:
                found = find(dictionary_id)
            except Unavailable as error:
                silent = error
                continue
            if found is not None:
                return know(found)
    name = name_of(dictionary_id)
    if silent is not None:
        raise StorageUnavailable(
            f"the dictionary {name} that a body needs cannot be looked up just now: {silent}"
        ) from silent
    raise DataDamaged(
        f"a stored body names dictionary {name}, which no open store has; `cellfeed dictionary"
        " recover` brings one back that was lost"
    )


def add_source(find: Find, *, single_node: bool = False) -> None:
    """An open store that can be asked from now on. ``single_node``: after the others."""
    with _lock:
        _sources.append((int(single_node), find))


@contextmanager
def source(find: Find) -> Iterator[None]:
    """A store that is asked for dictionaries meanwhile."""
    add_source(find)
    try:
        yield
    finally:
        remove_source(find)


def remove_source(find: Find) -> None:
    """The store is being closed; dictionaries that it gave stay known."""
    with _lock:
        _sources[:] = [source for source in _sources if source[1] != find]


def forget_all() -> None:
    """See :func:`cellfeed.store.cells.body_codec.forget_dictionaries`."""
    with _lock:
        _known.clear()
