"""The tree of errors: every class of it stands in one module, and its code gives it back."""

from __future__ import annotations

import importlib
import pkgutil
import re

import cellfeed
from cellfeed.store import errors
from cellfeed.store.errors import CellfeedError, error_from_code


def tree(root: type[CellfeedError]) -> list[type[CellfeedError]]:
    """``root`` and all classes below it that belong to the product."""
    found = [root]
    for child in root.__subclasses__():
        found += tree(child)
    return [each for each in found if each.__module__.startswith("cellfeed.")]


def import_all() -> None:
    """Imports every module of the product: a class is known once its module is imported."""
    for module in pkgutil.walk_packages(cellfeed.__path__, "cellfeed."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def test_every_error_of_the_product_stands_in_the_one_module() -> None:
    import_all()
    elsewhere = {each for each in tree(CellfeedError) if each.__module__ != errors.__name__}
    assert not elsewhere


def test_the_picture_of_the_tree_names_every_error() -> None:
    picture = (errors.__doc__ or "").partition("Class data")[0]
    named = set(re.findall(r"\b[A-Z][A-Za-z]+\b", picture))
    assert {each.__name__ for each in tree(CellfeedError)} <= named


def test_every_code_gives_its_error_back() -> None:
    for each in tree(CellfeedError):
        made = error_from_code(each.code, "what was wrong")
        assert type(made) is each
        assert str(made) == "what was wrong"
