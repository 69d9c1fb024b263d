"""Installs packages with uv, which takes a third of pip's time; with pip where uv cannot, and says why.

    .venv/bin/python tools/install.py [--editable] REQUIREMENT...

uv gets what pip is told by its files and the environment (`pip config list`): indexes, folders of wheels, constraints,
certificates. A setting that is not known here leaves the work to pip. uv's cache is build/uv.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

UV = "uv==0.13.9"
# By the setting of pip: an option of uv for each word of its value, or a variable.
OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraints",
    "trusted-host": "--allow-insecure-host",
}
VARIABLES = {
    "cert": ("SSL_CERT_FILE",),
    "proxy": ("HTTP_PROXY", "HTTPS_PROXY"),
    "timeout": ("UV_HTTP_TIMEOUT",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
    "retries": ("UV_HTTP_RETRIES",),
}
# They are about what pip says, asks or keeps.
OF_NO_MATTER = {
    *("disable-pip-version-check", "no-python-version-warning", "quiet", "verbose", "no-color", "progress-bar"),
    *("no-input", "root-user-action", "require-virtualenv", "break-system-packages"),
    *("cache-dir", "no-cache-dir", "no-compile"),
}
SECTIONS = ("global", "install", ":env:")  # the last one that has a setting decides
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile")

# As pip does: of all indexes the newest release.
FIXED = (
    *("--quiet", "--python", sys.executable, "--cache-dir", "build/uv", "--no-config"),
    *("--index-strategy", "unsafe-best-match"),
)


class NotByUv(Exception):
    """pip has to do it; the text says why."""


def main(wanted: Sequence[str]) -> int:
    built = ["--no-build-isolation"] if "--editable" in wanted else []
    try:
        options, variables = translated(settings(configuration()))
        command, environment = [str(uv()), "pip", "install", *FIXED, *options], {**os.environ, **variables}
        built += ["--reinstall-package", "gpu-cr"] if built else []  # its native sources may have changed
    except NotByUv as error:
        print(f"make: with pip, which takes longer: {error}", flush=True)
        command, environment = list(PIP), dict(os.environ)
    return subprocess.run([*command, *built, *wanted], env=environment).returncode


def configuration() -> str:
    return subprocess.run([*PIP[:4], "config", "list"], capture_output=True, text=True, check=True).stdout


def settings(listed: str) -> dict[str, str]:
    """Returns what `pip config list` says of `pip install`, by name."""
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, setting = name.rpartition(".")
        if section in found:
            found[section][setting] = ast.literal_eval(value)
    return {setting: value for section in SECTIONS for setting, value in found[section].items()}


def translated(given: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Returns uv's options and variables that say the same. Raises NotByUv for a setting that is not known here."""
    options: list[str] = []
    variables: dict[str, str] = {}
    for setting, value in given.items():
        if option := OPTIONS.get(setting):
            options += [part for word in value.split() for part in (option, word)]
        elif names := VARIABLES.get(setting):
            variables |= dict.fromkeys(names, value)
        elif setting not in OF_NO_MATTER:
            raise NotByUv(f"what is uv's word for pip's setting {setting}?")
    return options, variables


def uv() -> Path:
    """Returns the program, installed beside this interpreter. Raises NotByUv where the index does not have it."""
    program = Path(sys.executable).with_name("uv")
    if not program.exists() and subprocess.run([*PIP, UV]).returncode:
        raise NotByUv(f"{UV} is not to be had")
    return program


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
