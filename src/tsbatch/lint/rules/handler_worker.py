"""Rules over what a handler does to its worker: files, logs, sleep, device, mode of the model."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tsbatch.lint.findings import Found
from tsbatch.lint.handler_file import Function, HandlerFile, batch_name, calls, methods, name_of, names_in
from tsbatch.lint.registry import rule

OPENERS = {
    *("open", "io.open", "torch.load", "torch.jit.load", "torch.export.load", "pipeline", "transformers.pipeline"),
    *("np.load", "numpy.load", "safetensors.torch.load_file", "load_file", "ort.InferenceSession"),
    *("onnxruntime.InferenceSession", "InferenceSession", "yaml.safe_load", "json.load"),
}
READERS = ("from_pretrained", "read_text", "read_bytes", "from_file")
IN_MEMORY = {"BytesIO", "StringIO"}
LOG_CALLS = {"debug", "info", "warning", "warn", "error", "exception", "critical", "log"}
HARMLESS = {"len", "type", "id", "isinstance", "bool", "hash"}


@rule(
    "handler-opens",
    HandlerFile,
    "error",
    "files or models opened for every batch",
    "What never changes belongs into initialize: opening it for every batch costs each request its time, and fails "
    "when the folder goes.",
)
def opens(file: HandlerFile) -> Iterator[Found]:
    """``from_pretrained``, ``open`` and their like in what runs for every batch."""
    for function in file.per_batch:
        guarded = {id(part) for node in _guards(function) for part in ast.walk(node)}
        for call in calls(function):
            name = name_of(call.func) or ""
            last = call.func.attr if isinstance(call.func, ast.Attribute) else name
            memory = any((name_of(inner.func) or "").rpartition(".")[2] in IN_MEMORY for inner in calls(call))
            if (name in OPENERS or last in READERS) and not memory and id(call) not in guarded:
                effect = "every batch pays for it; the tokenizer or file is read again for each"
                right = f"in initialize: self.loaded = {ast.unparse(call)}"
                yield Found(call.lineno, f"{function.name} calls {name or last}", effect, right)


def _guards(function: Function) -> Iterator[ast.If]:
    """``if self.x is None:`` and the like: done once."""
    for node in ast.walk(function):
        if isinstance(node, ast.If) and any((name_of(part) or "").startswith("self.") for part in ast.walk(node.test)):
            yield node


@rule(
    "handler-logs-payload",
    HandlerFile,
    "error",
    "what clients send is logged",
    "Every printed or logged line goes through a pipe into model_log.log and ts_log.log: personal data stays in the "
    "logs, and large requests make them grow without end.",
)
def logs_payload(file: HandlerFile) -> Iterator[Found]:
    """``print(data)`` and ``logger.info("... %s", text)``."""
    for function in file.per_batch:
        tainted = _tainted(function)
        for call in calls(function):
            name = name_of(call.func) or ""
            owner, _, last = name.rpartition(".")
            logs = name in {"print", "pprint"} or (last in LOG_CALLS and "log" in owner.lower())
            shown = {each for argument in call.args for each in _plain_names(argument)}
            if logs and shown & tainted:
                what = ", ".join(sorted(shown & tainted))
                effect = "the clients' data lands in model_log.log"
                yield Found(call.lineno, f"{function.name} logs {what}", effect, f"{name}(len({what.split(',')[0]}))")


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
    """The names in an expression, but for those inside ``len(...)`` and the like or before ``.shape``."""
    if isinstance(node, ast.Call) and name_of(node.func) in HARMLESS:
        return set()
    if isinstance(node, ast.Attribute) and node.attr in {"shape", "dtype", "size"}:
        return set()
    if isinstance(node, ast.Name):
        return {node.id}
    return {name for child in ast.iter_child_nodes(node) for name in _plain_names(child)}


@rule(
    "handler-training-mode",
    HandlerFile,
    "error",
    "a model left in training mode",
    "A torch.nn.Module starts in training mode: dropout makes its answers random, and batch norm lets the requests of "
    "a batch change each other.",
)
def training_mode(file: HandlerFile) -> Iterator[Found]:
    """``load_state_dict`` without an ``eval()``."""
    if file.uses_tsbatch:
        return
    loads, quiet = [], False
    for call in calls(file.tree):
        last = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        quiet |= last == "eval" or (last == "train" and "False" in ast.unparse(call))
        quiet |= (name_of(call.func) or "") == "super().initialize" or ast.unparse(call.func) == "super().initialize"
        if last == "load_state_dict":
            loads.append(call)
    if loads and not quiet:
        owner = name_of(loads[0].func) or "model.load_state_dict"
        right = f"{owner.rpartition('.')[0]}.eval()"
        yield Found(loads[0].lineno, "the model is never put into evaluation mode", "answers are random", right)


@rule(
    "handler-sleeps",
    HandlerFile,
    "warning",
    "a handler that sleeps",
    "While handle sleeps the worker takes no other batch, and the requests behind it wait.",
)
def sleeps(file: HandlerFile) -> Iterator[Found]:
    """``time.sleep`` while handling requests."""
    for function in file.per_batch:
        for call in calls(function):
            if name_of(call.func) in {"time.sleep", "sleep"}:
                yield Found(call.lineno, f"{function.name} sleeps", "all requests behind it wait", "remove it")


@rule(
    "handler-root-logging",
    HandlerFile,
    "warning",
    "the root logger is changed",
    "The worker's metrics are log lines at level INFO on stdout; a handler that sets the root logger up again or "
    "raises its level loses HandlerTime and all others.",
)
def root_logging(file: HandlerFile) -> Iterator[Found]:
    """``logging.basicConfig(force=True)``, ``logging.disable`` and a root logger above INFO."""
    high = ("WARN", "ERROR", "CRITICAL", "FATAL")
    for call in calls(file.tree):
        name, text = name_of(call.func), ast.unparse(call)
        if name == "logging.disable":
            hit = not any(word in text for word in ("NOTSET", "DEBUG"))
        elif name == "logging.basicConfig":
            hit = "force=True" in text
        else:
            hit = text.startswith(("logging.getLogger().setLevel", "logging.root.setLevel")) and any(
                word in text for word in high
            )
        if hit:
            right = "logging.getLogger(__name__).setLevel(logging.WARNING)"
            yield Found(call.lineno, "the root logger is changed", "HandlerTime and other metrics are lost", right)


@rule(
    "handler-no-handler-time",
    HandlerFile,
    "note",
    "handle() without HandlerTime",
    "The metric HandlerTime comes from BaseHandler.handle; who overrides it must emit it, or the handler's time shows "
    "nowhere.",
)
def no_handler_time(file: HandlerFile) -> Iterator[Found]:
    """An own ``handle`` that neither calls the base's nor emits the metric."""
    if file.uses_tsbatch or b"HandlerTime" in file.source.data:
        return
    for node in file.classes:
        handle = methods(node).get("handle")
        if handle and node.bases and "super().handle" not in ast.unparse(handle):
            right = 'context.metrics.add_time("HandlerTime", milliseconds, None, "ms")'
            yield Found(handle.lineno, "handle is overridden", "model_metrics.log has no HandlerTime", right)


@rule(
    "handler-fixed-gpu",
    HandlerFile,
    "warning",
    "the same GPU for every worker",
    "TorchServe gives each worker a GPU in context.system_properties['gpu_id']; 'cuda' alone is GPU 0 for all of them.",
)
def fixed_gpu(file: HandlerFile) -> Iterator[Found]:
    """``torch.device("cuda")`` and ``.cuda()``."""
    if b"gpu_id" in file.source.data or file.uses_tsbatch:
        return
    for call in calls(file.tree):
        last = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        first = next((text for part in given if (text := _text(part)) is not None), None)
        bare = last == "cuda" and not call.args and name_of(call.func) != "torch.cuda"
        if bare or (last in {"device", "to"} and first in {"cuda", "cuda:0"}):
            right = 'torch.device("cuda", context.system_properties["gpu_id"])'
            yield Found(call.lineno, "gpu_id is not used", "all workers share GPU 0", right)


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
