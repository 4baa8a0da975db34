"""Comparisons of runs whose numbers were worked out by hand."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from made import COST, DITTO, FEDAVG, PNG, Scores, make
from sparsona.engines.jobs import Score
from sparsona.experiment.metrics import metrics
from sparsona.experiment.results import Run, RunError
from sparsona.reports.comparison import Comparison, compare
from sparsona.reports.costs import DeviceModel
from sparsona.reports.gains import gains
from sparsona.reports.run_figures import run_figures


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    return [make(tmp_path / "plain", FEDAVG), make(tmp_path / "own", DITTO, method="ditto", times=2)]


def shown(table: Comparison, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table.rich(width))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    return text


def test_rows_are_the_numbers_worked_out_by_hand(runs: list[Run]) -> None:
    plain, own = compare(runs, target=0.72).json()
    assert plain == {
        "name": "plain",
        "method": "fedavg",
        "rounds": 2,
        "clients": 4,
        "clients_per_round": 1,  # client 0, in both
        "never_trained": 3,
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
        "clients": 4,
        "clients_per_round": 1,  # client 0, in both
        "never_trained": 3,
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
    plain, own = compare(runs, target=0.6).json()
    assert (plain["rounds_to_target"], plain["bytes_to_target"], plain["flops_to_target"]) == (2, 3_000_000, 4 * 10**9)
    assert (own["rounds_to_target"], own["bytes_to_target"], own["flops_to_target"]) == (1, 3_000_000, 4 * 10**9)


def test_markdown(runs: list[Run]) -> None:
    assert compare(runs, target=0.72).markdown() == (
        "| run | method | clients/round | never trained | accuracy % | pooled % | bottom decile % | spread % "
        "| best round | rounds to 72 % | MB to 72 % | GFLOP to 72 % "
        "| MB down | MB up | MB (paper) | busiest node (MB/round) | GFLOP |\n"
        "| --- | --- |" + " ---: |" * 15 + "\n"
        "| plain | fedavg | 1 | 3 | 70.00 | 75.00 | 50.00 | 15.81 | 2 | not reached | not reached | not reached "
        "| 2.00 | 1.00 | 2.60 | 1.00 | 4.00 |\n"
        "| own | ditto | 1 | 3 | 72.50 | 75.00 | 40.00 | 23.85 | 2 | 2 | 6.00 | 8.00 "
        "| 4.00 | 2.00 | 5.20 | 2.00 | 8.00 |\n"
    )


def test_both_directions_are_shown_where_gradients_were_spared(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole", FEDAVG, cost=COST | {"flops": 3 * 10**9, "forward": 10**9})
    frozen = make(tmp_path / "frozen", FEDAVG, cost=COST | {"flops": 25 * 10**8, "forward": 10**9})
    assert "forward" not in compare([whole]).markdown()
    head, _, *rows = compare([whole, frozen]).markdown().splitlines()
    assert head.endswith("| GFLOP | GFLOP forward | GFLOP backward | values sent per client |")
    assert [row.split("|")[-5:-1] for row in rows] == [
        [" 6.00 ", " 2.00 ", " 4.00 ", " 100,000 "],
        [" 5.00 ", " 2.00 ", " 3.00 ", " 100,000 "],
    ]


def test_time_and_energy_are_shown_for_a_device(runs: list[Run]) -> None:
    """2e9 operations at 1 TFLOPS without a correction are 0.002 s, and the server sends 1 MB at 8 Mbit/s in 1 s."""
    device = DeviceModel(tflops=1.0, correction=1.0, compute_watt=10.0, network_watt=2.0, gbit_per_s=0.008)
    lines = compare(runs, device=device).markdown().splitlines()
    assert lines[0].endswith("| GFLOP | s/round | J/round |")
    assert lines[2].endswith("| 4.00 | 1.00 | 3.02 |")  # 10 W of 0.002 s, 2 W of 1.5 MB in both directions


def test_csv_reads_back_to_the_raw_numbers(runs: list[Run]) -> None:
    table = compare(runs, target=0.72)
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
    table = compare(runs)
    assert " to " not in table.markdown()
    assert "not reached" not in table.csv()
    assert table.json()[0]["target"] is None


def test_recipes_own_targets_may_differ(tmp_path: Path) -> None:
    three = [
        make(tmp_path / "a", FEDAVG, target=0.6),
        make(tmp_path / "b", FEDAVG, target=0.725),
        make(tmp_path / "c", FEDAVG),
    ]
    lines = compare(three).markdown().splitlines()
    assert "| best round | target % | rounds to target | MB to target | GFLOP to target |" in lines[0]
    assert "| 2 | 60 | 2 | 3.00 | 4.00 |" in lines[2]
    assert "| 2 | 72.5 | not reached | not reached | not reached |" in lines[3]
    assert "| 2 |  |  |  |  |" in lines[4]
    assert "| rounds to 50 % |" in compare(three, target=0.5).markdown()


@pytest.mark.parametrize("target", [0.0, -0.1, 1.5, float("nan")])
def test_target_out_of_range(runs: list[Run], target: float) -> None:
    with pytest.raises(ValueError, match=r"target: .* is not allowed; expected a float in \(0, 1\]"):
        compare(runs, target=target)


@pytest.mark.parametrize("width", [80, 130, 150, 200])
def test_terminal_table_shows_every_value_at_any_width(runs: list[Run], width: int) -> None:
    table = compare(runs, target=0.72)
    text = shown(table, width)
    for value in ("plain", "fedavg", "70.00", "75.00", "50.00", "15.81", "reached", "2.60", "5.20", "23.85", "GFLOP"):
        assert value in text
    assert text.count("plain") == (1 if width >= 150 else 2)  # in two parts where one is too wide


def test_names_are_told_as_they_are(tmp_path: Path) -> None:
    odd = [make(tmp_path / "_a$x$ [red]|b", FEDAVG), make(tmp_path / "b", DITTO)]
    table = compare(odd, tmp_path / "out")
    assert "_a$x$ [red]|b" in shown(table, 200)
    assert "| _a$x$ [red]\\|b |" in table.markdown()
    assert next(csv.DictReader(io.StringIO(table.csv())))["name"] == "_a$x$ [red]|b"


def test_names_are_unique(tmp_path: Path) -> None:
    three = [make(tmp_path / where, FEDAVG) for where in ("x/one", "y/one", "y/two")]
    assert [row["name"] for row in compare(three).json()] == ["x/one", "y/one", "two"]
    with pytest.raises(ValueError, match="given twice"):
        compare([three[0], Run(tmp_path / "y" / ".." / "x" / "one")])
    with pytest.raises(ValueError, match="at least one"):
        compare([])


def test_note_names_the_first_key_in_which_data_differs(tmp_path: Path) -> None:
    base = make(tmp_path / "base", FEDAVG)
    same = make(tmp_path / "same", DITTO, method="ditto")
    skewed = make(tmp_path / "skewed", FEDAVG, data={"alpha": 0.1, "min_samples": 5}, recipe={"seed": 2})
    seeded = make(tmp_path / "seeded", FEDAVG, recipe={"seed": 2})
    capped = make(tmp_path / "capped", FEDAVG, data={"samples_per_client": 50})
    assert compare([base, same]).notes == ()
    table = compare([base, same, skewed, seeded, capped])
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
    table = compare([make(tmp_path / "a", FEDAVG), make(tmp_path / "b", FEDAVG, points=["after", "before"])])
    assert table.notes == ("accuracy is before local training in a, but after local training in b",)


def test_gains_by_hand(runs: list[Run]) -> None:
    assert gains(runs) == [
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
    assert gains(runs[:1]) == []


def test_gains_count_the_clients_tested_in_both(tmp_path: Path, runs: list[Run]) -> None:
    part = make(tmp_path / "part", [{3: (40, 40), 7: (1, 10)}])
    none = make(tmp_path / "none", [{9: (1, 10)}])
    first, second = gains([runs[0], part, none])
    assert (first["clients"], first["gained"], first["mean_gain"]) == (1, 1, pytest.approx(10))
    assert (second["clients"], second["gained"], second["lost"], second["mean_gain"]) == (0, 0, 0, None)
    assert len(compare([runs[0], part, none], tmp_path / "out").files) == 10


def test_comparison_is_written_the_same_twice(tmp_path: Path, runs: list[Run]) -> None:
    table = compare(runs, tmp_path / "deep" / "a", target=0.72)
    again = compare(runs, tmp_path / "b", target=0.72)
    assert [f.name for f in table.files] == [
        "compare.csv",
        "compare.md",
        "compare.tex",
        "clients.csv",
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
    device = DeviceModel(tflops=1, correction=1, compute_watt=10, network_watt=0, gbit_per_s=0.008)
    table = compare(runs, tmp_path / "a", device=device)
    assert [row["cost_seconds"] for row in table.json()] == pytest.approx([0.002 + 1, 0.004 + 2])
    assert [row["cost_joules"] for row in table.json()] == pytest.approx([0.02, 0.04])
    assert "a round |" not in compare(runs).markdown()  # not asked for, not shown
    compare(runs, tmp_path / "b")
    assert (tmp_path / "a" / "cost.png").read_bytes() != (tmp_path / "b" / "cost.png").read_bytes()
    assert "![cost](cost.png)" in (tmp_path / "a" / "compare.md").read_text()


def test_a_run_whose_costs_are_lost_is_damaged(runs: list[Run]) -> None:
    (runs[0].path / "clients.jsonl").write_text("")
    with pytest.raises(RunError, match="plain is damaged: round 1 has 1 participants, but the costs of 0"):
        compare(runs)
    (runs[0].path / "clients.jsonl").write_text("{\n")
    with pytest.raises(RunError, match=r"clients.jsonl is damaged in line 1") as caught:
        compare(runs)
    assert str(caught.value).count("damaged") == 1


def test_one_run_has_no_gain(tmp_path: Path, runs: list[Run]) -> None:
    compare(runs, tmp_path / "out")
    table = compare(runs[:1], tmp_path / "out")
    assert len(table.rows) == 1
    assert not (tmp_path / "out" / "gain.png").exists()
    assert "gain" not in (tmp_path / "out" / "compare.md").read_text()


def test_no_folder_writes_nothing(tmp_path: Path, runs: list[Run]) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert compare(runs).files == ()
    assert sorted(tmp_path.rglob("*")) == before


def test_folder_that_cannot_be_written(tmp_path: Path, runs: list[Run]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write the comparison into"):
        compare(runs, tmp_path / "file")


def test_tuned_models_are_told_beside_another_headline(tmp_path: Path) -> None:
    """Of those runs that tune, if theirs is not the accuracy that counts anyway."""
    plain = make(tmp_path / "plain", FEDAVG)
    beside = make(tmp_path / "beside", FEDAVG, points=("before", "after", "shared", "finished"))
    first = make(tmp_path / "first", FEDAVG, points=("finished", "before"))
    table = compare([plain, beside, first])
    assert [row["finished_accuracy"] for row in table.rows] == [None, pytest.approx(0.7), None]
    assert "| fine-tuned % |" in table.markdown()
    assert "| fine-tuned % |" not in compare([plain, first]).markdown()


def test_newcomers_are_told_where_a_run_has_them(tmp_path: Path, runs: list[Run]) -> None:
    file = runs[1].path / "summary.json"
    new = metrics({3: Score(1, 4, 1.0), 4: Score(3, 4, 1.0)})
    file.write_text(json.dumps(json.loads(file.read_text()) | {"newcomers": new}))
    table = compare(runs, tmp_path / "both")
    assert [row["newcomers_accuracy"] for row in table.rows] == [None, 0.5]
    with (tmp_path / "both" / "compare.csv").open() as f:
        assert [row["newcomers_accuracy"] for row in csv.DictReader(f)] == ["", "0.5"]
    assert "| newcomers % |" in table.markdown()
    assert "newcomers" in shown(table, 100)
    assert "newcomers" not in compare(runs[:1]).markdown()


def test_unfinished_run(tmp_path: Path, runs: list[Run]) -> None:
    with pytest.raises(RunError, match="not finished"):
        compare([runs[0], make(tmp_path / "half", FEDAVG, finish=False)])


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
    assert len(run_figures(run, run.path / "figures")) == 2
    table = compare([run, same], tmp_path / "out")
    assert all(f.stat().st_size > 0 for f in table.files)
    assert gains([run, same])[0]["equal"] == len(run.client_accuracy())


def test_what_methods_tell_is_shown_and_drawn(runs: list[Run]) -> None:
    """Peers have a clock and notes in every round; the other run has neither."""
    path = runs[1].path / "rounds.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row, sparsity, length in zip(rows, (0.5, 0.75), (3.0, 1.0), strict=True):
        row |= {"notes": {"sparsity": sparsity, "score": 0.1}, "clock": {"length": length}}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = compare(runs, runs[0].path.parent / "out")
    assert [row["sparsity"] for row in table.json()] == [None, 0.75]
    assert [row["round_length"] for row in table.json()] == [None, 2.0]
    assert "| GFLOP | final sparsity % | round length |\n" in table.markdown()
    assert table.markdown().splitlines()[2].endswith("| 4.00 |  |  |")
    assert table.markdown().splitlines()[3].endswith("| 8.00 | 75.00 | 2.00 |")
    assert {"notes.png", "accuracy-time.png"} <= {f.name for f in table.files}
    assert [f.name for f in run_figures(runs[1], runs[1].path / "figures")] == [
        "accuracy.png",
        "clients.png",
        "notes.png",
    ]
    compare(runs[:1], runs[0].path.parent / "out")  # nothing told, so no figure of an earlier comparison
    assert not list((runs[0].path.parent / "out").glob("notes.png"))
    assert not list((runs[0].path.parent / "out").glob("accuracy-time.png"))
