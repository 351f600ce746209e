"""Errors, log lines, command help, docstrings and pages are in plain words: short sentences, the
field's terms."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.source_files import ROOT, comments, modules, nodes, place_of

FOLDERS = ("store", "bridge", "consumers", "cellfeed")
WITH_COMMENTS = (*FOLDERS, "schemas", "tests", "benchmarks", "examples", "docs")
"""Folders whose docstrings and comments are in plain words: every one that holds Python."""


WORDS_MAX = 25
PAGE_WORDS_MAX = 1_500
"""An operators' page is one task, read while something is wrong."""

OPERATE = sorted((ROOT / "docs" / "operate").glob("*.md"))
PAGES = (
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "README.md",
    ROOT / "CHANGELOG.md",
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")),
    ROOT / "tests" / "README.md",
)
"""Pages that are in plain words."""

INSTEAD = {
    r"anew": "again",
    r"go(es)? on": "continues, resumes",
    r"tells? of": "names, marks",
    r"(is|are) told": "is reported",
    r"comes back": "rejoins, returns",
    r"whoever": "the one who, anybody",
    r"milliards?": "billion",
    r"all the same": "still",
    r"by then": "until then",
    r"seldomer": "less often",
    r"no more(?! than)": "no longer, no further",
    r"(?<!each )(?<!all )(?<!none )(?<!ways )of which": "whose, that",
}
_ANY_OF_THEM = re.compile("|".join(rf"\b{word}\b" for word in INSTEAD), re.IGNORECASE)
"""Tens of thousands of sentences have none: one look at each instead of twelve."""

NO_HEAD = r"\b(what|whatever|whoever)\b|(?<!body)(?<!one)(?<!s)\s\bwho\b|^who\b"
"""A clause without a noun before it: no message names a thing by a mere clause. *Somebody who* and
*exporters who* have their noun."""
NO_HEAD_OF_A_SENTENCE = r"^(what|whatever|who)\b.*[.;]$|\bwhatever\b"
"""In guides: no sentence whose subject is such a clause. A heading may be a question."""

_LOGS = ("debug", "info", "warning", "error", "exception", "critical")


class Text(NamedTuple):
    place: str
    text: str


def _text_of(node: ast.expr) -> str:
    """The literal text of a string; an ``X`` for each value in it."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text_of(part) for part in parts)
        case ast.FormattedValue():
            return "X"
        case ast.BinOp(left=left, right=right):
            return _text_of(left) + _text_of(right)
    return ""


class Module(NamedTuple):
    """``messages``: texts for people. ``literals``: every text of words but the docstrings: the
    output of commands is one of them. ``docstrings``: paragraph by paragraph."""

    messages: list[Text]
    literals: list[Text]
    docstrings: list[Text]


@cache
def _read(path: Path) -> Module:
    """A module's texts, found in one look: several tests ask for those of the product."""
    found, parts, place = Module([], [], []), set[int](), place_of(path)
    literals: list[ast.Constant | ast.JoinedStr] = []
    for node in nodes(ast.parse(path.read_text())):
        if texts := _messages_of(node, path):
            at = f"{place}:{getattr(node, 'lineno', 0)}"
            found.messages.extend(Text(at, text) for text in texts if text)
        found.docstrings.extend(_docstrings_of(node, place))
        if isinstance(node, ast.Constant | ast.JoinedStr):
            literals.append(node)
        if isinstance(node, ast.JoinedStr):
            parts |= {id(part) for part in node.values}
        elif isinstance(node, ast.Expr):
            parts.add(id(node.value))
    found.literals.extend(
        Text(f"{place}:{node.lineno}", text)
        for node in literals
        if id(node) not in parts and (text := _text_of(node)).count(" ") > 1
    )
    return found


def _messages_of(node: ast.AST, path: Path) -> list[str]:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        return [_text_of(argument) for argument in node.exc.args]
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        logged = [_text_of(node.args[0])] if name in _LOGS and node.args else []
        return logged + [_text_of(each.value) for each in node.keywords if each.arg == "help"]
    if isinstance(node, ast.FunctionDef) and "cli" in path.parts and node.decorator_list:
        return [ast.get_docstring(node) or ""]
    return []


