"""Rules for how a handler treats the requests of a batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tsbatch.lint.findings import Issue
from tsbatch.lint.handler_file import HandlerFile, batch_name, calls, name_of, names_in
from tsbatch.lint.registry import rule
from tsbatch.packaging.handler_files import Function

MISMATCH = "every request of a batch gets 503: number of batch response mismatched"
UNPICKLERS = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "cPickle.load", "cPickle.loads", "dill.load", "dill.loads"),
    *("joblib.load", "cloudpickle.load", "cloudpickle.loads", "marshal.loads", "shelve.open", "pandas.read_pickle"),
    "pd.read_pickle",
}
NOT_ELEMENTWISE = {"len", "isinstance", "type", "print", "bool"}
"""Functions that take the list without processing its elements."""
EVALUATORS = {"eval", "exec", "ast.literal_eval", "literal_eval"}
NO_LISTS = (ast.Dict, ast.DictComp, ast.Tuple, ast.Set, ast.SetComp, ast.GeneratorExp, ast.JoinedStr)


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function without those of the functions and classes inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)


def _returned(file: HandlerFile) -> Iterator[tuple[Function, ast.expr]]:
    """The values that handle and postprocess return, each with its function."""
    for stage in ("handle", "postprocess"):
        for function in file.stage(stage):
            for node in _own_nodes(function):
                if isinstance(node, ast.Return) and node.value is not None:
                    yield function, node.value


def _processes_all(function: Function, name: str) -> bool:
    """Whether a function processes every element of the list ``name``, or passes the whole list on."""
    nodes = list(ast.walk(function))
    loops = [node.iter for node in nodes if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension))]
    passed = [
        argument for call in calls(function) if name_of(call.func) not in NOT_ELEMENTWISE for argument in call.args
    ]
    counted = {id(part) for call in calls(function) if name_of(call.func) == "len" for part in ast.walk(call)}
    indexed = [node for node in nodes if isinstance(node, ast.Subscript) and name_of(node.value) == name]
    elsewhere = {id(node.value) for node in indexed} | counted
    whole = [part for node in (*loops, *passed) for part in ast.walk(node) if name_of(part) == name]
    return any(id(part) not in elsewhere for part in whole) or any(
        not isinstance(node.slice, ast.Constant) for node in indexed
    )


@rule("handler-first-only", HandlerFile, "error")
def first_only(file: HandlerFile) -> Iterator[Issue]:
    """Only the first request of the batch is processed.

    handle and preprocess get a list with one element for each request. With batchSize above 1 the other requests are
    lost, and if a handler returns fewer results than requests, all of them fail.
    """
    for stage in ("handle", "preprocess"):
        for function in file.stage(stage):
            name = batch_name(function)
            if name is None or _processes_all(function, name):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Subscript) and name_of(node.value) == name and _is_zero(node.slice):
                    yield Issue(node.lineno, f"{stage} uses only {name}[0]", MISMATCH, f"[... for row in {name}]")
                    break


def _is_zero(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0 and not isinstance(node.value, bool)


@rule("handler-one-answer", HandlerFile, "error")
def one_answer(file: HandlerFile) -> Iterator[Issue]:
    """One result for any number of requests.

    handle must return a list with one element for each request, in the same order.
    """
    for function, value in _returned(file):
        single = isinstance(value, ast.List) and len(value.elts) == 1 and not isinstance(value.elts[0], ast.Starred)
        if single and not _checks_length(function, batch_name(function)):
            yield Issue(value.lineno, f"{function.name} returns one element", MISMATCH, "[... for row in data]")


def _checks_length(function: Function, name: str | None) -> bool:
    """Whether a function compares the number of requests with something."""
    return any(
        name_of(call.func) == "len" and name in names_in(call)
        for node in ast.walk(function)
        if isinstance(node, ast.Compare)
        for call in calls(node)
    )


@rule("handler-no-list", HandlerFile, "error")
def no_list(file: HandlerFile) -> Iterator[Issue]:
    """The handler returns something other than a list.

    TorchServe accepts only a list; for a tuple, a dict, a string or a generator, every request of the batch gets 503:
    Invalid model predict output.
    """
    for function, value in _returned(file):
        text = isinstance(value, ast.Constant) and isinstance(value.value, (str, bytes))
        dumped = isinstance(value, ast.Call) and name_of(value.func) in {"json.dumps", "str", "tuple", "dict"}
        if isinstance(value, NO_LISTS) or text or dumped:
            effect = "every request of a batch gets 503: Invalid model predict output"
            message = f"{function.name} does not return a list"
            yield Issue(value.lineno, message, effect, "return [... for row in data]")


@rule("handler-header-first", HandlerFile, "warning")
def header_first(file: HandlerFile) -> Iterator[Issue]:
    """The first request's header decides for the whole batch.

    get_request_header(0, ...) returns the header of the first request in the batch; the other requests may have another
    one.
    """
    for function, call, name in file.batch_calls():
        if name.endswith(("get_request_header", "get_all_request_header")) and call.args and _is_zero(call.args[0]):
            effect = "all requests of the batch are treated as the first one asks"
            right = "for index in range(len(data)): context.get_request_header(index, ...)"
            yield Issue(call.lineno, f"{function.name} reads only the header of request 0", effect, right)


@rule("handler-falsy", HandlerFile, "note")
def falsy(file: HandlerFile) -> Iterator[Issue]:
    """row.get("data") or row.get("body").

    A body that is JSON 0, "", [], {} or false is a value, but this expression treats it as missing.
    """
    for node in ast.walk(file.tree):
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and all(map(_is_get, node.values[:2])):
            right = 'row["data"] if "data" in row else row.get("body")'
            effect = 'a body of 0, "" or [] becomes None'
            yield Issue(node.lineno, "a falsy value is treated as missing", effect, right)


def _is_get(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get"


@rule("handler-eval", HandlerFile, "error")
def evaluates(file: HandlerFile) -> Iterator[Issue]:
    """Client input is evaluated.

    eval and exec run code that a client sends; ast.literal_eval is slow, and deeply nested text crashes the process.
    """
    for function, call, name in file.batch_calls():
        if name in EVALUATORS and call.args and not isinstance(call.args[0], ast.Constant):
            can = "crash the worker" if "literal" in name else "run code in the worker, or crash it"
            yield Issue(call.lineno, f"{name} in {function.name}", f"a client can {can}", "json.loads(...)")


@rule("handler-pickle", HandlerFile, "error")
def pickles(file: HandlerFile) -> Iterator[Issue]:
    """A pickle is loaded.

    Loading a pickle runs the code in it. Use safetensors, JSON or torch.load(..., weights_only=True).
    """
    for call in calls(file.tree):
        name = name_of(call.func)
        unsafe = name == "torch.load" and any(
            isinstance(each.value, ast.Constant) and each.value.value is False
            for each in call.keywords
            if each.arg == "weights_only"
        )
        if name in UNPICKLERS or unsafe:
            right = "torch.load(..., weights_only=True)" if unsafe else "safetensors.torch.load_file(...)"
            yield Issue(call.lineno, f"{name} runs code in the file", "whoever writes the file runs code here", right)


@rule("handler-torch-load", HandlerFile, "warning")
def torch_load(file: HandlerFile) -> Iterator[Issue]:
    """torch.load without weights_only.

    Without weights_only, torch before 2.6 runs the code in the file, and torch 2.6 or later refuses whole models.
    """
    for call in calls(file.tree):
        given = [keyword.arg for keyword in call.keywords]
        if name_of(call.func) == "torch.load" and "weights_only" not in given and None not in given:
            effect = "before torch 2.6 it runs code in the file; from 2.6 on it refuses anything but weights"
            yield Issue(call.lineno, "torch.load without weights_only", effect, "torch.load(..., weights_only=True)")
