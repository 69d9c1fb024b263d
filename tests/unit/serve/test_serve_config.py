"""The file of `gcr serve`: what is wrong with one is said before anything starts."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcr.serve import quantities
from gcr.serve.commands import filled, port_in
from gcr.serve.config import ClientLimits, ServeConfig, load
from gcr.serve.policies import chosen
from gcr.serveerrors import BadServeConfig

GOOD = """
[serve]
port = 9000
memory = "80GiB"
max_body = "1MiB"
clients = { connections = 9 }
[models.chat]
command = "python server.py --port {port}"
priority = 10
pinned = true
memory = "32GiB"
[models.embed]
command = ["python", "embed.py", "8001"]
port = 8001
idle = "5m"
wake = ["0 8 * * *", "30 13 * * Mon-Fri"]
aliases = ["org/Embed-1"]
image = "2026-11"
"""


def written(folder: Path, text: str) -> ServeConfig:
    path = folder / "gcr.toml"
    path.write_text(text)
    return load(path)


def test_a_whole_file(tmp_path):
    config = written(tmp_path, GOOD)
    chat, embed = config.models["chat"], config.models["embed"]
    assert (config.host, config.port, config.memory) == ("127.0.0.1", 9000, 80 << 30)
    assert config.clients == ClientLimits(connections=9, idle=75.0, max_body=1 << 20)
    assert (chat.command, chat.port, chat.beginning.health, chat.pinned) == (
        ("python", "server.py", "--port", "{port}"),
        None,
        "/health",
        True,
    )
    assert (embed.port, embed.unasked.idle, embed.beginning.longest, chat.unasked.idle) == (8001, 300.0, 600.0, None)
    assert embed.unasked.wake == ("0 8 * * *", "30 13 * * Mon-Fri")
    assert (chat.beginning.image, embed.beginning.image) == (None, "2026-11")
    assert config.called() == {"chat": "chat", "embed": "embed", "org/Embed-1": "embed"}


MODEL = '[models.chat]\ncommand = "serve {port}"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models = 3", "Expected `object`"),
        ("[models]", "there is no model"),
        ("this is no toml", "gcr.toml"),
        ('[models.chat]\ncomand = "x {port}"', "did you mean command?"),
        ("[models.chat]\npriority = 1", "missing required field `command`"),
        (MODEL + "[serve]\nprot = 1", "did you mean port?"),
        (MODEL + "[other]\na = 1", "unknown field `other`"),
        ('[models.chat]\ncommand = ""', "names no program"),
        ("[models.chat]\ncommand = []", "names no program"),
        ('[models.chat]\ncommand = "a \'b {port}"', "No closing quotation"),
        ('[models.chat]\ncommand = "serve"', "where does the server listen?"),
        ('[models."../chat"]\ncommand = "serve {port}"', "is no name of a job"),
        ('[models."a/b"]\ncommand = "serve {port}"', "other names go to `aliases`"),
        ('[models.Chat]\ncommand = "serve {port}"', "is no name of a job"),
        (MODEL + 'idle = "5 parsecs"', "models.chat.idle"),
        (MODEL + "idle = -1", "models.chat.idle"),
        (MODEL + 'wake = ["8:00"]', "models.chat.wake: '8:00' is no cron expression"),
        (MODEL + 'wake = "0 8 * * *"', "models.chat.wake"),
        (MODEL + 'start = "9999d"', "longer than a year"),
        (MODEL + 'memory = "32 gigs"', "models.chat.memory"),
        (MODEL + "port = 70000", "models.chat.port: 70000 is no port"),
        (MODEL + "port = 0", "models.chat.port: 0 is no port"),
        (MODEL + 'priority = "high"', "models.chat.priority"),
        (MODEL + 'health = "health"', "is no path"),
        (MODEL + 'cwd = "/nowhere/at/all"', "is no folder"),
        (MODEL + 'env = {"A=B" = "1"}', "is no environment variable"),
        (MODEL + 'aliases = ["a\\nb"]', "is no name of 1 to 200"),
        (MODEL + 'image = "V 1"', "models.chat.image: 'V 1' is no version"),
        (MODEL + "[serve]\nqueue = 0", "serve.queue: 0 is less than 1"),
        (MODEL + '[serve]\non_stop = "kill"', "serve.on_stop"),
        (MODEL + '[serve]\ntoken_file = "missing"', "serve.token_file"),
        (MODEL + "[serve.clients]\nconnections = 0", "serve.clients.connections: 0 is less than 1"),
        (MODEL + "[serve.clients]\nidle = 0", "serve.clients.idle: 0 is less than"),
        (MODEL + "[serve.clients]\nidel = 0", "did you mean idle?"),
        (MODEL + "port = 8080", "serve has port 8080 already"),
        (MODEL + 'port = 1\n[models.b]\ncommand = "b"\nport = 1', "chat has port 1 already"),
        (MODEL + 'aliases = ["b"]\n[models.b]\ncommand = "b {port}"', "is called 'b' already"),
        (MODEL + 'pinned = true\nmemory = "2GiB"\n[serve]\nmemory = "1GiB"', "the pinned models chat need more"),
        (
            MODEL + 'pinned = true\nmemory = "2GiB"\n[models.b]\ncommand = "b {port}"\nmemory = "2GiB"\n'
            '[serve]\nmemory = "3GiB"',
            "models.b.memory: there is no room for it",
        ),
    ],
)
def test_a_file_that_cannot_be_used(text, said, tmp_path):
    with pytest.raises(BadServeConfig) as caught:
        written(tmp_path, text)
    assert said in caught.value.message
    assert caught.value.exit == 2


def test_no_file(tmp_path):
    with pytest.raises(BadServeConfig, match="No such file"):
        load(tmp_path / "gcr.toml")


def test_a_token_is_read_from_a_file_of_its_own(tmp_path):
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    text = MODEL + '[serve]\ntoken_file = "token"'
    assert written(tmp_path, text).token == "s3cret"
    secret.chmod(0o640)
    with pytest.raises(BadServeConfig, match="others can reach"):
        written(tmp_path, text)


def test_a_policy_that_is_not_there():
    with pytest.raises(BadServeConfig, match="did you mean lru"):
        chosen("lur")


@pytest.mark.parametrize(
    ("command", "words", "port"),
    [
        (("a", "--port", "{port}"), ("a", "--port", "80"), 80),
        (("a", "--port={port}/x"), ("a", "--port=80/x"), 80),
        (("a", "{port}", "{port}"), ("a", "80", "80"), 80),
        (("a", "{port}", "{port}"), ("a", "80", "81"), None),
        (("a", "{port}"), ("b", "80"), None),
        (("a", "{port}"), ("a", "eighty"), None),
        (("a", "{port}"), ("a",), None),
        (("a", "b"), ("a", "b"), 0),
    ],
)
def test_the_port_of_a_job_is_read_from_its_command(command, words, port):
    assert port_in(command, words) == port


@given(st.lists(st.text("ab{port}-= ", max_size=12), min_size=1, max_size=5), st.integers(1, 65535))
def test_a_port_that_was_filled_in_is_found_again(command, port):
    found = port_in(command, filled(command, port))
    assert found == (port if any("{port}" in word for word in command) else 0)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5m", 300.0), ("1.5h", 5400.0), ("250ms", 0.25), ("3 s", 3.0), (7, 7.0), (0.5, 0.5)]
)
def test_durations(text, seconds):
    assert quantities.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "5 m m", "-5m", float("nan"), float("inf"), True, None, "5M"])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError):
        quantities.seconds(text)


@pytest.mark.parametrize(("text", "size"), [("1KiB", 1024), ("1.5GiB", 3 << 29), ("2GB", 2 * 10**9), (5, 5)])
def test_sizes(text, size):
    assert quantities.size(text) == size
