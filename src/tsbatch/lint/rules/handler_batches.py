"""Rules over how a handler treats the requests of a batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tsbatch.lint.findings import Found
from tsbatch.lint.handler_file import Function, HandlerFile, batch_name, calls, name_of, names_in
from tsbatch.lint.registry import rule

MISMATCH = "every request of a batch gets 503: number of batch response mismatched"
UNPICKLERS = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "cPickle.load", "cPickle.loads", "dill.load", "dill.loads"),
    *("joblib.load", "cloudpickle.load", "cloudpickle.loads", "marshal.loads", "shelve.open", "pandas.read_pickle"),
    "pd.read_pickle",
}
LOOK_AT_ONCE = {"len", "isinstance", "type", "print", "bool"}
"""Calls that take the list and do not answer for its elements."""
EVALUATORS = {"eval", "exec", "ast.literal_eval", "literal_eval"}


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function without those of the functions and classes inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)


def walks_over(function: Function, name: str) -> bool:
    """Whether a function looks at every element of the list ``name``, or hands the whole of it on."""
    nodes = list(ast.walk(function))
    loops = [node.iter for node in nodes if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension))]
    handed = [argument for call in calls(function) if name_of(call.func) not in LOOK_AT_ONCE for argument in call.args]
    counted = {id(part) for call in calls(function) if name_of(call.func) == "len" for part in ast.walk(call)}
    indexed = [node for node in nodes if isinstance(node, ast.Subscript) and name_of(node.value) == name]
    elsewhere = {id(node.value) for node in indexed} | counted
    whole = [part for node in (*loops, *handed) for part in ast.walk(node) if name_of(part) == name]
    return any(id(part) not in elsewhere for part in whole) or any(
        not isinstance(node.slice, ast.Constant) for node in indexed
    )


@rule(
    "handler-first-only",
    HandlerFile,
    "error",
    "only the first request of the batch is looked at",
    "handle and preprocess get a list with one element for each request. With batchSize above 1 the others are lost, "
    "and when fewer results come back than requests went in, all of them fail.",
)
def first_only(file: HandlerFile) -> Iterator[Found]:
    """``data[0]`` where nothing else of ``data`` is used."""
    for stage in ("handle", "preprocess"):
        for function in file.stage(stage):
            name = batch_name(function)
            if name is None or walks_over(function, name):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Subscript) and name_of(node.value) == name and _is_zero(node.slice):
                    right = f"[... for row in {name}]"
                    yield Found(node.lineno, f"{stage} uses {name}[0] alone", MISMATCH, right)
                    break


def _is_zero(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0 and not isinstance(node.value, bool)


@rule(
    "handler-one-answer",
    HandlerFile,
    "error",
    "one answer whatever the number of requests",
    "handle must return a list with as many elements as it got requests, in their order.",
)
def one_answer(file: HandlerFile) -> Iterator[Found]:
    """``return [result]`` in handle or postprocess."""
    for stage in ("handle", "postprocess"):
        for function in file.stage(stage):
            name = batch_name(function)
            for node in own_nodes(function):
                value = node.value if isinstance(node, ast.Return) else None
                single = (
                    isinstance(value, ast.List) and len(value.elts) == 1 and not isinstance(value.elts[0], ast.Starred)
                )
                if single and value is not None and not (name and _guards_one(function, name)):
                    yield Found(value.lineno, f"{stage} returns one element", MISMATCH, "[... for row in data]")


def _guards_one(function: Function, name: str) -> bool:
    """Whether it asks how many requests there are."""
    return any(
        isinstance(node, ast.Compare)
        and any(name_of(call.func) == "len" and name in names_in(call) for call in calls(node))
        for node in ast.walk(function)
    )


@rule(
    "handler-no-list",
    HandlerFile,
    "error",
    "something else than a list is returned",
    "TorchServe takes a list alone; a tuple, a dict, a text or a generator makes every request of the batch 503: "
    "Invalid model predict output.",
)
def no_list(file: HandlerFile) -> Iterator[Found]:
    """A dict, tuple, set, text or generator as the result of handle or postprocess."""
    wrong = (ast.Dict, ast.DictComp, ast.Tuple, ast.Set, ast.SetComp, ast.GeneratorExp, ast.JoinedStr)
    for stage in ("handle", "postprocess"):
        for function in file.stage(stage):
            for node in own_nodes(function):
                value = node.value if isinstance(node, ast.Return) else None
                text = isinstance(value, ast.Constant) and isinstance(value.value, (str, bytes))
                dumped = isinstance(value, ast.Call) and name_of(value.func) in {"json.dumps", "str", "tuple", "dict"}
                if value is not None and (isinstance(value, wrong) or text or dumped):
                    effect = "every request of a batch gets 503: Invalid model predict output"
                    yield Found(value.lineno, f"{stage} returns no list", effect, "return [... for row in data]")


@rule(
    "handler-header-first",
    HandlerFile,
    "warning",
    "the first request's header decides for all",
    "get_request_header(0, ...) is the header of the batch's first request; the others may say something else.",
)
def header_first(file: HandlerFile) -> Iterator[Found]:
    """``context.get_request_header(0, ...)``."""
    for function in file.per_batch:
        for call in calls(function):
            name = name_of(call.func) or ""
            if name.endswith(("get_request_header", "get_all_request_header")) and call.args and _is_zero(call.args[0]):
                effect = "all requests of the batch are treated as the first one asked"
                right = "for index in range(len(data)): context.get_request_header(index, ...)"
                yield Found(call.lineno, f"{function.name} reads request 0's header alone", effect, right)


@rule(
    "handler-falsy",
    HandlerFile,
    "note",
    'row.get("data") or row.get("body")',
    'A body that is JSON 0, "", [], {} or false is a value, and counts as "not there" in this expression.',
)
def falsy(file: HandlerFile) -> Iterator[Found]:
    """Two ``get`` joined by ``or``."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and all(map(_is_get, node.values[:2])):
            right = 'row["data"] if "data" in row else row.get("body")'
            yield Found(node.lineno, "a falsy value is taken for none", 'a body of 0, "" or [] becomes None', right)


