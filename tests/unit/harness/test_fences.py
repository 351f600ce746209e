"""No fenced block of README and guides is left out in silence: it runs, or has a reason."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import pytest

from tests.support import fences
from tests.support.cli_instance import ROOT
from tests.support.fences import ELSEWHERE, NOT_RUN, Piece, pieces, to_be_run_here

GUIDES = ROOT / "tests" / "integration" / "cli" / "test_guides.py"


def test_every_piece_runs_or_has_a_reason() -> None:
    text = GUIDES.read_text()
    left_out = {piece.page for piece in pieces() if f'"{piece.page}"' not in text} & {
        piece.page for piece in pieces() if to_be_run_here(piece.page)
    }
    assert not left_out, "test_guides.py runs nothing of these pages"
    both = [piece.begins for piece in pieces() if piece.listed(ELSEWHERE) and piece.listed(NOT_RUN)]
    # The longer beginning says which of the two it is.
    assert all(_decided(piece) for piece in pieces() if piece.begins in both)


def test_a_block_of_an_unknown_language_is_not_overlooked() -> None:
    known = {"sh", "console", "python", "yaml", "text", "properties", "{eval-rst}"}
    known |= {"java", "json", "sql"}
    assert {piece.language for piece in pieces()} <= known
    whole = sum(path.read_text().count("```") for path in fences.PAGES if path.exists())
    assert whole == 2 * fences.blocks(), "a fence that no block of pieces() has"


@pytest.mark.parametrize("listed", [ELSEWHERE, NOT_RUN], ids=["elsewhere", "not run"])
def test_every_entry_of_the_list_names_an_existing_piece(
    listed: Mapping[str, Mapping[str, str]],
) -> None:
    said = {(piece.page, piece.listed(listed)) for piece in pieces()}
    for page, entries in listed.items():
        for begins, why in entries.items():
            assert any(piece.text.startswith(begins) for piece in pieces(page)), (page, begins)
            assert (page, why) in said, (page, begins)
            assert len(why) > 5


def test_every_named_test_of_a_piece_exists() -> None:
    named = {why for entries in ELSEWHERE.values() for why in entries.values()}
    for each in {*named, *fences.OF_LANGUAGES.values(), fences.TESTS_IN_A_PAGE}:
        file, _, name = each.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, each


def test_a_new_command_in_a_page_is_run_or_noticed() -> None:
    new = Piece("docs/exports.md", "sh", "kafka-topics.sh --list")
    assert new.run_by is None
    assert new.listed(NOT_RUN) is None
    assert Piece("docs/exports.md", "sh", "cellfeed export list").listed(NOT_RUN)


def _decided(piece: Piece) -> bool:
    return piece.run_by is not None
