"""One function for each screen: the request in, what it shows out. They may ask the cluster.

Imports `kohort.console.views`, `kohort.sampling`, `kohort.retry`, `kohort.client`; no HTTP.
"""

from __future__ import annotations

from typing import Final

from kohort.console.screens import groups
from kohort.console.screens.desk import Handler

SCREENS: Final[dict[tuple[str, str], Handler]] = {
    ("GET", "/groups"): groups.groups,
    ("GET", "/group"): groups.group,
}
"""By method and path."""
