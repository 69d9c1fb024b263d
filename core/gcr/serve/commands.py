"""Commands of servers: words, of which some may hold `{port}`."""

from collections.abc import Sequence

PORT = "{port}"


def filled(command: Sequence[str], port: int) -> tuple[str, ...]:
    """Returns a command with its port in it."""
    return tuple(word.replace(PORT, str(port)) for word in command)


def port_in(command: Sequence[str], words: Sequence[str]) -> int | None:
    """Returns the port with which `words` are the filled `command`; 0 where it has no place for one, None otherwise."""
    if tuple(words) == tuple(command):
        return 0
    for template, word in zip(command, words, strict=False):
        before, found, after = template.partition(PORT)
        if found:
            digits = word.removeprefix(before).partition(after)[0] if after else word.removeprefix(before)
            port = int(digits) if digits.isdecimal() and len(digits) <= 5 else None
            return port if port is not None and filled(command, port) == tuple(words) else None
    return None