def _docstrings_of(node: ast.AST, place: str) -> Iterator[Text]:
    """Those of the module, its classes and functions, and those behind constants and fields."""
    body = getattr(node, "body", None)
    for each in body if isinstance(body, list) else ():
        match each:
            case ast.Expr(value=ast.Constant(value=str(text))):
                for part in _parts_of(inspect.cleandoc(text)):
                    yield Text(f"{place}:{each.lineno}", part)


def _words_of_no_field(text: str) -> Iterator[str]:
    if not _ANY_OF_THEM.search(text):
        return
    for word, better in INSTEAD.items():
        if re.search(rf"\b{word}\b", text, re.IGNORECASE):
            yield f"{word!r} is not the field's word ({better}): {text}"


def _clauses_without_a_head(text: str, rule: str = NO_HEAD) -> Iterator[str]:
    for sentence in re.split(r"(?<=[.!?;:])\s+", " ".join(text.split())):
        if (found := re.search(rule, sentence, re.IGNORECASE)) and not sentence.endswith("?"):
            yield f"name the thing or the actor, not {found.group().strip()!r}: {sentence}"


def _faults(text: str) -> Iterator[str]:
    for sentence in re.split(r"(?<=[.!?;:])\s+", " ".join(text.split())):
        if (count := len(sentence.split())) > WORDS_MAX:
            yield f"{count} words, at most {WORDS_MAX}: {sentence}"
        yield from _words_of_no_field(sentence)


def _faults_in(text: str) -> Iterator[str]:
    """Faults of a docstring or comment, in whichever folder."""
    yield from _faults(text)
    yield from _clauses_without_a_head(re.sub(r"``[^`]*``", "X", text))


@pytest.mark.parametrize("folder", FOLDERS)
def test_messages_and_help_are_in_plain_words(folder: str) -> None:
    paths = modules(folder)
    texts = [text for path in paths for text in _read(path).messages]
    assert texts
    assert [
        f"{place}: {fault}"
        for place, text in texts
        for fault in (*_faults(text), *_clauses_without_a_head(text))
    ] == []


def _comments(path: Path) -> Iterator[Text]:
    """Those of whole lines, joined where one continues on the next line, and those behind code."""
    text, before = path.read_text(), (0, 0)
    lines, joined, place = text.splitlines(), "", 0
    for line, column, comment in comments(text):
        if re.match(r"#(!| ---| noqa| type:)", comment):
            continue
        is_whole = not lines[line - 1][:column].strip()
        if is_whole and before == (line - 1, column):
            joined += comment[1:]
        else:
            yield Text(f"{place_of(path)}:{place}", joined)
            joined, place = comment[1:], line
        before = (line, column)
    yield Text(f"{place_of(path)}:{place}", joined)


@pytest.mark.parametrize("folder", FOLDERS)
def test_texts_have_the_fields_words(folder: str) -> None:
    texts = [text for path in modules(folder) for text in _read(path).literals]
    assert texts
    assert [
        f"{place}: {fault}"
        for place, text in texts
        for fault in (*_words_of_no_field(text), *_clauses_without_a_head(text))
    ] == []


@pytest.mark.parametrize("place", [each for each in WITH_COMMENTS if each not in FOLDERS])
def test_texts_of_other_folders_have_the_fields_words(place: str) -> None:
    texts = [
        text
        for path in modules(place)
        for text in _read(path).literals
        if path != Path(__file__)  # it has examples of the other words
    ]
    assert texts or place == "schemas"
    assert [f"{at}: {fault}" for at, text in texts for fault in _words_of_no_field(text)] == []


@pytest.mark.parametrize("place", WITH_COMMENTS)
def test_comments_are_in_plain_words(place: str) -> None:
    texts = [text for path in modules(place) for text in _comments(path)]
    assert [f"{at}: {fault}" for at, text in texts for fault in _faults_in(text)] == []


