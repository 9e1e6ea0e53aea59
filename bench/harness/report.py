"""The results of a run: a table for people and one JSON object for machines."""

from __future__ import annotations

from collections.abc import Sequence

from bench.harness.job import Figures
from bench.harness.thresholds import (
    Promises,
    Results,
    Target,
    Threshold,
    best_variant,
    medians,
    ratio,
    verdict,
)

# scenario → variant → one set of figures per repeat
Runs = dict[str, dict[str, list[Figures]]]
Row = tuple[str, ...]

UNITS = {"msg_s": "/s", "loops_s": "/s", "mb_s": "MB/s", "p50_us": "µs", "p99_us": "µs"}
LEFT_COLUMNS = {0, 3, 6}


def results_of(runs: Runs) -> Results:
    """Return the medians of every variant that was measured."""
    return {
        scenario: {variant: medians(repeats) for variant, repeats in variants.items() if repeats}
        for scenario, variants in runs.items()
    }


def summary(runs: Runs, promises: Promises) -> dict[str, object]:
    """Return the object of the last line: the named figures first, then everything measured."""
    results = results_of(runs)
    found: dict[str, object] = {}
    for threshold in promises.thresholds:
        if threshold.scenario in results:
            found[threshold.key] = rounded(ratio(results, threshold))
    for target in promises.targets:
        if target.scenario in results:
            variants = results[target.scenario]
            found[target.key] = rounded(variants.get(target.variant, {}).get(target.name))
    for key, (scenario, variant, figure) in promises.recorded.items():
        if scenario in results:
            found[key] = rounded(results[scenario].get(variant, {}).get(figure))
    found["raw"] = {
        scenario: {variant: raw(repeats) for variant, repeats in variants.items() if repeats}
        for scenario, variants in runs.items()
    }
    return found


def raw(repeats: Sequence[Figures]) -> dict[str, object]:
    """Return one variant's medians, and its main figure of every repeat to show the spread."""
    kept: dict[str, object] = {name: rounded(value) for name, value in medians(repeats).items()}
    main = main_figure(repeats[0])
    kept[f"{main}_runs"] = [rounded(run[main]) for run in repeats]
    return kept


def table(runs: Runs, promises: Promises) -> str:
    """Return the thresholds as a table, and below it all that was recorded, variant by variant."""
    results = results_of(runs)
    rows: list[Row] = [("measure", "Ister", "other", "", "ratio", "bar", "")]
    rows += [
        threshold_row(results, threshold)
        for threshold in promises.thresholds
        if threshold.scenario in results
    ]
    rows += [
        target_row(results, target) for target in promises.targets if target.scenario in results
    ]
    details: list[Row] = [
        (scenario, variant, *detail(repeats))
        for scenario, variants in runs.items()
        for variant, repeats in variants.items()
        if repeats
    ]
    return f"{aligned(rows, LEFT_COLUMNS)}\n\n{aligned(details, {0, 1, 2, 3, 4})}\n"


def threshold_row(results: Results, threshold: Threshold) -> Row:
    """Return one threshold's line of the table."""
    variants = results[threshold.scenario]
    theirs = best_variant(results, threshold)
    value = ratio(results, threshold)
    unit = UNITS[threshold.figure]
    return (
        threshold.title,
        shown(variants.get(threshold.ours, {}).get(threshold.figure), unit),
        shown(variants[theirs][threshold.figure] if theirs else None, unit),
        theirs or "",
        "-" if value is None else f"{value:.2f}",
        ""
        if threshold.limit is None
        else f"{'≥' if threshold.more_is_better else '≤'} {threshold.limit:g}",
        verdict(value, threshold),
    )


def target_row(results: Results, target: Target) -> Row:
    """Return one target's line of the table; the other figure is shown for scale."""
    variants = results[target.scenario]
    ours = variants.get(target.variant, {}).get(target.name)
    theirs = variants.get(target.scale, {}).get(target.name)
    return (
        target.title,
        shown(ours, target.unit),
        shown(theirs, target.unit),
        target.scale if theirs is not None else "",
        "",
        f"{'≥' if target.at_least else '<'} {target.limit:g}",
        "-" if ours is None else "pass" if target.is_kept(ours) else "FAIL",
    )


def detail(repeats: Sequence[Figures]) -> Row:
    """Return a variant's main figure, its spread over the repeats, and the other figures."""
    figures = medians(repeats)
    main = main_figure(figures)
    values = [run[main] for run in repeats]
    others = (f"{name} {shown(value, '')}" for name, value in figures.items() if name != main)
    return (
        f"{main} {shown(figures[main], '')}",
        f"({shown(min(values), '')} … {shown(max(values), '')})",
        "  ".join(others),
    )


def main_figure(figures: Figures) -> str:
    """Return the name of the figure a variant is about."""
    return next((name for name in UNITS if name in figures), next(iter(figures)))


def rounded(value: float | None) -> float | None:
    """Return a figure without the digits that are noise."""
    return None if value is None else round(value, 4)


def shown(value: float | None, unit: str) -> str:
    """Return a figure for people, with as many digits as it deserves."""
    if value is None:
        return "-"
    digits = 0 if abs(value) >= 1000 or value == int(value) else 1 if abs(value) >= 10 else 3
    return f"{value:,.{digits}f} {unit}".strip()


def aligned(rows: Sequence[Row], left: set[int]) -> str:
    """Return the rows as columns; those in `left` are text, the others figures."""
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
