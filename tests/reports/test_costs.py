"""The cost model against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from sparsona.reports.costs import DeviceModel, TimeEnergy, busiest, per_round

TEN = DeviceModel(
    tflops=1e-9, correction=2, compute_watt=10, network_watt=3, gbit_per_s=8e-9
)  # 500 operations, a byte a s


def client(t: int, k: int, flops: int, down: int, up: int) -> dict[str, Any]:
    return {"round": t, "client": k, "flops": flops, "down": down, "up": up}


def test_the_papers_example() -> None:
    """A dense ResNet18 for a round: 3 passes of 1,110,845,450 operations, 5 epochs of 500 samples, 10 neighbours."""
    flops, nbytes = 3 * 1_110_845_450 * 5 * 500, 11_173_962 * 4 * 10
    device = DeviceModel()
    assert device.compute_seconds(flops) == pytest.approx(0.521, abs=5e-4)
    assert device.cost(flops, 0).joules == pytest.approx(234.3, abs=0.05)
    assert device.network_seconds(nbytes) == pytest.approx(3.576, abs=5e-4)
    assert device.cost(0, nbytes).joules == pytest.approx(3.58, abs=5e-3)
    whole = device.cost(flops, nbytes, delay=18)
    assert whole.seconds == pytest.approx(18 * 0.5207 + 3.5757, abs=1e-3)  # waiting stretches computing
    assert whole.joules == pytest.approx(device.cost(flops, nbytes).joules)  # and takes no energy


def test_a_clients_round() -> None:
    assert TEN.cost(1000, 7) == TimeEnergy(2 + 7, 20 + 21)
    assert TEN.cost(1000, 7, delay=3) == TimeEnergy(6 + 7, 20 + 21)
    assert TEN.cost(0, 0) == TimeEnergy(0, 0)


def test_total() -> None:
    cost = TimeEnergy(seconds=4, joules=100)
    assert [cost.total(theta) for theta in (0, 0.25, 1)] == [4, 28, 100]
    for theta in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"theta: .* is not allowed; expected a float in \[0, 1\]"):
            cost.total(theta)


def test_a_run() -> None:
    """The busiest decide the time, one by its operations, another by its bytes; all pay for energy."""
    clients = [
        client(1, 0, 1000, 1, 4),  # 2 s, 4 s; 20 J
        client(1, 1, 500, 4, 1),  # 1 s, 4 s; 10 J
        {"round": 1, "client": 2, "before": {}},  # tested only
        client(2, 2, 2000, 6, 1),  # with a server: 4 s, 40 J
        client(2, 3, 0, 6, 2),
    ]
    rounds: list[dict[str, Any]] = [
        {"round": 1, "participants": [0, 1], "down": 5, "up": 5, "clock": {"length": 3.0}},  # 3 * 2 + 4 s, 30 + 15 J
        {"round": 2, "participants": [2, 3], "down": 12, "up": 3},  # 4 + 12 s, for the server sends 12; 40 + 45 J
        {"round": 3, "participants": [], "down": 0, "up": 0},  # nobody was there
    ]
    assert per_round(rounds, clients, TEN) == TimeEnergy(pytest.approx(26 / 3), pytest.approx(130 / 3))
    with pytest.raises(ValueError, match="round 2 has 2 participants, but the costs of 0"):
        per_round(rounds, clients[:3], TEN)


def test_parse() -> None:
    assert DeviceModel.parse("tflops=80,correction=5,compute_watt=450,network_watt=1,gbit_per_s=1") == DeviceModel()
    assert DeviceModel.parse(" gbit_per_s = 0.1 , tflops=1e1") == DeviceModel(tflops=10, gbit_per_s=0.1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 'device: "" is not allowed; expected comma-separated NAME=NUMBER with the names tflops, correction,'),
        (
            "tflops",
            'device: "tflops" is not allowed; expected comma-separated NAME=NUMBER with the names tflops, correction,',
        ),
        ("tflops=", "expected comma-separated NAME=NUMBER"),
        ("tflops=1,", "expected comma-separated NAME=NUMBER"),
        ("watt=1", 'device: no such name "watt"; allowed: tflops, correction, '),
        ("tflops=1,tflops=2", "device: tflops is given twice"),
        ("tflops=fast", "device: tflops=fast is not allowed; expected a float"),
        ("tflops=0", "device: tflops=0 is not allowed; expected a finite float > 0"),
        ("gbit_per_s=-1", "device: gbit_per_s=-1 is not allowed; expected a finite float > 0"),
        ("correction=inf", "device: correction=inf is not allowed; expected a finite float > 0"),
        ("network_watt=-1", "device: network_watt=-1 is not allowed; expected a finite float >= 0"),
        ("compute_watt=nan", "device: compute_watt=nan is not allowed; expected a finite float >= 0"),
    ],
)
def test_parse_refuses(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DeviceModel.parse(text)


def test_the_busiest_node() -> None:
    """Among peers the client that most passes through, in one direction; with a server the server."""
    clients = [client(1, 0, 1, 30, 50), client(1, 1, 1, 30, 10), client(2, 0, 1, 30, 0), client(2, 1, 1, 30, 0)]
    clients.append({"round": 2, "client": 2, "before": {}})  # tested only
    peers: list[dict[str, Any]] = [
        {"round": 1, "down": 60, "up": 60, "clock": {"length": 2.0}},
        {"round": 2, "down": 60, "up": 0, "clock": {"length": 1.0}},
    ]
    assert busiest(peers, clients) == (50 + 30) / 2
    server = [{key: value for key, value in row.items() if key != "clock"} for row in peers]
    assert busiest(server, clients) == (60 + 60) / 2
