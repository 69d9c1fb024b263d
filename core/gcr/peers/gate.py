"""The gate of one process, closed for a standstill of its job: its agent says what waits there, and lets calls through.

Raises what methods of AgentPeer raise.
"""

from collections.abc import Mapping

from msgspec import Struct

from gcr.peers.agent import AgentPeer
from gcr.protocol.agentwire import (
    AdmitRequest,
    AllowedRecord,
    CloseRequest,
    CountRecord,
    GateReply,
    TransactionRecord,
)
from gcr.protocol.record import concat
from gcr.protocol.wire import FrameType, WalkKind

MOST_ALLOWED = 1024  # signatures of a request: it is one frame


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

    def admit(self, thread: int, calls: int, patience: float, walk: WalkKind, allowed: Mapping[int, int]) -> int:
        """Lets a waiting thread through, so many times at most; returns how many times.

        patience: seconds for each call · allowed: how many calls of these signatures may be made, all told.
        """
        request = AdmitRequest(self.transaction, thread, calls, int(patience * 1e6), walk)
        records = [AllowedRecord(signature, launched) for signature, launched in allowed.items()][:MOST_ALLOWED]
        return CountRecord.unpack(self.agent.ask(FrameType.ADMIT, concat(request, *records)).payload).count
