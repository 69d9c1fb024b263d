"""The README of a distribution: as in the repository, with links that also work on a package index.

A link within the repository is made absolute with the project's URL. scikit-build-core calls this for each build.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LINK = re.compile(r"""(\]\(|\b(?:href|src|srcset)=")(?![a-z]+:|#|/)([^)"\s]+)""")
_PICTURES = (".svg", ".png")


def dynamic_metadata(field: str, settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, str]:
    """The field `readme`. Raises ValueError for another one, or for settings."""
    if field != "readme" or settings:
        raise ValueError(f"this provides the readme alone, without settings; asked for {field}")
    return {"content-type": "text/markdown", "text": absolute(Path("README.md").read_text(), project["urls"]["Source"])}


def absolute(text: str, source: str) -> str:
    """The text with every link within the repository made absolute."""

    def made(found: re.Match[str]) -> str:
        before, path = found.groups()
        return f"{before}{source}/{'raw' if path.endswith(_PICTURES) else 'blob'}/main/{path}"

    return _LINK.sub(made, text)
