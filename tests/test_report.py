"""Tables and figures of runs whose numbers were worked out by hand."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sparsona import attendance, report
from sparsona.config import check
from sparsona.costs import Device
from sparsona.engines.device import Score
from sparsona.evaluate import metrics
from sparsona.results import Journal, Run, RunError, summarise, write
from sparsona.sheet import amount, flop_unit
from sparsona.simulate import waiting

Scores = Mapping[int, tuple[int, int]]  # client -> correct, samples
COST = {"down": 1_000_000, "up": 500_000, "paper_down": 900_000, "paper_up": 400_000, "flops": 2_000_000_000}
FEDAVG = [
    {0: (5, 10), 1: (5, 10), 2: (10, 20), 3: (20, 40)},  # mean 0.5
    {0: (8, 10), 1: (6, 10), 2: (10, 20), 3: (36, 40)},  # 0.8, 0.6, 0.5, 0.9: mean 0.7
]
DITTO = [
    {0: (9, 10), 1: (6, 10), 2: (8, 20), 3: (32, 40)},  # 0.9, 0.6, 0.4, 0.8: mean 0.675
    {0: (10, 10), 1: (6, 10), 2: (8, 20), 3: (36, 40)},  # 1.0, 0.6, 0.4, 0.9: mean 0.725
]
PNG = b"\x89PNG\r\n\x1a\n"


def make(
    path: Path,
    rounds: Sequence[Scores | None],
    *,
    method: str = "fedavg",
    times: int = 1,
    cost: Mapping[str, int] = COST,
    finish: bool = True,
    points: Sequence[str] = ("before",),
    target: float | None = None,
    recipe: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
) -> Run:
    """A run folder with the given scores by round, None where a round was not evaluated, at the cost ``times`` over.

    Client 0 alone takes part, and bears the cost.
    """
    evaluate = {"points": list(points), "every": len(rounds)} | ({} if target is None else {"target": target})
    raw = {"name": path.name, "rounds": len(rounds), "model": {"name": "digits-mlp"}, "method": {"name": method}}
    checked = check(raw | {"evaluate": evaluate, "data": {"clients": 4, **(data or {})}} | dict(recipe or {}))
    run = Run.create(path, checked, {})
    journals = {name: Journal(path / f"{name}.jsonl") for name in ("rounds", "clients")}
    rows: list[dict[str, Any]] = []
    for i, scores in enumerate(rounds, start=1):
        spent = {name: value * times for name, value in cost.items()}
        total = {name: value * i for name, value in spent.items()}
        row: dict[str, Any] = {"round": i, "participants": [0], "left_out": [], **spent, "total": total}
        told: dict[int, dict[str, Any]] = {0: dict(spent)}
        if scores is not None:
            row |= {p: metrics({k: Score(c, n, 1.0) for k, (c, n) in scores.items()}) for p in points}
            for k, (c, n) in scores.items():
                score = {"correct": c, "samples": n, "loss": 1.0}
                told.setdefault(k, {}).update(dict.fromkeys(points, score))
        journals["clients"].add(*({"round": i, "client": k} | more for k, more in told.items()))
        rows.append(row)
        journals["rounds"].add(row)
    for journal in journals.values():
        journal.close()
    if finish:
        write(path / "summary.json", json.dumps(summarise(checked, rows)))
    return run


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    return [make(tmp_path / "plain", FEDAVG), make(tmp_path / "own", DITTO, method="ditto", times=2)]


def shown(table: report.Comparison, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table.rich(width))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    return text


def test_rows_are_the_numbers_worked_out_by_hand(runs: list[Run]) -> None:
    plain, own = report.compare(runs, target=0.72).json()
    assert plain == {
        "name": "plain",
        "method": "fedavg",
        "rounds": 2,
        "accuracy": pytest.approx(0.7),
        "accuracy_by_sample": 0.75,  # 8 + 6 + 10 + 36 of 80
        "bottom_decile": 0.5,
        "spread": pytest.approx(0.025**0.5),
        "shared_accuracy": None,
        "unfinished_accuracy": None,
        "finished_accuracy": None,
        "after_accuracy": None,
        "newcomers_accuracy": None,
        "best_round": 2,
        "best_accuracy": pytest.approx(0.7),
        "target": 0.72,
        "rounds_to_target": None,
        "bytes_to_target": None,
        "flops_to_target": None,
        "down_bytes": 2_000_000,
        "up_bytes": 1_000_000,
        "paper_bytes": 2_600_000,
        "busiest_bytes": 1_000_000,  # what the server sends in each of two rounds
        "flops": 4_000_000_000,
        "forward_flops": None,  # a run of before it was counted
        "backward_flops": None,
        "values_up": 100_000,  # 400,000 bytes in each round
        "sparsity": None,
        "round_length": None,
        "cost_seconds": pytest.approx(0.008125),  # 2e9 operations: 5 / 80e12 of a second each; 1 MB down: 8 / 1e9
        "cost_joules": pytest.approx(450 * 0.000125 + 0.012),
    }
    assert own == {
        "name": "own",
        "method": "ditto",
        "rounds": 2,
        "accuracy": pytest.approx(0.725),
        "accuracy_by_sample": 0.75,
        "bottom_decile": 0.4,
        "spread": pytest.approx(0.056875**0.5),
        "shared_accuracy": None,
        "unfinished_accuracy": None,
        "finished_accuracy": None,
        "after_accuracy": None,
        "newcomers_accuracy": None,
        "best_round": 2,
        "best_accuracy": pytest.approx(0.725),
        "target": 0.72,
        "rounds_to_target": 2,
        "bytes_to_target": 6_000_000,
        "flops_to_target": 8_000_000_000,
        "down_bytes": 4_000_000,
        "up_bytes": 2_000_000,
        "paper_bytes": 5_200_000,
        "busiest_bytes": 2_000_000,
        "flops": 8_000_000_000,
        "forward_flops": None,
        "backward_flops": None,
        "values_up": 200_000,
        "sparsity": None,
        "round_length": None,
        "cost_seconds": pytest.approx(0.01625),
        "cost_joules": pytest.approx(450 * 0.00025 + 0.024),
    }


def test_target_is_reached_at_the_first_round_that_does(runs: list[Run]) -> None:
    plain, own = report.compare(runs, target=0.6).json()
    assert (plain["rounds_to_target"], plain["bytes_to_target"], plain["flops_to_target"]) == (2, 3_000_000, 4 * 10**9)
    assert (own["rounds_to_target"], own["bytes_to_target"], own["flops_to_target"]) == (1, 3_000_000, 4 * 10**9)


def test_markdown(runs: list[Run]) -> None:
    assert report.compare(runs, target=0.72).markdown() == (
        "| run | method | accuracy % | by sample % | bottom decile % | spread % | best round "
        "| rounds to 72 % | MB to 72 % | GFLOP to 72 % | MB down | MB up | MB paper | MB a round, busiest | GFLOP |\n"
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| plain | fedavg | 70.00 | 75.00 | 50.00 | 15.81 | 2 | not reached | not reached | not reached "
        "| 2.00 | 1.00 | 2.60 | 1.00 | 4.00 |\n"
        "| own | ditto | 72.50 | 75.00 | 40.00 | 23.85 | 2 | 2 | 6.00 | 8.00 | 4.00 | 2.00 | 5.20 | 2.00 | 8.00 |\n"
    )


def test_both_directions_are_shown_where_gradients_were_spared(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole", FEDAVG, cost=COST | {"flops": 3 * 10**9, "forward": 10**9})
    frozen = make(tmp_path / "frozen", FEDAVG, cost=COST | {"flops": 25 * 10**8, "forward": 10**9})
    assert "forward" not in report.compare([whole]).markdown()
    head, _, *rows = report.compare([whole, frozen]).markdown().splitlines()
    assert head.endswith("| GFLOP | GFLOP forward | GFLOP backward | values up |")
    assert [row.split("|")[-5:-1] for row in rows] == [
        [" 6.00 ", " 2.00 ", " 4.00 ", " 100,000 "],
        [" 5.00 ", " 2.00 ", " 3.00 ", " 100,000 "],
    ]


def test_time_and_energy_are_shown_for_a_device(runs: list[Run]) -> None:
    """2e9 operations at 1 TFLOPS without a correction are 0.002 s, and the server sends 1 MB at 8 Mbit/s in 1 s."""
    device = Device(tflops=1.0, correction=1.0, compute_watt=10.0, network_watt=2.0, gbit_per_s=0.008)
    lines = report.compare(runs, device=device).markdown().splitlines()
    assert lines[0].endswith("| GFLOP | s a round | J a round |")
    assert lines[2].endswith("| 4.00 | 1.00 | 3.02 |")  # 10 W of 0.002 s, 2 W of 1.5 MB in both directions


def test_csv_reads_back_to_the_raw_numbers(runs: list[Run]) -> None:
    table = report.compare(runs, target=0.72)
    back = list(csv.DictReader(io.StringIO(table.csv())))
    assert len(back) == 2
    for row, raw in zip(back, table.json(), strict=True):
        assert list(row) == list(raw)
        for key, value in raw.items():
            missing = "not reached" if key.endswith("_to_target") else ""
            assert row[key] == (missing if value is None else str(value))
            if isinstance(value, float):
                assert float(row[key]) == value


def test_without_a_target_there_are_no_target_columns(runs: list[Run]) -> None:
    table = report.compare(runs)
    assert " to " not in table.markdown()
    assert "not reached" not in table.csv()
    assert table.json()[0]["target"] is None


def test_recipes_own_targets_may_differ(tmp_path: Path) -> None:
    three = [
        make(tmp_path / "a", FEDAVG, target=0.6),
        make(tmp_path / "b", FEDAVG, target=0.725),
        make(tmp_path / "c", FEDAVG),
    ]
    lines = report.compare(three).markdown().splitlines()
    assert "| best round | target % | rounds to target | MB to target | GFLOP to target |" in lines[0]
    assert "| 2 | 60 | 2 | 3.00 | 4.00 |" in lines[2]
    assert "| 2 | 72.5 | not reached | not reached | not reached |" in lines[3]
    assert "| 2 |  |  |  |  |" in lines[4]
    assert "| rounds to 50 % |" in report.compare(three, target=0.5).markdown()


@pytest.mark.parametrize("target", [0.0, -0.1, 1.5, float("nan")])
def test_target_out_of_range(runs: list[Run], target: float) -> None:
    with pytest.raises(ValueError, match=r"target = .*: must be more than 0 and at most 1"):
        report.compare(runs, target=target)


@pytest.mark.parametrize("width", [80, 117, 118, 200])
def test_terminal_table_shows_every_value_at_any_width(runs: list[Run], width: int) -> None:
    table = report.compare(runs, target=0.72)
    text = shown(table, width)
    for value in ("plain", "fedavg", "70.00", "75.00", "50.00", "15.81", "reached", "2.60", "5.20", "23.85", "GFLOP"):
        assert value in text
    assert text.count("plain") == (1 if width >= 118 else 2)  # in two parts where one is too wide


def test_names_are_told_as_they_are(tmp_path: Path) -> None:
    odd = [make(tmp_path / "_a$x$ [red]|b", FEDAVG), make(tmp_path / "b", DITTO)]
    table = report.compare(odd, tmp_path / "out")
    assert "_a$x$ [red]|b" in shown(table, 200)
    assert "| _a$x$ [red]\\|b |" in table.markdown()
    assert next(csv.DictReader(io.StringIO(table.csv())))["name"] == "_a$x$ [red]|b"


def test_names_are_unique(tmp_path: Path) -> None:
    three = [make(tmp_path / where, FEDAVG) for where in ("x/one", "y/one", "y/two")]
    assert [row["name"] for row in report.compare(three).json()] == ["x/one", "y/one", "two"]
    with pytest.raises(ValueError, match="given twice"):
        report.compare([three[0], Run(tmp_path / "y" / ".." / "x" / "one")])
    with pytest.raises(ValueError, match="at least one"):
        report.compare([])


def test_note_names_the_first_key_in_which_data_differs(tmp_path: Path) -> None:
    base = make(tmp_path / "base", FEDAVG)
    same = make(tmp_path / "same", DITTO, method="ditto")
    skewed = make(tmp_path / "skewed", FEDAVG, data={"alpha": 0.1, "min_samples": 5}, recipe={"seed": 2})
    seeded = make(tmp_path / "seeded", FEDAVG, recipe={"seed": 2})
    capped = make(tmp_path / "capped", FEDAVG, data={"samples_per_client": 50})
    assert report.compare([base, same]).notes == ()
    table = report.compare([base, same, skewed, seeded, capped])
    assert table.notes == (
        "the runs differ in data: data.alpha is 0.3 in base, but 0.1 in skewed",
        "the runs differ in data: seed is 1 in base, but 2 in seeded",
        "the runs differ in data: data.samples_per_client is not set in base, but 50 in capped",
    )
    assert table.markdown().endswith(
        f"|\n\nNote: {table.notes[0]}\n\nNote: {table.notes[1]}\n\nNote: {table.notes[2]}\n"
    )
    assert f"Note: {table.notes[0]}" in shown(table, 120)


def test_note_tells_different_evaluation_points(tmp_path: Path) -> None:
    table = report.compare([make(tmp_path / "a", FEDAVG), make(tmp_path / "b", FEDAVG, points=["after", "before"])])
    assert table.notes == ("accuracy is before local training in a, but after local training in b",)


def test_gains_by_hand(runs: list[Run]) -> None:
    assert report.gains(runs) == [
        {
            "name": "own",
            "baseline": "plain",
            "clients": 4,
            "gained": 1,  # +20, 0, -10, 0 points
            "lost": 1,
            "equal": 2,
            "mean_gain": pytest.approx(2.5),
            "mb": 6.0,
            "extra_mb": 3.0,
        }
    ]
    assert report.gains(runs[:1]) == []


def test_gains_count_the_clients_tested_in_both(tmp_path: Path, runs: list[Run]) -> None:
    part = make(tmp_path / "part", [{3: (40, 40), 7: (1, 10)}])
    none = make(tmp_path / "none", [{9: (1, 10)}])
    first, second = report.gains([runs[0], part, none])
    assert (first["clients"], first["gained"], first["mean_gain"]) == (1, 1, pytest.approx(10))
    assert (second["clients"], second["gained"], second["lost"], second["mean_gain"]) == (0, 0, 0, None)
    assert len(report.compare([runs[0], part, none], tmp_path / "out").files) == 8


def test_comparison_is_written_the_same_twice(tmp_path: Path, runs: list[Run]) -> None:
    table = report.compare(runs, tmp_path / "deep" / "a", target=0.72)
    again = report.compare(runs, tmp_path / "b", target=0.72)
    assert [f.name for f in table.files] == [
        "compare.csv",
        "compare.md",
        "accuracy-rounds.png",
        "accuracy-bytes.png",
        "accuracy-flops.png",
        "cost.png",
        "clients.png",
        "gain.png",
    ]
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == sorted(f.name for f in table.files)
    for one, two in zip(table.files, again.files, strict=True):
        assert one.read_bytes() == two.read_bytes()
        assert one.suffix != ".png" or one.read_bytes().startswith(PNG)
    assert table.files[0].read_text() == table.csv()
    assert table.files[1].read_text().startswith(table.markdown())
    assert "![gain](gain.png)" in table.files[1].read_text()


def test_costs_are_those_of_the_device(tmp_path: Path, runs: list[Run]) -> None:
    device = Device(tflops=1, correction=1, compute_watt=10, network_watt=0, gbit_per_s=0.008)
    table = report.compare(runs, tmp_path / "a", device=device)
    assert [row["cost_seconds"] for row in table.json()] == pytest.approx([0.002 + 1, 0.004 + 2])
    assert [row["cost_joules"] for row in table.json()] == pytest.approx([0.02, 0.04])
    assert "a round |" not in report.compare(runs).markdown()  # not asked for, not shown
    report.compare(runs, tmp_path / "b")
    assert (tmp_path / "a" / "cost.png").read_bytes() != (tmp_path / "b" / "cost.png").read_bytes()
    assert "![cost](cost.png)" in (tmp_path / "a" / "compare.md").read_text()


def test_a_run_whose_costs_are_lost_is_damaged(runs: list[Run]) -> None:
    (runs[0].path / "clients.jsonl").write_text("")
    with pytest.raises(RunError, match="plain is damaged: round 1 has 1 participants, but costs of 0"):
        report.compare(runs)
    (runs[0].path / "clients.jsonl").write_text("{\n")
    with pytest.raises(RunError, match=r"clients.jsonl is damaged in line 1") as caught:
        report.compare(runs)
    assert str(caught.value).count("damaged") == 1


def test_one_run_has_no_gain(tmp_path: Path, runs: list[Run]) -> None:
    report.compare(runs, tmp_path / "out")
    table = report.compare(runs[:1], tmp_path / "out")
    assert len(table.rows) == 1
    assert not (tmp_path / "out" / "gain.png").exists()
    assert "gain" not in (tmp_path / "out" / "compare.md").read_text()


def test_no_folder_writes_nothing(tmp_path: Path, runs: list[Run]) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert report.compare(runs).files == ()
    assert sorted(tmp_path.rglob("*")) == before


def test_folder_that_cannot_be_written(tmp_path: Path, runs: list[Run]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write the comparison into"):
        report.compare(runs, tmp_path / "file")


def test_tuned_models_are_told_beside_another_headline(tmp_path: Path) -> None:
    """Of those runs that tune, if theirs is not the accuracy that counts anyway."""
    plain = make(tmp_path / "plain", FEDAVG)
    beside = make(tmp_path / "beside", FEDAVG, points=("before", "after", "shared", "finished"))
    first = make(tmp_path / "first", FEDAVG, points=("finished", "before"))
    table = report.compare([plain, beside, first])
    assert [row["finished_accuracy"] for row in table.rows] == [None, pytest.approx(0.7), None]
    assert "| tuned % |" in table.markdown()
    assert "| tuned % |" not in report.compare([plain, first]).markdown()


def test_newcomers_are_told_where_a_run_has_them(tmp_path: Path, runs: list[Run]) -> None:
    file = runs[1].path / "summary.json"
    new = metrics({3: Score(1, 4, 1.0), 4: Score(3, 4, 1.0)})
    file.write_text(json.dumps(json.loads(file.read_text()) | {"newcomers": new}))
    table = report.compare(runs, tmp_path / "both")
    assert [row["newcomers_accuracy"] for row in table.rows] == [None, 0.5]
    with (tmp_path / "both" / "compare.csv").open() as f:
        assert [row["newcomers_accuracy"] for row in csv.DictReader(f)] == ["", "0.5"]
    assert "| newcomers % |" in table.markdown()
    assert "newcomers" in shown(table, 100)
    assert "newcomers" not in report.compare(runs[:1]).markdown()


def test_unfinished_run(tmp_path: Path, runs: list[Run]) -> None:
    with pytest.raises(RunError, match="not finished"):
        report.compare([runs[0], make(tmp_path / "half", FEDAVG, finish=False)])


def test_run_figures(tmp_path: Path) -> None:
    run = make(tmp_path / "run", FEDAVG, points=["before", "after"], target=0.6, finish=False)
    files = report.run_figures(run)
    assert files == [run.path / "figures" / "accuracy.png", run.path / "figures" / "clients.png"]
    first = [f.read_bytes() for f in files]
    assert all(png.startswith(PNG) for png in first)
    assert [f.read_bytes() for f in report.run_figures(run)] == first
    assert sorted(p.name for p in (run.path / "figures").iterdir()) == ["accuracy.png", "clients.png"]


@pytest.mark.parametrize(
    "rounds",
    [
        [{0: (1, 2)}],  # one client, one round
        [None, None, FEDAVG[0]],  # evaluated at the end only
        [{0: (0, 1), 1: (0, 1)}],  # nothing right
        [{k: (k % 7, 7) for k in range(300)}],  # too many for bars of their own
    ],
)
def test_figures_of_small_and_large_runs(tmp_path: Path, rounds: list[Scores | None]) -> None:
    run = make(tmp_path / "a", rounds, points=["after"])
    same = make(tmp_path / "b", rounds, points=["after"])
    assert len(report.run_figures(run)) == 2
    table = report.compare([run, same], tmp_path / "out")
    assert all(f.stat().st_size > 0 for f in table.files)
    assert report.gains([run, same])[0]["equal"] == len(run.client_accuracy())


def test_what_methods_tell_is_shown_and_drawn(runs: list[Run]) -> None:
    """Peers have a clock and notes in every round; the other run has neither."""
    path = runs[1].path / "rounds.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row, sparsity, length in zip(rows, (0.5, 0.75), (3.0, 1.0), strict=True):
        row |= {"notes": {"sparsity": sparsity, "score": 0.1}, "clock": {"length": length}}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = report.compare(runs, runs[0].path.parent / "out")
    assert [row["sparsity"] for row in table.json()] == [None, 0.75]
    assert [row["round_length"] for row in table.json()] == [None, 2.0]
    assert "| GFLOP | final sparsity % | round length |\n" in table.markdown()
    assert table.markdown().splitlines()[2].endswith("| 4.00 |  |  |")
    assert table.markdown().splitlines()[3].endswith("| 8.00 | 75.00 | 2.00 |")
    assert {"told.png", "accuracy-time.png"} <= {f.name for f in table.files}
    assert [f.name for f in report.run_figures(runs[1])] == ["accuracy.png", "clients.png", "told.png"]
    report.compare(runs[:1], runs[0].path.parent / "out")  # nothing told, so no figure of an earlier comparison
    assert not list((runs[0].path.parent / "out").glob("told.png"))
    assert not list((runs[0].path.parent / "out").glob("accuracy-time.png"))


def test_a_run_not_yet_evaluated_has_no_figures(tmp_path: Path) -> None:
    run = make(tmp_path / "run", [None], finish=False)
    assert report.run_figures(run) == []


def test_figures_do_not_depend_on_the_users_settings(tmp_path: Path, runs: list[Run]) -> None:
    import matplotlib

    want = [f.read_bytes() for f in report.run_figures(runs[0])]
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red", "savefig.dpi": 50}):
        assert [f.read_bytes() for f in report.run_figures(runs[0])] == want
        assert matplotlib.rcParams["font.size"] == 20


@pytest.mark.parametrize(("neighbours", "waits", "draws"), [([1, 3, 9], [0, 1, 5], 4), ([2], [], 1)])
def test_figure_of_waiting(tmp_path: Path, neighbours: list[int], waits: list[int], draws: int) -> None:
    found = waiting(10, neighbours, waits, draws)
    first = report.waiting_figure(found, tmp_path / "a.png").read_bytes()
    assert first.startswith(PNG)
    assert report.waiting_figure(found, tmp_path / "b.png").read_bytes() == first


def test_workers_do_not_load_matplotlib_and_nobody_loads_pyplot(runs: list[Run]) -> None:
    code = (
        "import sys; from pathlib import Path; from sparsona import report; from sparsona.results import Run\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"report.run_figures(Run(Path({str(runs[0].path)!r})))\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.01234, "0.0123"), (1, "1.00"), (9.87654, "9.88"), (12.34, "12.3"), (-22.25, "-22.2")],
)
def test_amounts(value: float, text: str) -> None:
    assert amount(value) == text


@pytest.mark.parametrize(
    ("flops", "unit"), [(0, "GFLOP"), (5e6, "MFLOP"), (5e9, "GFLOP"), (5e12, "GFLOP"), (5e13, "TFLOP"), (5e16, "PFLOP")]
)
def test_flop_units(flops: float, unit: str) -> None:
    assert flop_unit(flops)[1] == unit


def test_who_was_left_out_is_told_and_drawn(tmp_path: Path) -> None:
    """Client 2 lies twice in a row and once later, client 3 is not there; what devices say is cleaned."""
    run = make(tmp_path / "run", FEDAVG * 3)
    assert list(attendance.in_words(run)) == []
    assert [f.name for f in report.run_figures(run)] == ["accuracy.png", "clients.png"]
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
        {"event": "all clients are there"},
    ]
    (run.path / "fleet.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    run = Run.open(run.path)
    assert list(attendance.in_words(run)) == [
        f"client 2: left out of 4 of 6 rounds: NaN (rounds 2-3, 5); a [2J b{'c' * 113}… (round 6)",
        "client 0: not tested: no answer (round 4)",
        "client 3: left out of 1 of 6 rounds: not there (round 3)",
        "the server went on after round 4",
        "client 1: what it told its peers was of no use, says client 2 (rounds 1, 3)",
        "client 1: what it told its peers may have been of no use, says client 0 (round 3)",
        "client 3 had lost what it kept and began anew (round 5)",
    ]
    assert [f.name for f in report.run_figures(run)] == ["accuracy.png", "clients.png", "attendance.png"]


def test_many_who_were_left_out_are_counted(tmp_path: Path) -> None:
    run = make(tmp_path / "run", [dict.fromkeys(range(14), (1, 2))], data={"clients": 14})
    path = run.path / "rounds.jsonl"
    row = json.loads(path.read_text()) | {"participants": list(range(14)), "left_out": list(range(13))}
    path.write_text(json.dumps(row | {"why_left_out": {str(k): "NaN" for k in range(13)}}) + "\n")
    lines = list(attendance.in_words(Run.open(run.path)))
    assert lines[0] == "client 0: left out of 1 of 1 rounds: NaN (round 1)"
    assert lines[10:] == ["3 more clients were left out of rounds; rounds.jsonl names them"]
