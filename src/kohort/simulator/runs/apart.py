"""One run in a process of its own: it delays no other work, logs nowhere, and can be ended.

Shell: processes; standard input and output of `python -m kohort.simulator.runs.apart`.
"""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from typing import Final

from kohort.errors import KohortError
from kohort.simulator.plan import Plan
from kohort.simulator.runs.running import run
from kohort.simulator.runs.simulation import Outcome

TIMEOUT_S: Final = 60.0


def run_apart(plan: Plan, timeout_s: float = TIMEOUT_S) -> Outcome:
    """Run a plan in another process.

    Args:
        plan: what happens.
        timeout_s: how long it may take, in seconds.

    Returns:
        The outcome with its story.

    Raises:
        KohortError: it took longer, or the process failed.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=pickle.dumps(plan),
            capture_output=True,
            timeout=timeout_s,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise KohortError(
            f"{plan.name}: the simulation takes more than {timeout_s:.0f} s; choose a smaller one, "
            "or run it with `kohort simulate`"
        ) from error
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise KohortError(f"{plan.name}: the process of the simulation failed: {last}") from error
    outcome: Outcome = pickle.loads(done.stdout)
    return outcome


def main() -> None:
    """The other process: a plan in, its outcome out."""
    # What simulated consumers would write to a log is part of their story.
    logging.getLogger("kohort").addHandler(logging.NullHandler())
    plan: Plan = pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps(run(plan)))


if __name__ == "__main__":
    main()
