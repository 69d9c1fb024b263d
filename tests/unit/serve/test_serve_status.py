"""`/status` and the page at `/`: what they say, to whom, and while the daemon is silent."""

import asyncio
import base64
import hashlib
import json
import re
import threading

from serving import FakeJobs, config_of, front, served

from gcr.api.jobevents import CheckpointFailed, RestoreDone
from gcr.errors import DaemonUnavailable
from gcr.serve import status
from gcr.serve.status import Device, Job, Seen

JOB = Job(job="llm", pid=7, state="suspended", simulated=True, bytes=8, resident_bytes=4, devices=("nvidia:0",))
DEVICE = Device(label="nvidia:0", name="SIMULATED", total_bytes=96, used_bytes=4, simulated=True)
BACK = RestoreDone(
    job="llm", transaction="1", by="", state="running", simulated=True, bytes=8, took_s=0.5, phases_s={}, copy_s=0.1,
    bytes_per_s=40e9, link_bytes_per_s=50e9, cold=False, moved={},
)  # fmt: skip
NOT_OUT = CheckpointFailed(
    job="llm", transaction="2", by="", code="deadline", exit=4, message="late", state="running", took_s=2.0
)


@served
async def test_the_status_has_models_jobs_devices_and_swaps(tmp_path):
    async with front(config_of(tmp_path), FakeJobs(sizes={"a": 6}), lambda: Seen((JOB,), (DEVICE,))) as client:
        await client.ask("a")
        for event in (BACK, NOT_OUT):
            client.server.status.note(event)
        code, text = await client.get("/status")
        said = json.loads(text)
        assert (code, said["models"][0]) == (
            200, {"model": "a", "state": "ready", "active": 0, "waiting": 0, "bytes": 6}
        )  # fmt: skip
        assert said["jobs"] == [
            {
                "job": "llm", "pid": 7, "state": "suspended", "simulated": True, "bytes": 8, "resident_bytes": 4,
                "devices": ["nvidia:0"],
            }
        ]  # fmt: skip
        assert [(each["label"], each["used_bytes"]) for each in said["devices"]] == [("nvidia:0", 4)]
        assert [(each["direction"], each["link_share"], each["error"]) for each in said["swaps"]] == [
            ("restore", 0.8, None),
            ("checkpoint", None, "deadline"),
        ]


@served
async def test_what_the_daemon_does_not_tell_is_not_known(tmp_path, monkeypatch):
    """A daemon that is silent is waited for a moment, by one thread; one that is gone is not known either."""
    monkeypatch.setattr(status, "PATIENCE_S", 0.1)
    monkeypatch.setattr(status, "FRESH_S", 0.0)
    go_on, asked = threading.Event(), []

    def ask():
        asked.append(1)
        go_on.wait(30)
        if len(asked) == 2:
            raise DaemonUnavailable("it has ended")
        return Seen((JOB,), ())

    async with front(config_of(tmp_path), FakeJobs(), ask) as client:

        async def known():
            said = json.loads((await client.get("/status"))[1])
            return said["jobs"] and len(said["jobs"]), said["devices"] == []

        assert await asyncio.gather(known(), known()) == [(None, False)] * 2
        assert len(asked) == 1
        go_on.set()
        while (await known()) == (None, False) and len(asked) < 2:
            await asyncio.sleep(0.01)
        while len(asked) < 3:
            last = await known()
        assert last == (1, True)


@served
async def test_the_page_needs_no_token_and_its_policy_allows_its_own_script_alone(tmp_path):
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o600)
    async with front(config_of(tmp_path, serve='token_file = "token"'), FakeJobs()) as client:
        async with client.session.get(f"{client.url}/") as answer:
            text, policy = await answer.text(), answer.headers["Content-Security-Policy"]
        (script,) = re.findall(r"<script>(.*)</script>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert (answer.status, f"script-src 'sha256-{digest}'" in policy) == (200, True)
        assert (await client.get("/status"))[0] == 401
        allowed = {"Authorization": "Bearer secret"}
        assert (await client.get("/status", headers=allowed))[0] == 200
