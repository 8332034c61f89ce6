"""Trunks: shapes, normalisation by hand, pooling by loops, and the networks that they wrap as
oracles.
"""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from assay.errors import BadInput
from assay.registry import UnknownName
from assay.trunks import Trunk, build, find, trunks
from assay.trunks import timm as timm_trunks
from assay.trunks import torchvision as torchvision_trunks
from assay.trunks.bn_inception import BNInception
from assay.trunks.trunk import GeneralisedMean, Photo, make_pool
from loops import for_each

OWN = ("bn_inception", "conv", "googlenet", "identity", "lite0", "resnet18", "resnet50")
PHOTO = ("bn_inception", "googlenet", "lite0", "resnet18", "resnet50")
WIDTH = {
    "bn_inception": 1024,
    "conv": 64,
    "googlenet": 1024,
    "identity": 8,
    "lite0": 1280,
    "resnet18": 512,
    "resnet50": 2048,
}
TIMM = {
    "test_resnet": 96,
    "test_resnet.r160_in1k": 96,
    "test_convnext": 64,
    "mobilenetv3_small_050": 1024,
    "vit_tiny_patch16_224": 192,
}
CONVOLUTIONAL = (*PHOTO, "conv", "test_resnet", "test_convnext", "mobilenetv3_small_050")

torch.set_num_threads(1)


def sample(name, inputs=3, n=2, side=None):
    """Vectors for a trunk of vectors, else images at its side."""
    if find(name).takes == "vectors":
        return torch.rand(n, 8)
    side = side or find(name).side or 28
    return torch.rand(n, inputs, side, side)


def built(name, inputs=3, pooling="avg", seed=0):
    torch.manual_seed(seed)
    return build(name, 8 if find(name).takes == "vectors" else inputs, pooling)


def forward(trunk, x):
    with torch.no_grad():
        return trunk.eval()(x)


class Kept(nn.Module):
    """A body that gives back what it is given."""

    def forward(self, x):
        return x


@pytest.fixture
def timm():
    """timm, imported as Assay does."""
    torchvision_trunks.import_torchvision()
    import timm

    return timm


# --- every trunk ----------------------------------------------------------------------------------


def test_these_are_registered():
    assert set(OWN) <= set(trunks)


@for_each("name", [*OWN, *TIMM])
def test_gives_features_at_its_own_side(name):
    trunk = built(name)
    x = sample(name)
    features = forward(trunk, x)
    assert features.shape == (2, trunk.features) == (2, {**WIDTH, **TIMM}[name])
    assert features.isfinite().all()


@for_each("name", [name for name in (*OWN, *TIMM) if name != "identity"])
def test_every_weight_gets_a_gradient(name):
    trunk = built(name).train()
    trunk(sample(name, side=64)).pow(2).sum().backward()
    assert [name for name, weight in trunk.named_parameters() if weight.grad is None] == []
    assert all(weight.grad.isfinite().all() for weight in trunk.parameters())


