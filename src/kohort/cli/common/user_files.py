"""Python files that a user writes and a command runs, with errors that point into them.

Shell: signals.
"""

from __future__ import annotations

import traceback
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from kohort.cli.common.root import OPTIONAL
from kohort.errors import KohortError
from kohort.signals import handled

if TYPE_CHECKING:
    from kohort.spark.pipeline import Pipeline


def load_file(file: Path) -> Pipeline:
    """The pipeline of a file. An error of the file itself is shown as its author needs it."""
    from kohort.spark.pipeline import load_pipeline

    try:
        return load_pipeline(file)
    except KohortError:
        raise
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in OPTIONAL:
            raise  # an extra of ours is missing, which `app` explains
        raise PipelineFileError(_of_file(error, file.resolve())) from error
    except Exception as error:  # the file is its author's: anything may come out of it
        raise PipelineFileError(_of_file(error, file.resolve())) from error


class PipelineFileError(KohortError):
    """A pipeline's file could not be run; the message shows where and why."""


def _of_file(error: Exception, file: Path) -> str:
    """What a traceback says from the first frame in the user's file on, the cause first."""
    summary = traceback.TracebackException.from_exception(error)
    summary.__cause__ = summary.__context__ = None
    frames = list(summary.stack)
    theirs = [n for n, frame in enumerate(frames) if Path(frame.filename) == file]
    shown = traceback.StackSummary.from_list(frames[theirs[0] :] if theirs else [])
    last = "".join(summary.format_exception_only()).rstrip()
    where = "".join(shown.format()).rstrip()
    return f"{file.name} cannot be run: {last.splitlines()[-1]}\n{where or last}".rstrip()


def interruptible() -> AbstractContextManager[None]:
    """While inside, SIGTERM does what SIGINT does."""

    def end(number: int) -> None:
        raise KeyboardInterrupt

    return handled(end)
