"""`capellini completion`: the completion script of a shell, to be read by its start-up file."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

# Bash takes QUEUE@GROUP for three words unless it is told not to.
ONE_WORD: Final = "COMP_WORDBREAKS=${COMP_WORDBREAKS//@}\n"


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    For bash: capellini completion bash > ~/.local/share/bash-completion/completions/capellini
    """
    from capellini.cli.main import capellini

    kind = get_completion_class(shell)
    assert kind is not None
    source = kind(capellini, {}, "capellini", "_CAPELLINI_COMPLETE").source()
    click.echo(source + ONE_WORD if shell == "bash" else source)
