"""Rules for what a handler does to its worker: files, logs, sleep, device, the model's mode."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tsbatch.lint.findings import Issue
from tsbatch.lint.handler_file import HandlerFile, batch_name, calls, last_name, methods, name_of, names_in
from tsbatch.lint.registry import rule
from tsbatch.packaging.handler_files import Function

OPENERS = {
    *("open", "io.open", "torch.load", "torch.jit.load", "torch.export.load", "pipeline", "transformers.pipeline"),
    *("np.load", "numpy.load", "safetensors.torch.load_file", "load_file", "ort.InferenceSession"),
    *("onnxruntime.InferenceSession", "InferenceSession", "yaml.safe_load", "json.load"),
}
READERS = ("from_pretrained", "read_text", "read_bytes", "from_file")
IN_MEMORY = {"BytesIO", "StringIO"}
LOG_METHODS = {"debug", "info", "warning", "warn", "error", "exception", "critical", "log"}
WITHOUT_CONTENT = {"len", "type", "id", "isinstance", "bool", "hash"}
"""Functions whose result does not reveal what a client sent."""
LEVELS_ABOVE_INFO = ("WARN", "ERROR", "CRITICAL", "FATAL")


@rule("handler-opens", HandlerFile, "error")
def opens(file: HandlerFile) -> Iterator[Issue]:
    """Files or models are opened for every batch.

    What never changes belongs in initialize: opening it for every batch slows down each request, and fails once the
    folder is removed.
    """
    for function in file.per_batch:
        guarded = {id(part) for node in _guards(function) for part in ast.walk(node)}
        for call in calls(function):
            name = name_of(call.func) or ""
            last = last_name(call) or name
            memory = any((name_of(inner.func) or "").rpartition(".")[2] in IN_MEMORY for inner in calls(call))
            if (name in OPENERS or last in READERS) and not memory and id(call) not in guarded:
                effect = "every batch pays for it; the tokenizer or file is read again each time"
                right = f"in initialize: self.loaded = {ast.unparse(call)}"
                yield Issue(call.lineno, f"{function.name} calls {name or last}", effect, right)


def _guards(function: Function) -> Iterator[ast.If]:
    """``if self.x is None:`` and similar blocks, which run once."""
    for node in ast.walk(function):
        if isinstance(node, ast.If) and any((name_of(part) or "").startswith("self.") for part in ast.walk(node.test)):
            yield node


@rule("handler-logs-payload", HandlerFile, "error")
def logs_payload(file: HandlerFile) -> Iterator[Issue]:
    """Client input is logged.

    Every printed or logged line goes through a pipe into model_log.log and ts_log.log: personal data stays in the logs,
    and large requests make them grow without limit.
    """
    for function in file.per_batch:
        tainted = _tainted(function)
        for call in calls(function):
            name = name_of(call.func) or ""
            owner, _, last = name.rpartition(".")
            logs = name in {"print", "pprint"} or (last in LOG_METHODS and "log" in owner.lower())
            shown = sorted({each for argument in call.args for each in _plain_names(argument)} & tainted)
            if logs and shown:
                message = f"{function.name} logs {', '.join(shown)}"
                yield Issue(call.lineno, message, "client data ends up in model_log.log", f"{name}(len({shown[0]}))")


def _tainted(function: Function) -> set[str]:
    """The names that hold a request, or something taken from one."""
    if function.name not in {"handle", "preprocess", "decode_request"} or not (name := batch_name(function)):
        return set()
    tainted = {name}
    for _ in range(3):
        for node in ast.walk(function):
            value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) else None
            source = node.iter if isinstance(node, (ast.For, ast.comprehension)) else value
            if source is not None and _plain_names(source) & tainted:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]  # type: ignore[attr-defined]
                tainted |= {each for target in targets for each in names_in(target)} - {"self"}
    return tainted


def _plain_names(node: ast.AST) -> set[str]:
    """The names in an expression, except those inside ``len(...)`` and the like, or before ``.shape``."""
    if isinstance(node, ast.Call) and name_of(node.func) in WITHOUT_CONTENT:
        return set()
    if isinstance(node, ast.Attribute) and node.attr in {"shape", "dtype", "size"}:
        return set()
    if isinstance(node, ast.Name):
        return {node.id}
    return {name for child in ast.iter_child_nodes(node) for name in _plain_names(child)}


@rule("handler-training-mode", HandlerFile, "error")
def training_mode(file: HandlerFile) -> Iterator[Issue]:
    """A model left in training mode.

    A torch.nn.Module starts in training mode: dropout makes its results random, and with batch norm the requests of a
    batch influence each other.
    """
    if file.uses_tsbatch:
        return
    loads, evaluates = [], False
    for call in calls(file.tree):
        last = last_name(call)
        evaluates |= last == "eval" or (last == "train" and "False" in ast.unparse(call))
        evaluates |= ast.unparse(call.func) == "super().initialize"
        if last == "load_state_dict":
            loads.append(call)
    if loads and not evaluates:
        owner = name_of(loads[0].func) or "model.load_state_dict"
        right = f"{owner.rpartition('.')[0]}.eval()"
        yield Issue(loads[0].lineno, "the model is never switched to evaluation mode", "results are random", right)


@rule("handler-sleeps", HandlerFile, "warning")
def sleeps(file: HandlerFile) -> Iterator[Issue]:
    """A handler that sleeps.

    While handle sleeps, the worker takes no other batch, and the requests behind it wait.
    """
    for function, call, name in file.batch_calls():
        if name in {"time.sleep", "sleep"}:
            yield Issue(call.lineno, f"{function.name} sleeps", "all requests behind it wait", "remove it")


@rule("handler-root-logging", HandlerFile, "warning")
def root_logging(file: HandlerFile) -> Iterator[Issue]:
    """The root logger is changed.

    The worker's metrics are log lines at level INFO on stdout; a handler that reconfigures the root logger or raises
    its level loses HandlerTime and all other metrics.
    """
    for call in calls(file.tree):
        name, text = name_of(call.func), ast.unparse(call)
        if name == "logging.disable":
            changed = not any(word in text for word in ("NOTSET", "DEBUG"))
        elif name == "logging.basicConfig":
            changed = "force=True" in text
        else:
            root = text.startswith(("logging.getLogger().setLevel", "logging.root.setLevel"))
            changed = root and any(word in text for word in LEVELS_ABOVE_INFO)
        if changed:
            right = "logging.getLogger(__name__).setLevel(logging.WARNING)"
            yield Issue(call.lineno, "the root logger is changed", "HandlerTime and other metrics are lost", right)


@rule("handler-no-handler-time", HandlerFile, "note")
def no_handler_time(file: HandlerFile) -> Iterator[Issue]:
    """handle() without HandlerTime.

    BaseHandler.handle emits the metric HandlerTime; a handler that overrides it must emit the metric itself, otherwise
    the handler's time is not recorded.
    """
    if file.uses_tsbatch or b"HandlerTime" in file.source.data:
        return
    for node in file.classes:
        handle = methods(node).get("handle")
        if handle and node.bases and "super().handle" not in ast.unparse(handle):
            right = 'context.metrics.add_time("HandlerTime", milliseconds, None, "ms")'
            yield Issue(handle.lineno, "handle is overridden", "model_metrics.log has no HandlerTime", right)


@rule("handler-fixed-gpu", HandlerFile, "warning")
def fixed_gpu(file: HandlerFile) -> Iterator[Issue]:
    """The same GPU for every worker.

    TorchServe assigns each worker a GPU in context.system_properties['gpu_id']; plain 'cuda' is GPU 0 for all of them.
    """
    if b"gpu_id" in file.source.data or file.uses_tsbatch:
        return
    for call in calls(file.tree):
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        texts = (each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str))
        last, first = last_name(call), next(texts, None)
        bare = last == "cuda" and not call.args and name_of(call.func) != "torch.cuda"
        if bare or (last in {"device", "to"} and first in {"cuda", "cuda:0"}):
            right = 'torch.device("cuda", context.system_properties["gpu_id"])'
            yield Issue(call.lineno, "gpu_id is not used", "all workers share GPU 0", right)
