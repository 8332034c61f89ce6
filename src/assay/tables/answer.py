"""The answer: which method to use, by how much it is better, and which methods may be as good."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from assay.records.benches import AS_IS
from assay.records.lines import Setting
from assay.stats import Difference, Interval
from assay.tables.comparison import SETTINGS, Comparison
from assay.tables.family import is_settled
from assay.tables.length import not_converged_clause
from assay.tables.table import ends, in_points, named, percent
from assay.tables.verdicts import FORMS, ONE_SEARCH, what_it_takes

UNDECIDED = "Undecided"
"""First word of an answer that leaves open whether a method is better than the yardstick."""


@dataclass(frozen=True)
class Answer:
    """Advice for the reader, from MAP@R alone.

    Args:
        sentence: the answer in one line.
        use: the method to use; None where no method is shown to be better than the yardstick, or
            nothing is settled.
        over: the yardstick.
        difference: of the method to use over the yardstick.
        alike: methods that cannot be distinguished from the method to use.
        setting: the form of the models that it is about.
        disagreements: where the other form of the models says something else.
        undecided: whether a method may still be better than the yardstick by enough to matter.
    """

    sentence: str
    use: str | None
    over: str | None
    difference: Difference | None
    alike: tuple[str, ...]
    setting: Setting
    disagreements: tuple[str, ...] = ()
    undecided: bool = False


def answer(comparison: Comparison, setting: Setting = "separated") -> Answer:
    """Return the answer by one form of the models, with what the other form says differently."""
    found = answer_in(comparison, setting)
    other: Setting = "concatenated" if setting == "separated" else "separated"
    apart = disagreements(comparison)
    there = answer_in(comparison, other) if comparison.records else found
    tied = found.use in there.alike and there.use in found.alike
    if there.use != found.use and not tied:
        apart = [
            f"By {FORMS[other]} the answer is another one: {there.sentence.rstrip('.')}",
            *apart,
        ]
    return replace(found, disagreements=tuple(apart))


def answer_in(comparison: Comparison, setting: Setting) -> Answer:
    """Return the answer by one form of the models alone."""
    trained = (
        [name for name in comparison.by_mean(setting) if name in comparison.family.methods]
        if comparison.records
        else []
    )
    yardstick = (
        comparison.family.yardstick if comparison.family.yardstick in comparison.methods else None
    )
    if not trained:
        return Answer(_nothing_trained(comparison, setting), None, yardstick, None, (), setting)
    if yardstick is None:
        return _without_yardstick(comparison, setting, trained)
    over = {one.first: one for one in comparison.differences(setting) if one.second == yardstick}
    better = [name for name in trained if name in over and over[name].verdict == "better"]
    if better:
        return _use(comparison, setting, better[0], over[better[0]])
    return _keep(comparison, setting, yardstick, trained)


def method_to_train(comparison: Comparison) -> tuple[str, str, bool]:
    """Return the trained method to train a model by, why, and whether the answer is settled on it.

    It is the method of the answer. Where the answer names none, it is the yardstick if that is
    trained, else the method with the highest MAP@R of single models.
    """
    found = answer(comparison)
    if found.use is not None:
        return found.use, found.sentence, not found.alike
    trained = [
        name for name in comparison.by_mean("separated") if name in comparison.family.methods
    ]
    return found.over if found.over in trained else trained[0], found.sentence, False


def disagreements(comparison: Comparison) -> list[str]:
    """Return the pairs on which single and concatenated models disagree.

    These are the pairs that single models settle one way, and concatenated models settle the other
    way or not at all.
    """
    if not comparison.records:
        return []
    single, joined = (
        {frozenset((one.first, one.second)): one for one in comparison.differences(setting)}
        for setting in reversed(SETTINGS)
    )
    return [
        f"{_side(single[pair])} by single models, {_side(joined[pair])} by concatenated models"
        for pair in single
        if pair in joined and _winner(single[pair]) != _winner(joined[pair])
    ]


def _use(comparison: Comparison, setting: Setting, method: str, difference: Difference) -> Answer:
    alike = _alike(comparison, setting, method)
    gain = (
        f"+{100 * difference.interval.mean:.1f} points of MAP@R ({FORMS[setting]}) over"
        f" {difference.second}"
    )
    text = (
        f"Use {method}: {gain}"
        f" ({ends(difference.interval)}){_beside(comparison, setting, method, alike)}"
    )
    sentence = text + _caveats(comparison, [method, difference.second, *alike]) + "."
    return Answer(sentence, method, difference.second, difference, tuple(alike), setting)


def _keep(
    comparison: Comparison, setting: Setting, yardstick: str, trained: Sequence[str]
) -> Answer:
    """Return the answer that no method is shown to be better by enough to matter."""
    by_method = _against(comparison, setting, yardstick)
    little = [
        name
        for name in trained
        if name in by_method and is_settled(by_method[name]) and by_method[name].first == name
    ]
    worse = [name for name in trained if (yardstick, name) in comparison.better(setting)]
    alike = [name for name in trained if name not in (*little, *worse)]
    what = _what_to_do(comparison, by_method, yardstick, alike)
    parts = [
        f"{what}: no method is shown to be better than {yardstick} by MAP@R ({FORMS[setting]})"
    ]
    if little:
        nearest = by_method[little[0]]
        parts[0] += (
            f" by enough to matter: {little[0]} by {100 * nearest.interval.mean:.1f} points"
            f" ({ends(nearest.interval)})"
        )
    if alike:
        parts.append(f"{_not_shown_to_differ(alike)}{_nearest(comparison, by_method, alike)}")
    if worse:
        parts.append(f"{named(worse)} {'is' if len(worse) == 1 else 'are'} worse")
    sentence = "; ".join(parts) + _caveats(comparison, [yardstick, *trained]) + "."
    undecided = what == UNDECIDED
    return Answer(sentence, None, yardstick, None, tuple(alike), setting, undecided=undecided)


def _what_to_do(
    comparison: Comparison, by_method: dict[str, Difference], yardstick: str, alike: Sequence[str]
) -> str:
    """Return `UNDECIDED` where a method may still be better by enough to matter."""
    gains = [_gain(by_method[name], name) for name in alike if name in by_method]
    if len(gains) < len(alike) or any(
        gain.high is None or gain.high > comparison.smallest for gain in gains
    ):
        return UNDECIDED
    return (
        "Keep what you have"
        if yardstick == AS_IS and not comparison.random_trunk
        else f"Use {yardstick}"
    )


def _gain(difference: Difference, method: str) -> Interval:
    """Return the interval of this method minus the other method."""
    found = difference.interval
    if difference.first == method:
        return found
    low, high = (None if end is None else -end for end in (found.high, found.low))
    return Interval(-found.mean, low, high, found.n)


def _nearest(comparison: Comparison, by_method: dict[str, Difference], alike: Sequence[str]) -> str:
    """Return the difference of the best method among those not distinguished from the yardstick."""
    nearest = by_method.get(alike[0])
    if nearest is None:
        return ""
    if nearest.interval.low is None:
        return f" ({what_it_takes(comparison, nearest)})"
    interval = _gain(nearest, alike[0])
    name = f"{alike[0]} " if len(alike) > 1 else ""
    takes = f"; {what_it_takes(comparison, nearest)}" if nearest.verdict == "undecided" else ""
    return f" ({name}{100 * interval.mean:+.1f} points, {ends(interval)}{takes})"


def _without_yardstick(comparison: Comparison, setting: Setting, trained: Sequence[str]) -> Answer:
    best = trained[0]
    score = percent(comparison.interval(best, setting, "map_at_r"))
    if len(trained) == 1:
        text = (
            f"{best} has a MAP@R of {score} ({FORMS[setting]}); there is nothing to compare it with"
        )
        return Answer(text + _caveats(comparison, [best]) + ".", None, None, None, (), setting)
    alike = _alike(comparison, setting, best)
    if len(alike) == len(trained) - 1:
        text = (
            f"No method is shown to be the best: {best} has the highest MAP@R ({score},"
            f" {FORMS[setting]})"
        )
        nearest = _against(comparison, setting, best).get(alike[0])
        takes = (
            f"; {what_it_takes(comparison, nearest)}"
            if nearest and nearest.verdict == "undecided"
            else ""
        )
        text += _beside(comparison, setting, best, alike) + takes + _caveats(comparison, trained)
        return Answer(f"{text}.", None, None, None, tuple(alike), setting)
    text = (
        f"Use {best}: highest MAP@R ({score},"
        f" {FORMS[setting]}){_beside(comparison, setting, best, alike)}"
    )
    return Answer(
        text + _caveats(comparison, [best, *alike]) + ".", best, None, None, tuple(alike), setting
    )


def _nothing_trained(comparison: Comparison, setting: Setting) -> str:
    if not comparison.records:
        return "No answer: no method has test scores yet."
    best = comparison.by_mean(setting)[0]
    score = percent(comparison.interval(best, setting, "map_at_r"))
    return (
        f"No answer: only baselines have test scores; {best} has the highest MAP@R ({score},"
        f" {FORMS[setting]})."
    )


def _alike(comparison: Comparison, setting: Setting, method: str) -> list[str]:
    """Return the trained methods shown that are not known to be better or worse than this method.

    The best mean comes first.
    """
    better = comparison.better(setting)
    others = [
        name
        for name in comparison.by_mean(setting)
        if name in comparison.family.methods and name != method
    ]
    return [name for name in others if not {(method, name), (name, method)} & better]


def _beside(comparison: Comparison, setting: Setting, method: str, alike: Sequence[str]) -> str:
    """Return how the other methods compare with the method to use, in words."""
    by_method = _against(comparison, setting, method)
    same = [name for name in alike if name in by_method and by_method[name].verdict == "equivalent"]
    unknown = [name for name in alike if name in by_method and name not in same]
    apart = [name for name in alike if name not in by_method]
    little = [
        name
        for name, one in by_method.items()
        if one.verdict == "better, too little to matter" and name != AS_IS
    ]
    within = in_points(comparison.smallest)
    parts = [_not_shown_to_differ(unknown)] if unknown else []
    parts += (
        [f"{named(same)} {'is' if len(same) == 1 else 'are'} equivalent to it, within {within}"]
        if same
        else []
    )
    parts += (
        [f"{named(little)} differ{'s' * (len(little) == 1)} from it by less than {within}"]
        if little
        else []
    )
    parts += (
        [f"{named(apart)} {'was' if len(apart) == 1 else 'were'} not compared with it"]
        if apart
        else []
    )
    above = [
        name
        for name in comparison.family.methods
        if (name, method) in comparison.better_of_all(setting)
    ]
    shown = [name for name in comparison.methods if name in comparison.family.methods]
    parts += [_above(above, shown)] if above else []
    if not parts and len(shown) > 1:
        whole = set(comparison.family.methods) <= set(comparison.methods)
        parts = [
            "every other method is worse" if whole else "every other method shown here is worse"
        ]
    return "".join(f"; {part}" for part in parts)


def _above(names: Sequence[str], shown: Sequence[str]) -> str:
    """Return which methods are better, and mention those that are not shown."""
    hidden = (
        ""
        if set(names) <= set(shown)
        else ", not all of them shown here,"
        if len(names) > 1
        else ", not shown here,"
    )
    return f"{named(names)}{hidden} {'is' if len(names) == 1 else 'are'} better than it"


def _against(comparison: Comparison, setting: Setting, method: str) -> dict[str, Difference]:
    """Return the differences that this method is part of, by the name of the other method."""
    twins = comparison.family.twins
    return {
        one.second if one.first == method else one.first: one
        for one in comparison.differences(setting)
        if method in (one.first, one.second) and not {one.first, one.second} & twins.keys()
    }


def _not_shown_to_differ(names: Sequence[str]) -> str:
    return f"{named(names)} {'is' if len(names) == 1 else 'are'} not shown to differ from it"


def _caveats(comparison: Comparison, methods: Sequence[str]) -> str:
    once = f"; {ONE_SEARCH}" if set(methods) & set(comparison.searched_once) else ""
    return once + not_converged_clause(comparison, methods)


def _winner(difference: Difference) -> str | None:
    return difference.first if is_settled(difference) else None


def _side(difference: Difference) -> str:
    interval = f" ({ends(difference.interval)})" if difference.interval.low is not None else ""
    if is_settled(difference):
        return f"{difference.first} is better than {difference.second}{interval}"
    return f"{difference.first} and {difference.second} {difference.verdict}{interval}"
