"""A model of ranks behind their gates, independent of the engine: programs, devices, and what agents would report.

Time passes only when the coordinator looks or waits. A call is local, coupled (it ends once all partners' calls are at
the heads of their streams), a wait, or the set that ends it. What a standstill may admit is known from the programs:
`closure`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gcr.engine.closing import parts_of
from gcr.protocol.wire import WalkKind
from gcr.standstill.messages import LOCAL, Admission, Incomplete, Made, Parked, Report, Tier

PATIENCE = 0.002  # seconds that a walk waits for one call's work
DEPTH = 64  # calls that a rank's driver queues before the next one waits inside


class Group(list["Call"]):
    """Calls that end together. `heads`: how many of them are at the heads of their streams."""

    heads = 0
    ends: float | None = None


@dataclass(eq=False, slots=True)
class Call:
    """One gated call. `group`: of a coupled one; of a wait, the set that ends it."""

    stream: str
    duration: float = 0.0
    signature: int = LOCAL
    kind: str = "local"  # coupled, wait, set
    deps: tuple[str, ...] = ()  # streams whose latest call must be done
    group: Group = field(default_factory=Group)
    rank: int = -1
    needs: list["Call"] = field(default_factory=list)  # that must be enqueued for this one to end
    after: list["Call"] = field(default_factory=list)
    ends: float | None = None
    begun: bool = False  # it was at its stream's head
    done: bool = False


@dataclass(eq=False, slots=True)
class Thread:
    """Its program: a Call, or ("host", seconds), ("sync",), ("bar", key), ("begin",), ("end",)."""

    rank: int
    number: int
    program: list
    at: int = 0
    wakes: float | None = None
    capturing: bool = False
    held: bool = False  # it was admitted to begin a capture, and captures are held
    queued: list[Call] = field(default_factory=list)

    @property
    def item(self):
        return self.program[self.at] if self.at < len(self.program) else None

    def pending(self) -> bool:
        self.queued = [call for call in self.queued if not call.done]
        return bool(self.queued)


def tie(threads: Iterable[Thread]) -> None:
    """Works out what each call needs: the call before it, its partners, and all before a barrier that it is behind."""
    before_bar: dict[object, list[Call]] = {}
    todo = list(threads)
    for thread in todo:
        seen: list[Call] = []
        for item in thread.program:
            if isinstance(item, Call):
                item.rank = thread.rank
                seen.append(item)
            elif item[0] == "bar":
                before_bar.setdefault(item[1], []).extend(seen[-1:])
    for thread in todo:
        last: list[Call] = []
        for item in thread.program:
            if isinstance(item, Call):
                item.needs = [*last, *item.group]
                last = [item]
            elif item[0] == "bar":
                last = [*last, *before_bar[item[1]]]


def closure(calls: Iterable[Call], known: set[Call]) -> set[Call]:
    """Adds to `known` all calls that these need."""
    todo = list(calls)
    while todo:
        call = todo.pop()
        if call not in known:
            known.add(call)
            todo.extend(call.needs)
    return known


class Job:
    """Ranks with their gates open. `names`: signatures are reported; without them every call looks local."""

    def __init__(self, threads: list[Thread], names: bool = True) -> None:
        tie(threads)
        self.threads, self.names, self.now, self.closed = threads, names, 0.0, False
        self.ranks = sorted({thread.rank for thread in threads})
        self.streams: dict[tuple[int, str], list[Call]] = {}
        self.arrived: dict[object, set[Thread]] = {}
        self.barred: dict[object, int] = {}
        for thread in threads:
            for item in thread.program:
                if isinstance(item, tuple) and item[0] == "bar":
                    self.barred[item[1]] = self.barred.get(item[1], 0) + 1
        self.enqueued: set[Call] = set()
        self.launched: dict[tuple[int, int], int] = {}  # by rank and signature
        self.makers: dict[tuple[int, int], set[int]] = {}  # threads, by rank and signature
        self.noted: dict[tuple[int, str], set[int]] = {}  # signatures on a stream since it was last seen idle
        self.seen: dict[int, object] = {}
        self.changed_at = dict.fromkeys(self.ranks, 0.0)
        self.looks = self.admitted = self.admitted_coupled = self.admitted_in_batches = 0
        self.allowed: set[Call] | None = None  # once the gates are closed
        self.exact = names  # a signature means one communicator

    # ---- threads and devices --------------------------------------------------------------------------------------

    def busy(self, rank: int) -> bool:
        return any(of == rank for of, _ in self.streams)

    def depth(self, rank: int) -> int:
        return sum(len(calls) for (of, _), calls in self.streams.items() if of == rank)

    def parked(self, thread: Thread) -> Call | None:
        """The gated call, if any, that the thread waits with while its gate is closed."""
        item = thread.item
        if item is None or thread.held or (isinstance(item, tuple) and item[0] not in ("begin", "end")):
            return None
        return item if isinstance(item, Call) else Call("")

    def enqueue(self, thread: Thread) -> None:
        """Does the thread's next gated call."""
        item = thread.item
        if self.closed and not isinstance(item, Call) and item[0] == "begin":
            thread.held = True
            return
        thread.at += 1
        if not isinstance(item, Call):
            thread.capturing = item[0] == "begin"
        elif not thread.capturing:
            self.launch(thread, item)
        else:
            item.done = True

    def launch(self, thread: Thread, call: Call) -> None:
        line = self.streams.setdefault((call.rank, call.stream), [])
        ends = [self.streams.get((call.rank, each), []) for each in call.deps if each != call.stream]
        call.after = [other[-1] for other in ends if other]
        line.append(call)
        thread.queued.append(call)
        if call.kind == "coupled":
            self.launched[call.rank, call.signature] = self.launched.get((call.rank, call.signature), 0) + 1
            self.makers.setdefault((call.rank, call.signature), set()).add(thread.number)
            self.noted.setdefault((call.rank, call.stream), set()).add(call.signature)
        self.enqueued.add(call)

    def step(self, thread: Thread) -> bool:
        """Does the thread's next item if it can; gated calls only with the gate open."""
        item = thread.item
        if item is None:
            return False
        if isinstance(item, Call) or item[0] in ("begin", "end"):
            if self.closed or self.depth(thread.rank) >= DEPTH:
                return False
            self.enqueue(thread)
            return True
        if not self.may_pass(thread, item):
            return False
        thread.at, thread.wakes = thread.at + 1, None
        return True

    def may_pass(self, thread: Thread, item: tuple) -> bool:
        if item[0] == "host":
            if thread.wakes is None:
                thread.wakes = self.now + item[1]
            return self.now >= thread.wakes
        if item[0] == "sync":
            return not thread.pending()
        there = self.arrived.setdefault(item[1], set())
        there.add(thread)
        return len(there) == self.barred[item[1]]

    def work(self) -> bool:
        """Ends what has come to its end; True where anything did."""
        over = [key for key, line in self.streams.items() if self.over(line[0])]
        for key in over:
            self.streams[key].pop(0)
            if not self.streams[key]:
                del self.streams[key]
        return bool(over)

    def over(self, call: Call) -> bool:
        """Tells whether a call at its stream's head has ended."""
        if not call.begun:
            for other in call.after:
                if not other.done:
                    return False
            self.begin(call)
        ends = call.group.ends if call.kind == "coupled" else call.ends
        call.done = call.group[0].done if call.kind == "wait" else ends is not None and self.now >= ends
        return call.done

    def begin(self, call: Call) -> None:
        call.begun = True
        if call.kind != "coupled":
            call.ends = self.now + call.duration
            return
        call.group.heads += 1
        if call.group.heads == len(call.group):
            call.group.ends = call.ends = self.now + call.duration

    def settle(self) -> None:
        """Lets happen all that can at this instant, gates closed."""
        moved = True
        while moved:
            moved = self.work()
            for thread in self.threads:
                moved = (self.closed and self.step(thread)) or moved

    def next_event(self) -> float | None:
        times = [line[0].ends for line in self.streams.values() if line[0].ends is not None]
        times += [thread.wakes for thread in self.threads if thread.wakes is not None]
        later = [time for time in times if time > self.now]
        return min(later) if later else None

    def pass_time(self, until: float) -> None:
        """Settles at every event up to `until`."""
        self.settle()
        while (event := self.next_event()) is not None and event <= until:
            self.now = event
            self.settle()
        self.now = max(self.now, until)

    # ---- before the gates close -------------------------------------------------------------------------------------

    def run_free(self, rng, steps: int) -> None:
        """Threads go on in any order, as far as they can; a thread that is chosen often is ahead."""
        weights = [rng.random() for _ in self.threads]
        for thread in rng.choices(self.threads, weights, k=steps):
            self.now += 0.00002
            self.step(thread)
            while self.work():
                pass

    def open(self) -> None:
        self.closed = False
        for thread in self.threads:
            thread.held = False

    def close(self) -> None:
        self.closed = True
        self.allowed = closure(self.enqueued, self.allowed or set())

    # ---- what agents do -------------------------------------------------------------------------------------------

    def reports(self) -> list[Report]:
        self.settle()
        self.looks += 1
        return [self.report(rank) for rank in self.ranks]

    def report(self, rank: int) -> Report:
        parked = tuple(
            self.place(thread, call)
            for thread in self.threads
            if thread.rank == rank
            for call in [self.parked(thread)]
            if call is not None
        )
        incomplete = tuple(self.incomplete(rank)) if self.names else ()
        captures = sum(thread.capturing for thread in self.threads if thread.rank == rank)
        held = sum(thread.held for thread in self.threads if thread.rank == rank)
        state = (self.busy(rank), parked, incomplete, captures, self.depth(rank), held)
        if self.seen.get(rank) != state:
            self.seen[rank], self.changed_at[rank] = state, self.now
        made = tuple(self.made(rank)) if self.names else ()
        return Report(rank, self.looks, state[0], 0, captures, self.changed_at[rank], parked, incomplete, held, made)

    def made(self, rank: int) -> Iterator[Made]:
        for (of, signature), launched in self.launched.items():
            makers = self.makers[of, signature]
            if of == rank:
                yield Made(signature, launched, min(makers) if len(makers) == 1 else None)

    def incomplete(self, rank: int) -> Iterator[Incomplete]:
        """As an agent knows it: of a stream that is not idle, each signature that came to it since it last was."""
        for key in [key for key in self.noted if key not in self.streams]:
            del self.noted[key]
        for (of, _), signatures in self.noted.items():
            for signature in sorted(signatures) if of == rank else ():
                yield Incomplete(signature, 1, self.launched[rank, signature])

    def place(self, thread: Thread, call: Call) -> Parked:
        """As an agent says it: a call is clear when nothing is unfinished on its stream."""
        clear = not self.streams.get((thread.rank, call.stream))
        signature = call.signature if self.names else LOCAL
        return Parked(thread.number, signature, clear, launched=self.launched.get((thread.rank, signature), 0))

    def admit(self, admission: Admission, furthest: Mapping[int, int]) -> None:
        for calls, kind in parts_of(admission):
            if self.let_through(self.thread_of(admission), calls, kind, furthest, admission.tier) < calls:
                return

    def let_through(self, thread: Thread, calls: int, kind: WalkKind, furthest: Mapping[int, int], tier: Tier) -> int:
        for done in range(calls):
            call = self.parked(thread)
            if call is None or not self.may_make(thread, call, kind, furthest):
                return done
            self.check(tier, kind, call)
            self.enqueue(thread)
            self.admitted += 1
            self.wait_for(thread, call, kind is WalkKind.LOCAL and not self.owes(thread, furthest))
        return calls

    def may_make(self, thread: Thread, call: Call, kind: WalkKind, furthest: Mapping[int, int]) -> bool:
        """As an agent decides: it knows its own calls, and what the daemon allows."""
        owes = self.owes(thread, furthest)
        if kind is WalkKind.NOT or (kind is WalkKind.THROUGH and owes):
            return True
        if kind is not WalkKind.LOCAL and not owes:
            return False
        place = self.place(thread, call)
        if place.signature != LOCAL:
            return place.launched < furthest.get(place.signature, 0)
        return owes or place.clear

    def owes(self, thread: Thread, furthest: Mapping[int, int]) -> bool:
        return any(
            self.makers.get((thread.rank, signature)) == {thread.number}
            and self.launched[thread.rank, signature] < launched
            for signature, launched in furthest.items()
        )

    def thread_of(self, admission: Admission) -> Thread:
        key = (admission.rank, admission.thread)
        return next(each for each in self.threads if (each.rank, each.number) == key)

    def wait_for(self, thread: Thread, call: Call, until_done: bool) -> None:
        self.settle()
        if not until_done:
            return
        end = self.now + PATIENCE
        while not (call.done and (self.parked(thread) is not None or thread.item is None)):
            event = self.next_event()
            if event is None or event > end:
                self.pass_time(end)
                return
            self.pass_time(event)

    def check(self, tier: Tier, kind: WalkKind, call: Call) -> None:
        """What the tiers promise, of each call of a batch. Local calls enlarge nothing: their work ends by itself.

        kind: NOT for the first call alone, which LEAD and SPIN make on trust.
        """
        assert self.allowed is not None
        if call.kind == "coupled":
            self.admitted_coupled += 1
            self.admitted_in_batches += kind is not WalkKind.NOT
            if self.exact and (tier in (Tier.PARTNER, Tier.WALK) or kind is not WalkKind.NOT):
                assert call in self.allowed, "a coupled call that nothing enqueued needs"
        closure([call], self.allowed)
