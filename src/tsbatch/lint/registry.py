"""The registry of rules: each is a small function that looks at one document and yields what it found.

::

    @rule("config-unknown-key", PropertiesFile, "error", "a key that does not exist", "TorchServe ignores it ...")
    def unknown_key(file: PropertiesFile) -> Iterator[Found]:
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from tsbatch.lint.documents import Document
from tsbatch.lint.findings import Finding, Found, Severity

DocumentT = TypeVar("DocumentT", bound=Document)
Check = Callable[[DocumentT], Iterator[Found]]

MODULES = (
    *("properties_keys", "properties_values", "properties_security", "models_json"),
    *("yaml_keys", "yaml_values", "yaml_capacity"),
    *("handler_shape", "handler_batches", "handler_worker"),
    *("archive_manifest", "metrics_file", "cross_file", "emitted_metrics"),
)
"""Where the rules are, in the order in which they are listed."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        id: its name, as it stands in findings and in ``--ignore``.
        kind: the kind of document it looks at.
        severity: of all its findings.
        title: what it finds, in a few words.
        explanation: what TorchServe does there, in a sentence or two.
        check: the function.
    """

    id: str
    kind: type[Document]
    severity: Severity
    title: str
    explanation: str
    check: Callable[[Any], Iterator[Found]]

    def look_at(self, document: Document) -> Iterator[Finding]:
        """Its findings in one document, less those that the document allows."""
        for found in self.check(document):
            if self.id in document.allowed(found.line):
                continue
            file = found.file or document.path
            details = (found.message, found.effect, found.replacement, found.edit)
            yield Finding(self.id, file, found.line, self.severity, *details)


_RULES: dict[str, Rule] = {}


def rule(
    name: str, kind: type[DocumentT], severity: Severity, title: str, explanation: str
) -> Callable[[Check[DocumentT]], Check[DocumentT]]:
    """Registers a function as a rule; the arguments are those of ``Rule``."""

    def register(check: Check[DocumentT]) -> Check[DocumentT]:
        assert name not in _RULES, name
        _RULES[name] = Rule(name, kind, severity, title, explanation, check)
        return check

    return register


def all_rules() -> dict[str, Rule]:
    """Every rule by its id, in the order of the modules."""
    for module in MODULES:
        import_module(f"tsbatch.lint.rules.{module}")
    # Some modules are imported before by others.
    place = {f"tsbatch.lint.rules.{module}": number for number, module in enumerate(MODULES)}
    return dict(sorted(_RULES.items(), key=lambda item: place[item[1].check.__module__]))
