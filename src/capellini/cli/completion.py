"""`capellini completion`: the completion script of a shell, to be read by its start-up file."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    For bash: capellini completion bash > ~/.local/share/bash-completion/completions/capellini
    """
    from capellini.cli.main import capellini

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(capellini, {}, "capellini", "_CAPELLINI_COMPLETE").source())
