import copy
from typing import Any

import pytest
import torch
from torch import nn

from pretended import COUNTS, DEVICE
from small import recipe
from sparsona.core.layout import CPU
from sparsona.core.library_optimiser import LibraryState
from sparsona.core.optimiser import Adam, Library, Steps
from sparsona.core.training import Training, lr_at
from sparsona.engines.values import dumps, loads, to, types_of
from sparsona.experiment.recipe import RecipeError, check, tables
from sparsona.experiment.runner import resume, run
from sparsona.experiment.setup import prepare
from sparsona.methods import METHODS

NAMES = ["AdamW", "Adam", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop"]


def gradients(n: int = 5) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(7) for _ in range(n)]


def half(t: int, rounds: int) -> float:
    return 0.5 ** (t * 4 / rounds)


def wrong(t: int, rounds: int) -> float:
    return -1.0


@pytest.mark.parametrize("name", NAMES)
def test_steps_are_those_of_the_library(name: str) -> None:
    w = torch.ones(7)
    steps = Steps(Library(name=name, lr=0.05), w)
    other = nn.Parameter(torch.ones(7))
    theirs = getattr(torch.optim, name)([other], lr=0.05)
    for g in gradients():
        other.grad = g.clone()
        theirs.step()
        steps.step(g.clone())
    torch.testing.assert_close(w, other.data, rtol=1e-5, atol=1e-6)
    assert not torch.equal(w, torch.ones(7))


@pytest.mark.parametrize("name", NAMES)
def test_coordinates_outside_the_gate_never_move(name: str) -> None:
    w, gate = torch.ones(7), torch.tensor([1.0, 0, 1, 0, 1, 1, 0])
    args = {"weight_decay": 0.5} if name != "Rprop" else {}
    whole = Steps(Library(name=name, lr=0.05, args=args), torch.ones(7))  # has a state everywhere
    for g in gradients():
        whole.step(g.clone())
    steps = Steps(Library(name=name, lr=0.05, args=args), w, gate=gate, state=whole.state())
    for g in gradients():
        steps.step(g.clone())
    assert (w[gate == 0] == 1).all()
    assert (w[gate == 1] != 1).all()


@pytest.mark.parametrize("name", ["SGD", "AdamW", "RMSprop", "NAdam"])
def test_what_was_closed_does_not_coast_when_it_opens(name: str) -> None:
    args = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {"weight_decay": 0.0}
    how, gate = Library(name=name, lr=0.05, args=args), torch.tensor([1.0, 0, 1, 0, 1, 1, 0])
    first = Steps(how, torch.ones(7))
    first.step(torch.ones(7))
    state = first.state()
    closed = Steps(how, torch.ones(7), gate=gate, state=state)
    closed.step(torch.ones(7))
    opened = Steps(how, w := torch.ones(7), state=closed.state())
    opened.step(torch.zeros(7))
    assert (w[gate == 0] == 1).all()
    assert (w[gate == 1] < 1).all()
    assert isinstance(state, LibraryState)
    buffers = [v for key, v in state.values.items() if key in ("momentum_buffer", "exp_avg")]
    assert len(buffers) == 1
    assert (torch.as_tensor(buffers[0]) != 0).all()  # the state that was given stays as it was


@pytest.mark.parametrize("name", ["AdamW", "SGD", "RAdam"])
def test_a_state_that_was_stored_continues_to_the_bit(name: str) -> None:
    args = {"momentum": 0.9} if name == "SGD" else {}
    how, each = Library(name=name, lr=0.05, args=args), gradients(6)
    w, v = torch.ones(7), torch.ones(7)
    steps = Steps(how, w)
    for g in each:
        steps.step(g.clone())
    first = Steps(how, v)
    for g in each[:3]:
        first.step(g.clone())
    state = loads(dumps(first.state()), types_of(Training()))
    assert isinstance(state, LibraryState)
    before = copy.deepcopy(state)
    second = Steps(how, v, state=state)
    for g in each[3:]:
        second.step(g.clone())
    assert torch.equal(v, w)
    assert all(torch.equal(torch.as_tensor(before.values[k]), torch.as_tensor(state.values[k])) for k in state.values)


