"""Channels over a real socket pair; no test leaves a descriptor."""

import socket

import pytest
from channels import descriptors, eventually

from gcr.protocol.channel import Channel


@pytest.fixture(autouse=True)
def no_descriptor_is_leaked():
    before = descriptors()
    yield
    assert eventually(lambda: len(descriptors()) <= len(before)), set(descriptors().items()) - set(before.items())


@pytest.fixture
def connect_pair():
    made: list[Channel] = []

    def make(serve=None, **options) -> tuple[Channel, Channel]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pair = Channel(ours, name="ours").start(), Channel(theirs, serve, name="theirs", **options).start()
        made.extend(pair)
        return pair

    yield make
    for channel in made:
        channel.close()
        assert channel.closed.wait(5)


@pytest.fixture
def raw_pair():
    """A bare socket, and a channel that serves at its other end."""
    made = []

    def make(serve=None, **options) -> tuple[socket.socket, Channel]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(5)
        channel = Channel(theirs, serve, name="theirs", **options).start()
        made.append((ours, channel))
        return ours, channel

    yield make
    for ours, channel in made:
        ours.close()
        assert channel.closed.wait(5)
