"""The controller: who lives, which generation counts, when to begin again.

One asyncio loop, so the state machine needs no locks. It plans nothing: survivors run the same policy on the same
membership. It knows neither models nor torch.

    FORMING --all ranks ready--> RUNNING --death--> AGREEING --all survivors acknowledged--> RUNNING
       ^                                               |  ^ another death, or no acknowledgement in time
       +-------- RESTARTING <--no group left, or a policy asked for it (from any state)
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable, Iterable

from fault_tolerance.runtime.deadlines import Deadlines
from fault_tolerance.runtime.generation import Generation
from fault_tolerance.runtime.liveness import Agreement, Liveness, Member
from fault_tolerance.runtime.supervisor import Reporter, Supervisor
from fault_tolerance.runtime.wire import Link, Message

MAX_ERRORS_IN_A_ROW = 3
"""Generations without a death between two commits; then the network is at fault, and all begin again."""

WAITING_PATIENCE = 4
"""Heartbeat intervals that an ending run stays for those who wait for a global restart to hear of it."""
RUN_ENDED = "the run has ended"


class Phase(enum.Enum):
    FORMING = "forming"
    RUNNING = "running"
    AGREEING = "agreeing"
    RESTARTING = "restarting"
    ENDED = "ended"


class Controller:
    """Membership of a run with `groups` groups of `ranks_per_group` ranks.

    Args:
        fingerprint: workers whose configuration differs are refused.
        resume: what every worker of the first epoch starts from (JSON; `step` is the committed steps it holds).
        masks_failures: whether the policy may go on without a group; if not, any death is a global restart at once.
        max_restarts_without_progress: global restarts in a row, without a step that had not been committed before.
        least_restart_seconds: training resumes no sooner after a global restart began (emulation).
    """

    def __init__(
        self,
        *,
        groups: int,
        ranks_per_group: int,
        deadlines: Deadlines,
        supervisor: Supervisor,
        fingerprint: str,
        resume: Message,
        masks_failures: bool,
        max_restarts_without_progress: int,
        least_restart_seconds: float = 0.0,
    ) -> None:
        self.groups, self.ranks_per_group = groups, ranks_per_group
        self.deadlines, self.supervisor, self.fingerprint = deadlines, supervisor, fingerprint
        self._resume, self._masks_failures = resume, masks_failures
        self._max_restarts = max_restarts_without_progress
        self._least_restart, self._held_seconds = least_restart_seconds, 0.0
        self.phase = Phase.FORMING
        self.epoch = 0
        self.generation = 0
        self._live: set[int] = set()
        self._members: dict[tuple[int, int], Member] = {}
        self._waiting: dict[tuple[int, int], float] = {}  # when workers that wait for a global restart last asked
        self._over = False  # the run has ended, and not this controller alone
        self._agreement: Agreement | None = None
        self._liveness = Liveness(deadlines)
        self._report = Reporter(supervisor)
        self._forming_since = time.monotonic()
        self._last_step = -1
        self._most_committed = 0
        self._errors_in_a_row = 0
        self._restarts_without_progress = 0
        self._restart_from, self._restart_reason = 0, ""
        self._restart_began: float | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self, host: str, port: int = 0) -> tuple[str, int]:
        """Listens; returns the address. Workers of epoch 0 may say hello from now on."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Link(self._on_message, self._on_end, self._on_problem), host, port, backlog=4096
        )
        watch = asyncio.create_task(self._watch())
        watch.add_done_callback(self._watch_ended)
        self._tasks.add(watch)
        return self._server.sockets[0].getsockname()[:2]

    async def stop(self, over: bool = False) -> None:
        """Closes all connections; workers that live on leave.

        Args:
            over: nobody is to come back, as after the last step or a fatal end. If not, schedulers start workers again,
                and these wait for another controller.
        """
        self.phase = Phase.ENDED
        self._over = self._over or over
        self._report.flush()
        if self._over:
            await self._tell_the_end()
        for task in self._tasks:
            task.cancel()
        if self._server is not None:
            self._server.close()
        for member in self._members.values():
            member.link.close()

    async def _tell_the_end(self) -> None:
        """Also to those that wait for a global restart, and ask now and then."""
        self._broadcast({"type": "stop", "reason": RUN_ENDED, "ended": True})
        patience, now = WAITING_PATIENCE * self.deadlines.heartbeat_interval, time.monotonic()
        self._waiting = {who: asked for who, asked in self._waiting.items() if asked > now - patience}
        deadline = now + patience
        while self._waiting and time.monotonic() < deadline:
            await asyncio.sleep(self.deadlines.heartbeat_interval / 10)

    # -- messages ---------------------------------------------------------------------------------------------------

    def _on_message(self, link: Link, message: Message) -> None:
        member: Member | None = link.owner
        if member is None:
            try:
                link.owner = self._hello(message, link)
            except (KeyError, TypeError) as error:
                raise ValueError(f"a stranger at the door: {error!r}") from error
        elif self._members.get((member.group, member.rank)) is member:
            self._handle(member, message)
        else:
            link.close()  # an evicted process that came back: it is fenced

    def _on_end(self, link: Link) -> None:
        if link.owner is not None:
            self._disconnected(link.owner)

    def _on_problem(self, problem: str) -> None:
        self.supervisor.on_event("protocol_error", error=problem)

    def _hello(self, message: Message, link: Link) -> Member | None:
        group, rank, now = int(message["group"]), int(message["rank"]), time.monotonic()
        refusal, retry = None, False
        self._waiting.pop((group, rank), None)
        if not (0 <= group < self.groups and 0 <= rank < self.ranks_per_group):
            refusal = f"group {group} rank {rank} does not exist in {self.groups} groups of {self.ranks_per_group}"
        elif message["fingerprint"] != self.fingerprint:
            refusal = "this worker's configuration differs from the controller's"
        elif self.phase is Phase.ENDED:
            refusal, retry = RUN_ENDED if self._over else "the controller ends", not self._over
        elif message.get("epoch") not in (None, self.epoch):
            refusal = f"epoch {message['epoch']} is over"
        elif self.phase is not Phase.FORMING:
            refusal = f"the run is {self.phase.value}; a group comes back at the next global restart"
            retry = True
        elif (group, rank) in self._members:
            refusal = f"group {group} rank {rank} is already here"
            retry = True  # perhaps the end of its former process has not been noticed yet
        if refusal is not None:
            if retry:
                self._waiting[group, rank] = now
            link.send({"type": "refused", "reason": refusal, "retry": retry, "ended": refusal == RUN_ENDED})
            link.close()
            return None
        member = Member(group, rank, int(message["pid"]), link, now, progress_at=now)
        self._members[group, rank] = member
        link.send({"type": "welcome", "epoch": self.epoch, "resume": self._resume})
        return member

    def _handle(self, member: Member, message: Message) -> None:
        member.last_seen = time.monotonic()
        kind = message["type"]
        if kind == "heartbeat":
            if message["progress"] != member.progress:
                member.progress, member.progress_at = message["progress"], member.last_seen
            member.phase = message["phase"]
        elif kind == "ready":
            member.ready = True
            self._publish_first_generation()
        elif kind == "acknowledge":
            member.acknowledged = max(member.acknowledged, message["generation"])
            member.committed = max(member.committed, message["committed"])
            self._publish_if_agreed()
        elif kind == "committed":
            self._committed(member, message)
        elif kind == "error":
            self._survivor_report(message)
        elif kind == "restart":
            self._restart(message["reason"])
        elif kind == "event":
            self._report.tell(message["kind"], **message["fields"])
        elif kind == "failed":
            self._report.tell(
                "worker_error",
                groups=[member.group],
                rank=member.rank,
                error=message["error"],
                traceback=message["traceback"],
            )
        elif kind == "fatal":
            self._fatal(message["reason"])
        elif kind == "done":
            member.done = message["result"]
            self._finish_if_done()
        else:
            raise ValueError(f"unknown message type {kind!r} from group {member.group} rank {member.rank}")

    def _committed(self, member: Member, message: Message) -> None:
        record = message["record"]
        member.committed = max(member.committed, record["step"] + 1)
        self._liveness.learn(record["longest_compute_seconds"])
        if record["step"] > self._last_step:
            self._last_step = record["step"]
            self._errors_in_a_row = 0
            if self._last_step + 1 > self._most_committed:
                self._most_committed = self._last_step + 1
                self._restarts_without_progress = 0
            self.supervisor.on_step(record)

    def _survivor_report(self, message: Message) -> None:
        """A survivor saw an error in a communicator. Nobody known to be dead: agree anew on the same groups."""
        if self.phase is Phase.RUNNING and message["generation"] == self.generation:
            self.supervisor.on_event("communicator_error", generation=self.generation, error=message["error"])
            self._after(self.deadlines.heartbeat_interval, lambda: self._agree_anew(message))

    def _agree_anew(self, message: Message) -> None:
        if self.phase is not Phase.RUNNING or message["generation"] != self.generation:
            return
        self._errors_in_a_row += 1
        if self._errors_in_a_row > MAX_ERRORS_IN_A_ROW:
            many = f"{MAX_ERRORS_IN_A_ROW} communicators in a row failed though no group died"
            self._restart(f"{many}; the last error: {message['error']}")
        else:
            self._begin_agreement([], [])

    def _broadcast(self, message: Message) -> None:
        for member in self._members.values():
            member.link.send(message)

    # -- membership -------------------------------------------------------------------------------------------------

    def _of(self, groups: Iterable[int]) -> list[Member]:
        wanted = set(groups)
        return [member for member in self._members.values() if member.group in wanted]

    def _publish_first_generation(self) -> None:
        members = self._members.values()
        if self.phase is not Phase.FORMING or len(members) < self.groups * self.ranks_per_group:
            return
        if not all(member.ready for member in members) or self._restart_is_held():
            return
        self._live = set(range(self.groups))
        self.generation += 1
        self.phase = Phase.RUNNING
        committed = int(self._resume["step"])
        self._last_step = committed - 1
        for member in members:
            member.committed, member.last_seen = committed, time.monotonic()
        self._broadcast(
            Generation(self.generation, self.epoch, tuple(sorted(self._live)), committed=committed).to_message()
        )
        where = {"step": committed, "epoch": self.epoch, "generation": self.generation, "groups": sorted(self._live)}
        if self._restart_began is None:
            self.supervisor.on_event("start", **where)
        else:
            self._report.tell(
                "restart",
                **where,
                reason=self._restart_reason,
                from_step=self._restart_from,
                to_step=committed,
                lost_steps=max(0, self._restart_from - committed),
                seconds=time.monotonic() - self._restart_began,
                **({"padding_seconds": self._held_seconds} if self._least_restart else {}),
            )
        self._held_seconds = 0.0

    def _restart_is_held(self) -> bool:
        """Whether an emulated restart is not over yet; the first generation is published when it is."""
        left = 0.0 if self._restart_began is None else self._restart_began + self._least_restart - time.monotonic()
        if left > 0:
            self._held_seconds = left
            self._after(left, self._publish_first_generation)
        return left > 0

    def worker_ended(self, group: int, epoch: int, how: str) -> None:
        """The supervisor saw a process of `group` end; it knows more of the cause than a closed connection tells."""
        if not self._report.explain(epoch, group, how) and epoch == self.epoch:
            self._group_died(group, how)

    def _group_died(self, group: int, cause: str, lost: Member | None = None, is_explained: bool = True) -> None:
        """A process of `group` ended or must end; its whole group leaves. `lost`: that process, where it is known."""
        lost = lost or next(iter(self._of([group])), None)
        phase, silent = ("unknown", 0.0) if lost is None else (lost.phase, time.monotonic() - lost.last_seen)
        if self.phase in (Phase.ENDED, Phase.RESTARTING):
            return
        if self.phase is Phase.FORMING:
            self._note_failure(group, "startup", cause, is_explained)
            self._restart(f"group {group} was lost while the groups formed: {cause}")
            return
        if group not in self._live:
            return
        self._live.discard(group)
        for member in self._of([group]):
            member.link.send({"type": "evicted", "reason": cause})
            member.link.close()
            del self._members[group, member.rank]
        self._note_failure(group, phase, cause, is_explained)
        self.supervisor.evict(group, cause)
        if not self._live:
            self._restart("no group is left")
        elif not self._masks_failures and any(member.done is None for member in self._of(self._live)):
            self._restart(f"group {group} was lost: {cause}")
        else:
            self._begin_agreement([group], [f"group {group}: {cause}"], silent)
            self._finish_if_done()

    def _note_failure(self, group: int, phase: str, cause: str, is_explained: bool) -> None:
        self._report.failure(
            self.epoch,
            group,
            is_explained,
            step=self._last_step + 1,
            phase=phase,
            cause=cause,
            generation=self.generation,
        )

    def _begin_agreement(self, deaths: list[int], causes: list[str], silent_seconds: float = 0.0) -> None:
        now = time.monotonic()
        before = self._agreement
        self.generation += 1
        self._agreement = Agreement(
            self.generation,
            now,
            before.noticed if before else now,
            before.silent_seconds if before else silent_seconds,
            (before.deaths if before else []) + deaths,
            (before.causes if before else []) + causes,
        )
        self.phase = Phase.AGREEING
        self._broadcast({"type": "prepare", "generation": self.generation, "live": sorted(self._live)})

    def _publish_if_agreed(self) -> None:
        agreement = self._agreement
        if self.phase is not Phase.AGREEING or agreement is None:
            return
        survivors = self._of(self._live)
        if any(member.done is None and member.acknowledged < agreement.number for member in survivors):
            return
        committed = max(member.committed for member in survivors)
        self.phase, self._agreement = Phase.RUNNING, None
        now = time.monotonic()
        for member in survivors:
            member.progress_at = now
        self._broadcast(
            Generation(
                agreement.number,
                self.epoch,
                tuple(sorted(self._live)),
                deaths=tuple(sorted(agreement.deaths)),
                committed=committed,
                noticed_seconds_ago=now - agreement.noticed,
                silent_seconds=agreement.silent_seconds,
                causes=tuple(agreement.causes),
            ).to_message()
        )

    def _disconnected(self, member: Member) -> None:
        if self._members.get((member.group, member.rank)) is not member or self.phase is Phase.ENDED:
            return
        if member.done is not None:
            return
        del self._members[member.group, member.rank]
        self._group_died(member.group, f"rank {member.rank} (process {member.pid}) is gone", member, is_explained=False)

    # -- deadlines --------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        interval = self.deadlines.heartbeat_interval
        while True:
            began = time.monotonic()
            await asyncio.sleep(interval)
            now = time.monotonic()
            if now - began > 2 * interval:
                pause = now - began - interval
                self._liveness.forgive(self._members.values(), self._agreement, pause, now)
                self._forming_since = min(now, self._forming_since + pause)
            for member in list(self._members.values()):
                reason = self._liveness.overdue(member, self._agreement, self.phase is Phase.RUNNING, now)
                if reason is not None and self._members.get((member.group, member.rank)) is member:
                    self._group_died(member.group, f"rank {member.rank} (process {member.pid}) {reason}", member)
            if self.phase is Phase.FORMING and now - self._forming_since > self.deadlines.startup:
                missing = self.groups * self.ranks_per_group - sum(member.ready for member in self._members.values())
                self._restart(f"{missing} workers were not ready within {self.deadlines.startup:.0f} s")

    @staticmethod
    def _watch_ended(watch: asyncio.Task[None]) -> None:
        if not watch.cancelled() and (error := watch.exception()) is not None:
            watch.get_loop().call_exception_handler({"message": "the watch over deadlines ended", "exception": error})

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, call)

    # -- restart and end --------------------------------------------------------------------------------------------

    def _restart(self, reason: str) -> None:
        if self.phase in (Phase.RESTARTING, Phase.ENDED):
            return
        self._restarts_without_progress += 1
        if self._restarts_without_progress > self._max_restarts:
            self._fatal(
                f"{self._max_restarts} global restarts in a row without a new step "
                f"(fault_tolerance.max_restarts_without_progress={self._max_restarts}); the last cause: {reason}"
            )
            return
        self.phase, self._agreement = Phase.RESTARTING, None
        self._broadcast({"type": "stop", "reason": f"global restart: {reason}", "ended": False})
        self.epoch += 1
        self._restart_from, self._restart_reason = self._last_step + 1, reason
        self._restart_began = time.monotonic()
        self.supervisor.restart(self.epoch, reason)

    def _fatal(self, reason: str) -> None:
        if self.phase is not Phase.ENDED:
            self.phase = Phase.ENDED
            self._over = True
            self._report.flush()
            self._broadcast({"type": "stop", "reason": RUN_ENDED, "ended": True})
            self.supervisor.fatal(reason)

    def workers_ended(self, resume: Message) -> None:
        """The supervisor's answer to `restart`: no worker of an earlier epoch lives; new ones start from `resume`."""
        if self.phase is not Phase.RESTARTING:
            return
        for member in self._members.values():
            member.link.close()
        self._members.clear()
        self._live.clear()
        self._resume = resume
        self._errors_in_a_row = 0
        self._forming_since = time.monotonic()
        self.phase = Phase.FORMING

    def _finish_if_done(self) -> None:
        members = self._of(self._live)
        if (
            self.phase in (Phase.RUNNING, Phase.AGREEING)
            and members
            and all(member.done is not None for member in members)
        ):
            self.phase = Phase.ENDED
            self._over = True
            self._report.flush()
            self._broadcast({"type": "bye"})
            self.supervisor.finished(
                {member.group: member.done for member in members if member.rank == 0 and member.done}
            )
