"""Other people's clients in the process of a test: what they warn of, and what they leave open."""

from __future__ import annotations

from typing import Final

import pytest

PEERS: Final = [
    pytest.mark.usefixtures("peers_collected"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    # kafka-python reads its schemas through a deprecated call of the standard library
    pytest.mark.filterwarnings("ignore:.* is deprecated. Use files.*:DeprecationWarning"),
]
"""The `pytestmark` of a module that runs kafka-python or aiokafka."""