def test_a_comment_of_two_lines_is_read_as_one_text(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("# It goes\n# on.\nx = 1  # read anew\n")
    assert [fault for _, text in _comments(module) for fault in _faults(text)] != []


def _parts_of(docstring: str) -> Iterator[str]:
    """Its paragraphs, its items, and the places of its tables: lines that are indented or that have
    a gap."""
    for block in re.split(r"\n\s*\n|\n(?=- |\d+\. )", docstring):
        rows = [line for line in block.splitlines() if re.search(r"^    |\S {2,}\S", line)]
        yield " ".join(line for line in block.splitlines() if line not in rows)
        for row in rows:
            yield from re.split(r"\s{2,}", row.strip())


@pytest.mark.parametrize("place", WITH_COMMENTS)
def test_docstrings_are_in_plain_words(place: str) -> None:
    paths = modules(place)
    assert paths
    texts = [text for path in paths for text in _read(path).docstrings]
    assert [f"{at}: {fault}" for at, text in texts for fault in _faults_in(text)] == []


@pytest.mark.parametrize("place", WITH_COMMENTS)
def test_a_clause_without_a_head_is_found_in_every_folder(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.source_files.ROOT", tmp_path)
    (tmp_path / place).mkdir()
    module = tmp_path / place / "module.py"
    module.write_text('"""Writes what waits."""\n\nx = 1  # for who waits\n')
    with pytest.raises(AssertionError, match="not 'what'"):
        test_docstrings_are_in_plain_words(place)
    with pytest.raises(AssertionError, match="not 'who'"):
        test_comments_are_in_plain_words(place)
    module = module.rename(tmp_path / place / "better.py")
    module.write_text('"""Writes the waiting events."""\n\nx = 1  # for readers\n')
    test_docstrings_are_in_plain_words(place)
    test_comments_are_in_plain_words(place)


def test_a_docstring_is_read_part_by_part() -> None:
    docstring = "It goes on.\n\n    a    read anew\n    b    fine\n\n- an item\n- one\n  anew"
    assert len([fault for part in _parts_of(docstring) for fault in _faults(part)]) == 3


def _sentences_of(page: Path) -> Iterator[str]:
    """A page's paragraphs, items and places of tables, without code and HTML comments."""
    hidden = r"^```.*?^```$|^<!--.*?-->\n"
    text = re.sub(hidden, "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for block in re.split(r"\n\s*\n|\n(?=- |\d+\. )", text):
        places = (
            block.replace("\n", " | ").split(" | ") if block.lstrip().startswith("|") else [block]
        )
        for place in places:
            plain = re.sub(r"`[^`]*`", "X", place)
            yield re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", plain).replace("**", "").lstrip("#-| ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_in_plain_words(page: Path) -> None:
    assert [
        fault
        for text in _sentences_of(page)
        for fault in (*_faults(text), *_clauses_without_a_head(text, NO_HEAD_OF_A_SENTENCE))
    ] == []


@pytest.mark.parametrize("page", OPERATE, ids=lambda page: page.name)
def test_the_operators_pages_are_short(page: Path) -> None:
    assert len(page.read_text().split()) <= PAGE_WORDS_MAX


def test_a_page_is_read_place_by_place(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n- an `it goes on` item\n- it goes on\n\n| a | read anew |\n| --- | --- |\n"
    )
    assert len([fault for text in _sentences_of(page) for fault in _faults(text)]) == 2


def test_a_table_behind_a_comment_is_read_place_by_place(tmp_path: Path) -> None:
    rows = [f"| {'a ' * 20}| it goes on |" for _ in range(2)]
    page = tmp_path / "page.md"
    page.write_text("\n".join(["<!-- it goes on -->", *rows, "<!-- the end -->", ""]))
    assert len([fault for text in _sentences_of(page) for fault in _faults(text)]) == 2


@pytest.mark.parametrize(
    "text",
    [
        "the group goes on",
        "read anew",
        "a sentence of " + "very " * 24 + "many words",
    ],
)
def test_text_that_breaks_the_rule_of_words_is_found(text: str) -> None:
    assert list(_faults(text)) != []


@pytest.mark.parametrize(
    "text",
    [
        "the node holds what was never replicated",
        "Say what would go.",
        "Whatever came of it stays",
        "saved by who works on the shards",
        "who was away waits",
    ],
)
def test_a_clause_without_a_head_is_found(text: str) -> None:
    assert list(_clauses_without_a_head(text)) != []


def test_a_guides_sentence_without_a_subject_is_found_and_a_heading_passes() -> None:
    found = [
        list(_clauses_without_a_head(text, NO_HEAD_OF_A_SENTENCE))
        for text in ("Who reads on sees it.", "It holds; whatever was lost, stays.", "What to do")
    ]
    assert [bool(each) for each in found] == [True, True, False]


@pytest.mark.parametrize("text", ["Everybody who could read it", "What now?", "by its owner"])
def test_a_clause_with_a_head_is_permitted(text: str) -> None:
    assert list(_clauses_without_a_head(text)) == []
