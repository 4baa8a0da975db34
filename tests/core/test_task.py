"""Task and SGD against hand-worked numbers and PyTorch's own optimiser."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sparsona.core.descent import Pull, descend
from sparsona.core.optimiser import SGD, Adam, Moments, Steps
from sparsona.core.rng import Rng
from sparsona.core.samples import Prepare, Samples
from sparsona.core.task import Task
from sparsona.core.training import Training, lr_at


class Net(nn.Module):
    def __init__(self, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4) if norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(4 * 5 * 5, 3)

    def forward(self, x):
        return self.fc(self.drop(F.relu(self.norm(self.conv(x)))).flatten(1))


def make(**options):
    torch.manual_seed(0)
    model = Net(**options)
    plain = copy.deepcopy(model)
    task, theta0 = Task.of(model, torch.zeros(1, 2, 5, 5))
    return task, theta0, plain


def samples(n=20):
    g = torch.Generator().manual_seed(1)
    return Samples(torch.randn(n, 2, 5, 5, generator=g), torch.randint(0, 3, (n,), generator=g), torch.arange(n))


def batches(epochs=2, size=8, n=20):
    return samples(n).epochs(Rng(5), epochs, size)


def sgd(task, theta, batches, *, mask=None, move=None, pull=None, sam=0.0, **how):
    return descend(task, theta, batches, SGD(**how), mask=mask, move=move, pull=pull, sam=sam)[0]


def vector(task, model):
    return task.layout.flatten(dict(model.state_dict()))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"weight_decay": 0.05},
        {"momentum": 0.9, "weight_decay": 0.05, "clip": 0.1},
    ],
)
def test_equals_torch_sgd(options):
    task, theta0, plain = make()
    clip = options.get("clip")
    optimiser = torch.optim.SGD(
        plain.parameters(), 0.1, options.get("momentum", 0), weight_decay=options.get("weight_decay", 0)
    )
    for x, y in batches():
        optimiser.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        if clip:
            nn.utils.clip_grad_norm_(plain.parameters(), clip)
        optimiser.step()
    got = sgd(task, theta0, batches(), lr=0.1, **options)
    torch.testing.assert_close(got, vector(task, plain), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{}, {"weight_decay": 0.05}, {"beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3}, {"weight_decay": 0.05, "clip": 0.1}],
)
def test_equals_torch_adam(options):
    """Nine steps, the last of each epoch on a smaller batch."""
    task, theta0, plain = make()
    how = {key: options[key] for key in ("beta1", "beta2", "epsilon") if key in options}
    rest = {key: options[key] for key in ("weight_decay", "clip") if key in options}
    optimiser = torch.optim.Adam(
        plain.parameters(),
        0.01,
        (how.get("beta1", 0.9), how.get("beta2", 0.999)),
        how.get("epsilon", 1e-8),
        rest.get("weight_decay", 0),
    )
    for x, y in batches(3):
        optimiser.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        if "clip" in rest:
            nn.utils.clip_grad_norm_(plain.parameters(), rest["clip"])
        optimiser.step()
    got, _ = descend(task, theta0, batches(3), Adam(lr=0.01, **how, **rest))
    torch.testing.assert_close(got, vector(task, plain), rtol=1e-5, atol=1e-6)
    assert float((got - theta0).abs().max()) > 0.02


def test_adam_by_hand():
    """A gradient of 3 and then 1: two steps at rate 0.1, betas 0.5 and 0.75, epsilon 1."""
    w = torch.tensor([2.0])
    steps = Steps(Adam(lr=0.1, beta1=0.5, beta2=0.75, epsilon=1.0), w)
    steps.step(torch.tensor([3.0]))
    # mean 1.5 / (1 - 1/2) = 3, square 2.25 / (1 - 3/4) = 9: the step is 0.1 * 3 / (3 + 1)
    assert w.tolist() == pytest.approx([2 - 0.075])
    steps.step(torch.tensor([1.0]))
    # mean (0.75 + 0.5) / (3/4) = 5/3, square (1.6875 + 0.25) / (7/16) = 31/7
    assert w.tolist() == pytest.approx([2 - 0.075 - 0.1 * (5 / 3) / ((31 / 7) ** 0.5 + 1)])
    moments = steps.state()
    assert (moments.mean.tolist(), moments.square.tolist(), moments.steps) == ([1.25], [1.9375], 2)


def test_adam_goes_on_from_its_moments():
    """Two epochs at once, or one and then the other from the moments of the first: the same bits; anew: others."""
    task, theta0, _ = make()
    both = list(batches())

    class Some:
        rng = Rng(5)

        def __init__(self, part):
            self.part = part

        def __iter__(self):
            return iter(self.part)

    adam = Adam(lr=0.01)
    whole, _ = descend(task, theta0, Some(both), adam)
    middle, state = descend(task, theta0, Some(both[:3]), adam)
    kept = Moments(state.mean.clone(), state.square.clone(), state.steps)
    assert torch.equal(descend(task, middle, Some(both[3:]), adam, state=state)[0], whole)
    assert torch.equal(state.mean, kept.mean)
    assert torch.equal(state.square, kept.square)
    assert not torch.equal(descend(task, middle, Some(both[3:]), adam)[0], whole)


def test_adam_moves_only_what_may():
    task, theta0, _ = make()
    mask = torch.arange(task.layout.dim) % 3 == 0
    _, full = descend(task, theta0, batches(), Adam(lr=0.01))
    for state in (None, full):
        got, _ = descend(task, theta0, batches(), Adam(lr=0.01, weight_decay=0.1), mask=mask, state=state)
        assert not got[~mask].any()
        assert (got[mask] != theta0[mask]).float().mean() > 0.9
        stays, _ = descend(task, theta0, batches(), Adam(lr=0.01), move=mask, state=state)
        assert torch.equal(stays[~mask], theta0[~mask])


def test_adam_refuses_what_does_not_fit():
    task, theta0, _ = make()
    short = Moments(torch.zeros(3), torch.zeros(3), 1)
    with pytest.raises(ValueError, match="moments of 3 entries do not fit a model of 379"):
        descend(task, theta0, batches(), Adam(lr=0.1), state=short)


def test_momentum_goes_on_from_its_velocity():
    """One weight under a gradient of 1 at every step, rate 0.1: velocities 1, 1.5, then 1.75 if it goes on."""
    model = torch.nn.Linear(1, 1, bias=False)
    task, _ = Task.of(model, torch.zeros(1, 1))
    task.gradients = lambda batch: [torch.ones(1, 1)]

    class Two:
        rng = Rng(5)

        def __iter__(self):
            return iter([(torch.zeros(1, 1), torch.zeros(1))] * 2)

    how = SGD(lr=0.1, momentum=0.5)
    first, velocity = descend(task, torch.zeros(1), Two(), how)
    assert first.tolist() == pytest.approx([-0.25])
    assert velocity.tolist() == [1.5]
    second, later = descend(task, first, Two(), how, state=velocity)
    assert second.tolist() == pytest.approx([-0.6125])
    assert (velocity.tolist(), later.tolist()) == ([1.5], [1.875])
    with pytest.raises(ValueError, match="a velocity of 3 entries does not fit a model of 1"):
        descend(task, first, Two(), how, state=torch.zeros(3))


@pytest.mark.parametrize("clip", [None, 1e9])
def test_what_does_not_move_keeps_its_velocity_and_does_not_coast(clip):
    task, theta0, _ = make()
    moves = torch.arange(task.layout.dim) % 3 == 0
    moves[task.layout.slots[0].where] = False  # a whole tensor, which is passed over
    how, ones = SGD(lr=0.01, momentum=0.9, clip=clip), torch.ones(task.layout.params)
    got, velocity = descend(task, theta0, batches(), how, move=moves, state=ones)
    assert torch.equal(got[~moves], theta0[~moves])
    assert (got[moves] != theta0[moves]).all()
    n = task.layout.params
    assert (velocity[~moves[:n]] == 1).all()
    assert (velocity[moves[:n]] != 1).all()


def test_running_statistics_travel_in_the_vector():
    task, theta0, plain = make(norm=True)
    optimiser = torch.optim.SGD(plain.parameters(), 0.1, weight_decay=0.1)
    for x, y in batches():
        optimiser.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimiser.step()
    got = sgd(task, theta0, batches(), lr=0.1, weight_decay=0.1)
    assert task.layout.dim - task.layout.params == 8
    torch.testing.assert_close(got, vector(task, plain), rtol=1e-5, atol=1e-6)
    plain.eval()
    x = samples().x
    torch.testing.assert_close(task.logits(got, x), plain(x), rtol=1e-4, atol=1e-5)
    assert torch.equal(
        sgd(task, theta0, batches(), lr=0.1, weight_decay=0.1), got
    )  # nothing leaks into the next client


def quadratic():
    """A model of two weights whose gradient is its input: loss = -log sigmoid form is replaced by a linear one."""

    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return x

    return Linear()


def test_pull_by_hand(monkeypatch):
    # gradient of the loss fixed to (1, 2): with w = (1, 1), anchor (3, 0), pull 0.5, lr 0.1:
    #   as loss: w - 0.1 * (g + 0.5 * (w - a)) = (1 - 0.1 * (1 - 1), 1 - 0.1 * (2 + 0.5)) = (1.0, 0.75)
    #   as step: w' = (0.9, 0.8); w' - 0.1 * 0.5 * (w' - a) = (0.9 + 0.105, 0.8 - 0.04) = (1.005, 0.76)
    task, one = fixed_gradient(monkeypatch, [1.0, 2.0])
    a = torch.tensor([3.0, 0.0])
    torch.testing.assert_close(
        sgd(task, torch.ones(2), one, lr=0.1, pull=Pull(a, 0.5)), torch.tensor([1.0, 0.75]), rtol=0, atol=1e-7
    )
    torch.testing.assert_close(
        sgd(task, torch.ones(2), one, lr=0.1, pull=Pull(a, 0.5, "step")),
        torch.tensor([1.005, 0.76]),
        rtol=0,
        atol=1e-7,
    )


@pytest.mark.parametrize(("of", "kept"), [("dense", 6.0), ("masked", 10.0)])
def test_clip_by_hand(monkeypatch, of, kept):
    # bound 10, g = (30, 40), mask = (1, 0): the norm of the dense gradient is 50, of the masked one 30
    task, one = fixed_gradient(monkeypatch, [30.0, 40.0])
    mask = torch.tensor([True, False])
    got = sgd(task, torch.zeros(2), one, lr=1.0, clip=10.0, clip_of=of, mask=mask)
    torch.testing.assert_close(got, torch.tensor([-kept, 0.0]), rtol=1e-6, atol=0)


def fixed_gradient(monkeypatch, g):
    task, _ = Task.of(quadratic(), torch.zeros(1, 2))
    monkeypatch.setattr(task, "gradients", lambda batch: [torch.tensor(g)])
    return task, Samples(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), torch.arange(1)).epochs(Rng(0), 1, 1)


def test_only_what_may_move_moves():
    task, theta0, _ = make(norm=True)
    g = torch.Generator().manual_seed(2)
    move = torch.rand(task.layout.dim, generator=g) < 0.5
    got = sgd(
        task, theta0, batches(), lr=0.1, momentum=0.9, weight_decay=0.1, clip=1.0, move=move, pull=Pull(-theta0, 1.0)
    )
    assert torch.equal(got[~move], theta0[~move])
    assert (got[move] != theta0[move]).float().mean() > 0.9


@pytest.mark.parametrize("pull_as", ["loss", "step"])
def test_outside_the_mask_is_zero(pull_as):
    task, theta0, _ = make()
    mask = torch.rand(task.layout.dim, generator=torch.Generator().manual_seed(3)) < 0.5
    got = sgd(
        task,
        theta0,
        batches(),
        lr=0.1,
        momentum=0.9,
        weight_decay=0.1,
        mask=mask,
        pull=Pull(theta0, 0.5, pull_as),
    )
    assert torch.count_nonzero(got[~mask]) == 0
    assert torch.count_nonzero(got[mask]) == mask.sum()


def test_dense_gradient_sees_pruned_weights():
    task, theta0, plain = make()
    x, y = samples().x, samples().y
    mask = torch.rand(task.layout.dim, generator=torch.Generator().manual_seed(3)) < 0.5
    sparse = theta0 * mask
    plain.load_state_dict({n: v.clone() for n, v in task.layout.unflatten(sparse).items()})
    F.cross_entropy(plain(x), y).backward()
    want = task.layout.flatten({n: p.grad for n, p in plain.named_parameters()})
    got = task.gradient_at(sparse, (x, y))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
    assert torch.count_nonzero(got[~mask]) > 0.9 * (~mask).sum()


def test_inputs_are_unchanged_and_results_are_copies():
    task, theta0, _ = make()
    before = theta0.clone()
    first = sgd(task, theta0, batches(), lr=0.1)
    kept = first.clone()
    sgd(task, first, batches(), lr=0.1)
    assert torch.equal(theta0, before)
    assert torch.equal(first, kept)


def test_dropout_is_keyed_and_leaves_the_global_generator_alone():
    task, theta0, _ = make(dropout=0.5)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = sgd(task, theta0, batches(), lr=0.1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert torch.equal(sgd(task, theta0, batches(), lr=0.1), first)
    assert not torch.equal(sgd(task, theta0, samples().epochs(Rng(6), 2, 8), lr=0.1), first)


def test_flops_are_counted_at_the_door():
    task, theta0, _ = make()
    # conv: 2*3*3*4 weights at 25 positions, 4 biases at 25; fc: 300 weights and 3 biases once
    forward = 2 * (72 * 25 + 300) + 4 * 25 + 3
    assert task.layout.flops() == forward
    sgd(task, theta0, batches(epochs=2, n=20), lr=0.1)
    assert task.flops == 2 * 20 * 3 * forward
    mask = torch.ones(task.layout.dim, dtype=torch.bool)
    mask[:36] = False  # half of the convolution's weights
    task.flops = 0
    sgd(task, theta0, batches(epochs=1, n=20), lr=0.1, mask=mask)
    assert task.flops == 20 * 3 * (forward - 2 * 36 * 25)
    task.flops = 0
    task.gradient_at(theta0, (samples().x[:7], samples().y[:7]))
    assert task.flops == 7 * 3 * forward


def test_wrong_length_is_refused():
    task, theta0, _ = make()
    with pytest.raises(ValueError, match="does not fit a model of"):
        task.logits(theta0[:-1], samples().x)


def test_learning_rate_schedules_by_hand():
    assert lr_at(Training(lr=0.1), 50, 100) == 0.1
    assert lr_at(Training(lr=0.1, lr_schedule="exponential", lr_decay=0.5), 3, 100) == pytest.approx(0.0125)
    steps = Training(lr=0.1, lr_schedule="steps", lr_decay=0.1)
    assert [lr_at(steps, t, 80) for t in (0, 39, 40, 59, 60, 79)] == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    cosine = Training(lr=0.1, lr_schedule="cosine")
    assert [lr_at(cosine, t, 4) for t in (0, 2, 4)] == pytest.approx([0.1, 0.05, 0.0])


def test_batches_cover_each_sample_once_an_epoch():
    y = torch.arange(10)
    data = Samples(torch.arange(10.0)[:, None], y, torch.tensor([1, 3, 5, 7, 9]))
    epochs = [torch.cat([b for _, b in data.epochs(Rng(e), 1, 2)]).tolist() for e in range(3)]
    assert all(sorted(e) == [1, 3, 5, 7, 9] for e in epochs)
    assert len({tuple(e) for e in epochs}) > 1
    assert [len(b) for _, b in data.epochs(Rng(0), 1, 2, drop_last=True)] == [2, 2]
    assert [len(b) for _, b in data.epochs(Rng(0), 1, 8, drop_last=True)] == [5]  # less than one batch is kept
    assert [len(b) for _, b in data.all(2)] == [2, 2, 1]


def test_pictures_are_normalised_channels_last():
    x = torch.tensor([[[[0, 255]], [[51, 102]]]], dtype=torch.uint8)  # one picture of 2x1 pixels, 2 channels
    got = Prepare((0.0, 0.5), (1.0, 0.5))(x)
    assert got.shape == (1, 2, 2, 1)
    torch.testing.assert_close(got[0, :, :, 0], torch.tensor([[0.0, 0.2], [1.0, -0.2]]))
    assert got.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dims", [{}, {"norm": True}])
def test_gates_of_ones_change_no_bit(dims):
    """Methods that mask nothing must equal those without masks, so both ways through a step give the same bits."""
    task, theta0, _ = make(**dims)
    plain = sgd(task, theta0, batches(), lr=0.1 * 0.998**7)
    ones = torch.ones(task.layout.dim, dtype=torch.bool)
    assert torch.equal(sgd(task, theta0, batches(), lr=0.1 * 0.998**7, mask=ones), plain)
    assert torch.equal(sgd(task, theta0, batches(), lr=0.1 * 0.998**7, move=ones), plain)
    assert torch.equal(sgd(task, theta0, batches(), lr=0.1 * 0.998**7, pull=Pull(theta0, 0.0)), plain)


class Stranger(nn.Module):
    """All that a user's module may hold: tied, frozen and functional things, buffers that are replaced."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(50, 50)
        self.second = nn.Linear(50, 50, bias=False)
        self.second.weight = self.first.weight  # tied
        self.frozen = nn.Linear(50, 50)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(50, 3)
        self.register_buffer("seen", torch.zeros(50))
        self.register_buffer("scale", torch.ones(50), persistent=False)

    def forward(self, x):
        x = x.flatten(1)
        if self.training:
            self.seen = 0.9 * self.seen + 0.1 * x.mean(0)  # replaced, not written into
        x = F.dropout(self.first(x * self.scale) + self.seen, 0.5, self.training)
        return self.head(F.relu(self.frozen(self.second(x))))


