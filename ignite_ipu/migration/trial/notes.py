"""Notes of a trace, before they are placed in a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional, Set, Tuple

from ignite_ipu.migration.findings import Severity
from ignite_ipu.migration.trial.places import Place


@dataclass(frozen=True)
class Note:
    """One thing that a trace showed.

    Attributes:
        rule: The rule that it breaks.
        place: Where; None when no line of the user's is to blame.
        message: What is wrong there, in one sentence.
        severity: How bad it is there when that differs from the rule's own.
    """

    rule: str
    place: Optional[Place]
    message: str
    severity: Optional[Severity] = None


@dataclass
class Notes:
    """Collects notes, one for each rule and line.

    Attributes:
        found: The notes.
        broken: The rule of everything worse than a note that was found, also of what was known already.
    """

    found: List[Note] = field(default_factory=list)
    broken: List[str] = field(default_factory=list)
    _known: Set[Tuple[object, ...]] = field(default_factory=set)

    def add(
        self, rule: str, place: Optional[Place], message: str, severity: Optional[Severity] = None, about: str = ""
    ) -> None:
        """Note something, unless the line is known to break the rule.

        Args:
            rule: Name of the rule.
            place: Where.
            message: What, in one sentence; `{where}` in it stands for the function that the place is in.
            severity: When it differs from the rule's.
            about: Tells apart what breaks the same rule in the same line.
        """
        if severity is not Severity.NOTE:
            self.broken.append(rule)
        message = message.replace("{where}", "the model" if place is None else place.where)
        line = ("", 0) if place is None else (place.path, place.line)
        key = (rule, *line, about or (message if place is None else ""))
        if key not in self._known:
            self._known.add(key)
            self.found.append(Note(rule, place, message, severity))

    def has(self, rule: str, place: Optional[Place]) -> bool:
        """Tell whether a line is known to break a rule."""
        return any(note.rule == rule and note.place == place for note in self.found)
