"""Remedies for failed loads: the most common causes, recognized by the text of the exception.

``remedy(text)`` takes the first cause in :data:`CAUSES` whose pattern matches, so narrow patterns come first. The texts
are those of Python, torch, transformers, safetensors and TorchServe.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

PIP_NAMES = {
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "fitz": "PyMuPDF",
    "google.protobuf": "protobuf",
    "PIL": "Pillow",
    "sentence_transformers": "sentence-transformers",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
}
"""Imports whose package has another name."""


class Cause(NamedTuple):
    """One cause of a failed load.

    Attributes:
        name: a short name.
        pattern: matches the text of the exception, in any case.
        remedy: what to do, in one sentence: a format string of the match and its groups, or a function of the match.
    """

    name: str
    pattern: str
    remedy: str | Callable[[re.Match[str]], str]


def remedy(text: str) -> str | None:
    """Return what to do about a load that failed with this text; None if the cause is unknown."""
    for cause in CAUSES:
        if match := re.search(cause.pattern, text, re.IGNORECASE):
            words = cause.remedy
            return words.format(match[0], **match.groupdict()) if isinstance(words, str) else words(match)
    return None


def _package(match: re.Match[str]) -> str:
    module = match["module"]
    top = module.partition(".")[0]
    name = PIP_NAMES.get(module) or PIP_NAMES.get(top) or top
    return (
        f"the worker cannot import {module}: add a package to requirements.txt (tsbatch package --requirements, and "
        f"install_py_dep_per_model=true in config.properties) or to the worker's environment (pip install {name}), and "
        f"a file of your own to the archive (tsbatch package --extra {top}.py)"
    )


def _file(match: re.Match[str]) -> str:
    file = match["file"]
    if file.startswith("/") or file[1:2] == ":":
        return (
            f"{file} is a path on another machine: package the file (--extra) and open it below "
            'context.system_properties["model_dir"]'
        )
    return f"add {file} to the archive (tsbatch package --extra {file}), which is the handler's working folder"


FEW_WORKERS = "start fewer workers (minWorkers), use a smaller dtype, or add memory"

CAUSES: tuple[Cause, ...] = (
    Cause(
        "no handler file",
        r"No module named 'ts\.torch_handler\.(?P<handler>[^']+)'",
        "neither the archive nor TorchServe has a handler {handler}: package the model again with --handler",
    ),
    Cause(
        "hidden module",
        r"No module named '(?P<module>[^']+)'; '(?P<top>[^']+)' is not a package",
        "a file {top}.py in the archive hides the package {top}: rename the file",
    ),
    Cause("missing package", r"No module named '(?P<module>[^']+)'", _package),
    Cause(
        "other version of a package",
        r"cannot import name '(?P<name>[^']+)' from '(?P<module>[^']+)'|has no attribute '__version__'",
        "the handler was written for another version of this package: pin a version that works in requirements.txt",
    ),
    Cause(
        "missing system library",
        r"(?P<library>lib\S+\.so\S*): cannot open shared object file",
        "the machine lacks the system library {library}: install the package with it",
    ),
    Cause(
        "torch and its companions",
        r"operator torchvision::|undefined symbol: _ZN\w*(c10|torch|at)|torchvision.*(incompatible|circular import)",
        "torchvision or another extension was built for a different torch: install the release that matches your torch",
    ),
    Cause(
        "numpy's binary interface",
        r"numpy\.dtype size changed|_ARRAY_API not found|compiled using NumPy 1\.x",
        "a package was built for another major version of numpy: upgrade the package, or pin numpy to that version",
    ),
    Cause(
        "trust_remote_code",
        r"trust_remote_code|requires you to execute the (configuration|modeling|\w+) file",
        "the model folder contains its own code: review it, then set tsbatch.trust_remote_code: true in "
        "model-config.yaml (in your own handler: trust_remote_code=True)",
    ),
    Cause(
        "gated or unreachable hub",
        r"gated repo|couldn't connect to|we couldn't connect|OfflineModeIsEnabled|offline mode|LocalEntryNotFound|"
        r"is not a local folder and is not a valid model identifier|Max retries exceeded|401 Client Error|"
        r"Repository Not Found|Cannot reach https?://|Temporary failure in name resolution",
        "the handler downloads from a model hub: package the whole model folder (save_pretrained) and load it from "
        'context.system_properties["model_dir"]',
    ),
    Cause(
        "tokenizers or transformers too old",
        r"did not match any variant of untagged enum|does not recognize this architecture|"
        r"Unrecognized (model|configuration class)|Tokenizer class \w+ does not exist",
        "a newer release saved the folder: run pip install -U transformers tokenizers in the worker's environment",
    ),
    Cause(
        "missing tokenizer files",
        r"Can't load tokenizer|tokenizer cannot be loaded|instantiate the backend tokenizer|"
        r"load(ing)? (the )?vocabulary|Unable to load vocabulary|(vocab\.txt|tokenizer\.json|spiece\.model)\b.*"
        r"(not found|missing|No such file)|No such file.*(vocab\.txt|tokenizer\.json|spiece\.model)",
        "save the tokenizer in the model folder (tokenizer.save_pretrained(FOLDER)) and package the folder again",
    ),
    Cause(
        "another number of classes",
        r"size mismatch for .*?torch\.Size\(\[(?P<saved>[\d, ]*)\]\) from checkpoint, the shape in current model is "
        r"torch\.Size\(\[(?P<built>[\d, ]*)\]\)",
        "the weights were saved with shape [{saved}] but the model was built with [{built}]: build "
        "it with the number of classes it was trained with (num_labels, out_features), or package other weights",
    ),
    Cause(
        "a prefix of DataParallel or Lightning",
        r"(Missing|Unexpected) key\(s\).*\"(module|model|_orig_mod)\.",
        "the weights were saved from a wrapped model: save model.module.state_dict() (torch.compile: "
        "model._orig_mod), or remove the prefix from the keys",
    ),
    Cause(
        "another model",
        r"(Missing|Unexpected) key\(s\) in state_dict|does not fit \w+",
        "the weights belong to another class or version of the model: package the model code they were trained with",
    ),
    Cause(
        "damaged safetensors",
        r"SafetensorError|HeaderTooLarge|HeaderTooSmall|InvalidHeader|MetadataIncompleteBuffer|"
        r"incomplete metadata|deserializing header",
        "the file is truncated, or a git-lfs pointer of a few hundred bytes: copy it again and compare its SHA-256",
    ),
    Cause(
        "damaged weights",
        r"PytorchStreamReader failed|failed finding central directory|archive is corrupted|unexpected EOF|"
        r"Ran out of input|not a ZIP archive|cannot be read as weights|not TorchScript",
        "the weights file is damaged or has another format: copy it again and compare its SHA-256; a git-lfs pointer "
        "has only a few hundred bytes",
    ),
    Cause(
        "more than weights",
        r"UnpicklingError|weights_only|holds more than weights|Weights only load failed",
        "a pickled module can run any code: save only the weights "
        "(safetensors.torch.save_file(model.state_dict(), FILE)) and build the module in the handler",
    ),
    Cause(
        "no GPU here",
        r"Attempting to deserialize object on a CUDA device|No CUDA GPUs are available|Found no NVIDIA driver|"
        r"not compiled with CUDA",
        "the weights or the handler need a GPU that this worker does not have: load with map_location=device, and use "
        "only the device of the context",
    ),
    Cause(
        "GPU memory",
        r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_(NOT_INITIALIZED|ALLOC_FAILED)|OutOfMemoryError",
        f"the GPU does not have enough memory for another worker: {FEW_WORKERS}",
    ),
    Cause(
        "memory",
        r"MemoryError|DefaultCPUAllocator|Cannot allocate memory|exit code 137|killed for memory|memory ran out|"
        r"System out of memory",
        f"the machine does not have enough memory for the model: {FEW_WORKERS}; tsbatch check shows the peak",
    ),
    Cause(
        "disk full",
        r"No space left on device|Disk quota exceeded",
        "the disk is full: TorchServe unpacks each archive below its temporary folder (TEMP); free space, or package "
        "with --format folder",
    ),
    Cause(
        "permission",
        r"(PermissionError|Permission denied).*?'(?P<file>[^']+)'",
        "the server's user has no permission for {file}: grant it, or use another folder",
    ),
    Cause("missing file", r"(FileNotFoundError|No such file or directory).*?'(?P<file>[^']+)'", _file),
    Cause(
        "no file in the archive",
        r"no such file in the archive|Missing the [\w.]+ file|No model weights could be loaded|"
        r"no file named .* found in directory",
        "package the archive again with that file (tsbatch package --model FOLDER, or --extra FILE)",
    ),
    Cause(
        "no class, or two",
        r"Expected only one class",
        "TorchServe expects exactly one class in the handler's file: move dataclasses, enums and helpers to another "
        "file, and for an imported handler write 'class MyHandler(Imported): pass'",
    ),
    Cause(
        "no handle or initialize",
        r"Expect handle method in class|has no attribute '(initialize|handle)'",
        "the class is not a handler: inherit from tsbatch.BatchHandler or BaseHandler",
    ),
    Cause(
        "a name handle in the module",
        r"\bhandle\(\) (takes|missing|got)|'module' object is not callable|object is not callable|\(\) takes no arg",
        "TorchServe uses a name 'handle' in the handler's file, or after a colon, as a function handle(data, context) "
        "instead of the class: rename it, or remove the colon",
    ),
    Cause(
        "a function called with nothing",
        r"'NoneType' object is not (iterable|subscriptable)|object of type 'NoneType' has no len",
        "TorchServe calls a handler function once with data None to initialize it: return None in that case",
    ),
    Cause(
        "not Python",
        r"(SyntaxError|IndentationError|TabError)",
        "the worker's Python cannot parse this file: correct the line, or use the Python version it was written for",
    ),
    Cause(
        "dtype",
        r"expected scalar type \w+ but found \w+|expected m1 and m2 to have the same dtype(, but got: [^;\"]{0,40})?|"
        r"mat1 and mat2 must have the same dtype(, but got \w+ and \w+)?|"
        r"Input type \([^)]*\) and (weight|bias) type \([^)]*\)|"
        r"not implemented for '(Half|BFloat16|Char|Byte|Long)'",
        "two data types do not match ({0}): convert the model or the input, for example with "
        ".to(torch.float32), or set tsbatch.dtype in model-config.yaml",
    ),
    Cause(
        "number of labels",
        r"\d+ labels?\b.{0,60}?\b\d+ (outputs?|classes|scores|logits)|"
        r"\d+ (outputs?|classes|scores|logits)\b.{0,60}?\b\d+ labels?",
        "the label file does not match the weights ({0}): write one label per output, in the order used in "
        "training, and package the model again",
    ),
    Cause(
        "broken JSON",
        r"JSONDecodeError|Expecting value: line|is not valid JSON|is no manifest of a model",
        "a JSON file in the archive is invalid or empty: check it with python -m json.tool and package again",
    ),
    Cause(
        "broken YAML",
        r"yaml\.\w+\.\w*Error|mapping values are not allowed|cannot be read: .*(while (parsing|scanning))",
        "model-config.yaml is not valid YAML: use spaces instead of tabs, and a space after each colon",
    ),
    Cause(
        "encoding",
        r"UnicodeDecodeError",
        "a file is read with the worker's default encoding: open it with encoding='utf-8'",
    ),
    Cause(
        "crash in native code",
        r"exit code (139|134|132)|Segmentation fault|Illegal instruction",
        "native code crashed, for example in a package built for another processor or torch: run the handler with "
        "python -X faulthandler to find it",
    ),
    Cause(
        "an end without output",
        r"ended without output",
        "the process was killed, perhaps because memory ran out, or called os._exit: tsbatch check ARCHIVE shows its "
        "exit code and peak memory",
    ),
)
"""The known causes, narrow patterns first."""
