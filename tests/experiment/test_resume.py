"""No lost work: killed at any moment and resumed, a run leaves the same bits as one that was never killed."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import tomli_w

from engines.test_engines import files
from small import recipe
from sparsona.engines.atomic_file import write
from sparsona.engines.store import StoreError
from sparsona.experiment import outcome
from sparsona.experiment.recipe import tables
from sparsona.experiment.results import Run, RunError
from sparsona.experiment.runner import resume, run
from sparsona.methods import METHODS
from tiers import tiered

LEAVE = {"timing.jsonl"}
GO = """
import sys
from pathlib import Path
from sparsona.experiment.plan import load
from sparsona.experiment.results import Run
from sparsona.experiment.runner import resume, run
out = Path(sys.argv[1])
if (out / "recipe.toml").exists():
    resume(out)
else:
    run(next(iter(load(sys.argv[2]).values())), out)
"""


FORK = (
    GO.partition("out = ")[0]
    + """
import os, traceback
def go(out, toml):
    if (out / "recipe.toml").exists():
        resume(out)
    else:
        run(next(iter(load(toml).values())), out)
for _ in sys.stdin:
    pid = os.fork()
    if pid == 0:
        try:
            go(Path(sys.argv[1]), sys.argv[2])
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
)


def start(script: str, *args: object, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def written(r, path: Path) -> Path:
    path.write_text(tomli_w.dumps(tables(r)))
    return path


class Mother:
    """A process that has imported everything and forks a run on command: a kill then costs no start-up time."""

    def __init__(self, out: Path, toml: Path) -> None:
        self.process = start(FORK, out, toml, stdin=subprocess.PIPE)

    def bear(self) -> int:
        """Start a run; its process number."""
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self) -> int:
        """Wait for the run's end; its exit code."""
        return int(self.process.stdout.readline())

    def close(self) -> None:
        """Let the process go."""
        self.process.stdin.close()
        self.process.wait(timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "engine", "kills"),
    [
        ("ditto", "local", 10),
        ("ditto", "pool", 3),
        ("fedspa", "local", 4),
        ("dadpfl", "local", 4),
        ("fedpse", "local", 3),
        ("pfedgate", "local", 3),
    ],
)
def test_killed_at_random_moments(method, engine, kills, tmp_path):
    """Each kill hits a random moment of a run that trains, evaluates, records or writes a checkpoint."""
    r = recipe(method, rounds=40, engine=engine, results={"models": True, "figures": True})
    run(r, tmp_path / "whole")
    want = files(tmp_path / "whole", LEAVE)
    out = tmp_path / "killed"
    mother = Mother(out, written(r, tmp_path / "r.toml"))
    dice = random.Random(method + engine)
    done = 0
    while done < kills:
        before = rows(out)
        pid = mother.bear()
        while rows(out) == before and Path(f"/proc/{pid}").exists():
            time.sleep(0.001)  # building the data takes longer than a round: strike after the first sign of life
        time.sleep(dice.uniform(0, 0.06))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if mother.end() == -signal.SIGKILL:
            done += 1
        else:  # it was faster than we: that run must be right, and we start another
            assert files(out, LEAVE) == want
            shutil.rmtree(out)
    mother.close()
    resume(out)
    assert files(out, LEAVE) == want


def rows(out: Path) -> int:
    try:
        return (out / "rounds.jsonl").stat().st_size
    except OSError:
        return -1


HEAVY = """
import sys
from pathlib import Path
from sparsona.engines.store import Checkpoint, Store
store = Store(Path(sys.argv[1]))
last = store.checkpoint()
t = last.rounds_done if last else 0
print("ready", flush=True)
while True:
    t += 1
    store.begin_round()
    for k in range(6):
        store.put(k, bytes([t % 251]) * 700_000)
    store.end_round(Checkpoint(t, bytes([t % 251]) * 700_000, {"t": t}))
    store.commit()
    print(t, flush=True)
"""


@pytest.mark.slow
def test_killed_in_the_middle_of_writing_checkpoints(tmp_path):
    """Five megabytes a round and nothing else to do, so that kills land in the middle of a write: never half."""
    from sparsona.engines.store import Store

    dice = random.Random(1)
    path = tmp_path / "s.sqlite"
    seen = 0
    for _ in range(15):
        process = start(HEAVY, path)
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        time.sleep(dice.uniform(0.05, 0.3))
        process.send_signal(signal.SIGKILL)
        told = [int(line) for line in process.stdout.read().split(b"\n") if line.isdigit()]
        process.wait()
        store = Store(path)
        last = store.checkpoint()
        t = 0 if last is None else last.rounds_done
        assert t >= max([seen, *told[:-1]])  # what was told as committed is there
        if last is not None:
            assert last.progress == {"t": t}
            for k in range(6):
                assert store.client(k) == bytes([t % 251]) * 700_000
            assert last.server == bytes([t % 251]) * 700_000
        store.close()
        seen = t
    assert seen > 15


