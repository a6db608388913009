"""`capellini serve`: run a node until it is told to stop."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from capellini.cli.speaking import DEFAULT_AT
from capellini.node.settings import TABLE, Settings
from capellini.store.memory import keep_memory

Command = TypeVar("Command", bound=Callable[..., Any])


def settings_options(command: Command) -> Command:
    """A flag for each setting. Their values are read, and refused, by `node.config` like those of the other sources."""
    for setting in reversed(TABLE):
        if setting.name == "password":
            continue  # a command line can be read by everybody on the machine
        default = getattr(Settings(), setting.name)
        shown = f" [{default}]" if default not in ("", False) else ""
        metavar = "true|false" if isinstance(default, bool) else "VALUE"
        command = click.option(setting.flag, setting.name, metavar=metavar, help=f"{setting.says}{shown}")(command)
    return command


@click.command()
@settings_options
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with settings; also from CAPELLINI_CONFIG.")
def serve(config: Path | None, **flags: Any) -> None:
    """Run a node: the store that --store names, served over HTTP.

    Each setting can be given as a flag, as CAPELLINI_NAME in the environment, or in a TOML file: the first of these
    counts.
    """
    import uvloop

    from capellini.api.serving import serve as run
    from capellini.client.peers import HttpPeers
    from capellini.client.sockets import SocketPath
    from capellini.node.config import load, unknown_variables
    from capellini.node.logs import set_up

    settings = load(flags, os.environ, config)
    set_up(settings.log_level, settings.log_format)
    for name in unknown_variables(os.environ):
        click.echo(f"Warning: {name} is not a setting; see `capellini serve --help`", err=True)
    paths: list[SocketPath] = []  # kept open: a long path lives as long as its object

    def folder_socket(folder: Path) -> Path:
        paths.append(SocketPath(folder))
        return paths[-1].path

    try:
        uvloop.run(run(settings, _announce, folder_socket, peers_of=HttpPeers))
    finally:
        for each in paths:
            each.close()


def _announce(addresses: list[str]) -> None:
    keep_memory()
    gc.freeze()  # the code stays: looking through it whenever the collector runs would stop the node for 20 ms
    first = addresses[0]
    click.echo(f"Capellini listens on {', '.join(addresses)}")
    at = "" if first == DEFAULT_AT else f" --at {first}"
    click.echo(f"Try: capellini queue create jobs{at} && capellini put jobs hello{at} && capellini get jobs{at}")
