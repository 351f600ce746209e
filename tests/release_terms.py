"""The terms of a release that a checkout may lack, and whether a wheel has them.

The project's addresses are not in `pyproject.toml`: a checkout knows none that it could vouch for.
The publisher gives them, and they go into both archives.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

FILES: Final = "Files"
URLS: Final = {
    "Homepage": "HOMEPAGE_URL",
    "Documentation": "DOCUMENTATION_URL",
    "Changelog": "CHANGELOG_URL",
    FILES: "FILES_URL",
}
"""The label of each address in the package index, and the variable that has it. The files' address
is that of the repository's folder at the released version: the README's links lead below it."""

SHIPPED_CHANGELOG: Final = "licenses/CHANGELOG.md"
"""Of the wheel's metadata folder: readers of an installed wheel have it without a network."""

_LINK: Final = re.compile(r"\]\((?!\w+:|#)([^)\s]+)\)")
"""To a file of the repository."""

_NO_HOSTS: Final = ("localhost", "127.0.0.1", "example.com", "example.org", "example.net")


def missing_for_a_release(
    changelog: str, version: str, urls: Mapping[str, str], changed: Sequence[str]
) -> list[str]:
    """The terms that are not met: `make release` refuses to build. ``changed``: files that are not
    committed."""
    missing = []
    if not re.search(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        missing.append(f"the heading '## {version} - YEAR-MONTH-DAY' in CHANGELOG.md")
    if changed:
        missing.append(f"a commit of the files that have changed: {changed[0]} and so on")
    for label, variable in URLS.items():
        if why := _wrong_url(urls.get(label, "")):
            missing.append(f"{variable}=https://…, where the {label.lower()} will be ({why})")
    return missing


def with_urls(project: str, urls: Mapping[str, str]) -> str:
    """The text of a `pyproject.toml` with these addresses; ``urls`` by label."""
    if not urls:
        return project
    lines = [f'{label} = "{url}"' for label, url in urls.items()]
    return project + "\n".join(["", "[project.urls]", *lines, ""])


def with_links(readme: str, urls: Mapping[str, str]) -> str:
    """The README as the package index shows it: its links to files lead below ``urls``'s files."""
    if FILES not in urls:
        return readme
    base = urls[FILES].rstrip("/")
    return _LINK.sub(lambda link: f"]({base}/{link[1]})", readme)


def wrong_in(wheel: Path, urls: Mapping[str, str]) -> list[str]:
    """Sentences about the addresses, and the changelog, that the wheel lacks."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        head = HeaderParser().parsestr(archive.read(metadata).decode())
    found = dict(each.split(", ", 1) for each in head.get_all("Project-URL", []))
    wrong = [
        f"the wheel's {label} is {found.get(label, 'missing')}, not {url}"
        for label, url in urls.items()
        if found.get(label) != url
    ]
    if urls and _LINK.search(str(head.get_payload())):
        wrong.append("the wheel's description has links to files beside it")
    if metadata.replace("METADATA", SHIPPED_CHANGELOG) not in names:
        wrong.append(f"the wheel has no {SHIPPED_CHANGELOG}")
    return wrong


def _wrong_url(url: str) -> str:
    """Why it is no address to publish; empty for one that is."""
    if not url:
        return "not given"
    parts = urlsplit(url)
    if parts.scheme != "https" or "." not in (parts.hostname or "") or '"' in url or "\\" in url:
        return f"{url!r} is no https address"
    if parts.hostname in _NO_HOSTS or (parts.hostname or "").endswith((".example", ".invalid")):
        return f"{parts.hostname} is nobody's host"
    return ""
