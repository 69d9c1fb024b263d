"""The gate of one process, closed for a standstill of its job: its agent says what waits there, and lets calls through.

Raises what methods of AgentPeer raise.
"""

from msgspec import Struct

from gcr.peers.agent import AgentPeer
from gcr.protocol.agentwire import AdmitRequest, CloseRequest, CountRecord, GateReply, TransactionRecord
from gcr.protocol.wire import FrameType


class GatePeer(Struct, frozen=True):
    agent: AgentPeer
    transaction: int

    def close(self) -> None:
        """Closes the gate, and waits for nothing. AgentPeer.quiesce ends this, as does `open`."""
        self.agent.ask(FrameType.CLOSE, CloseRequest(self.transaction, close=1).pack())

    def open(self) -> None:
        """Opens the gate that `close` has closed; exports stay."""
        self.agent.ask(FrameType.CLOSE, CloseRequest(self.transaction, close=0).pack())

    def look(self) -> GateReply:
        """Returns what waits at the closed gate, and what the devices still work on."""
        named = TransactionRecord(self.transaction).pack()
        return GateReply.unpack(self.agent.ask(FrameType.LOOK, named).payload)

    def admit(self, thread: int, calls: int, patience: float, walk: bool) -> int:
        """Lets a waiting thread through, so many times at most; returns how many times.

        patience: seconds for each call · walk: local calls alone, each once the work before it has ended.
        """
        request = AdmitRequest(self.transaction, thread, calls, int(patience * 1e6), int(walk))
        return CountRecord.unpack(self.agent.ask(FrameType.ADMIT, request.pack()).payload).count
