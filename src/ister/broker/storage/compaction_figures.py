"""What the compactor of one journal has done, by its reasons: for metrics."""

from dataclasses import dataclass, field

from ister.log import RewriteFigures


@dataclass(slots=True)
class ReasonFigures:
    """All rewrites for one reason."""

    rewrites: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    segments_replaced: int = 0
    dropped_messages: int = 0


@dataclass(slots=True)
class CompactionFigures:
    """Counts of one journal."""

    failures: int = 0
    by_reason: dict[str, ReasonFigures] = field(default_factory=dict)

    def add(self, reason: str, figures: RewriteFigures) -> None:
        """Count a rewrite that is done."""
        found = self.by_reason.setdefault(reason, ReasonFigures())
        found.rewrites += 1
        found.read_bytes += figures.read_bytes
        found.written_bytes += figures.written_bytes
        found.segments_replaced += figures.segments_in
        found.dropped_messages += figures.dropped_messages
