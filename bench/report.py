"""The results of a run: a table for people and one JSON object for machines."""

from __future__ import annotations

from collections.abc import Sequence

from bench.bars import Bar, Promises, Results, Target, best_lane, medians, ratio, verdict
from bench.job import Figures

# scenario → lane → one set of figures per repeat
Runs = dict[str, dict[str, list[Figures]]]
Row = tuple[str, ...]

UNITS = {"msg_s": "/s", "loops_s": "/s", "mb_s": "MB/s", "p50_us": "µs", "p99_us": "µs"}
LEFT_COLUMNS = {0, 3, 6}


def results_of(runs: Runs) -> Results:
    """Return the medians of every lane that was measured."""
    return {
        scenario: {lane: medians(repeats) for lane, repeats in lanes.items() if repeats}
        for scenario, lanes in runs.items()
    }


def summary(runs: Runs, promises: Promises) -> dict[str, object]:
    """Return the object of the last line: the named figures first, then everything measured."""
    results = results_of(runs)
    found: dict[str, object] = {}
    for bar in promises.bars:
        if bar.scenario in results:
            found[bar.key] = rounded(ratio(results, bar))
    for target in promises.targets:
        if target.scenario in results:
            lanes = results[target.scenario]
            found[target.key] = rounded(lanes.get(target.lane, {}).get(target.name))
    for key, (scenario, lane, figure) in promises.recorded.items():
        if scenario in results:
            found[key] = rounded(results[scenario].get(lane, {}).get(figure))
    found["raw"] = {
        scenario: {lane: raw(repeats) for lane, repeats in lanes.items() if repeats}
        for scenario, lanes in runs.items()
    }
    return found


def raw(repeats: Sequence[Figures]) -> dict[str, object]:
    """Return one lane's medians, and its main figure of every repeat to show the spread."""
    kept: dict[str, object] = {name: rounded(value) for name, value in medians(repeats).items()}
    main = main_figure(repeats[0])
    kept[f"{main}_runs"] = [rounded(run[main]) for run in repeats]
    return kept


def table(runs: Runs, promises: Promises) -> str:
    """Return the bars as a table, and below it all that was recorded, lane by lane."""
    results = results_of(runs)
    rows: list[Row] = [("measure", "Ister", "other", "", "ratio", "bar", "")]
    rows += [bar_row(results, bar) for bar in promises.bars if bar.scenario in results]
    rows += [
        target_row(results, target) for target in promises.targets if target.scenario in results
    ]
    details: list[Row] = [
        (scenario, lane, *detail(repeats))
        for scenario, lanes in runs.items()
        for lane, repeats in lanes.items()
        if repeats
    ]
    return f"{aligned(rows, LEFT_COLUMNS)}\n\n{aligned(details, {0, 1, 2, 3, 4})}\n"


def bar_row(results: Results, bar: Bar) -> Row:
    """Return one bar's line of the table."""
    lanes = results[bar.scenario]
    theirs = best_lane(results, bar)
    value = ratio(results, bar)
    unit = UNITS[bar.figure]
    return (
        bar.title,
        shown(lanes.get(bar.ours, {}).get(bar.figure), unit),
        shown(lanes[theirs][bar.figure] if theirs else None, unit),
        theirs or "",
        "-" if value is None else f"{value:.2f}",
        "" if bar.limit is None else f"{'≥' if bar.more_is_better else '≤'} {bar.limit:g}",
        verdict(value, bar),
    )


def target_row(results: Results, target: Target) -> Row:
    """Return one target's line of the table; the other side's figure stands by for scale."""
    lanes = results[target.scenario]
    ours = lanes.get(target.lane, {}).get(target.name)
    theirs = lanes.get(target.scale, {}).get(target.name)
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
    """Return a lane's main figure, its spread over the repeats, and the other figures."""
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
    """Return the name of the figure a lane is about."""
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