@pytest.mark.parametrize("name", ["Adafactor", *(name for name in NAMES if name != "ASGD")])
def test_steps_on_an_accelerator_are_those_of_the_host_and_read_nothing(name: str) -> None:
    seen = []
    for where in (CPU, DEVICE):
        w, pulls = torch.ones(7).to(where), [g.to(where) for g in gradients(4)]
        first = Steps(Library(name=name, lr=0.05), w)
        first.step(pulls[0])
        state = to(to(first.state(), CPU), where)  # as a client keeps it between rounds
        then = Steps(Library(name=name, lr=0.05), w, state=state)
        COUNTS.clear()
        for g in pulls[1:]:
            then.step(g)
        reads, copies = COUNTS.reads.total(), COUNTS.copies.total()
        seen.append((w.tolist(), dumps(then.state())))
    assert seen[0] == seen[1]
    assert (reads, copies) == (2 * 3 if name == "Adafactor" else 0, 0)


def test_our_adam_has_the_bits_of_the_library() -> None:
    w, other = torch.ones(7), nn.Parameter(torch.ones(7))
    steps = Steps(Adam(lr=0.05, weight_decay=0.1), w)
    theirs = torch.optim.Adam([other], lr=0.05, weight_decay=0.1, foreach=False, fused=False)
    for g in gradients(50):
        other.grad = g.clone()
        theirs.step()
        steps.step(g.clone())
    assert torch.equal(w, other.data)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"optimiser": "LBFGS"},
            'method.optimiser: "LBFGS" is not supported: it evaluates the loss several times per step',
        ),
        ({"optimiser": "SparseAdam"}, 'method.optimiser: "SparseAdam" is not supported: it needs sparse gradients'),
        (
            {"optimiser": "adamw"},
            'method.optimiser: "adamw" not found; expected "sgd", "adam" or a class of torch.optim',
        ),
        (
            {"optimiser": "AdamW", "optimiser_args": {"beta": 0.9}},
            "method.optimiser_args.beta: not allowed; did you mean",
        ),
        ({"optimiser": "AdamW", "optimiser_args": {"lr": 0.9}}, "method.optimiser_args.lr: not allowed; set method.lr"),
        (
            {"optimiser": "AdamW", "momentum": 0.9},
            "method.momentum: 0.9 is not allowed; expected 0",
        ),
        (
            {"optimiser": "adam", "optimiser_args": {"eps": 1.0}},
            'method.optimiser_args.eps: only for classes of torch.optim, not for optimiser = "adam"',
        ),
        (
            {"lr_schedule": "cosin"},
            'method.lr_schedule: "cosin" not found; expected constant, exponential, steps, cosine or',
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as error:
        recipe(method=fields)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"optimiser": "AdamW", "optimiser_args": {"betas": [2.0, 0.9]}},
            "method.optimiser_args: {'betas': (2.0, 0.9)} is not allowed by torch.optim.AdamW: "
            "Invalid beta parameter at",
        ),
        (
            {"lr_schedule": "test_library_optimiser:nothing"},
            'method.lr_schedule: "nothing" not found in module "test_library_optimiser"',
        ),
        (
            {"lr_schedule": "test_library_optimiser:wrong"},
            'method.lr_schedule: "test_library_optimiser:wrong" returned -1.0 in round 0; expected a finite float >= 0',
        ),
    ],
)
def test_what_fails_is_refused_before_a_run(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as error:
        prepare(recipe(method=fields))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_schedule_of_ones_own_is_a_factor_of_the_learning_rate() -> None:
    own = Training(lr=0.1, lr_schedule="test_library_optimiser:half")
    assert [lr_at(own, t, 8) for t in (0, 2, 4)] == pytest.approx([0.1, 0.05, 0.025])


def test_a_run_with_adamw_resumes_to_the_same_bits(tmp_path: Any) -> None:
    how = {"optimiser": "AdamW", "lr": 0.01, "moments": "client", "optimiser_args": {"betas": [0.8, 0.99]}}
    r = recipe("ditto", method=how | {"lr_schedule": "test_library_optimiser:half"}, rounds=3)
    assert check(tables(r)) == r
    whole = run(r, tmp_path / "whole")

    def stop(step: Any) -> None:
        if step.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(r, tmp_path / "part", on_round=stop)
    assert resume(tmp_path / "part").summary == whole.summary
    for file in (tmp_path / "whole" / "state").iterdir():
        assert (tmp_path / "part" / "state" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_refuses_an_unknown_schedule(name: str) -> None:
    with pytest.raises(
        RecipeError,
        match=r'method\.lr_schedule: "cosin" not found; expected constant, exponential, steps, ' r"cosine or",
    ):
        recipe(name, method={"lr_schedule": "cosin"})
