"""The model card of an ensemble, filled in with what is known of its fit."""

from __future__ import annotations

from repulse._version import __version__
from repulse.ensemble import Ensemble
from repulse.recipe import Recipe


def card_of(ensemble: Ensemble, data: str | None, header: str) -> str:
    """Return the card as Markdown: what it is, what it was fitted and repelled on, what was measured, how to load it.

    Args:
        ensemble: with the summary of its fit, if it has one.
        data: in words, what it was fitted on.
        header: YAML of the card.
    """
    kind = type(ensemble.model).__name__
    heads = ensemble.heads
    lines = [
        f"---\n{header.strip()}\n---",
        f"# {kind} with uncertainty",
        f"A {kind} whose last layer is an ensemble of {heads.count} heads that agree on the training data and were "
        "pushed apart elsewhere. One pass of the network gives each prediction with its aleatoric part (the input is "
        f"ambiguous) and its epistemic part (it is unlike anything seen). Made with repulse {__version__}.",
        "## What it was fitted on",
        f"- Data: {data or 'not said by those who made it'}",
        f"- Repulsion: heads were made to disagree {ensemble.repulsion}.",
        f"- Heads see {', '.join(f'`{name}`' for name in ensemble.layers)}.",
        f"- Recipe: {_changes(ensemble.recipe)}",
    ]
    if ensemble.class_names:
        few = ensemble.class_names[:50]
        more = len(ensemble.class_names) - len(few)
        lines.append(f"- Classes: {', '.join(few)}" + (f" and {more} more" if more else ""))
    lines += _measured(ensemble)
    if ensemble.has_gate:
        promised = "\n".join(f"- {line}" for line in ensemble.gate().lines())
        lines += ["## What its gate promises", f"For inputs drawn like its calibration data:\n\n{promised}"]
    lines += [
        "## How to use it",
        "```python\nfrom repulse.integrations.huggingface import HubEnsemble\n\n"
        'ensemble = HubEnsemble.from_pretrained("<this repository>").ensemble  # model=network, if it is not one of '
        "transformers\np = ensemble.predict(inputs)\np.probs, p.aleatoric, p.epistemic\n```",
        f"The heads fit one network, whose fingerprint is `{ensemble.network['weights']}`; loading refuses any other.",
    ]
    return "\n\n".join(_joined(lines)) + "\n"


def _measured(ensemble: Ensemble) -> list[str]:
    """Return what the fit measured, and what follows from it."""
    if ensemble._summary is None:
        return ["## What was measured", "Nothing: this ensemble has no summary of its fit."]
    summary = ensemble._summary
    rows = "\n".join(f"| {name} | {before:.4g} | {after:.4g} |" for name, before, after in summary.rows())
    lines = [
        "## What was measured",
        f"On {summary.samples:,} samples of {summary.data} data"
        + (", which the network had not seen:" if summary.data == "validation" else ", which the network had seen:"),
        f"| | network | ensemble |\n| --- | --- | --- |\n{rows}",
    ]
    if summary.separation is not None:
        lines.append(
            f"Epistemic uncertainty tells repulsion samples from {summary.data} data with AUROC "
            f"{summary.separation:.3f}; heads were trained on these samples, so it is no promise about others."
        )
    lines += ["## What may be relied on", f"- In the middle, {summary.centre}."]
    lines += [f"- Assumed: {line}." for line in summary.assumed]
    lines += [f"- Warning: {line}" for line in summary.warnings()]
    lines.append(
        "- `total` is always `aleatoric + epistemic`; a large `epistemic` says that the answer rests on nothing."
    )
    return lines


def _changes(recipe: Recipe | None) -> str:
    """Return the settings of a recipe that are not the default ones."""
    if recipe is None:
        return "unknown."
    default = Recipe(task=recipe.task)
    changed = {name: value for name, value in vars(recipe).items() if value != getattr(default, name)}
    said = ", ".join(f"`{name}={value!r}`" for name, value in changed.items())
    return f"`Recipe(task={recipe.task!r})`" + (f" with {said}." if said else ".")


def _joined(lines: list[str]) -> list[str]:
    """Put the lines of a list together, so that nothing but paragraphs is left."""
    found: list[str] = []
    for line in lines:
        if line.startswith("- ") and found and found[-1].startswith("- "):
            found[-1] += "\n" + line
        else:
            found.append(line)
    return found
