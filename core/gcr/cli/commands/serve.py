"""`gcr serve`: models behind one address, on the device when they are asked for."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from gcr.cli.options import Options, common_options, examples
from gcr.cli.output import print_json, print_text, say, success
from gcr.errors import LibraryMissing
from gcr.serve.config import ServeConfig, load
from gcr.serve.policies import chosen


@click.command("serve", epilog=examples("gcr serve gcr.toml", "gcr serve --check gcr.toml"))
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--check", is_flag=True, help="Check FILE, list its models, and start nothing.")
@click.option("--simulate", metavar="VENDOR", help="Let the servers see a SIMULATED device, as of `gcr run`.")
@common_options
@click.pass_obj
def command(options: Options, file: Path, check: bool, simulate: str | None) -> None:
    """Serve the models of FILE at one HTTP address: each is a job, on the device while it is asked for.

    A request goes to the model that its JSON body names. Where the device has no room for it, idle models are parked;
    requests wait meanwhile. SIGTERM ends gcr serve and leaves its jobs, which the next one finds, unless FILE says
    otherwise. With --json one object is printed once it listens. docs/serve.md has the keys of FILE.
    """
    with _libraries():
        config = load(file)
    chosen(config.policy)
    if check:
        _print_checked(options, config)
        return
    with _libraries():
        from gcr.serve import server
    flags = {"--simulate": simulate, "--backend": options.backend}
    words = [word for flag, value in flags.items() if value is not None for word in (flag, value)]

    def told(url: str) -> None:
        _print_listening(options, config, url)

    with _warnings(options):
        server.run(config, words, told)


@contextmanager
def _warnings(options: Options) -> Iterator[None]:
    """Prints on stderr what does not work; -v prints it with the rest."""
    log, lines = logging.getLogger("gcr.serve"), logging.StreamHandler()
    lines.setLevel(logging.WARNING)
    lines.setFormatter(logging.Formatter("gcr: %(message)s"))
    if not options.verbose:
        log.addHandler(lines)
    try:
        yield
    finally:
        log.removeHandler(lines)


@contextmanager
def _libraries() -> Iterator[None]:
    """Raises LibraryMissing where one of the extra `serve` is."""
    try:
        yield
    except ImportError as error:
        text = f"gcr serve needs the Python module {error.name}: {error}"
        raise LibraryMissing(text, hint="pip install 'gpu-cr[serve]'") from error


def _print_checked(options: Options, config: ServeConfig) -> None:
    if options.json:
        print_json(success("serve", _fields(config, None)))
    else:
        print_text("\n".join(f"{name}: {' '.join(each.command)}" for name, each in config.models.items()))


def _print_listening(options: Options, config: ServeConfig, url: str) -> None:
    if options.json:
        print_json(success("serve", _fields(config, url)))
    else:
        say(f"gcr: serving {', '.join(config.models)} at {url}")


def _fields(config: ServeConfig, url: str | None) -> dict[str, Any]:
    return {"url": url, "models": list(config.models)}
