"""The gating layer by hand, and compact computation against the masked one."""

import pytest
import torch
from torch import nn

from sparsona.core.objective import Objective
from sparsona.core.optimiser import SGD, Steps
from sparsona.core.rng import Rng
from sparsona.core.task import Task
from sparsona.methods.pfedgate.blocks import channels, flat, rows
from sparsona.methods.pfedgate.chain import chain
from sparsona.methods.pfedgate.compact import Compact
from sparsona.methods.pfedgate.gate import Gate, NormedGate, SwitchNorm, fresh, gate_task, sparse_weights
from sparsona.methods.pfedgate.scaled_model import Masked, scaled_model
from sparsona.models import build


def test_switchable_norm_by_hand():
    """Two samples of one channel: 0, 2 and 2, 4. Sample means 1 and 3, variances 1; the batch's mean 2, variance 2."""
    x = torch.tensor([[[0.0, 2.0]], [[2.0, 4.0]]])
    norm = SwitchNorm(1, epsilon=0.0)
    out = norm(x)
    spread = ((1 + 1 + 2) / 3) ** 0.5  # instance and layer are the same with one channel
    assert out[0, 0].tolist() == pytest.approx([(0 - 4 / 3) / spread, (2 - 4 / 3) / spread])
    assert norm.running_mean.tolist() == pytest.approx([0.2])  # 0.9 * 0 + 0.1 * 2
    assert norm.running_var.tolist() == pytest.approx([1.1])
    norm.eval()
    spread = ((1 + 1 + 1.1) / 3) ** 0.5
    assert norm(x)[0, 0, 0].item() == pytest.approx((0 - (1 + 1 + 0.2) / 3) / spread)
    assert norm(x[:1]).equal(norm(x)[:1])  # no sample sees another


@pytest.mark.parametrize(
    ("shape", "blocks", "weights", "all_of_it"),
    [((1, 28, 28), 40, 62_720, 62_968), ((3, 32, 32), 50, 307_200, 307_512), ((3, 32, 32), 40, 245_760, 246_012)],
)
def test_gate_sizes(shape, blocks, weights, all_of_it):
    gate = Gate(shape, blocks)
    assert gate.linear.weight.numel() == weights
    assert sum(p.numel() for p in gate.parameters()) == all_of_it


def test_gate_is_a_mean_of_sigmoids():
    gate = Gate((2,), 2, pre_norm=False, post_norm=False)
    with torch.no_grad():
        gate.linear.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]]))
        gate.linear.bias.zero_()
    x = torch.tensor([[0.0, 1.0], [2.0, -1.0]])
    importance, weights = gate(x)
    s = torch.sigmoid
    assert torch.allclose(importance, torch.stack([(s(x[0, 0]) + s(x[1, 0])) / 2, (s(x[0, 1]) + s(x[1, 1])) / 2]))
    assert torch.allclose(weights, torch.stack([torch.tensor(0.5), s(torch.tensor(1.0))]))
    plain = Gate((2,), 2, pre_norm=False, post_norm=False, sigmoid=False, shared=True)
    g, m = plain(x)
    assert g is m
    assert torch.allclose(g, plain.linear(x).mean(0))


@pytest.mark.parametrize("post_norm", [True, False])
def test_a_gate_can_start_open(post_norm):
    """sigmoid(log(0.9 / 0.1)) = 0.9: on inputs of zero, every weight is that, and no importance is another."""
    task = gate_task((2,), 3, False, post_norm, True, False)
    half, wide = (fresh(task, Rng(1, "gate"), opening) for opening in (0.5, 0.9))
    for vector, opening in ((half, 0.5), (wide, 0.9)):
        task.load(vector)
        task.model.eval()
        with torch.no_grad():
            task.model.linear.weight.zero_()
            if not post_norm:
                task.model.linear.bias.sub_(task.layout.unflatten(half)["linear.bias"])
            else:
                task.model.linear.bias.zero_()
            importance, weights = task.model(torch.zeros(4, 2))
        assert importance.tolist() == pytest.approx([0.5] * 3)
        assert weights.tolist() == pytest.approx([opening] * 3)
    assert int((half != wide).sum()) == 3


def test_a_gate_in_evaluation_mode_forgets_what_was_trained_on():
    """The same vector gives the same numbers, whoever used the module before, and does not move by looking."""
    task = gate_task((1, 4, 4), 6, True, True, True, False)
    phi, x = fresh(task, Rng(1)), torch.rand(5, 1, 4, 4)
    task.load(phi)
    want = task.model.eval()(x)
    task.load(fresh(task, Rng(2)))
    task.model.train()(torch.rand(7, 1, 4, 4))
    task.load(phi)
    again = task.model.eval()(x)
    assert all(torch.equal(a, b) for a, b in zip(want, again, strict=True))
    assert torch.equal(task.flat, phi)
    assert torch.equal(fresh(task, Rng(1)), phi)
    assert not torch.equal(fresh(task, Rng(2)), phi)


def test_straight_through():
    """The value is M I*; the gradient of G is M for every block, or for the kept ones."""
    g = torch.tensor([0.3, 0.8], requires_grad=True)
    m = torch.tensor([0.5, 0.25], requires_grad=True)
    chosen = torch.tensor([False, True])
    for kept_only, want in ((False, [0.5, 0.25]), (True, [0.0, 0.25])):
        out = sparse_weights(g, m, chosen, kept_only=kept_only)
        assert out.tolist() == pytest.approx([0.0, 0.25], abs=1e-7)
        assert torch.autograd.grad(out.sum(), g, retain_graph=True)[0].tolist() == want
        assert torch.autograd.grad(out.sum(), m)[0].tolist() == pytest.approx([0.0, 1.0], abs=1e-7)