def test_a_strangers_module_works_and_leaks_nothing():
    torch.manual_seed(0)
    model = Stranger()
    frozen = model.frozen.weight.detach().clone()
    task, theta0 = Task.of(model, torch.zeros(1, 2, 5, 5))
    first = sgd(task, theta0, batches(), lr=0.1, weight_decay=0.1)
    torch.manual_seed(123)
    sgd(task, theta0, samples().epochs(Rng(99), 3, 4), lr=0.1)  # somebody else in between
    assert torch.equal(sgd(task, theta0, batches(), lr=0.1, weight_decay=0.1), first)
    named = task.layout.unflatten(first)
    assert torch.equal(named["frozen.weight"], frozen)
    assert named["seen"].abs().sum() > 0
    assert not torch.equal(named["first.weight"], task.layout.unflatten(theta0)["first.weight"])


def test_operations_of_shared_and_transposed_layers():
    task, _ = Task.of(Stranger(), torch.zeros(1, 2, 5, 5))
    # the tied weight works twice, what is frozen works as well, then the head
    assert task.layout.flops() == 2 * (2 * 2500) + 50 + (2 * 2500 + 50) + (2 * 150 + 3)
    up = nn.Sequential(nn.ConvTranspose2d(2, 3, 2, stride=2), nn.Flatten(), nn.Linear(300, 2))
    layout = Task.of(up, torch.zeros(1, 2, 5, 5))[0].layout
    # 2*3*2*2 weights meet each of 25 inputs; 3 biases at 100 outputs; then 600 weights and 2 biases
    assert layout.flops() == 2 * 24 * 25 + 3 * 100 + 2 * 600 + 2
    assert layout.uncounted == ()


