"""What publishers offer for download, with the digests of what they give: `catalogue.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Remote:
    """Something a publisher offers.

    Attributes:
        name: what people call it.
        url: where it is.
        files: digest of each file it gives, by its path below the data folder; empty where `digest` answers for it.
        members: for an archive, the member behind each of those paths.
        gzipped: whether the one file it gives is packed with gzip.
        digest: of the download itself.
        folders: for an archive, the folder in it behind each folder it gives.
        megabytes: size of the download, roughly, where it is large.
    """

    name: str
    url: str
    files: dict[str, str] = field(default_factory=dict)
    members: dict[str, str] = field(default_factory=dict)
    gzipped: bool = False
    digest: str = ""
    folders: dict[str, str] = field(default_factory=dict)
    megabytes: int = 0


def read_catalogue() -> dict[str, dict[str, Any]]:
    """Return what is known of each data set (title, licence, homepage, citation, remotes), by its name."""
    with Path(__file__).with_name("catalogue.toml").open("rb") as file:
        known = tomllib.load(file)
    own = {name: tuple(Remote(**remote) for remote in about.get("remotes", ())) for name, about in known.items()}
    return {
        name: about | {"remotes": own.get(about.pop("also_needs", ""), ()) + own[name]} for name, about in known.items()
    }


CATALOGUE = read_catalogue()
WEIGHTS: tuple[Remote, ...] = CATALOGUE.pop("weights")["remotes"]
"""Published networks."""
