"""Who took part and who did not, in words and as a picture."""

from __future__ import annotations

import json
from pathlib import Path

from made import FEDAVG, make
from sparsona.experiment.results import Run
from sparsona.reports import participation
from sparsona.reports.run_figures import run_figures


def test_who_was_left_out_is_told_and_drawn(tmp_path: Path) -> None:
    """Client 2 lies twice in a row and once later, client 3 is not there; what devices say is cleaned."""
    run = make(tmp_path / "run", FEDAVG * 3)
    assert list(participation.in_words(run)) == []
    assert [f.name for f in run_figures(run, run.path / "figures")] == ["accuracy.png", "clients.png"]
    path = run.path / "rounds.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    whys = {2: {"2": "NaN"}, 3: {"2": "NaN", "3": "not there"}, 5: {"2": "NaN"}, 6: {"2": "a\x1b[2J\nb" + "c" * 200}}
    for row in rows:
        why = whys.get(row["round"], {})
        row |= {"participants": [0, 2, 3], "left_out": sorted(map(int, why)), "why_left_out": why}
    rows[3]["not_tested"] = {"0": "no answer"}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    events = [
        {"event": "resumed", "rounds": 4},
        {"event": "unusable message", "client": "1", "by": 2, "round": 1, "why": "NaN"},
        {"event": "unusable message", "client": "1", "by": 2, "round": 3, "why": "NaN"},
        {"event": "unusable message", "client": "1", "by": 0, "round": 3, "why": "suspected: ValueError"},
        {"event": "began anew", "client": 3, "round": 5, "why": "begins anew: x"},
        {"event": "all clients are connected"},
    ]
    (run.path / "fleet.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    run = Run.open(run.path)
    assert list(participation.in_words(run)) == [
        f"client 2: left out of 4 of 6 rounds: NaN (rounds 2-3, 5); a [2J b{'c' * 113}… (round 6)",
        "client 0: not tested: no answer (round 4)",
        "client 3: left out of 1 of 6 rounds: not there (round 3)",
        "the server resumed after round 4",
        "client 1: its message to peers was unusable, reported by client 2 (rounds 1, 3)",
        "client 1: its message to peers may have been unusable, reported by client 0 (round 3)",
        "client 3 restarted without its state (round 5)",
    ]
    assert [f.name for f in run_figures(run, run.path / "figures")] == [
        "accuracy.png",
        "clients.png",
        "participation.png",
    ]


def test_many_who_were_left_out_are_counted(tmp_path: Path) -> None:
    run = make(tmp_path / "run", [dict.fromkeys(range(14), (1, 2))], data={"clients": 14})
    path = run.path / "rounds.jsonl"
    row = json.loads(path.read_text()) | {"participants": list(range(14)), "left_out": list(range(13))}
    path.write_text(json.dumps(row | {"why_left_out": {str(k): "NaN" for k in range(13)}}) + "\n")
    lines = list(participation.in_words(Run.open(run.path)))
    assert lines[0] == "client 0: left out of 1 of 1 rounds: NaN (round 1)"
    assert lines[10:] == ["3 more clients were left out of rounds; see rounds.jsonl"]


def test_runs_on_unequal_terms_are_named(tmp_path: Path) -> None:
    """Peers all train, of the others two a round; and of those that keep something, one never did."""
    runs = {}
    for name, method in (("star", "fedavg"), ("own", "ditto"), ("peers", "dispfl")):
        run = make(tmp_path / name, FEDAVG, method=method, recipe={"topology": {"neighbours": 2}})
        path = run.path / "rounds.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            row["participants"] = [0, row["round"]]
        if method == "dispfl":
            rows = [row | {"participants": [0, 1, 2, 3], "clock": {"length": 1.0}} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        if method != "fedavg":
            (run.path / "state").mkdir()
            (run.path / "state" / "client-00000.safetensors").touch()
        runs[name] = Run.open(run.path)
    assert participation.counts(runs["own"]) == {"clients": 4, "clients_per_round": 2, "never_trained": 1}
    assert participation.counts(runs["peers"]) == {"clients": 4, "clients_per_round": 4, "never_trained": 0}
    untrained = (
        "some clients never trained and are tested in their initial state: 1 in own; "
        'set evaluate.clients = "participated" to leave them out'
    )
    assert list(participation.unequal([[run] for run in runs.values()], list(runs))) == [
        "the runs differ in the number of clients that train per round: 2 in star, 2 in own, 4 in peers; "
        'with fleet.peers = "drawn", methods without a server also train only fleet.per_round clients',
        untrained,
    ]
    assert list(participation.unequal([[runs["star"]], [runs["own"]]], ["star", "own"])) == [untrained]
    assert list(participation.unequal([[runs["star"]]], ["star"])) == []


def test_untrained_clients_of_a_sweep_are_a_mean_over_seeds(tmp_path: Path) -> None:
    runs = []
    for seed in (1, 2):
        run = make(tmp_path / str(seed), FEDAVG, method="ditto")
        path = run.path / "rounds.jsonl"
        rows = [json.loads(line) | {"participants": list(range(seed))} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (run.path / "state").mkdir()
        (run.path / "state" / "client-00000.safetensors").touch()
        runs.append(Run.open(run.path))
    assert [participation.counts(run)["never_trained"] for run in runs] == [3, 2]
    (line,) = participation.unequal([runs], ["ditto"])
    assert "initial state: 2.5 in ditto" in line


def test_clients_of_numbers_that_never_trained_are_named(tmp_path: Path) -> None:
    run = make(tmp_path / "own", FEDAVG, method="ditto", recipe={"task": {"loss": "mse"}}, finish=False)
    path = run.path / "clients.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    score = {"correct": None, "samples": 10, "loss": 1.0, "rmse": 0.3}
    path.write_text("".join(json.dumps(row | ({"before": score} if "before" in row else {})) + "\n" for row in rows))
    (run.path / "state").mkdir()
    (run.path / "state" / "client-00000.safetensors").touch()
    (line,) = participation.unequal([[Run.open(run.path)]], ["own"])
    assert "initial state: 3 in own" in line  # all but client 0
