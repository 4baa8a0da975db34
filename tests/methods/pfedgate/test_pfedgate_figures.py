"""Figures of gates: levels and trees worked out by hand, and that a run draws them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import sparsona
from small import recipe
from sparsona.core.samples import LocalData
from sparsona.engines.local import LocalEngine
from sparsona.engines.rounds import star
from sparsona.engines.store import Store
from sparsona.engines.values import loads, types_of
from sparsona.experiment.setup import prepare
from sparsona.methods.pfedgate.figures import draw_tree, tree
from sparsona.methods.pfedgate.pfedgate import PFedGate
from sparsona.methods.pfedgate.sparse_adaptation import LEVELS, levels
from sparsona.reports.comparison import compare
from sparsona.reports.note_figures import histograms


def test_levels_by_hand() -> None:
    weights = torch.tensor([0.95, 0.05, 0.5, 0.55, 0.1, 0.92, 0.0, -3.0, 7.0, 0.3])
    chosen = torch.tensor([True, True, True, True, True, False, False, True, True, False])
    found = dict(zip(LEVELS, levels(weights, chosen).tolist(), strict=True))
    want = {"dropped": 0.3, "below 0.1": 0.2, "0.1 to 0.2": 0.1, "0.5 to 0.6": 0.2, "above 0.9": 0.2}
    assert found == pytest.approx(dict.fromkeys(LEVELS, 0.0) | want)


def test_a_tree_by_hand() -> None:
    """At 0, 1, 10 and 12: pairs at 1 and 2 apart, whose middles, 10.5 apart, are sqrt(2 * 2 * 2 / 4) times that."""
    places = {7: 10.0, 2: 0.0, 5: 12.0, 3: 1.0}
    found = tree({k: torch.tensor([at, 4.0]) for k, at in places.items()})
    assert found is not None
    order, drawn = found
    assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset({2, 3}), frozenset({5, 7})}
    heights = sorted(max(line) for line in drawn["dcoord"])
    assert heights == pytest.approx([1.0, 2.0, math.sqrt(2) * 10.5])


def test_no_tree_of_one_or_of_unlike_gates(tmp_path: Path) -> None:
    one, other = torch.zeros(3), torch.zeros(4)
    assert tree({0: one}) is None
    assert tree({0: one, 1: other}) is None
    assert draw_tree({0: one, 1: other}, np.ones((2, 3)), tmp_path / "x.png") is None
    assert draw_tree({0: one, 1: one}, np.zeros((2, 3)), tmp_path / "same.png") is not None  # all at distance 0


def test_a_run_draws_its_gates_and_a_comparison_who_gained(tmp_path: Path) -> None:
    drawn = {"results": {"figures": True}}
    done = [sparsona.run(recipe(name, rounds=2, **drawn), tmp_path / name) for name in ("fedavg", "pfedgate")]
    names = {file.name for file in (done[1].path / "figures").iterdir()}
    assert names == {"accuracy.png", "clients.png", "notes.png", "histograms.png", "gates.png"}
    assert not {"histograms.png", "gates.png"} & {file.name for file in (done[0].path / "figures").iterdir()}
    _, shares = histograms(done[1])["gate weights"]
    assert shares.shape == (11, 2)
    np.testing.assert_allclose(shares.sum(0), 1)
    assert (shares[0] > 0).all()  # keep = 0.5 drops some
    assert tmp_path / "out" / "gain.png" in compare(done, tmp_path / "out").files


@pytest.mark.parametrize("keep", [1.0, 0.5])
def test_gates_of_clients_with_the_same_labels_are_alike(keep: float) -> None:
    """The even clients have labels 0 to 4, the odd ones 5 to 9, though all gates begin far apart: a branch for each."""
    device, fleet = prepare(recipe("pfedgate", data={"sample_share": 1.0}, method={"keep": keep}))
    x, y = fleet.dataset.x, fleet.dataset.y
    own = [torch.nonzero((y < 5) == (k % 2 == 0)).flatten()[k // 2 :: 3] for k in range(6)]
    data = [LocalData(replace(fleet.local(0).train, x=x, y=y, index=index), fleet.local(0).validation) for index in own]
    device, store = replace(device, local=lambda k: data[k]), Store()
    method = device.method
    assert isinstance(method, PFedGate)
    server = method.start(6, device.ctx(0, "start"))
    for t in range(5):
        server, _ = star(method, LocalEngine(device), store, server, t, list(range(6)), device.ctx(t, "merge", t), ())
    learnt = {}
    for k in range(6):
        raw = store.client(k)
        assert raw is not None
        ctx = device.ctx(0, "join", k)
        ends = (loads(raw, types_of(method)), method.join(k, ctx))
        now, then = (method.report(client, None, k, ctx).private for client in ends)
        assert now is not None
        assert then is not None
        learnt[k] = now - then
    found = tree(learnt)
    assert found is not None
    assert {frozenset(found[0][:3]), frozenset(found[0][3:])} == {frozenset({0, 2, 4}), frozenset({1, 3, 5})}