@pytest.mark.parametrize(
    "name",
    [
        "bn_inception",
        "conv",
        "googlenet",
        "resnet18",
        "lite0",
        "test_convnext",
        "vit_tiny_patch16_224",
    ],
)
def test_the_random_state_decides_on_the_weights(name):
    one, same, other = (built(name, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


@for_each("name", CONVOLUTIONAL)
def test_convolutions_are_laid_out_channels_last(name):
    trunk, seen = built(name), []
    first = next(module for module in trunk.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_pre_hook(
        lambda _, x: seen.append(x[0].is_contiguous(memory_format=torch.channels_last))
    )
    forward(trunk, sample(name, side=64))
    weights = [weight for weight in trunk.parameters() if weight.ndim == 4]
    assert seen == [True]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


def test_a_transformer_keeps_its_layout():
    assert built("vit_tiny_patch16_224").layout is torch.contiguous_format


@pytest.mark.parametrize("name", [*PHOTO, "test_resnet", "vit_tiny_patch16_224"])
def test_grey_images_are_repeated_over_the_channels(name):
    x = sample(name, inputs=1, n=1, side=64)
    assert torch.equal(
        forward(built(name, inputs=1), x), forward(built(name), x.repeat(1, 3, 1, 1))
    )


@pytest.mark.parametrize("name", ["resnet18", "test_resnet"])
def test_other_numbers_of_channels_are_refused(name):
    with pytest.raises(BadInput, match=f"'{name}' takes images of 1 or 3 channels, got 4"):
        build(name, 4)


def test_normalisation_is_no_part_of_the_weights():
    assert all(name.startswith("body.") for name in built("resnet18").state_dict())


def test_a_trunk_of_ones_own_need_not_know_of_pooling(as_before):
    class Tiny(Trunk):
        def __init__(self, inputs):
            super().__init__(inputs)
            self.features = inputs

    trunks("tiny")(Tiny)
    assert build("tiny", 5).features == 5
    assert (Tiny.takes, Tiny.smallest, Tiny.side, Tiny.origin()) == ("images", 1, None, None)


# --- normalisation, by hand -----------------------------------------------------------------------

IMAGENET = ((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))


def imagenet(pixel):
    return [(value - mean) / std for value, (mean, std) in zip(pixel, IMAGENET, strict=True)]


def centred(pixel):
    return [2 * value - 1 for value in pixel]


def caffe(pixel):
    red, green, blue = pixel
    return [255 * blue - 104, 255 * green - 117, 255 * red - 128]


NORMALISED = {
    "bn_inception": caffe,
    "googlenet": centred,
    "lite0": centred,
    "resnet18": imagenet,
    "resnet50": imagenet,
    "test_resnet": centred,
    "resnet10t.c3_in1k": imagenet,
    "vit_tiny_patch16_224": centred,
}


def test_every_photo_trunk_has_its_normalisation_written_out():
    assert {name for name in trunks if issubclass(trunks[name], Photo)} <= set(NORMALISED)


@pytest.mark.parametrize("name", NORMALISED)
def test_normalises_as_published(name):
    trunk = built(name)
    trunk.body = Kept()
    x = sample(name, n=1, side=224)
    normalised = trunk(x)
    for row, column in ((0, 0), (3, 17), (223, 100)):
        expected = NORMALISED[name](x[0, :, row, column].tolist())
        assert normalised[0, :, row, column].tolist() == pytest.approx(expected, abs=1e-4)


def test_conv_centres_and_averages():
    trunk, x = built("conv", inputs=1), sample("conv", inputs=1)
    with torch.no_grad():
        maps = trunk.eval().blocks(2 * x - 1)
    assert torch.allclose(forward(trunk, x), maps.mean((2, 3)), atol=1e-6)
    assert all(name.startswith("blocks.") for name in trunk.state_dict())


# --- pooling, by loops ----------------------------------------------------------------------------


def pooled(values, pooling, exponent=3.0):
    """One channel's positions, one term at a time."""
    mean = sum(values) / len(values)
    if pooling == "gem":
        return (sum(max(value, 1e-6) ** exponent for value in values) / len(values)) ** (
            1 / exponent
        )
    return mean if pooling == "avg" else mean + max(values)


@pytest.mark.parametrize("pooling", ["avg", "avg+max", "gem"])
def test_pooling_matches_its_equation(pooling):
    x = torch.randn(3, 4, 5, 2)
    expected = [[pooled(channel.flatten().tolist(), pooling) for channel in image] for image in x]
    assert torch.allclose(make_pool(pooling)(x), torch.tensor(expected), atol=1e-5)


@pytest.mark.parametrize("exponent", [1.0, 2.5, 60.0])
def test_the_generalised_mean_lies_between_mean_and_maximum(exponent):
    x = torch.rand(2, 3, 4, 4) + 0.5
    gem = GeneralisedMean(exponent)(x)
    assert torch.allclose(
        gem,
        torch.tensor(
            [[pooled(c.flatten().tolist(), "gem", exponent) for c in image] for image in x]
        ),
    )
    assert (gem >= x.mean((2, 3)) - 1e-5).all() and (gem <= x.amax((2, 3)) + 1e-5).all()


def test_the_exponent_is_learned_and_survives_maps_of_zeros():
    pool = GeneralisedMean()
    pool(torch.zeros(1, 2, 3, 3)).sum().backward()
    assert pool.exponent.item() == 3 and pool.exponent.grad.isfinite()


@for_each("pooling", ["avg+max", "gem"])
@for_each("name", CONVOLUTIONAL)
def test_convolutional_trunks_pool_as_asked(name, pooling):
    trunk, average = built(name, pooling=pooling), built(name)
    x = sample(name, side=64)
    features = forward(trunk, x)
    assert features.shape == (2, average.features)
    assert not torch.equal(features, forward(average, x))
    learned = trunk.state_dict().keys() - average.state_dict().keys()
    assert len(learned) == (1 if pooling == "gem" else 0)


@pytest.mark.parametrize("pooling", ["avg", "avg+max", "gem"])
def test_pooling_takes_the_place_of_timms_own(pooling):
    trunk, x = built("lite0", pooling=pooling), sample("lite0", side=64)
    with torch.no_grad():
        maps = trunk.eval().body.forward_features(trunk.normalise(x))
    assert torch.allclose(forward(trunk, x), make_pool(pooling)(maps), atol=1e-6)


@pytest.mark.parametrize("name", ["identity", "vit_tiny_patch16_224"])
def test_pooling_is_refused_where_there_is_nothing_to_pool(name):
    with pytest.raises(BadInput, match=f"--set pooling=gem: the trunk '{name}'"):
        build(name, 3, "gem")


# --- the networks inside --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet18", "googlenet"])
def test_agrees_with_torchvisions_own(name):
    models = torchvision_trunks.import_torchvision().models
    options = (
        {"init_weights": False, "transform_input": True, "aux_logits": False}
        if name == "googlenet"
        else {}
    )
    whole = getattr(models, name)(weights=None, **options).eval()
    whole.fc = nn.Identity()
    trunk = built(name)
    trunk.body.load_state_dict(whole.state_dict())
    x = sample(name, n=1, side=96)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in zip(*IMAGENET, strict=True))
    with torch.no_grad():
        assert torch.allclose(forward(trunk, x), whole((x - mean) / std), atol=1e-4)


@pytest.mark.parametrize(
    "name", ["test_resnet", "test_convnext", "mobilenetv3_small_050", "vit_tiny_patch16_224"]
)
def test_agrees_with_timms_own(name, timm):
    trunk = built(name)
    whole = timm.create_model(name, num_classes=0).eval()
    whole.load_state_dict(trunk.body.state_dict())
    x = sample(name, n=1)
    with torch.no_grad():
        assert torch.allclose(forward(trunk, x), whole(trunk.normalise(x)), atol=1e-5)


BLOCKS = ("3a", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "5a", "5b")


def bn_inception(state, x):
    """The network from its weights and their public names alone."""

    def unit(name, x, stride=1):
        weight = state[f"{name}.weight"]
        x = F.conv2d(x, weight, state[f"{name}.bias"], stride, padding=weight.shape[-1] // 2)
        mean, var, gamma, beta = (
            state[f"{name}_bn.{part}"][:, None, None]
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        return ((x - mean) / (var + 1e-5).sqrt() * gamma + beta).clamp(min=0)

    shapes = {}
    x = F.max_pool2d(unit("conv1_7x7_s2", x, 2), 3, 2, ceil_mode=True)
    x = F.max_pool2d(unit("conv2_3x3", unit("conv2_3x3_reduce", x)), 3, 2, ceil_mode=True)
    for block in BLOCKS:
        b = f"inception_{block}"
        stride = 2 if block in ("3c", "4e") else 1
        branches = [
            unit(f"{b}_3x3", unit(f"{b}_3x3_reduce", x), stride),
            unit(
                f"{b}_double_3x3_2",
                unit(f"{b}_double_3x3_1", unit(f"{b}_double_3x3_reduce", x)),
                stride,
            ),
        ]
        if stride == 2:
            x = torch.cat([*branches, F.max_pool2d(x, 3, 2, ceil_mode=True)], 1)
        else:
            if block == "5b":
                around = F.max_pool2d(x, 3, 1, padding=1)
            else:
                around = F.avg_pool2d(x, 3, 1, padding=1, ceil_mode=True, count_include_pad=True)
            x = torch.cat([unit(f"{b}_1x1", x), *branches, unit(f"{b}_pool_proj", around)], 1)
        shapes[block] = tuple(x.shape[1:])
    return x.mean((2, 3)), shapes


def test_bn_inception_is_the_published_network():
    trunk, x = built("bn_inception"), sample("bn_inception", n=1)
    for name, value in trunk.body.state_dict().items():
        if "_bn." in name and "num_batches" not in name:
            value.uniform_(0.5, 1.5)
    with torch.no_grad():
        expected, shapes = bn_inception(trunk.body.state_dict(), trunk.normalise(x))
    assert torch.allclose(forward(trunk, x), expected, rtol=1e-3, atol=1e-4)
    assert [shapes[block] for block in ("3b", "3c", "4d", "4e", "5b")] == [
        (320, 28, 28), (576, 14, 14), (608, 14, 14), (1056, 7, 7), (1024, 7, 7),
    ]  # fmt: skip


def test_bn_inception_has_the_published_number_of_weights():
    classifier = 1024 * 1000 + 1000
    assert sum(weight.numel() for weight in BNInception(3).parameters()) + classifier == 11_295_240


def test_bn_inception_has_the_published_layers():
    state = BNInception(3).body.state_dict()
    assert len([name for name in state if name.endswith("_bn.weight")]) == 69
    assert {name: tuple(state[f"{name}.weight"].shape) for name in PUBLIC_SHAPES} == PUBLIC_SHAPES
    norms = [module for module in BNInception(3).modules() if isinstance(module, nn.BatchNorm2d)]
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-5, 0.9)}


PUBLIC_SHAPES = {
    "conv1_7x7_s2": (64, 3, 7, 7),
    "conv2_3x3": (192, 64, 3, 3),
    "inception_3a_pool_proj": (32, 192, 1, 1),
    "inception_3b_double_3x3_2": (96, 96, 3, 3),
    "inception_3c_3x3": (160, 128, 3, 3),
    "inception_4a_1x1": (224, 576, 1, 1),
    "inception_4b_3x3": (128, 96, 3, 3),
    "inception_4c_double_3x3_1": (160, 128, 3, 3),
    "inception_4d_double_3x3_reduce": (160, 608, 1, 1),
    "inception_4e_double_3x3_2": (256, 256, 3, 3),
    "inception_5a_1x1": (352, 1056, 1, 1),
    "inception_5b_3x3": (320, 192, 3, 3),
}


# --- sides ----------------------------------------------------------------------------------------


def test_branches_that_would_not_meet_are_refused_with_the_nearest_side():
    with pytest.raises(
        BadInput, match=r"--set size=103: the trunk 'bn_inception' takes sides from 95 to 102"
    ):
        built("bn_inception")(torch.rand(1, 3, 103, 103))


@pytest.mark.parametrize("side", [63, 64, 67, 70, 227])
def test_bn_inception_takes_the_sides_at_which_its_branches_meet(side):
    assert built("bn_inception").eval()(torch.rand(1, 3, side, side)).shape == (1, 1024)


def test_a_trunk_of_one_side_refuses_others():
    assert find("levit_128s").smallest == 224
    with pytest.raises(
        BadInput,
        match=(
            "--set size=256: the trunk 'levit_128s' takes images of 224 pixels a side; use --set"
            " size=224"
        ),
    ):
        built("levit_128s")(torch.rand(1, 3, 256, 256))


def test_a_transformer_whose_positions_stretch_takes_multiples_of_its_patch():
    trunk = built("vit_tiny_patch16_224")
    assert forward(trunk, torch.rand(1, 3, 96, 96)).shape == (1, 192)
    with pytest.raises(BadInput, match="multiple of 16; use --set size=96"):
        trunk(torch.rand(1, 3, 100, 100))


def test_too_small_images_are_refused():
    with pytest.raises(BadInput, match="at least 32 pixels"):
        built("resnet18")(torch.rand(1, 3, 16, 16))


@pytest.mark.parametrize(
    ("name", "side", "smallest"),
    [
        ("conv", None, 16),
        ("lite0", 224, 32),
        ("resnet10t", 176, 32),
        ("vit_small_patch14_dinov2.lvd142m", 518, 14),
    ],
)
def test_sides_are_known_before_anything_is_built(name, side, smallest):
    assert (find(name).side, find(name).smallest) == (side, smallest)


def test_trunks_for_oblong_images_are_refused(timm):
    oblong = next(
        n for n in timm.list_models() if len(set(timm.get_pretrained_cfg(n).input_size[1:])) == 2
    )
    with pytest.raises(BadInput, match="square"):
        find(oblong)


# --- names ----------------------------------------------------------------------------------------


def test_a_registered_name_comes_before_timms():
    assert find("resnet50") is trunks["resnet50"]
    assert issubclass(find("resnet50.a1_in1k"), timm_trunks.Timm)
    assert find("resnet50.a1_in1k") is find("resnet50.a1_in1k")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("cnov", "conv"),
        ("bninception", "bn_inception"),
        ("resnet50.a1_in1x", "resnet50.a1_in1k"),
        ("resnet10", "resnet10t"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name, near):
    with pytest.raises(
        UnknownName,
        match=rf"no trunk is called '{name}'; did you mean .*'{near}'.* \(all: bn_inception",
    ):
        find(name)


@pytest.mark.parametrize(
    ("tag", "data"),
    [
        ("a1_in1k", "ImageNet-1k"),
        ("augreg_in21k", "ImageNet-21k"),
        ("mim_in22k_ft_in22k_in1k", "ImageNet-22k, then ImageNet-1k"),
        ("clip_laion2b_ft_in12k_in1k", "LAION-2B, then ImageNet-12k, then ImageNet-1k"),
        ("lvd142m", "LVD-142M"),
        ("openai", "WIT (OpenAI's, private)"),
        ("indomain_pt", "indomain_pt"),
        ("", "unknown"),
    ],
)
def test_a_tag_says_what_a_trunk_was_trained_on(tag, data):
    assert timm_trunks.pretrained_on(tag) == data


def test_the_network_libraries_wait_until_a_trunk_needs_them():
    code = (
        "import sys\n"
        "from assay.trunks import find, weights\n"
        "weights.resolve_weights('conv', 'pretrained'); find('resnet18')\n"
        "slow = ('timm', 'torchvision', 'huggingface_hub')\n"
        "print([name for name in slow if name in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_a_matching_torchvision_is_left_alone(monkeypatch):
    torchvision_trunks.import_torchvision()
    declared = list(torchvision_trunks._kept)
    assert torchvision_trunks.import_torchvision.__wrapped__() is sys.modules["torchvision"]
    assert torchvision_trunks._kept == declared


def test_another_failure_of_torchvision_is_not_hidden(monkeypatch):
    def fail(name):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(torchvision_trunks.importlib, "import_module", fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        torchvision_trunks.import_torchvision.__wrapped__()
