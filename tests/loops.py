"""Loops over the cases of a law: one test, whose failure names the cases that broke it."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

PARAM = type(pytest.param())


def for_each(
    names: str | Iterable[str],
    cases: Iterable[Any],
    ids: Callable[[Any], str] | Iterable[str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for each case, as `pytest.mark.parametrize` does, but as a single test.

    Use it where a case is cheap and needs no fixture of its own. Every case runs, also after one
    has failed, and draws from torch's generator as if it ran alone. Decorators may be stacked.
    """
    words = [word.strip() for word in names.split(",")] if isinstance(names, str) else list(names)
    listed = [
        case.values if isinstance(case, PARAM) else case if len(words) > 1 else (case,)
        for case in cases
    ]

    def label(values: tuple[Any, ...]) -> str:
        shown = ids if callable(ids) else lambda value: getattr(value, "__name__", None) or value
        return ", ".join(
            f"{word}={shown(value)}" for word, value in zip(words, values, strict=True)
        )

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failed: dict[str, BaseException] = {}
            for values in listed:
                try:
                    with torch.random.fork_rng(devices=[]):
                        torch.manual_seed(0)
                        test(**dict(zip(words, values, strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    failed[label(values)] = error
            if failed:
                first = next(iter(failed.values()))
                raise AssertionError(
                    f"{len(failed)} of {len(listed)} cases failed: {'; '.join(failed)}"
                ) from first

        assert listed, "there is no case"
        for name in [name for name in vars(run) if "hypothesis" in name]:
            delattr(run, name)  # the plugin would take the loop for the test inside it
        kept = [
            parameter
            for name, parameter in inspect.signature(test).parameters.items()
            if name not in words
        ]
        run.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
        return run

    return decorate
