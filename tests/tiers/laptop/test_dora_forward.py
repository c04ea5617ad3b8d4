"""The rearranged DoRA layer against PEFT's own: same outputs, same gradients, and PEFT's again afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hinet_tiers.laptop.dora_forward import rearranged

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def student() -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(12, 20, bias=False), torch.nn.SiLU(), torch.nn.Linear(20, 7, bias=False)
    )
    settings = LoraConfig(r=4, lora_alpha=12, use_dora=True, target_modules=["0", "2"])
    made = get_peft_model(model, settings)
    for name, parameter in made.named_parameters():
        if parameter.requires_grad:
            scale = 1.0 if "magnitude" in name else 0.0
            parameter.data = parameter.data * scale + torch.randn_like(parameter) * 0.3
    return made.eval()


def outputs_and_gradients(model: Any, x: Any) -> list[Any]:
    model.zero_grad()
    leaf = x.clone().requires_grad_(True)
    y = model(leaf)
    (y.sin() * torch.arange(y.numel()).view_as(y)).sum().backward()
    return [y, leaf.grad, *[p.grad.clone() for p in model.parameters() if p.requires_grad]]


def test_it_gives_the_same_outputs_and_gradients_as_peft() -> None:
    model, x = student(), torch.randn(3, 5, 12)
    theirs = outputs_and_gradients(model, x)
    with rearranged(model):
        ours = outputs_and_gradients(model, x)
    assert len(theirs) == 2 + 2 * 3
    for one, two in zip(theirs, ours, strict=True):
        assert torch.allclose(one, two, rtol=1e-4, atol=1e-4)


def test_pefts_own_forward_is_back_afterwards() -> None:
    model = student()
    layers = [module for module in model.modules() if getattr(module, "lora_magnitude_vector", None)]
    with rearranged(model):
        assert all("forward" in layer.__dict__ for layer in layers)
    assert len(layers) == 2
    assert not any("forward" in layer.__dict__ for layer in layers)
