"""The answers that any backend must give about itself, with its hardware or without."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import ClassVar

import pytest

from gcr.backend import Device
from gcr.control import ControlMeans
from gcr.declarations import FILE, Declaration, declared_by
from gcr.errors import BackendMissing
from gcr.facilities import FACILITIES
from gcr.testing.peer import Peer

MakePeer = Callable[[], Peer]
UUID_TEXT = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class ContractBase:
    """The values that a subclass sets, and the fixtures of every contract."""

    backend: ClassVar[str]
    vendor_libraries: ClassVar[Sequence[str]] = ()
    hands_over: ClassVar[bool] = False  # DrainContract says yes
    means: ClassVar[ControlMeans | None] = None  # ControlContract says DRIVER

    @pytest.fixture
    def environment(self) -> Mapping[str, str]:
        """Environment of the children, over this process's own."""
        return {}

    @pytest.fixture
    def new_peer(self, environment: Mapping[str, str]) -> Iterator[MakePeer]:
        """Starts a child process with a backend; all end with the test."""
        with ExitStack() as children:
            yield lambda: children.enter_context(Peer(self.backend, environment))

    @pytest.fixture
    def first_peer(self, new_peer: MakePeer) -> Peer:
        """The peer that names the devices; also `owner` where there is one, since starting a child takes time."""
        return new_peer()

    @pytest.fixture
    def device(self, first_peer: Peer) -> Device:
        """The device the contract runs on: the first."""
        found: Sequence[Device] = first_peer.call("devices")
        assert found, "no device: a contract of hardware needs some, real or simulated"
        return found[0]

    @pytest.fixture
    def declaration(self, first_peer: Peer) -> Declaration:
        """Returns the declaration of this backend; gcr reads it and runs no code of the plugin."""
        package, name = self.backend.partition(":")[0], first_peer.call("name")
        declared = declared_by(package)
        assert name in declared, f"{FILE} in the package {package} has no table [{name}]"
        return declared[name]


class BackendContract(ContractBase):
    def test_importing_it_loads_no_vendor_library(self, new_peer: MakePeer) -> None:
        assert new_peer().call("mapped", list(self.vendor_libraries)) == []

    def test_its_plugin_declares_drivers_and_loads_none(self, declaration: Declaration, new_peer: MakePeer) -> None:
        assert new_peer().call("mapped", list(declaration.libraries)) == []

    def test_a_probe_never_raises_and_every_answer_has_evidence(self, new_peer: MakePeer) -> None:
        answers = new_peer().call("probe")
        assert answers
        for answer in answers:
            assert answer.name and answer.evidence
            assert answer.ok or answer.remedy, f"{answer.name} is missing and nothing says what would mend it"

    def test_the_names_of_capabilities_are_unique(self, new_peer: MakePeer) -> None:
        names = [answer.name for answer in new_peer().call("probe")]
        assert sorted(names) == sorted(set(names))

    def test_it_answers_what_every_backend_is_asked(self, new_peer: MakePeer) -> None:
        names = [answer.name for answer in new_peer().call("probe")]
        assert [name for name in FACILITIES if name not in names] == []

    def test_what_it_claims_is_what_is_tested(self, first_peer: Peer, device: Device) -> None:
        """No skips: a backend that claims more than its tests show, or less, fails here."""
        claims = {answer.name: answer.ok for answer in first_peer.call("probe")}
        assert claims["handoff"] is self.hands_over, (
            "it claims handoff: subclass DrainContract" if claims["handoff"] else "no handoff: subclass CopyContract"
        )
        assert not claims["device_map"] or first_peer.call("moves"), "it claims device_map: MovesProcesses"
        means = first_peer.call("means")
        assert means is self.means, f"its control means are {means}: subclass ControlContract, or InspectContract"

    def test_devices_are_named_by_uuid(self, new_peer: MakePeer) -> None:
        peer = new_peer()
        found = peer.call("devices")
        assert len({device.uuid for device in found}) == len(found)
        assert [device.uuid for device in found] == [device.uuid for device in peer.call("devices")]
        for device in found:
            assert UUID_TEXT.fullmatch(device.uuid), "GPU- and sixteen bytes as a UUID, for every vendor"
            assert device.name
            assert 0 <= device.used_bytes <= device.total_bytes

    def test_a_device_that_is_not_there_is_refused(self, new_peer: MakePeer) -> None:
        with pytest.raises(BackendMissing):
            new_peer().call("open", "00000000-0000-0000-0000-00000000dead")