def test_masked_steps_keep_what_they_leave_out():
    """Momentum 0.5, decay 0.1, rate 1; the second step moves the first entry only."""
    w = torch.tensor([1.0, 1.0])
    steps = Steps(SGD(lr=1.0, momentum=0.5, weight_decay=0.1, fused=True), w)
    steps.step(torch.tensor([1.0, 1.0]))
    assert w.tolist() == pytest.approx([-0.1, -0.1])
    steps.step(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0]))
    assert w.tolist() == pytest.approx([-0.1 - (0.5 * 1.1 + 1 - 0.01), -0.1])
    assert steps.state().tolist() == pytest.approx([1.54, 1.1])
    clipped = torch.zeros(2)
    Steps(SGD(lr=1.0, clip=1.0), clipped).step(torch.tensor([3.0, 4.0]))
    assert clipped.tolist() == pytest.approx([-0.6, -0.8])


class Tower(nn.Module):
    """Strides, padding, pools before and after ReLUs, a layer without bias, modules and functions."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(2, 6, 3, stride=2, padding=1, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 7, 3, padding=1),
            nn.AvgPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(7 * 4, 9),
        )
        self.head = nn.Linear(9, 3)

    def forward(self, x):
        return self.head(torch.relu(self.net(x)))


MODELS = {
    "tower": (Tower(), (2, 16, 16), 3),
    "lenet-cifar": (build("lenet-cifar", 10, (3, 32, 32)), (3, 32, 32), 10),
    "digits-mlp": (build("digits-mlp", 10, (1, 8, 8)), (1, 8, 8), 10),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_compact_is_masked(name, seed):
    """Logits, gradients of the model and of every block's weight, dropped ones included."""
    model, shape, classes = MODELS[name]
    task, theta = Task.of(model, torch.zeros(1, *shape))
    task.load(theta)
    cut = rows(task.layout.trained, 4, 0.1)
    way = scaled_model(task, cut)
    assert isinstance(way, Compact)
    rng = torch.Generator().manual_seed(seed)
    chosen = (torch.rand(len(cut), generator=rng) < 0.5) | cut.first
    drawn = [torch.rand(len(cut), generator=rng) for _ in range(2)]
    x, y = torch.rand(6, *shape, generator=rng), torch.randint(0, classes, (6,), generator=rng)
    found = []
    for each in (Masked(task, cut), way):
        gate = [v.clone().requires_grad_() for v in drawn]
        leaf = task.flat[: cut.layout.dim].detach().requires_grad_()
        logits = each(x, leaf, sparse_weights(*gate, chosen), chosen)
        found.append((logits, *torch.autograd.grad(Objective()(logits, y), [leaf, *gate])))
    for masked, compact in zip(*found, strict=True):
        assert torch.allclose(masked, compact, atol=1e-8 + 1e-6 * float(masked.detach().abs().max()), rtol=1e-5)
    assert not found[1][1][~cut.spread(chosen)].any()
    with torch.no_grad():
        theta, scale = task.flat[: cut.layout.dim], drawn[0] * chosen
        assert torch.allclose(way(x, theta, scale, chosen), Masked(task, cut)(x, theta, scale, chosen), atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_places_of_kept_units_have_the_type_that_every_pytorch_scatters_by(name):
    """Before PyTorch 2.8 that is int64 alone; int32 takes half as long again."""
    model, shape, _ = MODELS[name]
    task, _ = Task.of(model, torch.zeros(1, *shape))
    cut = rows(task.layout.trained, 4, 0.1)
    kept = scaled_model(task, cut).kept(cut.first.numpy().tobytes())
    places = [t for t in (kept.index, kept.blocks, kept.biased) if t is not None]
    assert {t.dtype for t in places} == {torch.int64}


def test_what_is_no_chain_is_masked():
    for name, shape in (("convnet2", (1, 28, 28)), ("resnet18-gn", (3, 32, 32))):  # dropout; shortcuts and norms
        task, _ = Task.of(build(name, 10, shape), torch.zeros(1, *shape))
        assert chain(task) is None
        assert isinstance(scaled_model(task, rows(task.layout.trained, 5, 0.2)), Masked)
    task, _ = Task.of(MODELS["tower"][0], torch.zeros(1, 2, 16, 16))
    for splitter in (flat, channels):
        assert isinstance(scaled_model(task, splitter(task.layout.trained, 5, 0.2)), Masked)
    smooth = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))  # lets gradients through at zero
    assert chain(Task.of(smooth, torch.zeros(1, 4))[0]) is None
    bare = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    assert chain(Task.of(bare, torch.zeros(1, 4))[0]) is None


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 6), (7,)])
def test_a_gate_with_gradients_by_hand_is_the_plain_one(shape):
    """In double precision: outputs, and gradients of every parameter, as by plain operations one after the other."""
    torch.manual_seed(0)
    gate = Gate(shape, 4).double()
    with torch.no_grad():
        for parameter in gate.parameters():
            parameter.uniform_(0.5, 1.5)
    x = torch.rand(6, *shape, dtype=torch.float64)
    rows = x.reshape(6, gate.channels, -1)
    plain = gate.post(gate.linear(gate.pre(rows).flatten(1))).sigmoid().mean(0)
    folded = NormedGate.apply(rows, gate, *gate.parameters())
    assert torch.allclose(folded, plain, rtol=0, atol=1e-13)
    of = [torch.autograd.grad((y * torch.arange(8)).sum(), list(gate.parameters())) for y in (plain, folded)]
    assert all(torch.allclose(a, b, rtol=0, atol=1e-13) for a, b in zip(*of, strict=True))
    importance, weights = Gate.forward(gate.float(), x)
    assert torch.allclose(torch.cat([importance, weights]), plain.float(), atol=1e-6)
