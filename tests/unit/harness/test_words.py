"""Errors, log lines, command help, docstrings and pages are in plain words: short sentences, the
field's terms."""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("store", "bridge", "consumers", "cellfeed")
WITH_COMMENTS = (*FOLDERS, "schemas", "tests", "benchmarks", "examples", "docs")
"""Folders whose docstrings and comments are in plain words: every one that holds Python."""


WORDS_MAX = 25
PAGE_WORDS_MAX = 1_500
"""An operators' page is one task, read while something is wrong."""

OPERATE = sorted((ROOT / "docs" / "operate").glob("*.md"))
PAGES = (
    *sorted((ROOT / "docs").glob("*.md")),
    *OPERATE,
    *sorted((ROOT / "docs" / "inside").glob("*.md")),
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


def _texts(path: Path) -> Iterator[Text]:
    """The module's texts for people."""
    module = path.relative_to(ROOT)
    for node in ast.walk(ast.parse(path.read_text())):
        found: list[str] = []
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            found += [_text_of(argument) for argument in node.exc.args]
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            found += [_text_of(node.args[0])] if name in _LOGS and node.args else []
            found += [_text_of(each.value) for each in node.keywords if each.arg == "help"]
        elif isinstance(node, ast.FunctionDef) and "cli" in path.parts and node.decorator_list:
            found.append(ast.get_docstring(node) or "")
        yield from (Text(f"{module}:{getattr(node, 'lineno', 0)}", each) for each in found if each)


def _words_of_no_field(text: str) -> Iterator[str]:
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


def _named(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def _modules(folder: str) -> list[Path]:
    """Those of a folder, each once: not by the links of the import names."""
    return [
        path
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not any(parent.is_symlink() for parent in path.parents)
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_messages_and_help_are_in_plain_words(folder: str) -> None:
    paths = _modules(folder)
    texts = [text for path in paths for text in _texts(path)]
    assert texts
    assert [
        f"{place}: {fault}"
        for place, text in texts
        for fault in (*_faults(text), *_clauses_without_a_head(text))
    ] == []


def _literals(path: Path) -> Iterator[Text]:
    """Every text of words in the module but its docstrings: the output of commands is one of
    them."""
    tree = ast.parse(path.read_text())
    docstrings = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    parts = {
        id(part)
        for each in ast.walk(tree)
        if isinstance(each, ast.JoinedStr)
        for part in each.values
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant | ast.JoinedStr)
            and id(node) not in docstrings | parts
            and (text := _text_of(node)).count(" ") > 1
        ):
            yield Text(f"{path.relative_to(ROOT)}:{node.lineno}", text)


def _comments(path: Path) -> Iterator[Text]:
    """Those of whole lines, joined where one continues on the next line, and those behind code."""
    before: tuple[int, int] | None = None
    joined, place = "", 0
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type != tokenize.COMMENT or re.match(r"#(!| ---| noqa| type:)", token.string):
            continue
        is_whole = token.line.lstrip().startswith("#")
        if is_whole and before == (token.start[0] - 1, token.start[1]):
            joined += token.string[1:]
        else:
            yield Text(f"{_named(path)}:{place}", joined)
            joined, place = token.string[1:], token.start[0]
        before = token.start
    yield Text(f"{_named(path)}:{place}", joined)


@pytest.mark.parametrize("folder", FOLDERS)
def test_texts_have_the_fields_words(folder: str) -> None:
    texts = [text for path in _modules(folder) for text in _literals(path)]
    assert texts
    assert [
        f"{place}: {fault}"
        for place, text in texts
        for fault in (*_words_of_no_field(text), *_clauses_without_a_head(text))
    ] == []


@pytest.mark.parametrize("place", WITH_COMMENTS)
def test_comments_are_in_plain_words(place: str) -> None:
    texts = [text for path in _modules(place) for text in _comments(path)]
    assert [f"{at}: {fault}" for at, text in texts for fault in _faults_in(text)] == []


def test_a_comment_of_two_lines_is_read_as_one_text(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("# It goes\n# on.\nx = 1  # read anew\n")
    assert [fault for _, text in _comments(module) for fault in _faults(text)] != []


def _docstrings(path: Path) -> Iterator[Text]:
    """Those of the module, its classes and functions, and those behind constants and fields."""
    for node in ast.walk(ast.parse(path.read_text())):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            match each:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    for part in _parts_of(inspect.cleandoc(text)):
                        yield Text(f"{path.relative_to(ROOT)}:{each.lineno}", part)


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
    paths = _modules(place)
    assert paths
    texts = [text for path in paths for text in _docstrings(path)]
    assert [f"{at}: {fault}" for at, text in texts for fault in _faults_in(text)] == []


@pytest.mark.parametrize("place", WITH_COMMENTS)
def test_a_clause_without_a_head_is_found_in_every_folder(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / place).mkdir()
    module = tmp_path / place / "module.py"
    module.write_text('"""Writes what waits."""\n\nx = 1  # for who waits\n')
    with pytest.raises(AssertionError, match="not 'what'"):
        test_docstrings_are_in_plain_words(place)
    with pytest.raises(AssertionError, match="not 'who'"):
        test_comments_are_in_plain_words(place)
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
def test_what_is_not_plain_is_found(text: str) -> None:
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


def test_a_guides_sentence_without_a_subject_is_found_and_a_heading_is_not() -> None:
    found = [
        list(_clauses_without_a_head(text, NO_HEAD_OF_A_SENTENCE))
        for text in ("Who reads on sees it.", "It holds; whatever was lost, stays.", "What to do")
    ]
    assert [bool(each) for each in found] == [True, True, False]


@pytest.mark.parametrize("text", ["Everybody who could read it", "What now?", "by its owner"])
def test_a_clause_with_a_head_is_none_of_them(text: str) -> None:
    assert list(_clauses_without_a_head(text)) == []