@pytest.mark.parametrize(
    ("method", "every"),
    tiered(
        [
            ("local", 1),
            ("ditto", 1),
            *((m, 3) for m in sorted(METHODS)),
        ]
    ),
)
def test_interrupted_and_resumed(method, every, tmp_path):
    """Ctrl-C in round 5 saves all whole rounds, whatever the distance of checkpoints."""
    r = recipe(method, rounds=8, checkpoint_every=every)
    run(r, tmp_path / "whole")

    def stop(step):
        if step.round == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(r, tmp_path / "stopped", on_round=stop)
    rounds = []
    resume(tmp_path / "stopped", on_round=lambda s: rounds.append(s.round))
    assert rounds == [6, 7, 8]
    assert files(tmp_path / "stopped", LEAVE) == files(tmp_path / "whole", LEAVE)


def stopped_and_resumed(r, after, path):
    """A run that is interrupted after so many rounds, and resumed."""

    def stop(step):
        if step.round == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(r, path, on_round=stop)
    resume(path)


def test_moments_that_clients_keep_survive_an_interruption(tmp_path):
    r = recipe("fedpse", rounds=4, method={"optimiser": "adam", "lr": 0.003, "moments": "client"})
    run(r, tmp_path / "whole")
    stopped_and_resumed(r, 2, tmp_path / "stopped")
    assert files(tmp_path / "stopped", LEAVE) == files(tmp_path / "whole", LEAVE)


def test_votes_and_pruning_survive_an_interruption(tmp_path):
    """Before the first yes, between votes, before the first pruning, and before all know of it.

    Everybody votes yes from its second round on; with clients away, not all know of it at once.
    """
    r = recipe("dadpfl", rounds=8)
    notes = [row["notes"] for row in run(r, tmp_path / "whole").rounds]
    assert [n["still"] for n in notes[:2]] == [0.0, 1.0]
    sparsity = [n["sparsity"] for n in notes]
    assert sparsity[0] == sparsity[1] < sparsity[2] < sparsity[-1]  # it prunes, more than once
    away = recipe("dadpfl", rounds=8, seed=10, method={"quorum": 0.7}, topology={"absent": 0.5, "max_wait": 0})
    notes = [row["notes"] for row in run(away, tmp_path / "away").rounds]
    assert sum(n["still"] == 1.0 for n in notes) > 0
    assert max(n["sparsity"] for n in notes) > notes[0]["sparsity"]
    for name, settings, after in [
        ("whole", r, 1),
        ("whole", r, 2),
        ("away", away, 3),
        ("away", away, 5),
        ("away", away, 6),
    ]:
        path = tmp_path / f"{name}-{after}"
        stopped_and_resumed(settings, after, path)
        assert files(path, LEAVE) == files(tmp_path / name, LEAVE)


