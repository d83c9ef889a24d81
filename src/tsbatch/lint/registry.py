"""The registry of rules: each is a small function that examines one document and yields the issues in it.

The function's docstring is what users read about the rule: its first line is the title, the rest the explanation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from tsbatch.lint.documents import Document
from tsbatch.lint.findings import Finding, Issue, Severity

DocumentT = TypeVar("DocumentT", bound=Document)
Check = Callable[[DocumentT], Iterator[Issue]]

MODULES = tuple(
    f"tsbatch.lint.rules.{module}"
    for module in (
        *("properties_keys", "properties_values", "properties_security", "models_json"),
        *("yaml_keys", "yaml_values", "yaml_capacity"),
        *("handler_shape", "handler_batches", "handler_worker"),
        *("archive_manifest", "metrics_file", "cross_file", "emitted_metrics"),
    )
)
"""The modules with rules, in the order in which the rules are listed."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        id: its name in findings and in ``--ignore``.
        kind: the kind of document it examines.
        severity: of all its findings.
        title: what it finds, in a few words.
        explanation: what TorchServe does in that case, in a sentence or two.
        check: the function.
    """

    id: str
    kind: type[Document]
    severity: Severity
    title: str
    explanation: str
    check: Callable[[Any], Iterator[Issue]]

    def apply(self, document: Document) -> Iterator[Finding]:
        """Yield the findings in one document, except those that a comment in it allows."""
        for issue in self.check(document):
            if self.id not in document.allowed(issue.line):
                details = (issue.message, issue.effect, issue.replacement, issue.edit)
                yield Finding(self.id, issue.file or document.path, issue.line, self.severity, *details)


_RULES: dict[str, Rule] = {}


def rule(name: str, kind: type[DocumentT], severity: Severity) -> Callable[[Check[DocumentT]], Check[DocumentT]]:
    """Register a function as a rule; title and explanation come from its docstring."""

    def register(check: Check[DocumentT]) -> Check[DocumentT]:
        assert name not in _RULES, name
        title, _, explanation = inspect.cleandoc(check.__doc__ or name).partition("\n\n")
        _RULES[name] = Rule(name, kind, severity, title.removesuffix("."), " ".join(explanation.split()), check)
        return check

    return register


def all_rules() -> dict[str, Rule]:
    """Return every rule by its id, in the order of the modules."""
    for module in MODULES:
        import_module(module)
    # Some modules are imported earlier, by others.
    return dict(sorted(_RULES.items(), key=lambda item: MODULES.index(item[1].check.__module__)))