def _is_get(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get"


@rule(
    "handler-eval",
    HandlerFile,
    "error",
    "what a client sends is evaluated",
    "eval and exec run what a client sends; ast.literal_eval is slow, and a deeply nested text ends the process.",
)
def evaluates(file: HandlerFile) -> Iterator[Found]:
    """``eval``, ``exec`` and ``ast.literal_eval`` while handling requests."""
    for function in file.per_batch:
        for call in calls(function):
            name = name_of(call.func)
            if name in EVALUATORS and call.args and not isinstance(call.args[0], ast.Constant):
                effect = (
                    "a client runs code in the worker, or ends it" if "literal" not in name else "a client can end it"
                )
                yield Found(call.lineno, f"{name} in {function.name}", effect, "json.loads(...)")


@rule(
    "handler-pickle",
    HandlerFile,
    "error",
    "a pickle is loaded",
    "Loading a pickle runs the code in it. Use safetensors, JSON or torch.load(..., weights_only=True).",
)
def pickles(file: HandlerFile) -> Iterator[Found]:
    """``pickle.load`` and ``torch.load(weights_only=False)``, anywhere."""
    for call in calls(file.tree):
        name = name_of(call.func)
        unsafe = name == "torch.load" and _keyword(call, "weights_only") is False
        if name in UNPICKLERS or unsafe:
            right = "torch.load(..., weights_only=True)" if unsafe else "safetensors.torch.load_file(...)"
            yield Found(call.lineno, f"{name} runs what the file says", "whoever writes the file runs code here", right)


@rule(
    "handler-torch-load",
    HandlerFile,
    "warning",
    "torch.load that leaves open what it may run",
    "Without weights_only torch before 2.6 runs the code in the file, and from 2.6 on refuses whole models.",
)
def torch_load(file: HandlerFile) -> Iterator[Found]:
    """``torch.load`` without ``weights_only``."""
    for call in calls(file.tree):
        given = [keyword.arg for keyword in call.keywords]
        if name_of(call.func) == "torch.load" and "weights_only" not in given and None not in given:
            effect = "before torch 2.6 it runs code in the file; from 2.6 on it refuses anything but weights"
            yield Found(call.lineno, "torch.load without weights_only", effect, "torch.load(..., weights_only=True)")


def _keyword(call: ast.Call, name: str) -> object:
    found = [keyword.value for keyword in call.keywords if keyword.arg == name]
    return found[0].value if found and isinstance(found[0], ast.Constant) else None