def test_interrupt_inside_a_round_keeps_the_rounds_before(tmp_path, monkeypatch):
    from sparsona.engines.device import Device

    r = recipe("ditto", rounds=6, checkpoint_every=100)
    run(r, tmp_path / "whole")
    handle, calls = Device.handle, []

    def interrupted(self, job):
        calls.append(job)
        if job.kind == "local" and job.t == 3 and sum(c.kind == "local" and c.t == 3 for c in calls) == 2:
            raise KeyboardInterrupt
        return handle(self, job)

    monkeypatch.setattr(Device, "handle", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(r, tmp_path / "stopped")
    monkeypatch.undo()
    rounds = []
    resume(tmp_path / "stopped", on_round=lambda s: rounds.append(s.round))
    assert rounds == [4, 5, 6]  # three whole rounds were saved although no checkpoint was due
    assert files(tmp_path / "stopped", LEAVE) == files(tmp_path / "whole", LEAVE)


@pytest.mark.parametrize("engine", tiered(["local", "pool"], short=["local"]))
def test_large_messages_of_peers_lie_in_files_and_change_nothing(engine, tmp_path, monkeypatch):
    r = recipe("dadpfl", rounds=6, engine=engine, checkpoint_every=2)
    run(r, tmp_path / "whole")
    monkeypatch.setattr("sparsona.engines.store._LARGE", 1)
    written = []
    monkeypatch.setattr("sparsona.engines.store.write", lambda path, data: (written.append(path), write(path, data)))
    stopped_and_resumed(r, 3, tmp_path / "stopped")
    assert {path.parent.name for path in written} == {"state.mail"}
    assert files(tmp_path / "stopped", LEAVE) == files(tmp_path / "whole", LEAVE)
    assert not (tmp_path / "stopped" / "state.mail").exists()


def test_a_finished_run_is_left_alone(tmp_path):
    run(recipe("fedavg", rounds=2), tmp_path / "run")
    before = files(tmp_path / "run", set())
    resume(tmp_path / "run", on_round=lambda s: pytest.fail("it ran again"))
    assert files(tmp_path / "run", set()) == before
    assert "state.sqlite" not in before


def test_killed_while_finishing(tmp_path, monkeypatch):
    """All rounds are done, the last files are half written: resume writes them again."""
    r = recipe("ditto", rounds=2, results={"models": True})
    run(r, tmp_path / "whole")
    write, count = outcome.write, []

    def dies(path, data):
        count.append(path)
        if len(count) == 4:
            raise KeyboardInterrupt
        write(path, data)

    monkeypatch.setattr(outcome, "write", dies)
    with pytest.raises(KeyboardInterrupt):
        run(r, tmp_path / "killed")
    monkeypatch.undo()
    assert not Run(tmp_path / "killed").finished
    resume(tmp_path / "killed", on_round=lambda s: pytest.fail("no round was left to do"))
    assert files(tmp_path / "killed", LEAVE) == files(tmp_path / "whole", LEAVE)


def test_killed_between_the_summary_and_the_end(tmp_path, monkeypatch):
    r = recipe("ditto", rounds=2)
    run(r, tmp_path / "whole")
    monkeypatch.setattr(outcome, "forget_state", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(r, tmp_path / "killed")
    monkeypatch.undo()
    assert (tmp_path / "killed" / "state.sqlite").exists()
    resume(tmp_path / "killed")
    assert files(tmp_path / "killed", LEAVE) == files(tmp_path / "whole", LEAVE)


def test_sums_do_not_depend_on_who_came_first(tmp_path):
    """Losses of very different size make the order of a sum visible; a resumed run must add up alike."""
    r = recipe("local", rounds=8, method={"lr": 30.0}, data={"clients": 12, "sample_share": 1.0})
    run(r, tmp_path / "whole")

    def stop(step):
        if step.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(r, tmp_path / "stopped", on_round=stop)
    resume(tmp_path / "stopped")
    assert files(tmp_path / "stopped", LEAVE) == files(tmp_path / "whole", LEAVE)


def test_a_change_of_versions_is_told(tmp_path):
    r = recipe("local", rounds=4)

    def stop(step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(r, tmp_path / "run", on_round=stop)
    about = tmp_path / "run" / "run.json"
    about.write_text(re.sub(r'"torch": "[^"]*"', '"torch": "1.0"', about.read_text()))
    with pytest.warns(UserWarning, match="not be bit-identical: torch was 1.0, is "):
        resume(tmp_path / "run")


def test_state_that_is_missing_is_told(tmp_path):
    def stop(step):
        if step.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(recipe("local", rounds=4), tmp_path / "run", on_round=stop)
    (tmp_path / "run" / "state.sqlite").unlink()
    (tmp_path / "run" / "state.sqlite-wal").unlink(missing_ok=True)
    with pytest.raises(RunError, match=r"state\.sqlite is missing"):
        resume(tmp_path / "run")
    assert len((tmp_path / "run" / "rounds.jsonl").read_bytes().splitlines()) == 3


def test_full_disk_in_a_run_keeps_the_last_checkpoint(tmp_path):
    """A limit on file sizes stands in for a full disk: one clear line, then resume with room gives the same bits."""
    r = recipe("local", rounds=30)
    run(r, tmp_path / "whole")
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))"
    process = start(limit + GO, tmp_path / "full", written(r, tmp_path / "r.toml"))
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "the last checkpoint is intact" in err.decode() or "File too large" in err.decode()
    resume(tmp_path / "full")
    assert files(tmp_path / "full", LEAVE) == files(tmp_path / "whole", LEAVE)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        run(recipe(), tmp_path / "file" / "run")


def test_a_journal_that_someone_cut_is_noticed(tmp_path):
    r = recipe("local", rounds=4)

    def stop(step):
        if step.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(r, tmp_path / "run", on_round=stop)
    (tmp_path / "run" / "rounds.jsonl").write_bytes(b"")
    with pytest.raises(
        RunError, match=r"rounds\.jsonl is shorter than recorded in the checkpoint: " r"another program changed it"
    ):
        resume(tmp_path / "run")


def test_two_processes_on_one_run(tmp_path):
    from sparsona.engines.store import Store

    r = recipe("local", rounds=4)

    def stop(step):
        if step.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(r, tmp_path / "run", on_round=stop)
    store = Store(tmp_path / "run" / "state.sqlite")
    process = start(GO, tmp_path / "run", "none", env=os.environ)
    _, err = process.communicate(timeout=120)
    assert StoreError.__name__ in err.decode()
    assert "another process is using this run" in err.decode()
    store.close()
