"""`kohort completion`: the script that makes a shell complete commands and options."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from kohort.errors import KohortError

VARIABLE: Final = "_KOHORT_COMPLETE"
SHELLS: Final = ("bash", "zsh", "fish")


@click.command(
    epilog="""\b
Examples:
  kohort completion bash >> ~/.bashrc
  kohort completion zsh >> ~/.zshrc
  kohort completion fish > ~/.config/fish/completions/kohort.fish
"""
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that makes a shell complete commands and options."""
    from kohort.cli.common.root import app

    kind = get_completion_class(shell)
    if kind is None:
        raise KohortError(f"click has no completion for {shell}; choose one of {', '.join(SHELLS)}")
    click.echo(kind(app, {}, "kohort", VARIABLE).source())
