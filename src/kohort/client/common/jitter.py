"""Where the clients' randomness comes from.

Shell: the operating system's random numbers.

The global generator of `random` belongs to the program and is not used. A program that calls
`random.seed(1)` on each host would make all hosts wait equally long after a failure, processes that
fork would share its state, and a client's thread would change what the program draws from its seed.
"""

from __future__ import annotations

import random
from typing import Final

_SYSTEM: Final = random.SystemRandom()


def uniform() -> float:
    """Return a random number from [0, 1)."""
    return _SYSTEM.random()