def test_buffers_that_cannot_travel_are_refused():
    model = nn.Linear(4, 2)
    model.register_buffer("wide", torch.zeros(3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"buffer wide is torch\.float64"):
        Task.of(model, torch.zeros(1, 4))


def test_frozen_tensors_cost_no_gradients():
    """What moves comes out as if all gradients had been taken; the frozen ones, and all below the lowest, are not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    task, theta0 = Task.of(model, torch.zeros(1, 6))
    x, y = torch.randn(40, 6), torch.arange(40) % 3
    data = Samples(x, y, torch.arange(40))
    layout = task.layout
    move = layout.spread([False, False, True, False, False, False])
    how = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    got = sgd(task, theta0, data.epochs(Rng(1), 2, 8), move=move, **how)
    spent = task.flops
    whole = sgd(task, theta0, data.epochs(Rng(1), 2, 8), move=move, clip=1e9, **how)  # a dense norm needs them all
    assert torch.equal(got, whole)
    assert torch.equal(got[~move], theta0[~move])
    assert not torch.equal(got[move], theta0[move])
    forward = 2 * (30 + 20 + 12) + 5 + 4 + 3
    inputs, weights = 2 * (20 + 12) + 4 + 3, 2 * 20  # from the second layer up; its matrix alone
    assert spent == 80 * (forward + inputs + weights)
    assert all(w.requires_grad for w in task.weights)
    assert task.gradient_at(theta0, (x, y)).count_nonzero() > 60
    seen = []
    with task.frozen([True, True, False, True, True, True]):
        handle = model[0].register_full_backward_hook(lambda *_: seen.append("below"))
        task.gradients((x, y))
        handle.remove()
    assert seen == []


@pytest.mark.parametrize("pull_as", ["loss", "step"])
def test_steps_on_what_moves_alone_equal_steps_on_all(pull_as):
    """Two stretches apart, one of them moving in part: to the bit what comes out with the frozen ones gone through."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    task, theta0 = Task.of(model, torch.zeros(1, 6))
    data = Samples(torch.randn(40, 6), torch.arange(40) % 3, torch.arange(40))
    move = task.layout.spread([True, True, False, False, True, False])
    move[:7] = False
    how = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "pull": Pull(torch.randn(len(theta0)), 0.5, pull_as)}
    got = sgd(task, theta0, data.epochs(Rng(1), 2, 8), move=move, **how)
    whole = sgd(task, theta0, data.epochs(Rng(1), 2, 8), move=move, clip=1e9, **how)
    assert torch.equal(got, whole)
    assert torch.equal(got[~move], theta0[~move])
    assert (got[move] != theta0[move]).all()


