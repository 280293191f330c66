"""Options that mean nothing beside another one: refused, for ignoring one would mislead."""

from __future__ import annotations

import click
from click.core import ParameterSource

_SET_BY_USER = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def refuse_beside(chosen: str, others: tuple[str, ...], why: str = "") -> None:
    """Raise click.UsageError when the user has given one of `others` as well.

    Args:
        chosen: the option that decides, as the user writes it.
        others: the parameters that the command ignores then, by their names in Python.
        why: what `chosen` does, if its name does not say it.
    """
    context = click.get_current_context()
    options = {each.name: each.opts[-1] for each in context.command.params}
    ignored = [
        options[name] for name in others if context.get_parameter_source(name) in _SET_BY_USER
    ]
    if ignored:
        reason = f", which {why}" if why else ""
        raise click.UsageError(
            f"{ignored[0]} does nothing with {chosen}{reason}; leave out one of them"
        )