def test_nothing_moves_at_no_cost():
    torch.manual_seed(0)
    task, theta0 = Task.of(nn.Linear(4, 3), torch.zeros(1, 4))
    data = Samples(torch.randn(8, 4), torch.arange(8) % 3, torch.arange(8))
    got = sgd(task, theta0, data.epochs(Rng(1), 1, 4), lr=0.1, weight_decay=0.1, move=torch.zeros(15, dtype=torch.bool))
    assert torch.equal(got, theta0)
    assert task.flops == 0


def test_bf16_computes_in_bfloat16_and_gives_float32():
    torch.manual_seed(0)
    model, seen = Net(), []
    task, theta0 = Task.of(model, torch.zeros(1, 2, 5, 5), precision="bf16")
    model.conv.register_forward_hook(lambda module, inputs, out: seen.append(out.dtype))
    plain, _, _ = make()
    batch = next(iter(batches()))
    gradients = {t: t.gradient_at(theta0, batch) for t in (task, plain)}
    outputs = {t: t.logits(theta0, batch[0]) for t in (task, plain)}
    assert seen == [torch.bfloat16] * 2
    assert {t.dtype for t in (*gradients.values(), *outputs.values(), task.flat, *task.weights)} == {torch.float32}
    for rough, exact in (gradients.values(), outputs.values()):
        assert not torch.equal(rough, exact)
        assert (rough - exact).norm() < 0.02 * exact.norm()
    assert (task.flops, task.forward) == (plain.flops, plain.forward)
